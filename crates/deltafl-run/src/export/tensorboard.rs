//! Export of a run to TensorBoard: a folder per track and seed, a scalar per value.
//!
//! Wall time is the training time so far. TensorBoard's "relative" axis is therefore correct, and
//! two exports are identical to the byte.

use std::fs::{self, File};
use std::io::{BufWriter, Write as _};
use std::path::{Path, PathBuf};

use deltafl::data::Split;
use deltafl::metrics::{Figures, PERCENTILES, objective};
use deltafl::superquantile::Conformity;
use deltafl_data::run_folder::{self, EvaluationFile, RoundLine};

use super::ExportError;
use super::event::{Scalar, Scalars, TensorBoardEvent, write_record};
use crate::error::FileError;
use crate::report::tracks::{TrackInfo, tracks};

/// Writes the event files of a run.
pub(super) fn write(run: &Path, out: &Path) -> Result<Vec<PathBuf>, ExportError> {
    let experiment = run_folder::read_experiment(run)?;
    let lines = run_folder::read_rounds(run)?;
    let files = run_folder::evaluations(run)?;
    let tracks = tracks(&experiment);
    let mut written = Vec::new();
    for seed in experiment.seeds() {
        let of_seed: Vec<&RoundLine> = lines.iter().filter(|line| line.record.seed == *seed).collect();
        let evaluations: Vec<&EvaluationFile> = files.iter().filter(|file| file.seed == *seed).collect();
        let mut events = vec![Vec::new(); tracks.len()];
        let clock = of_evaluations(&tracks, &evaluations, &of_seed, &mut events)?;
        for line in of_seed {
            let time = clock.at(line.record.round + 1);
            if let Some(events) = events.get_mut(line.record.track) {
                events.push(of_round(line, time));
            }
        }
        for (track, mut events) in tracks.iter().zip(events) {
            if events.is_empty() {
                continue;
            }
            events.sort_by_key(|event| event.step);
            let folder = out.join(folder_name(&track.label)).join(format!("seed-{seed}"));
            written.push(write_events(&folder, &events)?);
        }
    }
    Ok(written)
}

/// Seconds of training after each round.
struct TrainingTimes(Vec<f64>);

impl TrainingTimes {
    /// The line of each track that trained in a round contains the seconds of the round. They count
    /// once.
    fn new(lines: &[&RoundLine]) -> Self {
        let mut seconds = vec![0.0];
        let mut sum = 0.0;
        for line in lines {
            let round = line.record.round as usize;
            if round + 1 < seconds.len() {
                continue;
            }
            seconds.resize(round + 1, sum);
            sum += line.seconds;
            seconds.push(sum);
        }
        Self(seconds)
    }

    fn at(&self, rounds: u64) -> f64 {
        self.0.get(rounds as usize).or(self.0.last()).copied().unwrap_or(0.0)
    }
}

/// Returns the values of the tables and the objective for every evaluation.
fn of_evaluations(
    tracks: &[TrackInfo],
    files: &[&EvaluationFile],
    lines: &[&RoundLine],
    events: &mut [Vec<TensorBoardEvent>],
) -> Result<TrainingTimes, ExportError> {
    let clock = TrainingTimes::new(lines);
    for file in files {
        let splits = file.read()?;
        for (track, events) in events.iter_mut().enumerate() {
            let mut values = Vec::new();
            for split in splits.iter().filter(|split| track < split.tracks.len()) {
                let name = match split.split {
                    Split::Train => "train_loss".to_owned(),
                    Split::Test => format!("test_{}", split.task.primary().name),
                    Split::Validation => format!("validation_{}", split.task.primary().name),
                };
                let Some(figures) = Figures::of_track(split, track) else { continue };
                values.push(scalar(&format!("{name}/mean"), figures.mean));
                for (tau, value) in PERCENTILES.iter().zip(figures.percentiles) {
                    values.push(scalar(&format!("{name}/p{tau}"), value));
                }
                let theta = Conformity::try_from(tracks[track].theta).ok();
                let objective = theta.and_then(|theta| objective(split, track, theta));
                values.extend(objective.map(|value| scalar("objective", value)));
            }
            events.push(event(file.round, clock.at(file.round), values));
        }
    }
    Ok(clock)
}

/// Returns the event of a recorded round.
fn of_round(line: &RoundLine, time: f64) -> TensorBoardEvent {
    let record = &line.record;
    let mut values = vec![
        scalar("round/tail", record.tail as f64),
        scalar("round/secure_sums", record.sums as f64),
        scalar("round/bytes_up", record.bytes_up as f64),
        scalar("round/bytes_down", record.bytes_down as f64),
        scalar("round/seconds", line.seconds),
    ];
    values.extend(record.eta.map(|eta| scalar("round/eta", eta)));
    values.extend(record.loss.map(|loss| scalar("round/cohort_loss", loss)));
    event(record.round + 1, time, values)
}

fn event(round: u64, wall_time: f64, values: Vec<Scalar>) -> TensorBoardEvent {
    TensorBoardEvent { wall_time, step: round as i64, file_version: None, summary: Some(Scalars { values }) }
}

fn scalar(tag: &str, value: f64) -> Scalar {
    Scalar { tag: tag.to_owned(), simple_value: value as f32 }
}

fn write_events(folder: &Path, events: &[TensorBoardEvent]) -> Result<PathBuf, ExportError> {
    let path = folder.join("events.out.tfevents.0000000000.deltafl");
    let written = || -> std::io::Result<()> {
        fs::create_dir_all(folder)?;
        let mut file = BufWriter::new(File::create(&path)?);
        write_record(&mut file, &TensorBoardEvent::version())?;
        for event in events {
            write_record(&mut file, event)?;
        }
        file.flush()
    };
    written().map_err(FileError::write(&path))?;
    Ok(path)
}

/// Converts `Δ-FL θ=0.5` to `delta-fl-theta-0.5`, which is valid in shells and all file systems.
pub(super) fn folder_name(label: &str) -> String {
    let spelled = label.replace('Δ', "delta").replace('θ', "theta").replace('η', "eta").replace('ν', "nu");
    let plain = spelled.replace('λ', "lambda").to_lowercase();
    plain.chars().map(|c| if c.is_ascii_alphanumeric() || c == '.' || c == '_' { c } else { '-' }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_round_counts_once_if_the_tracks_train_in_turn_or_together() {
        let line = |track: usize, round: u64| {
            let record = format!(
                "{{\"seed\":1,\"track\":{track},\"name\":\"t\",\"round\":{round},\"eta\":null,\"eta_age\":null,\
                 \"loss\":null,\"cohort\":1,\"dropped\":0,\"tail\":1,\"tail_weight\":1.0,\"refused\":0,\"sums\":1,\
                 \"messages\":0,\"bytes_up\":0,\"bytes_down\":0,\"seconds\":0.5}}"
            );
            serde_json::from_str::<RoundLine>(&record).unwrap()
        };
        for lines in [[line(0, 0), line(1, 1), line(0, 2)], [line(0, 0), line(1, 0), line(0, 2)]] {
            let times = TrainingTimes::new(&lines.iter().collect::<Vec<_>>());
            let rounds = if lines[1].record.round == 1 { [0.5, 1.0, 1.5] } else { [0.5, 0.5, 1.0] };
            for (done, seconds) in (1..).zip(rounds) {
                assert!((times.at(done) - seconds).abs() < 1e-12, "{:?}", times.0);
            }
        }
    }

    #[test]
    fn folders_are_named_after_tracks() {
        assert_eq!(folder_name("FedAvg"), "fedavg");
        assert_eq!(folder_name("Δ-FL θ=0.5 T_η=5"), "delta-fl-theta-0.5-t_eta-5");
    }
}
