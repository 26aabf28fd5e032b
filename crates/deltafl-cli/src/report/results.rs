//! What a report reads of a run: everything comes from the run folder, and nothing else does.
//!
//! A *frame* is an evaluation that every seed has reached. The last frame holds the last evaluation of each seed,
//! as `summary.json` does, so that the page and the tables say what the summary says.

use std::path::Path;
use std::sync::Arc;

use deltafl::data::Split;
use deltafl::engine::{EvaluatedDevice, SplitEvaluation};
use deltafl::metrics::{Figures, FiguresOverSeeds, OverSeeds};
use deltafl_data::experiment::Experiment;
use deltafl_data::run_folder::{self, EvaluationFile, RoundLine, RunFolderError};
use miette::{IntoDiagnostic, WrapErr, miette};

use super::tracks::{TrackInfo, baseline, tracks};

/// Windows into which the rounds are gathered for the devices kept: more than a screen shows.
const KEPT_WINDOWS: u64 = 240;

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

/// What the tables report of a split (spec §7).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Measure {
    TestError,
    TrainLoss,
}

/// A split of the devices over the frames.
pub(super) struct SplitResults {
    pub(super) measure: Measure,
    pub(super) devices: Arc<[EvaluatedDevice]>,
    /// For each frame, a distribution per track.
    pub(super) frames: Vec<Vec<Distribution>>,
}

/// The devices of a split under one model.
#[derive(Clone, Default)]
pub(super) struct Distribution {
    /// For each seed.
    pub(super) figures: Vec<Figures>,
    /// A value per device, seed after seed.
    pub(super) values: Vec<f32>,
}

/// Devices kept in a window of rounds, over its rounds and all seeds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Kept {
    /// First round of the window, counted from 1.
    pub(super) round: u64,
    pub(super) mean: f64,
    pub(super) min: u64,
    pub(super) max: u64,
}

impl Measure {
    fn of(split: Split) -> Option<Self> {
        match split {
            Split::Test => Some(Self::TestError),
            Split::Train => Some(Self::TrainLoss),
            Split::Validation => None,
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
            splits: read_splits(&frames, tracks.len())?,
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

fn read_splits(frames: &[Frame<'_>], tracks: usize) -> miette::Result<Vec<SplitResults>> {
    let mut splits: Vec<SplitResults> = Vec::new();
    for (f, frame) in frames.iter().enumerate() {
        for file in &frame.files {
            for evaluation in file.read().into_diagnostic()? {
                take(&mut splits, f, tracks, &evaluation)
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
    tracks: usize,
    evaluation: &SplitEvaluation,
) -> miette::Result<()> {
    let Some(measure) = Measure::of(evaluation.split) else { return Ok(()) };
    if evaluation.tracks.len() != tracks && !evaluation.devices.is_empty() {
        return Err(miette!("expected {tracks} tracks, got {}", evaluation.tracks.len()));
    }
    let at = match splits.iter().position(|split| split.measure == measure) {
        Some(at) => at,
        None => {
            let devices = evaluation.devices.clone();
            splits.push(SplitResults { measure, devices, frames: Vec::new() });
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
        let Some(figures) = Figures::of_track(evaluation, t) else { continue };
        distribution.figures.push(figures);
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

/// Devices kept by a track, in windows of rounds.
fn kept(lines: &[RoundLine], track: usize) -> Vec<Kept> {
    let records = || lines.iter().map(|line| &line.record).filter(|record| record.track == track);
    let Some(rounds) = records().map(|record| record.round + 1).max() else { return Vec::new() };
    let width = rounds.div_ceil(KEPT_WINDOWS);
    let mut windows: Vec<(Kept, u64)> = Vec::new();
    windows.resize(rounds.div_ceil(width) as usize, (Kept { round: 0, mean: 0.0, min: u64::MAX, max: 0 }, 0));
    for record in records() {
        let (window, count) = &mut windows[(record.round / width) as usize];
        window.mean += record.tail as f64;
        window.min = window.min.min(record.tail);
        window.max = window.max.max(record.tail);
        *count += 1;
    }
    let filled = windows.into_iter().enumerate().filter(|(_, (_, count))| *count > 0);
    filled
        .map(|(i, (kept, count))| Kept {
            round: i as u64 * width + 1,
            mean: kept.mean / count as f64,
            ..kept
        })
        .collect()
}
