//! `summary.json`: the figures of the paper's tables, mean and standard deviation over seeds.

use std::path::Path;

use serde::{Deserialize, Serialize};

use super::{EvaluationFile, RunFolderError, devices, read_experiment};
use deltafl::algorithm::TrackLabel;
use deltafl::data::Split;
use deltafl::metrics::{Figures, FiguresOverSeeds};
use deltafl::superquantile::Conformity;

/// What a run came to.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// The name of the experiment.
    pub name: String,
    /// The data.
    pub dataset: String,
    /// The kind of model.
    pub model: String,
    /// A row of the tables each.
    pub tracks: Vec<TrackSummary>,
}

/// What a track came to.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TrackSummary {
    /// Its name.
    pub name: String,
    /// The kind of its algorithm.
    pub algorithm: String,
    /// θ.
    pub theta: Conformity,
    /// Misclassification error of the test devices, in [0, 1].
    pub test_error: Option<FiguresOverSeeds>,
    /// The same of the train devices held out for validation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub validation_error: Option<FiguresOverSeeds>,
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
        let of_track = |(t, label): (usize, &TrackLabel)| TrackSummary {
            name: label.name.clone(),
            algorithm: label.algorithm.clone(),
            theta: label.theta,
            test_error: figures(t, Split::Test),
            validation_error: figures(t, Split::Validation),
            train_loss: figures(t, Split::Train),
            seeds: last.len(),
            rounds,
        };
        Ok(Self {
            name: experiment.name.clone(),
            dataset: experiment.data.name(),
            model: experiment.model.spec().name().to_owned(),
            tracks: experiment.labels().iter().enumerate().map(of_track).collect(),
        })
    }
}
