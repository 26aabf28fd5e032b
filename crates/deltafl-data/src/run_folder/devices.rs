//! `devices/*.parquet`: loss and metrics of every device, one file per evaluation. The metadata of
//! the file names the task, whose metrics are the columns after the loss.

use std::fs;
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use parquet::basic::Compression;
use parquet::errors::ParquetError;

use super::{RunFolderError, atomic, io_error};
use crate::arrow_file;
use crate::parquet_file::table::{ParquetTable, TableColumn, TableWriter};
use deltafl::algorithm::TrackLabel;
use deltafl::data::Split;
use deltafl::exchange::{EvaluatedDevice, Evaluation, SplitEvaluation};
use deltafl::task::Task;

/// The key of the task in the metadata of a file.
const TASK: &str = "task";

/// An error that occurs when an evaluation is written or read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DevicesError {
    /// The Parquet file is invalid.
    #[error(transparent)]
    Format(Box<dyn std::error::Error + Send + Sync>),
    /// An operation of the file system failed.
    #[error(transparent)]
    Io(#[from] std::io::Error),
    /// A column is missing or has another type.
    #[error("it has no column {name} of the expected type")]
    Column {
        /// Its name.
        name: &'static str,
    },
    /// The task is unknown.
    #[error("its task {name} is unknown to this version")]
    Task {
        /// The task in the file.
        name: String,
    },
    /// The rows are not sorted by track, split and device.
    #[error("row {row}: it is out of order")]
    Order {
        /// The row.
        row: usize,
    },
}

impl From<ParquetError> for DevicesError {
    fn from(error: ParquetError) -> Self {
        Self::Format(error.into())
    }
}

/// One evaluation of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EvaluationFile {
    /// The seed.
    pub seed: u64,
    /// Rounds done.
    pub round: u64,
    /// The file.
    pub path: PathBuf,
}

impl EvaluationFile {
    fn new(folder: &Path, seed: u64, round: u64) -> Self {
        let path = folder.join("devices").join(format!("seed-{seed}-round-{round:07}.parquet"));
        Self { seed, round, path }
    }

    /// Parses seed and round from the name of a file.
    fn parse(path: PathBuf) -> Option<Self> {
        let name = path.file_name()?.to_str()?;
        let (seed, round) = name.strip_prefix("seed-")?.strip_suffix(".parquet")?.split_once("-round-")?;
        Some(Self { seed: seed.parse().ok()?, round: round.parse().ok()?, path })
    }

    /// Returns loss and metrics of each device, per split and track.
    pub fn read(&self) -> Result<Vec<SplitEvaluation>, RunFolderError> {
        read(&self.path).map_err(|source| RunFolderError::Devices { path: self.path.clone(), source })
    }
}

/// Returns the evaluations of a run, by seed and round.
pub(super) fn list(folder: &Path) -> Result<Vec<EvaluationFile>, RunFolderError> {
    let devices = folder.join("devices");
    let mut files = Vec::new();
    for entry in fs::read_dir(&devices).map_err(io_error(&devices))? {
        files.extend(EvaluationFile::parse(entry.map_err(io_error(&devices))?.path()));
    }
    files.sort_by_key(|file| (file.seed, file.round));
    Ok(files)
}

/// Removes evaluations after the rounds done of each seed, and those of rounds that the run does
/// not evaluate.
pub(super) fn cut(
    folder: &Path,
    evaluated: impl Fn(u64) -> bool,
    done: impl Fn(u64) -> Result<u64, RunFolderError>,
) -> Result<(), RunFolderError> {
    for file in list(folder)? {
        let rounds = done(file.seed)?;
        // Without a checkpoint the run starts again, and evaluates w₀ again.
        if file.round > rounds || rounds == 0 || !evaluated(file.round) {
            fs::remove_file(&file.path).map_err(io_error(&file.path))?;
        }
    }
    Ok(())
}

/// Writes one evaluation.
pub(super) fn write(
    folder: &Path,
    tracks: &[TrackLabel],
    seed: u64,
    round: u64,
    splits: &[SplitEvaluation],
) -> Result<(), RunFolderError> {
    let path = EvaluationFile::new(folder, seed, round).path;
    let columns = columns(tracks, seed, round, splits);
    let task = splits.first().map_or(Task::Classes, |split| split.task);
    let task = serde_json::to_string(&task).expect("a task has string keys and finite numbers");
    let written = atomic::write_with(&path, |file| {
        let mut writer = TableWriter::new(file, &columns, &[(TASK, task)], Compression::UNCOMPRESSED)?;
        writer.write(&columns)?;
        Ok::<_, DevicesError>(writer.finish()?)
    });
    written.map_err(|source| RunFolderError::Devices { path, source })
}

/// Sorts rows by track, then split, then device.
fn columns(
    tracks: &[TrackLabel],
    seed: u64,
    round: u64,
    splits: &[SplitEvaluation],
) -> Vec<(&'static str, TableColumn)> {
    let rows = || {
        tracks.iter().enumerate().flat_map(move |(t, label)| {
            splits.iter().flat_map(move |split| {
                let devices = split.devices.iter().zip(&split.tracks[t]);
                devices.map(move |(device, evaluation)| (t, label, split.split, device, evaluation))
            })
        })
    };
    let count = rows().count();
    let task = splits.first().map_or(Task::Classes, |split| split.task);
    let mut columns = vec![
        ("seed", TableColumn::U64(vec![seed; count])),
        ("track", TableColumn::U32(rows().map(|r| r.0 as u32).collect())),
        ("name", TableColumn::Text(rows().map(|r| r.1.name.clone()).collect())),
        ("algorithm", TableColumn::Text(rows().map(|r| r.1.algorithm.clone()).collect())),
        ("theta", TableColumn::F64(rows().map(|r| r.1.theta.get()).collect())),
        ("round", TableColumn::U64(vec![round; count])),
        ("split", TableColumn::Text(rows().map(|r| r.2.name().to_owned()).collect())),
        ("device", TableColumn::Text(rows().map(|r| r.3.id.clone()).collect())),
        ("examples", TableColumn::U64(rows().map(|r| r.3.examples).collect())),
        ("loss", TableColumn::F64(rows().map(|r| r.4.loss).collect())),
    ];
    for (i, metric) in task.metrics().iter().enumerate() {
        columns.push((metric.name, TableColumn::F64(rows().map(|r| r.4.metrics[i]).collect())));
    }
    columns
}

fn read(path: &Path) -> Result<Vec<SplitEvaluation>, DevicesError> {
    let table = ParquetTable::read(path)?;
    let task = match table.value(TASK).map(str::to_owned).or_else(|| task_of_schema(&table)) {
        Some(name) => serde_json::from_str(&name).map_err(|_| DevicesError::Task { name })?,
        None => Task::Classes,
    };
    let mut rows = EvaluationRows { task, ..EvaluationRows::default() };
    rows.take(&table)?;
    rows.finish()
}

/// Returns the task of a file whose metadata is an Arrow schema in base64. The first versions wrote
/// such files.
fn task_of_schema(table: &ParquetTable) -> Option<String> {
    let message = STANDARD.decode(table.value("ARROW:schema")?).ok()?;
    arrow_file::schema_value(&message, TASK)
}

/// Evaluations under construction. The rows are grouped by track and split.
#[derive(Default)]
struct EvaluationRows {
    task: Task,
    /// (split, devices, evaluations per track).
    splits: Vec<(Split, Vec<EvaluatedDevice>, Vec<Vec<Evaluation>>)>,
    count: usize,
}

impl EvaluationRows {
    fn take(&mut self, table: &ParquetTable) -> Result<(), DevicesError> {
        let missing = |name| DevicesError::Column { name };
        let Some(TableColumn::U32(tracks)) = table.column("track") else { return Err(missing("track")) };
        let Some(TableColumn::Text(splits)) = table.column("split") else { return Err(missing("split")) };
        let Some(TableColumn::Text(devices)) = table.column("device") else { return Err(missing("device")) };
        let Some(TableColumn::U64(examples)) = table.column("examples") else {
            return Err(missing("examples"));
        };
        let Some(TableColumn::F64(losses)) = table.column("loss") else { return Err(missing("loss")) };
        let metrics = self.task.metrics().iter().map(|metric| match table.column(metric.name) {
            Some(TableColumn::F64(values)) => Ok(values),
            _ => Err(missing(metric.name)),
        });
        let metrics = metrics.collect::<Result<Vec<_>, _>>()?;
        for i in 0..tracks.len() {
            let split = Split::from_name(&splits[i]).ok_or(missing("split"))?;
            let device = EvaluatedDevice { id: devices[i].clone(), examples: examples[i] };
            let metric = |j: usize| metrics.get(j).map_or(0.0, |values| values[i]);
            let evaluation = Evaluation { loss: losses[i], metrics: std::array::from_fn(metric) };
            self.push(tracks[i] as usize, split, device, evaluation)?;
        }
        Ok(())
    }

    fn push(
        &mut self,
        track: usize,
        split: Split,
        device: EvaluatedDevice,
        evaluation: Evaluation,
    ) -> Result<(), DevicesError> {
        let row = self.count;
        self.count += 1;
        let at = match self.splits.iter().position(|(known, ..)| *known == split) {
            Some(at) => at,
            None => {
                self.splits.push((split, Vec::new(), Vec::new()));
                self.splits.len() - 1
            }
        };
        let (_, devices, tracks) = &mut self.splits[at];
        if track == tracks.len() {
            tracks.push(Vec::new());
        }
        if track + 1 != tracks.len() {
            return Err(DevicesError::Order { row });
        }
        let evaluations = &mut tracks[track];
        evaluations.push(evaluation);
        if track == 0 {
            devices.push(device);
        } else if devices.get(evaluations.len() - 1) != Some(&device) {
            return Err(DevicesError::Order { row });
        }
        Ok(())
    }

    fn finish(self) -> Result<Vec<SplitEvaluation>, DevicesError> {
        let row = self.count;
        self.splits
            .into_iter()
            .map(|(split, devices, tracks)| {
                if tracks.iter().any(|track| track.len() != devices.len()) {
                    return Err(DevicesError::Order { row });
                }
                Ok(SplitEvaluation { split, task: self.task, devices: devices.into(), tracks })
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use deltafl::superquantile::Conformity;
    use deltafl::task::RegressionLoss;

    fn evaluation(split: Split, task: Task, devices: usize, tracks: usize) -> SplitEvaluation {
        let named = |k: usize| EvaluatedDevice { id: format!("{split:?}-{k}"), examples: k as u64 + 1 };
        let at = |t: usize, k: usize| {
            let metric =
                |i: usize| if i < task.metrics().len() { (i + 1) as f64 / (1 + t + k) as f64 } else { 0.0 };
            Evaluation { loss: (t + k) as f64 / 3.0, metrics: std::array::from_fn(metric) }
        };
        SplitEvaluation {
            split,
            task,
            devices: (0..devices).map(named).collect(),
            tracks: (0..tracks).map(|t| (0..devices).map(|k| at(t, k)).collect()).collect(),
        }
    }

    #[test]
    fn an_evaluation_survives_to_the_bit() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("devices")).unwrap();
        let label = |theta| TrackLabel {
            name: format!("Δ-FL θ={theta}"),
            algorithm: "delta-fl".into(),
            theta: Conformity::try_from(theta).unwrap(),
        };
        let huber = Task::Regression(RegressionLoss::Huber(0.25));
        for task in [Task::Classes, Task::NextSymbol, huber] {
            let splits = [evaluation(Split::Train, task, 5, 2), evaluation(Split::Test, task, 3, 2)];
            write(folder.path(), &[label(1.0), label(0.5)], 3, 50, &splits).unwrap();
            let files = list(folder.path()).unwrap();
            assert_eq!((files.len(), files[0].seed, files[0].round), (1, 3, 50));
            assert_eq!(files[0].read().unwrap(), splits);
        }

        cut(folder.path(), |_| true, |_| Ok(50)).unwrap();
        assert_eq!(list(folder.path()).unwrap().len(), 1);
        cut(folder.path(), |_| true, |_| Ok(49)).unwrap();
        assert!(list(folder.path()).unwrap().is_empty());
    }
}
