//! What a report reads of a run: everything comes from the run folder, and nothing else does.
//!
//! A *frame* is an evaluation that every seed has reached. The last frame holds the last evaluation of each seed,
//! as `summary.json` does, so that the page and the tables say what the summary says.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use deltafl::data::Split;
use deltafl::exchange::{EvaluatedDevice, SplitEvaluation};
use deltafl::metrics::{Figures, FiguresOverSeeds, OverSeeds, SampleError, objective};
use deltafl::superquantile::Conformity;
use deltafl::task::Unit;
use deltafl_data::experiment::Experiment;
use deltafl_data::run_folder::{self, EvaluationFile, RoundLine, RunFolderError};
use miette::{IntoDiagnostic, WrapErr, miette};

use super::tracks::{TrackInfo, baseline, tracks};

/// Most points of a curve of devices kept: as many as a figure has room for. A run of more rounds is shown in windows.
const KEPT_WINDOWS: u64 = 600;

/// The results of one run.
pub(super) struct RunResults {
    pub(super) name: String,
    pub(super) dataset: String,
    pub(super) model: String,
    pub(super) experiment: Experiment,
    pub(super) tracks: Vec<TrackInfo>,
    /// The track the others are held against: FedAvg, or else the greatest θ.
    pub(super) baseline: usize,
    pub(super) seeds: Vec<u64>,
    /// Rounds done at each frame.
    pub(super) rounds: Vec<u64>,
    /// Whether all seeds have come equally far.
    pub(super) even: bool,
    /// Test devices first.
    pub(super) splits: Vec<SplitResults>,
    /// For each track and frame, the calls of secure aggregation so far, mean over seeds.
    pub(super) calls: Vec<Vec<f64>>,
    /// For each track, the devices kept over the rounds.
    pub(super) kept: Vec<Vec<Kept>>,
}

/// What the tables report of a split: the error of test devices, the loss of train devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Measure {
    TestError,
    TrainLoss,
}

/// A split of the devices over the frames.
pub(super) struct SplitResults {
    pub(super) measure: Measure,
    pub(super) devices: Arc<[EvaluatedDevice]>,
    /// Devices of which these are a sample.
    pub(super) population: Option<usize>,
    /// For each frame, a distribution per track.
    pub(super) frames: Vec<Vec<Distribution>>,
}

/// The devices of a split under one model.
#[derive(Clone, Default)]
pub(super) struct Distribution {
    /// For each seed.
    pub(super) figures: Vec<Figures>,
    /// F_θ(w) for each seed; only of train devices, whose objective it is.
    pub(super) objectives: Vec<f64>,
    /// A value per device, seed after seed.
    pub(super) values: Vec<f32>,
}

/// Devices kept in a round: the mean, the fewest and the most over the seeds. In a window of several rounds, the mean of
/// each of the three.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Kept {
    /// First round of the window, counted from 1.
    pub(super) round: u64,
    pub(super) mean: f64,
    pub(super) min: f64,
    pub(super) max: f64,
}

impl Measure {
    fn of(split: Split) -> Option<Self> {
        match split {
            Split::Test => Some(Self::TestError),
            Split::Train => Some(Self::TrainLoss),
            Split::Validation => None,
        }
    }

    fn split(self) -> Split {
        match self {
            Self::TestError => Split::Test,
            Self::TrainLoss => Split::Train,
        }
    }

    /// For files and for programs.
    pub(super) fn key(self) -> &'static str {
        match self {
            Self::TestError => "test_error",
            Self::TrainLoss => "train_loss",
        }
    }

    /// For people.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::TestError => "test error",
            Self::TrainLoss => "train loss",
        }
    }

    /// Of an axis, with the unit.
    pub(super) fn axis(self) -> &'static str {
        match self {
            Self::TestError => "test error (%)",
            Self::TrainLoss => "train loss (nats)",
        }
    }

    /// What a stored value is multiplied by to be shown: errors are shown in per cent.
    pub(super) fn shown(self) -> f64 {
        match self {
            Self::TestError => 100.0,
            Self::TrainLoss => 1.0,
        }
    }

    /// Of the height of a bar in a histogram.
    pub(super) fn bar_axis(self) -> &'static str {
        match self {
            Self::TestError => "devices",
            Self::TrainLoss => "share of the points (%)",
        }
    }

    /// Decimals in a table.
    pub(super) fn decimals(self) -> usize {
        match self {
            Self::TestError => 2,
            Self::TrainLoss => 3,
        }
    }
}

impl SplitResults {
    /// The distribution of a track in the last frame.
    pub(super) fn last(&self, track: usize) -> &Distribution {
        &self.frames[self.frames.len() - 1][track]
    }

    /// What is left open, in the last frame, when the devices are a sample.
    pub(super) fn sample_error(&self, track: usize) -> Option<SampleError> {
        let of = self.population?;
        let of_seed = |values: &[f32]| {
            let weight = |device: &EvaluatedDevice| match self.measure {
                Measure::TestError => 1,
                Measure::TrainLoss => device.examples,
            };
            let values = values.iter().map(|&value| f64::from(value));
            SampleError::of_values(&values.zip(self.devices.iter().map(weight)).collect::<Vec<_>>(), of)
        };
        let seeds = self.last(track).values.chunks_exact(self.devices.len().max(1)).filter_map(of_seed);
        SampleError::over_seeds(&seeds.collect::<Vec<_>>())
    }
}

impl Distribution {
    /// The figures of the tables.
    pub(super) fn over_seeds(&self) -> FiguresOverSeeds {
        FiguresOverSeeds::new(&self.figures).expect("a distribution has at least one seed")
    }

    /// One figure of the tables.
    pub(super) fn figure(&self, figure: fn(&Figures) -> f64) -> OverSeeds {
        OverSeeds::new(&self.figures.iter().map(figure).collect::<Vec<_>>())
            .expect("a distribution has at least one seed")
    }

    /// F_θ(w) over seeds; `None` of other devices than train devices, and where a loss was not finite.
    pub(super) fn objective(&self) -> Option<OverSeeds> {
        if self.objectives.len() < self.figures.len() {
            return None;
        }
        OverSeeds::new(&self.objectives)
    }

    /// The value of each device, mean over seeds.
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
    pub(super) fn read(folder: &Path) -> miette::Result<Self> {
        Self::read_checked(folder).wrap_err_with(|| format!("could not read the run in {}", folder.display()))
    }

    fn read_checked(folder: &Path) -> miette::Result<Self> {
        let experiment = run_folder::read_experiment(folder).into_diagnostic()?;
        let tracks = tracks(&experiment);
        let by_seed = by_seed(run_folder::evaluations(folder).into_diagnostic()?);
        if by_seed.is_empty() {
            return Err(RunFolderError::NotEvaluated { path: folder.to_owned() }).into_diagnostic();
        }
        let frames = frames(&by_seed);
        let mut splits = read_splits(&frames, &thetas(&tracks)?)?;
        if let Some(population) = experiment.resolved.as_ref().and_then(|resolved| resolved.population) {
            splits
                .iter_mut()
                .for_each(|split| split.population = Some(population.devices(split.measure.split())));
        }
        let rounds: Vec<u64> = frames.iter().map(|frame| frame.round).collect();
        let lines = run_folder::read_rounds(folder).into_diagnostic()?;
        let last_rounds = || by_seed.iter().filter_map(|files| files.last()).map(|file| file.round);
        Ok(Self {
            name: experiment.name.clone(),
            dataset: experiment.data.name(),
            model: experiment.model.spec().name().to_owned(),
            baseline: baseline(&tracks),
            seeds: by_seed.iter().map(|files| files[0].seed).collect(),
            even: last_rounds().max() == last_rounds().min(),
            splits,
            calls: calls(&lines, tracks.len(), &rounds),
            kept: (0..tracks.len()).map(|track| kept(&lines, track)).collect(),
            rounds,
            tracks,
            experiment,
        })
    }

    /// The test devices where there are any, the train devices otherwise.
    pub(super) fn main_split(&self) -> &SplitResults {
        &self.splits[0]
    }

    /// Rounds done, by the slowest seed.
    pub(super) fn rounds_done(&self) -> u64 {
        self.rounds[self.rounds.len() - 1]
    }
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

/// The evaluations that every seed has reached; the last of each seed at the end.
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

fn thetas(tracks: &[TrackInfo]) -> miette::Result<Vec<Conformity>> {
    tracks.iter().map(|track| Conformity::try_from(track.theta).into_diagnostic()).collect()
}

fn read_splits(frames: &[Frame<'_>], thetas: &[Conformity]) -> miette::Result<Vec<SplitResults>> {
    let mut splits: Vec<SplitResults> = Vec::new();
    for (f, frame) in frames.iter().enumerate() {
        for file in &frame.files {
            for evaluation in file.read().into_diagnostic()? {
                take(&mut splits, f, thetas, &evaluation)
                    .wrap_err_with(|| file.path.display().to_string())?;
            }
        }
    }
    splits.retain(|split| !split.devices.is_empty() && split.frames.len() == frames.len());
    splits.sort_by_key(|split| split.measure != Measure::TestError);
    if splits.is_empty() {
        return Err(miette!("no device was evaluated"));
    }
    Ok(splits)
}

/// Adds the evaluation of one seed to frame `f` of its split.
fn take(
    splits: &mut Vec<SplitResults>,
    f: usize,
    thetas: &[Conformity],
    evaluation: &SplitEvaluation,
) -> miette::Result<()> {
    let Some(measure) = Measure::of(evaluation.split) else { return Ok(()) };
    let metric = evaluation.task.primary();
    if metric.unit != Unit::Share {
        return Err(miette!(
            "the report draws errors in per cent, and this run is measured by {}: its figures stand in summary.json; \
             `deltafl runs`, `compare` and `export` read them",
            metric.title
        ));
    }
    let tracks = thetas.len();
    if evaluation.tracks.len() != tracks && !evaluation.devices.is_empty() {
        return Err(miette!("expected {tracks} tracks, got {}", evaluation.tracks.len()));
    }
    let at = match splits.iter().position(|split| split.measure == measure) {
        Some(at) => at,
        None => {
            let devices = evaluation.devices.clone();
            splits.push(SplitResults { measure, devices, population: None, frames: Vec::new() });
            splits.len() - 1
        }
    };
    let split = &mut splits[at];
    if split.devices != evaluation.devices {
        return Err(miette!(
            "its {} devices are not those of the other evaluations",
            evaluation.split.name()
        ));
    }
    split.frames.resize(f + 1, vec![Distribution::default(); tracks]);
    for (t, distribution) in split.frames[f].iter_mut().enumerate() {
        let Some(figures) = Figures::of_track(evaluation, t) else {
            if evaluation.devices.is_empty() {
                continue;
            }
            return Err(miette!("its {} devices hold no points", evaluation.split.name()));
        };
        distribution.figures.push(figures);
        distribution.objectives.extend(objective(evaluation, t, thetas[t]));
        distribution.values.extend(evaluation.tracks[t].iter().map(|device| match measure {
            Measure::TestError => device.primary() as f32,
            Measure::TrainLoss => device.loss as f32,
        }));
    }
    Ok(())
}

/// Calls of secure aggregation before each of these rounds, mean over seeds.
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

/// Devices kept by a track, round by round, or in windows of rounds where there are many.
fn kept(lines: &[RoundLine], track: usize) -> Vec<Kept> {
    let mut rounds: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
    for record in lines.iter().map(|line| &line.record).filter(|record| record.track == track) {
        rounds.entry(record.round).or_default().push(record.tail);
    }
    let Some((&last, _)) = rounds.last_key_value() else { return Vec::new() };
    let width = (last + 1).div_ceil(KEPT_WINDOWS);
    let mut windows: BTreeMap<u64, Vec<Kept>> = BTreeMap::new();
    for (round, tails) in rounds {
        let mean = tails.iter().sum::<u64>() as f64 / tails.len() as f64;
        let least = tails.iter().min().map_or(mean, |&tail| tail as f64);
        let most = tails.iter().max().map_or(mean, |&tail| tail as f64);
        windows.entry(round / width).or_default().push(Kept { round, mean, min: least, max: most });
    }
    let averaged = |(window, rounds): (u64, Vec<Kept>)| {
        let mean = |value: fn(&Kept) -> f64| rounds.iter().map(value).sum::<f64>() / rounds.len() as f64;
        Kept {
            round: window * width + 1,
            mean: mean(|kept| kept.mean),
            min: mean(|kept| kept.min),
            max: mean(|kept| kept.max),
        }
    };
    windows.into_iter().map(averaged).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use deltafl::task::{RegressionLoss, Task};
    use deltafl::training::RoundRecord;

    #[test]
    fn a_run_that_is_not_measured_in_per_cent_is_refused_and_not_drawn_as_if_it_were() {
        let evaluation =
            |task| SplitEvaluation { split: Split::Test, task, devices: Arc::new([]), tracks: vec![] };
        let said = |task| take(&mut Vec::new(), 0, &[], &evaluation(task)).map_err(|e| e.to_string());
        assert!(said(Task::Regression(RegressionLoss::Squared)).unwrap_err().contains("RMSE"));
        assert_eq!(said(Task::Classes), Ok(()));
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
            weight: 1.0,
            refused: 0,
            sums: 1,
            messages: 0,
            bytes_up: 0,
            bytes_down: 0,
        };
        RoundLine { record, seconds: 0.0 }
    }

    #[test]
    fn the_band_of_devices_kept_is_min_and_max_over_seeds_in_each_round() {
        let lines =
            [line(1, 0, 4), line(1, 1, 9), line(2, 0, 6), line(2, 1, 1), line(3, 0, 5), line(3, 1, 2)];
        let expected = [
            Kept { round: 1, mean: 5.0, min: 4.0, max: 6.0 },
            Kept { round: 2, mean: 4.0, min: 1.0, max: 9.0 },
        ];
        assert_eq!(kept(&lines, 0), expected);
        assert_eq!(kept(&lines, 1), []);
    }

    #[test]
    fn many_rounds_are_averaged_in_windows() {
        let rounds = 2 * KEPT_WINDOWS;
        let lines: Vec<RoundLine> =
            (0..rounds).flat_map(|round| [line(1, round, 2 + 2 * (round % 2)), line(2, round, 8)]).collect();
        let kept = kept(&lines, 0);
        assert_eq!(kept.len() as u64, KEPT_WINDOWS);
        assert_eq!(kept[1], Kept { round: 3, mean: 5.5, min: 3.0, max: 8.0 });
    }
}
