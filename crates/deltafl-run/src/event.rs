//! Events of runs and sweeps, for programs that display progress.

use deltafl::algorithm::TrackLabel;
use deltafl::data::Split;
use deltafl::exchange::SplitEvaluation;
use deltafl::metrics::Figures;
use deltafl::task::Unit;
use deltafl::training::{Event, Observer, ObserverError, State};
use deltafl_data::experiment::Experiment;

use crate::text_table;

/// An observer of a run.
pub type RunObserver<'o> = dyn for<'e> Observer<RunEvent<'e>> + Send + 'o;

/// An observer of a sweep.
pub type SweepObserver<'o> = dyn for<'e> Observer<SweepEvent<'e>> + Send + 'o;

/// Sends an event to the observer of a run, from any of its threads. Returns whether the observer
/// has stopped the run.
pub(crate) type SendEvent<'o> = dyn Fn(RunEvent<'_>) -> Result<bool, ObserverError> + Sync + 'o;

/// Something that happened in a run. More variants may follow.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum RunEvent<'a> {
    /// Information about the run, such as the backend.
    Note(&'a str),
    /// A warning about settings that are easily misread.
    Warning(&'a str),
    /// Several seeds begin to train at the same time.
    SeedsBegin {
        /// The experiment.
        experiment: &'a Experiment,
        /// The states of the seeds.
        states: &'a [State],
    },
    /// A seed begins.
    SeedBegins {
        /// The experiment.
        experiment: &'a Experiment,
        /// The seed.
        seed: u64,
        /// The number of rounds trained earlier.
        done: u64,
    },
    /// An event of the round loop of a seed, after the run folder has stored it.
    Training {
        /// The seed.
        seed: u64,
        /// The tracks.
        labels: &'a [TrackLabel],
        /// The event.
        event: Event<'a>,
    },
    /// The rounds of a seed have ended: they are done, or the run was stopped or failed.
    SeedEnds {
        /// The seed.
        seed: u64,
    },
}

/// Something that happened in a sweep. More variants may follow.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum SweepEvent<'a> {
    /// Training begins.
    Begins {
        /// The rounds of all points.
        rounds: u64,
        /// The number of rounds trained earlier.
        done: u64,
    },
    /// An event of the run of a point.
    Point {
        /// The name of the point.
        name: &'a str,
        /// The event.
        event: RunEvent<'a>,
    },
    /// A point is finished.
    PointFinished {
        /// The name of the point.
        name: &'a str,
        /// The number of finished points.
        done: usize,
        /// The number of all points.
        of: usize,
    },
    /// Another process trains a point.
    PointBusy {
        /// The name of the point.
        name: &'a str,
    },
    /// No more points are being trained.
    Ends,
}

/// Returns the 90th percentile of the test error of each track in one line. Returns an empty
/// string without devices.
pub fn headline(labels: &[TrackLabel], splits: &[SplitEvaluation]) -> String {
    let find = |wanted: Split| splits.iter().find(|split| split.split == wanted && !split.devices.is_empty());
    // Without test devices, the train devices are used.
    let Some(judged) = find(Split::Test).or_else(|| find(Split::Train)) else { return String::new() };
    let metric = judged.task.primary();
    let of_track = |(i, label): (usize, &TrackLabel)| {
        let p90 = Figures::of_primary(judged, i).and_then(|figures| figures.percentile(90))?;
        let shown = metric.display_value(p90);
        Some(if metric.unit == Unit::Share {
            format!("{label} {shown:.1} %")
        } else {
            format!("{label} {}", text_table::number(shown, text_table::places([shown])))
        })
    };
    let figures: Vec<String> = labels.iter().enumerate().filter_map(of_track).collect();
    if figures.is_empty() {
        String::new()
    } else {
        format!("90th percentile of the {}: {}", metric.title, figures.join(", "))
    }
}
