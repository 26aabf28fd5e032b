//! Progress of a run, for a program that shows it.

use std::sync::atomic::AtomicBool;

use deltafl::algorithm::TrackLabel;
use deltafl::data::Split;
use deltafl::exchange::SplitEvaluation;
use deltafl::metrics::Figures;
use deltafl::task::Unit;
use deltafl::training::{RoundRecord, State};
use deltafl_data::experiment::Experiment;

use crate::text_table;

/// A program that trains by this crate and shows progress itself.
pub trait Listener: Sync {
    /// The flag that ends the run after the current round.
    fn stop(&self) -> &AtomicBool;

    /// Whether it can show several seeds that train at the same time; otherwise they train one after another.
    fn shows_seeds_side_by_side(&self) -> bool;

    /// Several seeds, at these states, are about to train at the same time.
    fn begin_side_by_side(&self, experiment: &Experiment, seeds: &[State]);

    /// A seed begins, with `done` rounds trained earlier.
    fn begin(&self, experiment: &Experiment, seed: u64, done: u64);

    /// A round of all tracks is done.
    fn round(&self, records: &[RoundRecord]);

    /// Every device has been evaluated.
    fn evaluation(&self, evaluation: &SeedEvaluation<'_>);

    /// The rounds of a seed have ended: they are done, or the run was stopped or failed.
    fn end(&self, seed: u64);

    /// Information about the run, such as the backend.
    fn note(&self, text: &str);

    /// A warning.
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
    /// The 90th percentile of the test error of each track, in one line; empty without devices.
    pub fn headline(&self) -> String {
        let of = |wanted: Split| {
            self.splits.iter().find(|split| split.split == wanted && !split.devices.is_empty())
        };
        // A federation without test devices is judged by those that train.
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
