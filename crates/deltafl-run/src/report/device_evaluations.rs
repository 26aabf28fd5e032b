//! The evaluations of individual devices, read from the run folder.

use std::path::Path;

use deltafl::data::Split;
use deltafl::exchange::SplitEvaluation;
use deltafl::metrics::objective;
use deltafl::superquantile::Conformity;
use deltafl_data::run_folder::{self, EvaluationFile};

use super::distribution::{Distribution, Measured};
use super::measure::ReportMeasure;
use super::results::{Evaluated, ResultsError};

/// Reads the evaluations of individual devices. Returns `None` if there are none.
pub(super) fn device_by_device(
    folder: &Path,
    thetas: &[Conformity],
) -> Result<Option<Evaluated>, ResultsError> {
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

#[cfg(test)]
mod tests {
    use super::*;
    use deltafl::exchange::{EvaluatedDevice, Evaluation};
    use deltafl::task::{RegressionLoss, Task};

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
}
