//! The grid search of the paper: two sweeps, one after the other.
//!
//! The first sweep chooses γ₀ and c by the final weighted mean train loss of FedAvg. For linear
//! models, the second chooses λ for each track by the 90th percentile of the task's metric over
//! held-out train devices.

use std::path::PathBuf;

use deltafl::task::{Metric, Task};
use deltafl::training::Decay;
use deltafl_data::experiment::{Experiment, OneOrMore, Positive};
use deltafl_data::run_folder::{RunFolderError, Summary, TrackSummary};
use serde::Serialize;

mod grid;
mod heat_map;

pub use grid::GridValues;
pub use heat_map::HeatMap;

use crate::drawing::{self, DrawingError};
use crate::error::{ErrorKind, Excerpt, Explain, FileError, FolderError, create_folder, write_file};
use crate::event::SweepObserver;
use crate::report::tracks::tracks;
use crate::sweep::SweepError;
use crate::sweep::folder::SweepFolder;
use crate::sweep::points::{Sweep, SweepPoint};
use crate::sweep::train::{self, SweepOptions, Tally};
use crate::text_table;
use grid::TuneGrid;

/// The reason why an experiment cannot be tuned.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TuneError {
    /// Decays were given for a learning rate that does not decay.
    #[error("the learning rate of the experiment does not decay, so there is no c to tune")]
    NoDecay,
    /// λ is tuned, but the experiment does not split its devices.
    #[error(
        "λ is chosen on devices held out of the train devices, and the experiment does not split its devices"
    )]
    NoSplit,
    /// A value is out of range.
    #[error("--{option}: {value} is out of range")]
    OutOfRange {
        /// The list: `rates`, `decays` or `l2`.
        option: &'static str,
        /// The value.
        value: f64,
    },
    /// A sweep cannot be planned or read.
    #[error(transparent)]
    Sweep(#[from] SweepError),
    /// A run folder cannot be used.
    #[error(transparent)]
    Folder(#[from] FolderError),
    /// Points of a sweep failed, were interrupted, or are trained by another process.
    #[error("nothing can be chosen yet: run the same command again when all points are trained")]
    Unfinished {
        /// The folder of the sweep.
        folder: PathBuf,
        /// The results of training.
        tally: Tally,
    },
    /// FedAvg diverged at every point.
    #[error("FedAvg diverged at every point of the grid")]
    Diverged,
    /// No device was held out.
    #[error("no device is held out to choose λ")]
    NothingHeldOut,
    /// A file cannot be written.
    #[error(transparent)]
    File(#[from] FileError),
    /// A heat map cannot be drawn.
    #[error(transparent)]
    Drawing(#[from] DrawingError),
}

impl From<RunFolderError> for TuneError {
    fn from(error: RunFolderError) -> Self {
        Self::Folder(error.into())
    }
}

impl Explain for TuneError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Sweep(error) => error.kind(),
            Self::Folder(error) => error.kind(),
            Self::File(error) => error.kind(),
            Self::Unfinished { .. } | Self::Drawing(_) => ErrorKind::Failure,
            Self::NoDecay
            | Self::NoSplit
            | Self::OutOfRange { .. }
            | Self::Diverged
            | Self::NothingHeldOut => ErrorKind::InvalidInput,
        }
    }

    fn help(&self) -> Option<String> {
        let help = match self {
            Self::Sweep(error) => return error.help(),
            Self::Folder(error) => return error.help(),
            Self::File(error) => return error.help(),
            Self::NoDecay => "set its decay: --set local.decay.factor=1 --set local.decay.every=200",
            Self::NoSplit => "add split to [data]: --set data.split.train=0.5",
            Self::Diverged => "try smaller rates: --rates 0.01,0.001",
            Self::NothingHeldOut => "train on more devices, or list some in data.split.given.validation",
            _ => return None,
        };
        Some(help.to_owned())
    }

    fn excerpt(&self) -> Option<Excerpt<'_>> {
        match self {
            Self::Sweep(error) => error.excerpt(),
            _ => None,
        }
    }
}

/// How to tune an experiment.
#[derive(Clone, Debug)]
pub struct TuneOptions {
    /// The values to try.
    pub values: GridValues,
    /// The number of the experiment's seeds over which results are averaged.
    pub seeds: std::num::NonZeroUsize,
    /// The folder for the sweeps, the heat maps and `tuned.toml`.
    pub out: PathBuf,
    /// How to train the points.
    pub sweep: SweepOptions,
}

/// The chosen values.
#[derive(Debug, Serialize)]
pub struct Chosen {
    /// γ₀.
    pub learning_rate: f64,
    /// c; 1 if the rate does not decay.
    pub decay: f64,
    /// λ of each track.
    pub l2: Vec<TrackPenalty>,
    /// The tuned experiment file.
    pub experiment: PathBuf,
}

/// The penalty of a track.
#[derive(Clone, Debug, Serialize)]
pub struct TrackPenalty {
    /// The track.
    pub track: String,
    /// λ.
    pub l2: f64,
}

/// The results of one of the two sweeps.
#[derive(Debug)]
pub struct TuneStep {
    /// The results of all points.
    pub map: HeatMap,
    /// The heat map as PNG. An SVG file is in the same folder.
    pub png: PathBuf,
    /// One line per parameter with the chosen value.
    pub choices: Vec<String>,
}

/// A grid search. The caller runs its steps in order: [`Self::rate`], [`Self::l2`],
/// [`Self::finish`].
pub struct Tuner {
    options: TuneOptions,
    grid: TuneGrid,
    /// The experiment with the values chosen so far.
    tuned: Experiment,
    penalties: Vec<TrackPenalty>,
}

impl Tuner {
    /// Creates a search for an experiment.
    ///
    /// # Errors
    ///
    /// Fails if the experiment cannot be tuned, or if a value is out of range.
    pub fn new(experiment: Experiment, options: TuneOptions) -> Result<Self, TuneError> {
        let experiment = experiment.with_resolved(None);
        let grid = TuneGrid::new(&experiment, options.values.clone())?;
        Ok(Self { options, grid, tuned: experiment, penalties: Vec::new() })
    }

    /// Chooses γ₀ and c.
    ///
    /// # Errors
    ///
    /// Fails if points are not trained yet, if FedAvg diverges at every point, or if files cannot
    /// be written.
    pub fn rate(&mut self, observer: &mut SweepObserver<'_>) -> Result<TuneStep, TuneError> {
        let mut swept = vec![format!("local.learning_rate={}", listed(&self.grid.rates))];
        if !self.grid.decays.is_empty() {
            swept.push(format!("local.decay.factor={}", listed(&self.grid.decays)));
        }
        let (folder, sweep) = self.sweep("rate", grid::for_rate(&self.tuned), &swept)?;
        folder.describe(&sweep)?;
        let points = self.trained(&folder, sweep, observer)?;
        let columns = self.grid.decays.len().max(1);
        let losses: Vec<Option<f64>> =
            points.iter().map(|(_, summary)| train_loss(&summary.tracks[0])).collect();
        let best = lowest(&losses).ok_or(TuneError::Diverged)?;
        let (rate, decay) = (best / columns, best % columns);
        // Rates from left to right, decays from top to bottom.
        let decays: Vec<String> =
            if self.grid.decays.is_empty() { vec!["none".to_owned()] } else { formatted(&self.grid.decays) };
        let cells =
            (0..columns).map(|c| (0..self.grid.rates.len()).map(|r| losses[r * columns + c]).collect());
        let map = HeatMap {
            title: "Train loss of FedAvg at the end".to_owned(),
            x: ("learning rate γ₀", formatted(&self.grid.rates)),
            y: ("decay c", decays),
            cells: cells.collect(),
            chosen: vec![(decay, rate)],
            decimals: loss_decimals(&points, &losses),
        };
        let png = self.picture("rate", &map)?;
        let out_of_range = |option, value| move |_| TuneError::OutOfRange { option, value };
        let gamma = self.grid.rates[rate];
        let learning_rate = Positive::try_from(gamma).map_err(out_of_range("rates", gamma))?;
        let mut chosen = self.tuned.local().decay;
        let of_rate: Vec<Option<f64>> = losses.iter().copied().skip(decay).step_by(columns).collect();
        let mut choices = vec![format!("γ₀ = {gamma}{}", edge(rate, &of_rate, "--rates"))];
        if let (Some(decay), Some(&c)) = (chosen, self.grid.decays.get(decay)) {
            let factor = Positive::try_from(c).map_err(out_of_range("decays", c))?;
            chosen = (c < 1.0).then_some(Decay { factor, ..decay });
            choices.push(format!("c = {c}"));
        }
        self.tuned = self.tuned.clone().with_learning_rate(learning_rate, chosen);
        Ok(TuneStep { map, png, choices })
    }

    /// Chooses λ for each track. Returns `None` if λ is not tuned.
    ///
    /// # Errors
    ///
    /// Fails if points are not trained yet, if no device is held out, or if files cannot be
    /// written.
    pub fn l2(&mut self, observer: &mut SweepObserver<'_>) -> Result<Option<TuneStep>, TuneError> {
        if self.grid.l2.is_empty() {
            return Ok(None);
        }
        let penalties: Vec<String> = self.grid.l2.iter().map(|l2| format!("{l2:e}")).collect();
        let swept = [format!("model.l2={}", penalties.join(","))];
        let (folder, sweep) = self.sweep("l2", grid::for_l2(&self.tuned), &swept)?;
        // An extended grid of rates may have selected another rate and therefore other points.
        folder.describe_anew(&sweep)?;
        let points = self.trained(&folder, sweep, observer)?;
        let metric = points.first().map_or(Task::Classes, |(_, summary)| summary.task).primary();
        let names: Vec<String> = tracks(&self.tuned).into_iter().map(|track| track.label).collect();
        let errors: Vec<Vec<Option<f64>>> = (0..names.len())
            .map(|t| points.iter().map(|(_, summary)| validation_p90(metric, &summary.tracks[t])).collect())
            .collect();
        let best: Option<Vec<usize>> = errors.iter().map(|errors| best(metric, errors)).collect();
        let best = best.ok_or(TuneError::NothingHeldOut)?;
        let map = HeatMap {
            title: format!("90th percentile of the {} over held-out train devices", metric.heading()),
            x: ("penalty λ", penalties),
            y: ("track", names),
            decimals: text_table::decimals(metric, errors.iter().flatten().flatten().copied()),
            cells: errors,
            chosen: best.iter().copied().enumerate().collect(),
        };
        let png = self.picture("l2", &map)?;
        let choice = |((name, &i), errors): ((&String, &usize), &Vec<Option<f64>>)| {
            format!("{name}: λ = {:e}{}", self.grid.l2[i], edge(i, errors, "--l2"))
        };
        let choices = map.y.1.iter().zip(&best).zip(&map.cells).map(choice).collect();
        let chosen: Vec<f64> = best.into_iter().map(|i| self.grid.l2[i]).collect();
        let names = map.y.1.iter().cloned();
        self.penalties = names.zip(&chosen).map(|(track, &l2)| TrackPenalty { track, l2 }).collect();
        self.tuned = grid::with_l2(self.tuned.clone(), &chosen);
        Ok(Some(TuneStep { map, png, choices }))
    }

    /// Writes `tuned.toml`, the experiment with the chosen values.
    ///
    /// # Errors
    ///
    /// Fails if the file cannot be written.
    pub fn finish(self) -> Result<Chosen, TuneError> {
        let experiment = self.write("tuned.toml", self.file().as_bytes())?;
        Ok(Chosen {
            learning_rate: self.tuned.local().learning_rate,
            decay: self.tuned.local().decay.map_or(1.0, |decay| decay.factor.get()),
            l2: self.penalties,
            experiment,
        })
    }

    /// Creates a sweep in a separate folder.
    fn sweep(
        &self,
        name: &str,
        experiment: Experiment,
        swept: &[String],
    ) -> Result<(SweepFolder, Sweep), TuneError> {
        let seeds: Vec<u64> = experiment.seeds().iter().copied().take(self.options.seeds.get()).collect();
        let seeds = OneOrMore::try_from(seeds).expect("an experiment has a seed");
        let experiment = experiment.with_seeds(seeds);
        let folder = SweepFolder::at(&self.options.out.join(name));
        let sweep = Sweep::new(&folder.description(), &experiment.to_toml(), &[], swept)?;
        Ok((folder, sweep))
    }

    /// Trains a sweep. Returns its points with their results.
    fn trained(
        &self,
        folder: &SweepFolder,
        sweep: Sweep,
        observer: &mut SweepObserver<'_>,
    ) -> Result<Vec<(SweepPoint, Summary)>, TuneError> {
        let points: Vec<&SweepPoint> = sweep.points.iter().collect();
        let tally = train::train(folder, &points, &self.options.sweep, observer)?;
        if tally.busy > 0 || tally.interrupted || !tally.failures.is_empty() {
            return Err(TuneError::Unfinished { folder: folder.path().to_owned(), tally });
        }
        let summed = |point: SweepPoint| {
            let summary = Summary::read(&folder.point(&point.address))?;
            Ok((point, summary))
        };
        sweep.points.into_iter().map(summed).collect()
    }

    /// Draws a heat map. Returns the path of the PNG file.
    fn picture(&self, name: &str, map: &HeatMap) -> Result<PathBuf, TuneError> {
        self.write(&format!("{name}.svg"), drawing::svg(map)?.as_bytes())?;
        self.write(&format!("{name}.png"), &drawing::png(map)?)
    }

    fn write(&self, name: &str, contents: &[u8]) -> Result<PathBuf, TuneError> {
        let path = self.options.out.join(name);
        create_folder(&self.options.out)?;
        write_file(&path, contents)?;
        Ok(path)
    }

    /// Returns the tuned experiment, with a comment on the origin of its values.
    fn file(&self) -> String {
        let rate = format!(
            "# Tuned by `deltafl tune`: learning_rate{} by the train loss of FedAvg after {} rounds",
            if self.grid.decays.is_empty() { "" } else { " and decay" },
            self.tuned.rounds()
        );
        let l2 = if self.penalties.is_empty() {
            ""
        } else {
            ",\n# l2 by the 90th percentile over half of the train devices, held out"
        };
        format!("{rate}{l2}.\n{}", self.tuned.to_toml())
    }
}

/// Returns a note if the best value is at the edge of the grid and better than its neighbour.
fn edge(best: usize, figures: &[Option<f64>], option: &str) -> String {
    let neighbour = if best == 0 { 1 } else { best - 1 };
    let at_edge = best == 0 || best + 1 == figures.len();
    if at_edge && figures.get(neighbour).is_some_and(|figure| *figure != figures[best]) {
        format!(", at the edge of the grid: a value beyond it may be better ({option})")
    } else {
        String::new()
    }
}

fn train_loss(track: &TrackSummary) -> Option<f64> {
    track.train_loss.map(|loss| loss.mean.mean).filter(|loss| loss.is_finite())
}

/// Returns the number of decimals of a train loss. A regression loss has the target's unit and may
/// have any magnitude.
fn loss_decimals(points: &[(SweepPoint, Summary)], losses: &[Option<f64>]) -> usize {
    match points.first().map(|(_, summary)| summary.task) {
        Some(Task::Regression(_)) => text_table::places(losses.iter().flatten().copied()),
        _ => 4,
    }
}

/// Returns the displayed value: shares in per cent.
fn validation_p90(metric: &Metric, track: &TrackSummary) -> Option<f64> {
    track.validation.map(|figures| metric.display_value(figures.p90.mean)).filter(|figure| figure.is_finite())
}

/// Returns the index of the first of the best values of a metric.
fn best(metric: &Metric, figures: &[Option<f64>]) -> Option<usize> {
    let costs: Vec<Option<f64>> =
        figures.iter().map(|figure| figure.map(|value| metric.cost(value))).collect();
    lowest(&costs)
}

/// Returns the index of the first of the lowest values: of equal ones, the smallest value of the
/// grid.
fn lowest(figures: &[Option<f64>]) -> Option<usize> {
    let finite = figures.iter().enumerate().filter_map(|(i, figure)| Some((i, (*figure)?)));
    finite.min_by(|a, b| a.1.total_cmp(&b.1)).map(|(i, _)| i)
}

fn listed(values: &[f64]) -> String {
    formatted(values).join(",")
}

fn formatted(values: &[f64]) -> Vec<String> {
    values.iter().map(ToString::to_string).collect()
}
