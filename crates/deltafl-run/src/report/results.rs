//! The results of a run that a report displays, read only from the run folder.
//!
//! A *frame* is an evaluation that every seed has reached. The last frame contains the last
//! evaluation of each seed, like `summary.json`. The page and the tables are therefore consistent
//! with the summary.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use deltafl::data::Split;
use deltafl::exchange::{EvaluatedDevice, SplitEvaluation};
use deltafl::metrics::{DispersionBySize, Figures, FiguresOverSeeds, OverSeeds, SampleError, objective};
use deltafl::superquantile::Conformity;
use deltafl::training::PrivacySpent;
use deltafl_data::experiment::Experiment;
use deltafl_data::run_folder::{
    self, Classes, EvaluationFile, Groups, IdleRounds, RoundLine, RunFolderError,
};

use super::cohorts;
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
    /// The privacy spent after each round, counted from 1: the largest over the seeds. Empty for exact
    /// sums.
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

/// A measure of the devices of a split over the frames.
pub(super) struct Measured {
    pub(super) measure: ReportMeasure,
    /// The devices. Empty if they sent only sums.
    pub(super) devices: Arc<[EvaluatedDevice]>,
    /// The number of devices of which these are a sample.
    pub(super) population: Option<usize>,
    /// For each frame, a distribution per track.
    pub(super) frames: Vec<Vec<Distribution>>,
}

/// Devices under one model.
#[derive(Clone, Default)]
pub(super) struct Distribution {
    /// The statistics of each seed.
    pub(super) figures: Vec<Figures>,
    /// F_θ(w) for each seed, only for train devices.
    pub(super) objectives: Vec<f64>,
    /// A value per device, one seed after another. In a cohort of anonymous devices, they are
    /// sorted by value.
    pub(super) values: Vec<f32>,
    /// The bounds for each seed. Empty if the statistics are exact.
    pub(super) between: Vec<FiguresBetween>,
}

/// The bounds of a cohort's statistics. Unknown bounds are infinite or NaN.
#[derive(Clone, Copy, Debug)]
pub(super) struct FiguresBetween {
    pub(super) lower: Figures,
    pub(super) upper: Figures,
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

impl Measured {
    /// Returns the distribution of a track in the last frame.
    pub(super) fn last(&self, track: usize) -> &Distribution {
        &self.frames[self.frames.len() - 1][track]
    }

    /// Returns the number of decimals of its statistics in the last frame.
    pub(super) fn decimals(&self) -> usize {
        let tracks = 0..self.frames[self.frames.len() - 1].len();
        if self.devices.is_empty() && self.measure.percent() {
            // The bins of a share are one percentage point wide, so more decimals are not
            // justified.
            return 1;
        }
        let figures = tracks.flat_map(|track| {
            let figures = self.last(track).over_seeds();
            [figures.mean.mean, figures.p90.mean]
        });
        self.measure.decimals(figures)
    }

    /// Returns the dispersion over devices in the last frame, with equal weights. Returns `None` if
    /// devices sent only sums.
    pub(super) fn dispersion(&self, track: usize) -> Option<DispersionBySize> {
        let of_seed = |values: &[f32]| {
            let values = values.iter().map(|&value| f64::from(value));
            values.zip(self.devices.iter().map(|device| device.examples)).collect()
        };
        let seeds = self.last(track).values.chunks_exact(self.devices.len().max(1)).map(of_seed);
        DispersionBySize::new(&seeds.collect::<Vec<_>>(), self.measure.direction())
    }

    /// Returns the sampling error in the last frame if the devices are a sample.
    pub(super) fn sample_error(&self, track: usize) -> Option<SampleError> {
        let of = self.population?;
        let of_seed = |values: &[f32]| {
            let weight = |device: &EvaluatedDevice| if self.measure.weighted() { device.examples } else { 1 };
            let values = values.iter().map(|&value| f64::from(value));
            SampleError::of_values(&values.zip(self.devices.iter().map(weight)).collect::<Vec<_>>(), of)
        };
        let seeds = self.last(track).values.chunks_exact(self.devices.len().max(1)).filter_map(of_seed);
        SampleError::over_seeds(&seeds.collect::<Vec<_>>())
    }
}

impl Distribution {
    /// Returns the values of the tables.
    pub(super) fn over_seeds(&self) -> FiguresOverSeeds {
        FiguresOverSeeds::new(&self.figures).expect("a distribution has at least one seed")
    }

    /// Returns one value of the tables.
    pub(super) fn figure(&self, figure: impl Fn(&Figures) -> f64) -> OverSeeds {
        OverSeeds::new(&self.figures.iter().map(figure).collect::<Vec<_>>())
            .expect("a distribution has at least one seed")
    }

    /// Returns the value in a table column: the mean, then the percentiles.
    pub(super) fn column(&self, column: usize) -> OverSeeds {
        self.figure(|figures| if column == 0 { figures.mean } else { figures.percentiles[column - 1] })
    }

    /// Returns the bounds of the value in a table column, averaged over seeds, or `None` if it is
    /// exact.
    pub(super) fn between(&self, column: usize) -> Option<(f64, f64)> {
        let figure =
            |figures: &Figures| if column == 0 { figures.mean } else { figures.percentiles[column - 1] };
        let mean = |end: fn(&FiguresBetween) -> &Figures| {
            let ends = self.between.iter().map(|between| figure(end(between)));
            ends.sum::<f64>() / self.between.len() as f64
        };
        (!self.between.is_empty()).then(|| (mean(|between| &between.lower), mean(|between| &between.upper)))
    }

    /// Returns F_θ(w) over seeds. Returns `None` for test devices and if a loss was not finite.
    pub(super) fn objective(&self) -> Option<OverSeeds> {
        if self.objectives.len() < self.figures.len() {
            return None;
        }
        OverSeeds::new(&self.objectives)
    }

    /// Returns the value of each device, averaged over seeds.
    pub(super) fn device_means(&self) -> Vec<f64> {
        let devices = self.values.len() / self.figures.len();
        let mut means = vec![0.0; devices];
        for seed in self.values.chunks_exact(devices.max(1)) {
            means.iter_mut().zip(seed).for_each(|(mean, &value)| *mean += f64::from(value));
        }
        means.iter_mut().for_each(|mean| *mean /= self.figures.len() as f64);
        means
    }
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

    /// Combines runs of one track each into one run, whose tracks have the given names. The runs have
    /// the same devices, seeds and evaluated rounds. Returns `None` without runs.
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

/// Reads the evaluations of individual devices. Returns `None` if there are none.
fn device_by_device(folder: &Path, thetas: &[Conformity]) -> Result<Option<Evaluated>, ResultsError> {
    let by_seed = by_seed(run_folder::evaluations(folder)?);
    if by_seed.is_empty() {
        return Ok(None);
    }
    let frames = frames(&by_seed);
    let last_rounds = || by_seed.iter().filter_map(|files| files.last()).map(|file| file.round);
    Ok(Some(Evaluated {
        seeds: by_seed.iter().map(|files| files[0].seed).collect(),
        rounds: frames.iter().map(|frame| frame.round).collect(),
        even: last_rounds().max() == last_rounds().min(),
        measured: read_measured(&frames, thetas)?,
        cohorts: None,
    }))
}

/// An evaluation of every seed.
struct Frame<'a> {
    round: u64,
    files: Vec<&'a EvaluationFile>,
}

fn by_seed(files: Vec<EvaluationFile>) -> Vec<Vec<EvaluationFile>> {
    let mut seeds: Vec<Vec<EvaluationFile>> = Vec::new();
    for file in files {
        match seeds.last_mut() {
            Some(known) if known[0].seed == file.seed => known.push(file),
            _ => seeds.push(vec![file]),
        }
    }
    seeds
}

/// Returns the evaluations that every seed has reached, followed by the last evaluation of each
/// seed.
fn frames(by_seed: &[Vec<EvaluationFile>]) -> Vec<Frame<'_>> {
    let last: Vec<&EvaluationFile> = by_seed.iter().filter_map(|files| files.last()).collect();
    let slowest = last.iter().map(|file| file.round).min().unwrap_or(0);
    let mut frames: Vec<Frame<'_>> = by_seed[0]
        .iter()
        .filter(|first| first.round < slowest)
        .filter_map(|first| {
            let at = |files: &'_ Vec<EvaluationFile>| files.iter().position(|file| file.round == first.round);
            let files = by_seed.iter().map(|files| at(files).map(|i| &files[i])).collect::<Option<_>>()?;
            Some(Frame { round: first.round, files })
        })
        .collect();
    frames.push(Frame { round: slowest, files: last });
    frames
}

fn read_measured(frames: &[Frame<'_>], thetas: &[Conformity]) -> Result<Vec<Measured>, ResultsError> {
    let mut measured: Vec<Measured> = Vec::new();
    for (f, frame) in frames.iter().enumerate() {
        for file in &frame.files {
            let evaluations = file.read()?;
            let tested = evaluations.iter().any(|e| e.split == Split::Test && !e.devices.is_empty());
            for evaluation in evaluations.iter().filter(|evaluation| !evaluation.devices.is_empty()) {
                for measure in measures(evaluation, tested) {
                    take(&mut measured, measure, f, thetas, evaluation)
                        .map_err(|problem| ResultsError::Evaluation { path: file.path.clone(), problem })?;
                }
            }
        }
    }
    measured.retain(|measured| measured.frames.len() == frames.len());
    measured.sort_by_key(|measured| measured.measure.is_loss());
    if measured.is_empty() {
        return Err(ResultsError::NoDevice);
    }
    Ok(measured)
}

/// Returns the measures of the devices of a split.
fn measures(evaluation: &SplitEvaluation, tested: bool) -> Vec<ReportMeasure> {
    let metrics = || ReportMeasure::metrics(evaluation.split, evaluation.task);
    match evaluation.split {
        Split::Test => metrics().collect(),
        Split::Train if tested => vec![ReportMeasure::train_loss(evaluation.task)],
        Split::Train => metrics().chain([ReportMeasure::train_loss(evaluation.task)]).collect(),
        Split::Validation => Vec::new(),
    }
}

/// Adds a measure of one seed to its frame `f`.
fn take(
    all: &mut Vec<Measured>,
    measure: ReportMeasure,
    f: usize,
    thetas: &[Conformity],
    evaluation: &SplitEvaluation,
) -> Result<(), String> {
    let tracks = thetas.len();
    if evaluation.tracks.len() != tracks {
        return Err(format!("expected {tracks} tracks, got {}", evaluation.tracks.len()));
    }
    let at = match all.iter().position(|known| known.measure == measure) {
        Some(at) => at,
        None => {
            let devices = evaluation.devices.clone();
            all.push(Measured { measure, devices, population: None, frames: Vec::new() });
            all.len() - 1
        }
    };
    let measured = &mut all[at];
    let split = evaluation.split.name();
    if measured.devices != evaluation.devices {
        return Err(format!("its {split} devices are not those of the other evaluations"));
    }
    measured.frames.resize(f + 1, vec![Distribution::default(); tracks]);
    for (t, distribution) in measured.frames[f].iter_mut().enumerate() {
        let figures = measure.figures(evaluation, t);
        distribution.figures.push(figures.ok_or_else(|| format!("its {split} devices hold no examples"))?);
        if measure.is_loss() {
            distribution.objectives.extend(objective(evaluation, t, thetas[t]));
        }
        distribution.values.extend(evaluation.tracks[t].iter().map(|device| measure.value(device) as f32));
    }
    Ok(())
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
    use deltafl::exchange::Evaluation;
    use deltafl::task::{RegressionLoss, Task};
    use deltafl::training::RoundRecord;

    fn evaluation(split: Split, values: [f64; 2]) -> SplitEvaluation {
        let device = |id: &str| EvaluatedDevice { id: id.into(), examples: 1 };
        let values = values.map(|value| Evaluation { loss: value, metrics: [value, 2.0 * value, -value] });
        SplitEvaluation {
            split,
            task: Task::Regression(RegressionLoss::Squared),
            devices: [device("a"), device("b")].into_iter().collect(),
            tracks: vec![values.to_vec()],
        }
    }

    #[test]
    fn all_metrics_are_read_for_test_devices_and_the_loss_for_train_devices() {
        let keys = |evaluation: &SplitEvaluation, tested| -> Vec<String> {
            measures(evaluation, tested).into_iter().map(ReportMeasure::key).collect()
        };
        let (train, test) = (evaluation(Split::Train, [1.0, 2.0]), evaluation(Split::Test, [3.0, 5.0]));
        assert_eq!(keys(&test, true), ["test_rmse", "test_mae", "test_r_squared"]);
        assert_eq!(keys(&train, true), ["train_loss"]);
        assert_eq!(keys(&train, false), ["train_rmse", "train_mae", "train_r_squared", "train_loss"]);
        assert!(keys(&evaluation(Split::Validation, [0.0; 2]), true).is_empty());

        let mut all = Vec::new();
        for measure in measures(&test, true) {
            take(&mut all, measure, 0, &[Conformity::FULL], &test).unwrap();
        }
        let means: Vec<f64> = all.iter().map(|measured| measured.last(0).figures[0].mean).collect();
        assert_eq!(means, [4.0, 8.0, -4.0]);
        assert!(all.iter().all(|measured| measured.last(0).objectives.is_empty()));
    }

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
