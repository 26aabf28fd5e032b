//! The run folder: the only interface between training and everything that reads results.
//!
//! ```text
//! runs/NAME/
//!   experiment.toml        resolved: every default written out, the data's hash, our version
//!   rounds.jsonl           a line per (seed, track, round)
//!   devices/*.parquet      loss and error of each device at each evaluation
//!   checkpoint/*.safetensors   the last good state of each seed, always whole
//!   summary.json           the figures of the paper's tables
//!   classes.json           the error of each class, if labels are words
//!   groups.json            the metric of each group of devices, if they declare groups
//!   baseline.json          the error of the best constant prediction
//!   contract.json          the shape of the data and the constants of its preparation
//! ```
//!
//! The folder is safe against a kill at any moment. Complete files are written under temporary
//! names, synced and renamed. `rounds.jsonl` is only appended to. When a run resumes, it cuts the
//! lines after the last checkpoint (for example, an incomplete line) and the later evaluations. The
//! rounds in between are trained again, with the same bits.

use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::experiment::Experiment;
use deltafl::algorithm::TrackLabel;
use deltafl::data::DataContract;
use deltafl::exchange::SplitEvaluation;
use deltafl::training::{RoundRecord, State};

mod atomic;
mod baseline;
mod checkpoint;
mod classes;
mod devices;
mod groups;
mod idle;
mod rounds;
mod summary;

pub use baseline::Baseline;
pub use checkpoint::{CheckpointError, decode as state_of_checkpoint, encode as checkpoint_bytes};
pub use classes::{ClassFigures, Classes};
pub use devices::{DevicesError, EvaluationFile};
pub use groups::{GroupFigures, Groups};
pub use idle::{IdleCause, IdleRounds};
pub use summary::{HeldOutSummary, Summary, TrackSummary};

/// The name of the file of the contract.
const CONTRACT: &str = "contract.json";

/// An error that occurs when a run folder is written or read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunFolderError {
    /// An operation of the file system failed.
    #[error("{path}")]
    Io {
        /// The file.
        path: PathBuf,
        /// The error of the system.
        source: std::io::Error,
    },
    /// The path is a file.
    #[error("{path} is a file, not a folder")]
    NotAFolder {
        /// The file.
        path: PathBuf,
    },
    /// The folder contains a run already.
    #[error("{path} already holds a run")]
    Exists {
        /// The folder.
        path: PathBuf,
    },
    /// The folder contains no run.
    #[error("{path} holds no run: it has no experiment.toml")]
    Missing {
        /// The folder.
        path: PathBuf,
    },
    /// A run is training in the folder, in this process or another one.
    #[error("a run is training in {path} already")]
    Locked {
        /// The folder.
        path: PathBuf,
    },
    /// The experiment differs from the one with which the run was started.
    #[error("the experiment has changed since the run in {path} was started")]
    Changed {
        /// The folder.
        path: PathBuf,
        /// The differences.
        differences: Vec<ChangedKey>,
    },
    /// The run has done more rounds than the experiment requests.
    #[error("the run in {path} has already done {done} rounds, but the experiment requests {rounds}")]
    Shorter {
        /// The folder.
        path: PathBuf,
        /// Rounds done by the most advanced seed.
        done: u64,
        /// Rounds requested.
        rounds: u64,
    },
    /// `experiment.toml` or a line of `rounds.jsonl` cannot be read.
    #[error("{path}, line {line}: {reason}")]
    Malformed {
        /// The file.
        path: PathBuf,
        /// The line, counted from 1.
        line: usize,
        /// The error.
        reason: String,
    },
    /// A checkpoint cannot be read.
    #[error("{path} is not a checkpoint of this run")]
    Checkpoint {
        /// The file.
        path: PathBuf,
        /// The error in the file.
        source: CheckpointError,
    },
    /// An evaluation cannot be written or read.
    #[error("{path}")]
    Devices {
        /// The file.
        path: PathBuf,
        /// The error in the file.
        source: DevicesError,
    },
    /// No seed has been evaluated yet.
    #[error("{path} holds no evaluation yet")]
    NotEvaluated {
        /// The folder.
        path: PathBuf,
    },
}

/// A key whose value changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ChangedKey {
    /// The key, dotted.
    pub key: String,
    /// The value with which the run was started.
    pub before: Option<String>,
    /// The value now.
    pub now: Option<String>,
}

/// A line of `rounds.jsonl`: the record, and the duration of the round.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RoundLine {
    /// The record of the round.
    #[serde(flatten)]
    pub record: RoundRecord,
    /// Seconds that the round took, for all tracks together.
    pub seconds: f64,
}

/// A run folder open for training.
#[derive(Debug)]
pub struct RunFolder {
    path: PathBuf,
    tracks: Vec<TrackLabel>,
    rounds: BufWriter<File>,
    /// Held until the folder is dropped, so that only one process trains at a time.
    _lock: File,
}

impl RunFolder {
    /// Starts a run in a folder without one.
    pub fn create(path: &Path, experiment: &Experiment) -> Result<Self, RunFolderError> {
        if path.join("experiment.toml").exists() {
            return Err(RunFolderError::Exists { path: path.to_owned() });
        }
        if path.is_file() {
            return Err(RunFolderError::NotAFolder { path: path.to_owned() });
        }
        for folder in [path.to_owned(), path.join("devices"), path.join("checkpoint")] {
            fs::create_dir_all(&folder).map_err(io_error(&folder))?;
        }
        let lock = lock(path)?;
        let file = path.join("experiment.toml");
        atomic::write(&file, experiment.to_toml().as_bytes()).map_err(io_error(&file))?;
        Self::open_locked(path, experiment, lock)
    }

    /// Resumes a run and cuts everything after its checkpoints.
    ///
    /// The experiment may request another number of rounds, as long as no seed has done more. A
    /// round does not depend on the number of rounds after it. The run therefore ends with the bits
    /// of a run that had this length from the start.
    pub fn resume(path: &Path, experiment: &Experiment) -> Result<Self, RunFolderError> {
        let before = read_experiment(path)?;
        let mut differences = before.differences(experiment);
        differences.retain(|difference| difference.key != "rounds");
        if !differences.is_empty() {
            return Err(RunFolderError::Changed { path: path.to_owned(), differences });
        }
        let lock = lock(path)?;
        let done = |seed| checkpoint::rounds_done(path, seed);
        let planned = experiment.rounds();
        if before.rounds() != experiment.rounds() {
            let furthest =
                experiment.seeds().iter().map(|&seed| done(seed)).collect::<Result<Vec<u64>, _>>()?;
            if let Some(done) = furthest.into_iter().max().filter(|&done| done > planned) {
                return Err(RunFolderError::Shorter { path: path.to_owned(), done, rounds: planned });
            }
            reopen(path, experiment)?;
        }
        rounds::cut(&path.join("rounds.jsonl"), done)?;
        // The last round of a shorter run was evaluated because it was the last.
        let every = experiment.evaluate_every();
        devices::cut(path, |round| round == planned || round.is_multiple_of(every), done)?;
        Self::open_locked(path, experiment, lock)
    }

    fn open_locked(path: &Path, experiment: &Experiment, lock: File) -> Result<Self, RunFolderError> {
        let file = path.join("rounds.jsonl");
        let rounds = File::options().create(true).append(true).open(&file).map_err(io_error(&file))?;
        Ok(Self {
            path: path.to_owned(),
            tracks: experiment.labels(),
            rounds: BufWriter::new(rounds),
            _lock: lock,
        })
    }

    /// Returns the folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the last good state of a seed; `None` if it has none.
    pub fn state(&self, seed: u64, params: usize) -> Result<Option<State>, RunFolderError> {
        let Some(state) = checkpoint::read(&self.path, seed)? else { return Ok(None) };
        let fits = state.tracks.len() == self.tracks.len()
            && state.tracks.iter().all(|track| track.params.len() == params);
        if fits {
            return Ok(Some(state));
        }
        let path = checkpoint::path(&self.path, seed);
        Err(RunFolderError::Checkpoint { path, source: CheckpointError::OtherModel })
    }

    /// Appends the records of a round.
    pub fn append(&mut self, records: &[RoundRecord], seconds: f64) -> Result<(), RunFolderError> {
        let file = self.path.join("rounds.jsonl");
        for record in records {
            let line = RoundLine { record: record.clone(), seconds };
            serde_json::to_writer(&mut self.rounds, &line).map_err(|e| io_error(&file)(e.into()))?;
            self.rounds.write_all(b"\n").map_err(io_error(&file))?;
        }
        Ok(())
    }

    /// Writes the loss and error of every device after `round` rounds.
    pub fn evaluation(
        &mut self,
        seed: u64,
        round: u64,
        splits: &[SplitEvaluation],
    ) -> Result<(), RunFolderError> {
        devices::write(&self.path, &self.tracks, seed, round, splits)
    }

    /// Replaces the checkpoint of a seed after all earlier records are on disk.
    pub fn checkpoint(&mut self, state: &State) -> Result<(), RunFolderError> {
        let file = self.path.join("rounds.jsonl");
        self.rounds.flush().and_then(|()| self.rounds.get_ref().sync_data()).map_err(io_error(&file))?;
        checkpoint::write(&self.path, state)
    }

    /// Returns to an earlier state of its seed: replaces the checkpoint and cuts later rounds.
    pub fn rewind(&mut self, state: &State) -> Result<(), RunFolderError> {
        self.checkpoint(state)?;
        let file = self.path.join("rounds.jsonl");
        rounds::cut(&file, |seed| checkpoint::rounds_done(&self.path, seed))?;
        self.reopen_rounds()
    }

    /// Appends to the current `rounds.jsonl` after it was replaced.
    fn reopen_rounds(&mut self) -> Result<(), RunFolderError> {
        let file = self.path.join("rounds.jsonl");
        let rounds = File::options().append(true).open(&file).map_err(io_error(&file))?;
        self.rounds = BufWriter::new(rounds);
        Ok(())
    }

    /// Writes the errors of each class after the last round.
    pub fn classes(&self, classes: &Classes) -> Result<(), RunFolderError> {
        classes::write(&self.path, classes)
    }

    /// Writes the metric of each group of devices after the last round.
    pub fn groups(&self, groups: &Groups) -> Result<(), RunFolderError> {
        groups::write(&self.path, groups)
    }

    /// Writes the error of the best constant prediction.
    pub fn baseline(&self, baseline: &Baseline) -> Result<(), RunFolderError> {
        baseline::write(&self.path, baseline)
    }

    /// Writes the contract of the data: with it, the models can be applied to other data.
    pub fn contract(&self, contract: &DataContract) -> Result<(), RunFolderError> {
        let file = self.path.join(CONTRACT);
        atomic::write(&file, &contract.to_bytes()).map_err(io_error(&file))
    }

    /// Sorts `rounds.jsonl` by these seeds: seeds that train side by side write in any order.
    pub fn sort_rounds(&mut self, seeds: &[u64]) -> Result<(), RunFolderError> {
        let file = self.path.join("rounds.jsonl");
        self.rounds.flush().map_err(io_error(&file))?;
        rounds::sort(&file, seeds)?;
        self.reopen_rounds()
    }

    /// Writes `summary.json` from the last evaluation of each seed.
    pub fn summarise(&self) -> Result<Summary, RunFolderError> {
        let summary = Summary::read(&self.path)?;
        let file = self.path.join("summary.json");
        let json = serde_json::to_vec_pretty(&summary).expect("a summary has string keys and finite numbers");
        atomic::write(&file, &json).map_err(io_error(&file))?;
        Ok(summary)
    }
}

/// Returns the experiment of a run.
pub fn read_experiment(path: &Path) -> Result<Experiment, RunFolderError> {
    let file = path.join("experiment.toml");
    if !file.exists() {
        return Err(RunFolderError::Missing { path: path.to_owned() });
    }
    let text = fs::read_to_string(&file).map_err(io_error(&file))?;
    Experiment::parse(&text).map_err(|e| RunFolderError::Malformed {
        path: file,
        line: e.line(&text),
        reason: e.message,
    })
}

/// Returns the lines of `rounds.jsonl`; ignores an incomplete last line.
pub fn read_rounds(path: &Path) -> Result<Vec<RoundLine>, RunFolderError> {
    rounds::read(&path.join("rounds.jsonl"))
}

/// Returns the errors of each class after the last round of a run; `None` if classes have no names.
pub fn read_classes(path: &Path) -> Result<Option<Classes>, RunFolderError> {
    classes::read(path)
}

/// Returns the metric of each group of devices after the last round of a run; `None` if devices
/// declare no groups.
pub fn read_groups(path: &Path) -> Result<Option<Groups>, RunFolderError> {
    groups::read(path)
}

/// Returns the contract of the data of a run; `None` if an earlier version wrote the run.
pub fn read_contract(path: &Path) -> Result<Option<DataContract>, RunFolderError> {
    let file = path.join(CONTRACT);
    let bytes = match fs::read(&file) {
        Ok(bytes) => bytes,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(io_error(&file)(e)),
    };
    let contract = DataContract::from_bytes(&bytes);
    contract.map(Some).map_err(|e| RunFolderError::Malformed { path: file, line: 1, reason: e.to_string() })
}

/// Returns the evaluations of a run, by seed and round.
pub fn evaluations(path: &Path) -> Result<Vec<EvaluationFile>, RunFolderError> {
    devices::list(path)
}

/// Returns the last good state of a seed; `None` if it has none.
pub fn read_checkpoint(path: &Path, seed: u64) -> Result<Option<State>, RunFolderError> {
    checkpoint::read(path, seed)
}

/// Whether a process on this machine trains in the folder.
pub fn is_locked(path: &Path) -> bool {
    let lock = File::open(path.join(".lock"));
    lock.is_ok_and(|lock| matches!(lock.try_lock(), Err(fs::TryLockError::WouldBlock)))
}

/// Changes the number of rounds of a run. Its summary is removed first: a run with a summary is
/// finished. The results of classes and groups are those of the former last round.
fn reopen(path: &Path, experiment: &Experiment) -> Result<(), RunFolderError> {
    for name in ["summary.json", "classes.json", "groups.json"] {
        let file = path.join(name);
        match fs::remove_file(&file) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => return Err(io_error(&file)(e)),
            _ => {}
        }
    }
    let file = path.join("experiment.toml");
    atomic::write(&file, experiment.to_toml().as_bytes()).map_err(io_error(&file))
}

fn lock(path: &Path) -> Result<File, RunFolderError> {
    let file = path.join(".lock");
    let lock =
        File::options().create(true).truncate(false).write(true).open(&file).map_err(io_error(&file))?;
    match lock.try_lock() {
        Ok(()) => Ok(lock),
        Err(fs::TryLockError::WouldBlock) => Err(RunFolderError::Locked { path: path.to_owned() }),
        Err(fs::TryLockError::Error(source)) => Err(RunFolderError::Io { path: file, source }),
    }
}

fn io_error(path: &Path) -> impl FnOnce(std::io::Error) -> RunFolderError {
    let path = path.to_owned();
    move |source| RunFolderError::Io { path, source }
}
