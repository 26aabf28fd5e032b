//! `summary.json`: the figures of the paper's tables, mean and standard deviation over seeds.

use std::path::Path;

use serde::{Deserialize, Serialize};

use super::{EvaluationFile, RunFolderError, devices, read_experiment};
use deltafl::data::Split;
use deltafl::engine::SplitEvaluation;
use deltafl::metrics::{Figures, FiguresOverSeeds};
use deltafl::superquantile::Conformity;
use deltafl::task::Task;

/// What a run came to.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// The name of the experiment.
    pub name: String,
    /// The data.
    pub dataset: String,
    /// The kind of model.
    pub model: String,
    /// What is predicted: [`Task::primary`] is the metric of the figures.
    pub task: Task,
    /// The devices of which `test` tells: the test devices, or the train devices of a federation that has no others.
    #[serde(default = "test_devices")]
    pub reported: Split,
    /// A row of the tables each.
    pub tracks: Vec<TrackSummary>,
}

fn test_devices() -> Split {
    Split::Test
}

/// What a track came to.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TrackSummary {
    /// Name of the algorithm.
    pub algorithm: String,
    /// θ.
    pub theta: Conformity,
    /// The first metric of the task on the test devices ([`Summary::reported`]); shares in [0, 1].
    pub test: Option<FiguresOverSeeds>,
    /// The same of the train devices held out for validation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub validation: Option<FiguresOverSeeds>,
    /// Loss of the train devices, weighted by α_k.
    pub train_loss: Option<FiguresOverSeeds>,
    /// Seeds that were evaluated.
    pub seeds: usize,
    /// Rounds done; the fewest over the seeds.
    pub rounds: u64,
}

impl Summary {
    /// Reads the last evaluation of each seed.
    pub fn of(folder: &Path) -> Result<Self, RunFolderError> {
        let experiment = read_experiment(folder)?;
        let mut last: Vec<EvaluationFile> = Vec::new();
        for file in devices::list(folder)? {
            match last.last_mut() {
                Some(known) if known.seed == file.seed => *known = file,
                _ => last.push(file),
            }
        }
        let Some(rounds) = last.iter().map(|file| file.round).min() else {
            return Err(RunFolderError::NotEvaluated { path: folder.to_owned() });
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
        let reported_figures = |track: usize| -> Option<FiguresOverSeeds> {
            let splits = evaluations.iter().flatten().filter(|evaluation| evaluation.split == reported);
            let seeds: Vec<Figures> = splits.filter_map(|split| Figures::of_primary(split, track)).collect();
            FiguresOverSeeds::new(&seeds)
        };
        let of_track = |(t, label): (usize, &crate::experiment::TrackLabel)| TrackSummary {
            algorithm: label.algorithm.clone(),
            theta: label.theta,
            test: reported_figures(t),
            validation: figures(t, Split::Validation),
            train_loss: figures(t, Split::Train),
            seeds: last.len(),
            rounds,
        };
        let labels: Vec<_> = experiment.tracks().into_iter().map(|track| track.label).collect();
        Ok(Self {
            name: experiment.name.clone(),
            dataset: experiment.data.name(),
            model: experiment.model.spec().name().to_owned(),
            task: evaluations.iter().flatten().next().map_or(Task::Classes, |split| split.task),
            reported,
            tracks: labels.iter().enumerate().map(of_track).collect(),
        })
    }
}
