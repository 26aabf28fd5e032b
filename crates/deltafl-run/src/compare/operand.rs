//! One side of a comparison: a run and optionally one of its tracks.

use std::path::{Path, PathBuf};

use deltafl::exchange::SplitEvaluation;
use deltafl::task::Metric;
use deltafl_data::experiment::Experiment;
use deltafl_data::run_folder::{self, EvaluationFile, RunFolderError};

use super::CompareError;
use crate::report::tracks::{TrackInfo, baseline, tracks};

/// A run, its tracks, and the last evaluation of each seed.
pub(super) struct Operand {
    pub(super) name: String,
    /// The run folder.
    pub(super) folder: PathBuf,
    pub(super) experiment: Experiment,
    /// Rounds done, by the slowest seed.
    pub(super) rounds: u64,
    pub(super) tracks: Vec<TrackInfo>,
    /// The named track, if any.
    pub(super) track: Option<usize>,
    pub(super) seeds: Vec<Vec<SplitEvaluation>>,
}

impl Operand {
    /// Reads `RUN` or `RUN:TRACK`. An existing folder whose name contains a colon is taken as a
    /// run.
    pub(super) fn read(text: &str) -> Result<Self, CompareError> {
        let (folder, track) = match text.rsplit_once(':') {
            Some((folder, track)) if !Path::new(text).exists() => (Path::new(folder), Some(track)),
            _ => (Path::new(text), None),
        };
        let mut operand = Self::read_run(folder)
            .map_err(|e| CompareError::Run { path: folder.to_owned(), source: e.into() })?;
        operand.track = track.map(|track| operand.called(track)).transpose()?;
        Ok(operand)
    }

    fn read_run(folder: &Path) -> Result<Self, RunFolderError> {
        let experiment = run_folder::read_experiment(folder)?;
        let files = run_folder::evaluations(folder)?;
        let is_last = |i: usize| files.get(i + 1).is_none_or(|next| next.seed != files[i].seed);
        let last = files.iter().enumerate().filter(|(i, _)| is_last(*i));
        let last: Vec<&EvaluationFile> = last.map(|(_, file)| file).collect();
        let Some(rounds) = last.iter().map(|file| file.round).min() else {
            return Err(RunFolderError::NotEvaluated { path: folder.to_owned() });
        };
        let seeds = last.into_iter().map(EvaluationFile::read).collect::<Result<Vec<_>, _>>()?;
        let tracks = tracks(&experiment);
        let (name, folder) = (experiment.name().to_owned(), folder.to_owned());
        Ok(Self { name, folder, experiment, rounds, tracks, track: None, seeds })
    }

    /// The primary metric of its task.
    pub(super) fn metric(&self) -> Option<&'static Metric> {
        self.seeds.iter().flatten().next().map(|evaluation| evaluation.task.primary())
    }

    pub(super) fn baseline(&self) -> usize {
        baseline(&self.tracks)
    }

    /// Finds a track by its label, its algorithm, or its level θ.
    pub(super) fn called(&self, name: &str) -> Result<usize, CompareError> {
        let theta: Option<f64> = name.parse().ok();
        let tests: [&dyn Fn(&TrackInfo) -> bool; 3] =
            [&|track| track.label == name, &|track| track.algorithm == name, &|track| {
                theta.is_some_and(|theta| theta.total_cmp(&track.theta).is_eq())
                    && track.algorithm != "fedavg"
            }];
        for test in tests {
            let found: Vec<usize> = (0..self.tracks.len()).filter(|&t| test(&self.tracks[t])).collect();
            match found.as_slice() {
                [] => {}
                [one] => return Ok(*one),
                _ => {
                    let (run, track, tracks) = (self.name.clone(), name.to_owned(), self.labels());
                    return Err(CompareError::SeveralTracks { run, track, tracks });
                }
            }
        }
        Err(CompareError::NoTrack { run: self.name.clone(), track: name.to_owned(), tracks: self.labels() })
    }

    fn labels(&self) -> Vec<String> {
        self.tracks.iter().map(|track| track.label.clone()).collect()
    }
}
