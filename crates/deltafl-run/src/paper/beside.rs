//! Comparison of the results of a run with those of the paper.

use std::fmt::Write as _;

use deltafl::metrics::OverSeeds;
use deltafl::task::Metric;
use deltafl_data::run_folder::Summary;
use serde::Serialize;

use super::presets::{Pair, Preset, Reported};
use crate::text_table;

/// The results of a pair.
#[derive(Debug, Serialize)]
pub struct PaperComparison {
    pair: &'static str,
    rounds: u64,
    rounds_of_paper: u64,
    seeds: usize,
    seeds_of_paper: usize,
    devices: usize,
    devices_of_paper: usize,
    tracks: Vec<ComparedTrack>,
    #[serde(skip)]
    metric: &'static Metric,
}

/// A row: the test metric, with shares as fractions.
#[derive(Debug, Serialize)]
struct ComparedTrack {
    track: String,
    mean: Option<OverSeeds>,
    mean_of_paper: Option<OverSeeds>,
    p90: Option<OverSeeds>,
    p90_of_paper: Option<OverSeeds>,
}

impl PaperComparison {
    /// Creates the comparison for a run on a federation of `devices` devices.
    pub fn new(pair: Pair, summary: &Summary, devices: usize) -> Self {
        let preset = pair.preset();
        let paper = preset.experiment();
        let first = summary.tracks.first();
        Self {
            pair: preset.name,
            rounds: first.map_or(0, |track| track.rounds),
            rounds_of_paper: paper.rounds(),
            seeds: first.map_or(0, |track| track.seeds),
            seeds_of_paper: paper.seeds().len(),
            devices,
            devices_of_paper: preset.devices,
            tracks: tracks(preset, summary),
            metric: summary.task.primary(),
        }
    }

    /// Renders the comparison as plain text.
    pub fn rendered(&self) -> String {
        let header = ["", "mean", "the paper", "90th percentile", "the paper"].map(str::to_owned);
        let rows = std::iter::once(header).chain(self.tracks.iter().map(|track| self.row(track)));
        let rows: Vec<[String; 5]> = rows.collect();
        format!("{}\n\n{}{}", self.heading(), text_table::aligned(&rows), self.caveats("  "))
    }

    /// Renders the comparison as Markdown.
    pub fn markdown(&self) -> String {
        let mut text = format!(
            "**{}**\n\n| | mean | the paper | 90th percentile | the paper |\n|---|---:|---:|---:|---:|\n",
            self.heading()
        );
        for track in &self.tracks {
            let _ = writeln!(text, "| {} |", self.row(track).join(" | "));
        }
        let _ = writeln!(text, "\n{}", self.caveats(""));
        text
    }

    fn heading(&self) -> String {
        let plural = if self.seeds == 1 { "seed" } else { "seeds" };
        let metric = self.metric.heading();
        format!("{}: test {metric} after {} rounds, {} {plural}", self.pair, self.rounds, self.seeds)
    }

    fn row(&self, track: &ComparedTrack) -> [String; 5] {
        let figures = self.tracks.iter().flat_map(|track| [track.mean, track.p90]).flatten();
        let digits = text_table::decimals(self.metric, figures.map(|figure| figure.mean));
        let cell = |figure: Option<OverSeeds>| {
            figure.map_or_else(|| "–".to_owned(), |figure| text_table::formatted(self.metric, figure, digits))
        };
        [
            track.track.clone(),
            cell(track.mean),
            cell(track.mean_of_paper),
            cell(track.p90),
            cell(track.p90_of_paper),
        ]
    }

    /// Returns the differences from the paper's experiment.
    fn caveats(&self, indent: &str) -> String {
        let mut text = String::new();
        let mut note = |differs: bool, line: String| {
            if differs {
                let _ = writeln!(text, "{indent}{line}");
            }
        };
        let (rounds, seeds, devices) = (self.rounds_of_paper, self.seeds_of_paper, self.devices_of_paper);
        note(self.rounds != rounds, format!("The paper trained {rounds} rounds, this run {}.", self.rounds));
        note(self.seeds != seeds, format!("The paper had {seeds} seeds, this run {}.", self.seeds));
        note(
            self.devices != devices,
            format!(
                "The paper had {devices} devices, this federation {}: compare the order of the tracks.",
                self.devices
            ),
        );
        text
    }
}

fn tracks(preset: &Preset, summary: &Summary) -> Vec<ComparedTrack> {
    let of_track = |track: &deltafl_data::run_folder::TrackSummary| {
        let reported = preset.reported(&track.algorithm, track.theta.get());
        ComparedTrack {
            track: track.name.clone(),
            mean: track.test.map(|error| error.mean),
            mean_of_paper: reported.map(|Reported { mean, .. }| mean),
            p90: track.test.map(|error| error.p90),
            p90_of_paper: reported.map(|Reported { p90, .. }| p90),
        }
    };
    summary.tracks.iter().map(of_track).collect()
}
