//! `summary.json`: the figures of the paper's tables, mean and standard deviation over seeds.

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::{
    Baseline, EvaluationFile, IdleRounds, RoundLine, RunFolderError, baseline, devices, read_experiment,
    read_rounds,
};
use crate::experiment::Experiment;
use deltafl::algorithm::TrackLabel;
use deltafl::data::Split;
use deltafl::evaluation::{CohortEvaluation, FigureBounds, MeasureHistogram};
use deltafl::exchange::SplitEvaluation;
use deltafl::metrics::{DispersionBySize, Figures, FiguresOverSeeds, OverSeeds, SampleError, objective};
use deltafl::superquantile::Conformity;
use deltafl::task::Task;
use deltafl::training::PrivacySpent;

/// The results of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// The name of the experiment.
    pub name: String,
    /// The data.
    pub dataset: String,
    /// The kind of model.
    pub model: String,
    /// The task: [`Task::primary`] is the metric of the figures.
    pub task: Task,
    /// The devices that `test` describes: the test devices, or the train devices if there are no
    /// test devices.
    #[serde(default = "test_devices")]
    pub reported: Split,
    /// A row of the tables for each track.
    pub tracks: Vec<TrackSummary>,
    /// The best constant prediction, if it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub baseline: Option<Box<Baseline>>,
}

fn test_devices() -> Split {
    Split::Test
}

/// The results of a track.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TrackSummary {
    /// Its name.
    pub name: String,
    /// The kind of its algorithm.
    pub algorithm: String,
    /// θ.
    pub theta: Conformity,
    /// The first metric of the task on the test devices ([`Summary::reported`]); shares in [0, 1].
    pub test: Option<FiguresOverSeeds>,
    /// The dispersion of the same metric over these devices.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub test_dispersion: Option<DispersionBySize>,
    /// The uncertainty if a sample of these devices is evaluated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub test_sample: Option<SampleError>,
    /// The same for the train devices held out for validation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub validation: Option<FiguresOverSeeds>,
    /// Loss of the train devices, weighted by n_k.
    pub train_loss: Option<FiguresOverSeeds>,
    /// The dispersion of the loss over the train devices, with equal weights.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub train_loss_dispersion: Option<DispersionBySize>,
    /// The uncertainty if a sample of the train devices is evaluated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub train_loss_sample: Option<SampleError>,
    /// F_θ(w): the superquantile of these losses at the track's own θ, mean and deviation over
    /// seeds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub objective: Option<OverSeeds>,
    /// Seeds that were evaluated.
    pub seeds: usize,
    /// Rounds done; the minimum over the seeds.
    pub rounds: u64,
    /// Rounds that did not change the params, over all seeds.
    #[serde(default)]
    pub idle_rounds: IdleRounds,
    /// Bounds on the metrics of held-out examples from the last cohort of each seed, if devices
    /// report sums only.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub held_out: Vec<HeldOutSummary>,
    /// The privacy spent in the run with the highest ε, if sums are noisy. It covers all tracks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub privacy: Option<PrivacySpent>,
}

/// Bounds on the metrics of held-out examples of a cohort, from secure sums.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HeldOutSummary {
    /// The seed.
    pub seed: u64,
    /// Rounds trained before the evaluation.
    pub version: u64,
    /// Devices that reported.
    pub devices: u64,
    /// Bounds on the mean and percentiles of each measure, with equal weights of devices.
    pub measures: BTreeMap<String, FigureBounds>,
}

impl HeldOutSummary {
    fn new(seed: u64, told: &CohortEvaluation) -> Self {
        let bounds =
            |histogram: &MeasureHistogram| Some((histogram.measure.name().to_owned(), histogram.figures()?));
        let measures = told.measures.iter().filter_map(bounds).collect();
        Self { seed, version: told.version, devices: told.devices(), measures }
    }
}

/// Returns the largest privacy spent over the rounds of all seeds.
fn most_spent(lines: &[RoundLine]) -> Option<PrivacySpent> {
    let spent = lines.iter().filter_map(|line| line.record.privacy);
    let epsilons = |spent: &PrivacySpent| (spent.epsilon_server.unwrap_or(0.0), spent.epsilon_readers);
    spent.reduce(|most, next| if epsilons(&next) > epsilons(&most) { next } else { most })
}

impl Summary {
    /// Reads the last evaluation of each seed.
    pub fn read(folder: &Path) -> Result<Self, RunFolderError> {
        Self::over(read_experiment(folder)?, &[folder])
    }

    /// Reads the last evaluation of each seed of several runs that differ only in their seeds. The
    /// experiment is that of any of them. A seed that several runs trained counts once.
    pub fn over(experiment: Experiment, folders: &[&Path]) -> Result<Self, RunFolderError> {
        let mut last: Vec<EvaluationFile> = Vec::new();
        let mut lines = Vec::new();
        for folder in folders {
            let before = last.len();
            for file in devices::list(folder)? {
                match last.iter().position(|known| known.seed == file.seed) {
                    None => last.push(file),
                    Some(known) if known >= before => last[known] = file,
                    Some(_) => {}
                }
            }
            let new = |seed: u64| last[before..].iter().any(|file| file.seed == seed);
            lines.extend(read_rounds(folder)?.into_iter().filter(|line| new(line.record.seed)));
        }
        let Some(rounds) = last.iter().map(|file| file.round).min() else {
            if let Some(summary) = Self::of_cohorts(&experiment, folders)? {
                return Ok(summary);
            }
            let path = folders.first().map_or_else(Default::default, |folder| folder.to_path_buf());
            return Err(RunFolderError::NotEvaluated { path });
        };
        let evaluations = last.iter().map(EvaluationFile::read).collect::<Result<Vec<_>, _>>()?;
        let figures = |track: usize, split: Split| -> Option<FiguresOverSeeds> {
            let splits = evaluations.iter().flatten().filter(|evaluation| evaluation.split == split);
            let seeds: Vec<Figures> =
                splits.filter_map(|evaluation| Figures::of_track(evaluation, track)).collect();
            FiguresOverSeeds::new(&seeds)
        };
        let has_test_devices =
            |split: &SplitEvaluation| split.split == Split::Test && !split.devices.is_empty();
        let reported =
            if evaluations.iter().flatten().any(has_test_devices) { Split::Test } else { Split::Train };
        let of_reported = || evaluations.iter().flatten().filter(|evaluation| evaluation.split == reported);
        let of_train = || evaluations.iter().flatten().filter(|evaluation| evaluation.split == Split::Train);
        let reported_figures = |track: usize| -> Option<FiguresOverSeeds> {
            let seeds: Vec<Figures> =
                of_reported().filter_map(|split| Figures::of_primary(split, track)).collect();
            FiguresOverSeeds::new(&seeds)
        };
        let objectives = |track: usize, theta: Conformity| -> Option<OverSeeds> {
            let seeds = evaluations.iter().flatten().filter_map(|split| objective(split, track, theta));
            OverSeeds::new(&seeds.collect::<Vec<_>>())
        };
        let population = experiment.resolved().and_then(|resolved| resolved.population);
        let reported_sample = |track: usize| -> Option<SampleError> {
            let of = population?.devices(reported);
            let seeds: Vec<_> = of_reported().filter_map(|e| SampleError::of_primary(e, track, of)).collect();
            SampleError::over_seeds(&seeds)
        };
        let sample = |track: usize, split: Split| -> Option<SampleError> {
            let of = population?.devices(split);
            let splits = evaluations.iter().flatten().filter(|evaluation| evaluation.split == split);
            let seeds: Vec<_> = splits.filter_map(|e| SampleError::of_track(e, track, of)).collect();
            SampleError::over_seeds(&seeds)
        };
        let labels = experiment.labels();
        let idle = IdleRounds::per_track(lines.iter().map(|line| &line.record), labels.len());
        let spent = most_spent(&lines);
        let of_track = |(t, label): (usize, &TrackLabel)| TrackSummary {
            name: label.name.clone(),
            algorithm: label.algorithm.clone(),
            theta: label.theta,
            test: reported_figures(t),
            test_dispersion: DispersionBySize::of_primary(of_reported(), t),
            test_sample: reported_sample(t),
            validation: figures(t, Split::Validation),
            train_loss: figures(t, Split::Train),
            train_loss_dispersion: DispersionBySize::of_losses(of_train(), t),
            train_loss_sample: sample(t, Split::Train),
            objective: objectives(t, label.theta),
            seeds: last.len(),
            rounds,
            idle_rounds: idle[t],
            held_out: Vec::new(),
            privacy: spent,
        };
        Ok(Self {
            name: experiment.name().to_owned(),
            dataset: experiment.data().name(),
            model: experiment.model().spec().name().to_owned(),
            task: evaluations.iter().flatten().next().map_or(Task::Classes, |split| split.task),
            reported,
            tracks: labels.iter().enumerate().map(of_track).collect(),
            baseline: folders
                .first()
                .map(|folder| baseline::read(folder))
                .transpose()?
                .flatten()
                .map(Box::new),
        })
    }

    /// Returns the results of runs whose cohorts report secure sums only; `None` if they reported
    /// nothing.
    fn of_cohorts(experiment: &Experiment, folders: &[&Path]) -> Result<Option<Self>, RunFolderError> {
        let mut lines = Vec::new();
        for folder in folders {
            lines.extend(read_rounds(folder)?);
        }
        let labels = experiment.labels();
        let idle = IdleRounds::per_track(lines.iter().map(|line| &line.record), labels.len());
        let spent = most_spent(&lines);
        // The last report of a seed follows its rounds.
        let mut last: BTreeMap<(usize, u64), &CohortEvaluation> = BTreeMap::new();
        for record in lines.iter().map(|line| &line.record) {
            last.extend(record.evaluations.iter().map(|told| ((record.track, record.seed), told)));
        }
        let Some(task) = last.values().next().map(|told| told.task) else { return Ok(None) };
        let of_track = |(t, label): (usize, &TrackLabel)| {
            let told = last.iter().filter(|((track, _), _)| *track == t);
            let held_out: Vec<HeldOutSummary> =
                told.map(|((_, seed), told)| HeldOutSummary::new(*seed, told)).collect();
            TrackSummary {
                name: label.name.clone(),
                algorithm: label.algorithm.clone(),
                theta: label.theta,
                test: None,
                test_dispersion: None,
                test_sample: None,
                validation: None,
                train_loss: None,
                train_loss_dispersion: None,
                train_loss_sample: None,
                objective: None,
                seeds: held_out.len(),
                rounds: held_out.iter().map(|told| told.version).min().unwrap_or(0),
                idle_rounds: idle[t],
                held_out,
                privacy: spent,
            }
        };
        Ok(Some(Self {
            name: experiment.name().to_owned(),
            dataset: experiment.data().name(),
            model: experiment.model().spec().name().to_owned(),
            task,
            reported: Split::Test,
            tracks: labels.iter().enumerate().map(of_track).collect(),
            baseline: None,
        }))
    }
}
