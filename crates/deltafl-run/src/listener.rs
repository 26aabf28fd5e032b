//! Progress of a run, for a program that displays it.

use std::sync::atomic::AtomicBool;

use deltafl::algorithm::TrackLabel;
use deltafl::data::Split;
use deltafl::exchange::SplitEvaluation;
use deltafl::metrics::Figures;
use deltafl::task::Unit;
use deltafl::training::{RoundRecord, State};
use deltafl_data::experiment::Experiment;

use crate::text_table;

/// A program that trains with this crate and displays progress itself.
pub trait Listener: Sync {
    /// Returns the flag that ends the run after the current round.
    fn stop(&self) -> &AtomicBool;

    /// Returns whether it can display several seeds that train at the same time. Otherwise seeds
    /// train one after another.
    fn shows_seeds_side_by_side(&self) -> bool;

    /// Called before several seeds train at the same time, with their states.
    fn begin_side_by_side(&self, experiment: &Experiment, seeds: &[State]);

    /// Called when a seed begins, with `done` rounds trained earlier.
    fn begin(&self, experiment: &Experiment, seed: u64, done: u64);

    /// Called after a round of all tracks.
    fn round(&self, records: &[RoundRecord]);

    /// Called after every device has been evaluated.
    fn evaluation(&self, evaluation: &SeedEvaluation<'_>);

    /// Called when the rounds of a seed have ended: they are done, or the run was stopped or
    /// failed.
    fn end(&self, seed: u64);

    /// Receives information about the run, such as the backend.
    fn note(&self, text: &str);

    /// Receives a warning.
    fn warn(&self, text: &str);
}

/// An evaluation of every device by all tracks of a seed.
#[derive(Clone, Copy, Debug)]
pub struct SeedEvaluation<'a> {
    /// The seed.
    pub seed: u64,
    /// Rounds done.
    pub round: u64,
    /// The tracks.
    pub labels: &'a [TrackLabel],
    /// The devices of each split.
    pub splits: &'a [SplitEvaluation],
}

impl SeedEvaluation<'_> {
    /// Returns the 90th percentile of the test error of each track in one line. Returns an empty
    /// string without devices.
    pub fn headline(&self) -> String {
        let of = |wanted: Split| {
            self.splits.iter().find(|split| split.split == wanted && !split.devices.is_empty())
        };
        // Without test devices, the train devices are used.
        let Some(judged) = of(Split::Test).or_else(|| of(Split::Train)) else { return String::new() };
        let metric = judged.task.primary();
        let of_track = |(i, label): (usize, &TrackLabel)| {
            let p90 = Figures::of_primary(judged, i).and_then(|figures| figures.percentile(90))?;
            let shown = metric.shown(p90);
            Some(if metric.unit == Unit::Share {
                format!("{label} {shown:.1} %")
            } else {
                format!("{label} {}", text_table::number(shown, text_table::places([shown])))
            })
        };
        let figures: Vec<String> = self.labels.iter().enumerate().filter_map(of_track).collect();
        if figures.is_empty() {
            String::new()
        } else {
            format!("90th percentile of the {}: {}", metric.title, figures.join(", "))
        }
    }
}
