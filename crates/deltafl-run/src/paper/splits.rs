//! A pair on several splits of the devices, with the differences that the paper reports.

use std::fmt::Write as _;

use serde::Serialize;

use super::presets::Pair;
use crate::sweep::splits::SplitResults;

/// The results of a pair on several splits.
#[derive(Debug, Serialize)]
pub struct PaperSplits {
    #[serde(flatten)]
    results: SplitResults,
    /// The differences to FedAvg in the paper.
    paper: Vec<ReportedDifference>,
}

/// The difference of a track to FedAvg in the paper, as fractions.
#[derive(Debug, Serialize)]
struct ReportedDifference {
    track: String,
    mean: f64,
    p90: f64,
}

impl PaperSplits {
    /// Adds the paper's differences to the results of a pair.
    pub fn new(pair: Pair, results: SplitResults) -> Self {
        let preset = pair.preset();
        let fed_avg = preset.reported("fedavg", 1.0);
        let of_track = |track: &crate::sweep::splits::TrackOverSplits| {
            let (reported, base) = (preset.reported(&track.algorithm, track.theta)?, fed_avg?);
            (track.algorithm != "fedavg").then(|| ReportedDifference {
                track: track.track.clone(),
                mean: reported.mean.mean - base.mean.mean,
                p90: reported.p90.mean - base.p90.mean,
            })
        };
        let paper = results.tracks.iter().filter_map(of_track).collect();
        Self { results, paper }
    }

    /// Renders the results as plain text.
    pub fn rendered(&self) -> String {
        format!("{}{}", self.results.rendered(), self.reported("  "))
    }

    /// Renders the results as Markdown.
    pub fn markdown(&self) -> String {
        format!("{}{}\n", self.results.markdown(), self.reported("- "))
    }

    fn reported(&self, prefix: &str) -> String {
        let mut text = "\n".to_owned();
        for ReportedDifference { track, mean, p90 } in &self.paper {
            let (mean, p90) = (100.0 * mean, 100.0 * p90);
            let _ = writeln!(
                text,
                "{prefix}The paper, one split: {track} − FedAvg is {p90:+.2} in the 90th percentile and {mean:+.2} in the mean."
            );
        }
        text
    }
}
