//! The results of a run that a report displays, read only from the run folder.
//!
//! A *frame* is an evaluation that every seed has reached. The last frame contains the last
//! evaluation of each seed, like `summary.json`. The page and the tables are therefore consistent
//! with the summary.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use deltafl::data::Split;
use deltafl::superquantile::Conformity;
use deltafl::training::PrivacySpent;
use deltafl_data::experiment::Experiment;
use deltafl_data::run_folder::{self, Classes, Groups, IdleRounds, RoundLine, RunFolderError};

use super::cohorts;
use super::device_evaluations::device_by_device;
use super::distribution::Measured;
use super::measure::ReportMeasure;
use super::saved_metrics::SavedMetrics;
use super::tracks::{TrackInfo, baseline, tracks};
use crate::error::FolderError;

/// The maximum number of points in a curve of the tail size, limited by the width of a figure. A
/// run with more rounds is displayed in windows.
const TAIL_WINDOWS: u64 = 600;

/// The reason why the results of a run cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ResultsError {
    /// The run folder cannot be used.
    #[error(transparent)]
    Folder(#[from] FolderError),
    /// No device was evaluated.
    #[error("no device was evaluated")]
    NoDevice,
    /// An evaluation contradicts the experiment or the other evaluations.
    #[error("{path}: {problem}")]
    Evaluation {
        /// The file.
        path: PathBuf,
        /// The problem.
        problem: String,
    },
}

impl From<RunFolderError> for ResultsError {
    fn from(error: RunFolderError) -> Self {
        Self::Folder(error.into())
    }
}

/// The results of one run.
pub(super) struct RunResults {
    pub(super) name: String,
    pub(super) dataset: String,
    pub(super) model: String,
    pub(super) experiment: Experiment,
    pub(super) tracks: Vec<TrackInfo>,
    /// The track with which the others are compared: FedAvg, or else the greatest θ.
    pub(super) baseline: usize,
    pub(super) seeds: Vec<u64>,
    /// Rounds done at each frame.
    pub(super) rounds: Vec<u64>,
    /// Whether all seeds have the same number of rounds.
    pub(super) even: bool,
    /// The metrics of the task on the test devices, the primary one first, and then the loss of the
    /// train devices. Without test devices, the metrics are those of the train devices.
    pub(super) measured: Vec<Measured>,
    /// For each track and frame, the calls of secure aggregation so far, averaged over seeds.
    pub(super) calls: Vec<Vec<f64>>,
    /// For each track, the size of its tail over the rounds.
    pub(super) tails: Vec<Vec<TailSize>>,
    /// The privacy spent after each round, counted from 1: the largest over the seeds. Empty for
    /// exact sums.
    pub(super) privacy: Vec<(u64, PrivacySpent)>,
    /// The error of each class, if classes have names.
    pub(super) classes: Option<Classes>,
    /// The metric of each group of devices, if devices declare groups.
    pub(super) groups: Option<Groups>,
    /// For each track, the rounds that changed nothing, over all seeds.
    pub(super) idle: Vec<IdleRounds>,
    /// Minimum and maximum size of the cohorts that sent histograms. `None` if devices sent
    /// individual results.
    pub(super) cohorts: Option<(u64, u64)>,
    /// Metrics that a program has stored in the run folder.
    pub(super) saved: Option<SavedMetrics>,
}

/// The evaluations of a run.
pub(super) struct Evaluated {
    pub(super) seeds: Vec<u64>,
    /// Rounds done at each frame.
    pub(super) rounds: Vec<u64>,
    pub(super) even: bool,
    pub(super) measured: Vec<Measured>,
    pub(super) cohorts: Option<(u64, u64)>,
}

/// Devices in the tail of a round: mean, minimum and maximum over the seeds. In a window of several
/// rounds, the mean of each.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct TailSize {
    /// First round of the window, counted from 1.
    pub(super) round: u64,
    pub(super) mean: f64,
    pub(super) min: f64,
    pub(super) max: f64,
}

impl RunResults {
    /// Reads a run folder.
    pub(super) fn read(folder: &Path) -> Result<Self, ResultsError> {
        let experiment = run_folder::read_experiment(folder)?;
        let tracks = tracks(&experiment);
        let lines = run_folder::read_rounds(folder)?;
        let thetas: Vec<Conformity> = experiment.labels().iter().map(|label| label.theta).collect();
        let evaluated = match device_by_device(folder, &thetas)? {
            Some(evaluated) => evaluated,
            None => cohorts::read(&lines, tracks.len())
                .ok_or_else(|| RunFolderError::NotEvaluated { path: folder.to_owned() })?,
        };
        let Evaluated { seeds, rounds, even, mut measured, cohorts } = evaluated;
        if let Some(population) = experiment.resolved().and_then(|resolved| resolved.population) {
            measured.iter_mut().for_each(|measured| {
                measured.population = Some(population.devices(measured.measure.split()));
            });
        }
        Ok(Self {
            name: experiment.name().to_owned(),
            dataset: experiment.data().name(),
            model: experiment.model().spec().name().to_owned(),
            baseline: baseline(&tracks),
            seeds,
            even,
            cohorts,
            measured,
            classes: run_folder::read_classes(folder)?
                .filter(|classes| classes.classes.iter().all(|class| class.errors.len() == tracks.len())),
            groups: run_folder::read_groups(folder)?
                .filter(|groups| groups.groups.iter().all(|group| group.values.len() == tracks.len())),
            idle: IdleRounds::per_track(lines.iter().map(|line| &line.record), tracks.len()),
            calls: calls(&lines, tracks.len(), &rounds),
            privacy: privacy_spent(&lines),
            tails: (0..tracks.len()).map(|track| tail_sizes(&lines, track)).collect(),
            saved: SavedMetrics::read(folder)?,
            rounds,
            tracks,
            experiment,
        })
    }

    /// Combines runs of one track each into one run, whose tracks have the given names. The runs
    /// have the same devices, seeds and evaluated rounds. Returns `None` without runs.
    pub(super) fn combined(name: &str, runs: Vec<(String, Self)>) -> Option<Self> {
        let mut runs = runs.into_iter().map(|(method, mut run)| {
            run.tracks.iter_mut().for_each(|track| track.label.clone_from(&method));
            run
        });
        let mut all = runs.next()?;
        for run in runs {
            all.tracks.extend(run.tracks);
            all.calls.extend(run.calls);
            all.tails.extend(run.tails);
            all.idle.extend(run.idle);
            for (known, measured) in all.measured.iter_mut().zip(run.measured) {
                for (known, frame) in known.frames.iter_mut().zip(measured.frames) {
                    known.extend(frame);
                }
            }
        }
        name.clone_into(&mut all.name);
        (all.classes, all.groups, all.saved) = (None, None, None);
        all.baseline = baseline(&all.tracks);
        Some(all)
    }

    /// Returns the metric of the tables: of the test devices if there are any, of the train devices
    /// otherwise.
    pub(super) fn primary(&self) -> &Measured {
        &self.measured[0]
    }

    /// Returns the train loss.
    pub(super) fn train_loss(&self) -> Option<&Measured> {
        self.measured.iter().find(|measured| measured.measure.is_loss())
    }

    /// Returns the results for a measure.
    pub(super) fn of_measure(&self, measure: ReportMeasure) -> Option<&Measured> {
        self.measured.iter().find(|measured| measured.measure == measure)
    }

    /// Returns whether test devices were evaluated.
    pub(super) fn tested(&self) -> bool {
        self.primary().measure.split() == Split::Test
    }

    /// Returns the number of rounds done by the slowest seed.
    pub(super) fn rounds_done(&self) -> u64 {
        self.rounds[self.rounds.len() - 1]
    }
}

/// Returns the calls of secure aggregation before each of these rounds, averaged over seeds.
fn calls(lines: &[RoundLine], tracks: usize, rounds: &[u64]) -> Vec<Vec<f64>> {
    let of_track = |track: usize| {
        let mut seeds: Vec<u64> = Vec::new();
        let mut sums = vec![0u64; rounds.len()];
        for record in lines.iter().map(|line| &line.record).filter(|record| record.track == track) {
            if !seeds.contains(&record.seed) {
                seeds.push(record.seed);
            }
            let reached = rounds.partition_point(|&round| round <= record.round);
            sums[reached..].iter_mut().for_each(|sum| *sum += record.sums);
        }
        let seeds = seeds.len().max(1) as f64;
        sums.into_iter().map(|sum| sum as f64 / seeds).collect()
    };
    (0..tracks).map(of_track).collect()
}

/// Returns the devices in the tail of a track by round, or by window if there are many rounds.
fn tail_sizes(lines: &[RoundLine], track: usize) -> Vec<TailSize> {
    let mut rounds: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
    for record in lines.iter().map(|line| &line.record).filter(|record| record.track == track) {
        rounds.entry(record.round).or_default().push(record.tail);
    }
    let Some((&last, _)) = rounds.last_key_value() else { return Vec::new() };
    let width = (last + 1).div_ceil(TAIL_WINDOWS);
    let mut windows: BTreeMap<u64, Vec<TailSize>> = BTreeMap::new();
    for (round, tails) in rounds {
        let mean = tails.iter().sum::<u64>() as f64 / tails.len() as f64;
        let least = tails.iter().min().map_or(mean, |&tail| tail as f64);
        let most = tails.iter().max().map_or(mean, |&tail| tail as f64);
        windows.entry(round / width).or_default().push(TailSize { round, mean, min: least, max: most });
    }
    let averaged = |(window, rounds): (u64, Vec<TailSize>)| {
        let mean = |value: fn(&TailSize) -> f64| rounds.iter().map(value).sum::<f64>() / rounds.len() as f64;
        TailSize {
            round: window * width + 1,
            mean: mean(|tail| tail.mean),
            min: mean(|tail| tail.min),
            max: mean(|tail| tail.max),
        }
    };
    windows.into_iter().map(averaged).collect()
}

/// Returns the privacy spent after each round.
fn privacy_spent(lines: &[RoundLine]) -> Vec<(u64, PrivacySpent)> {
    let mut rounds: BTreeMap<u64, PrivacySpent> = BTreeMap::new();
    for record in lines.iter().map(|line| &line.record) {
        let Some(spent) = record.privacy else { continue };
        let known = rounds.entry(record.round + 1).or_insert(spent);
        known.epsilon_server = known.epsilon_server.zip(spent.epsilon_server).map(|(a, b)| a.max(b));
        known.epsilon_readers = known.epsilon_readers.max(spent.epsilon_readers);
    }
    rounds.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use deltafl::training::RoundRecord;

    fn line(seed: u64, round: u64, tail: u64) -> RoundLine {
        let record = RoundRecord {
            seed,
            track: 0,
            name: "Δ-FL".into(),
            eta_age: None,
            round,
            eta: None,
            loss: None,
            cohort: 10,
            dropped: 0,
            tail,
            tail_weight: 1.0,
            refused: 0,
            sums: 1,
            messages: 0,
            bytes_up: 0,
            bytes_down: 0,
            evaluations: Vec::new(),
            privacy: None,
        };
        RoundLine { record, seconds: 0.0 }
    }

    #[test]
    fn the_band_of_the_tail_is_min_and_max_over_seeds_in_each_round() {
        let lines =
            [line(1, 0, 4), line(1, 1, 9), line(2, 0, 6), line(2, 1, 1), line(3, 0, 5), line(3, 1, 2)];
        let expected = [
            TailSize { round: 1, mean: 5.0, min: 4.0, max: 6.0 },
            TailSize { round: 2, mean: 4.0, min: 1.0, max: 9.0 },
        ];
        assert_eq!(tail_sizes(&lines, 0), expected);
        assert_eq!(tail_sizes(&lines, 1), []);
    }

    #[test]
    fn many_rounds_are_averaged_in_windows() {
        let rounds = 2 * TAIL_WINDOWS;
        let lines: Vec<RoundLine> =
            (0..rounds).flat_map(|round| [line(1, round, 2 + 2 * (round % 2)), line(2, round, 8)]).collect();
        let sizes = tail_sizes(&lines, 0);
        assert_eq!(sizes.len() as u64, TAIL_WINDOWS);
        assert_eq!(sizes[1], TailSize { round: 3, mean: 5.5, min: 3.0, max: 8.0 });
    }
}
