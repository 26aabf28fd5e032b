//! Sweeps: an experiment with lists of values, and a run for each combination.

pub mod axes;
pub mod folder;
pub mod listing;
pub mod merge;
pub mod points;
pub mod slurm;
pub mod splits;
pub mod train;

use std::path::PathBuf;

use deltafl_data::experiment::InvalidFolderName;

use crate::error::{ErrorKind, Excerpt, Explain, FileError, FolderError};
use crate::experiment_file::ExperimentFileError;
use crate::session::RunError;

/// The reason why a sweep cannot be planned, trained, read or merged.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SweepError {
    /// The experiment is invalid.
    #[error(transparent)]
    Experiment(#[from] ExperimentFileError),
    /// An axis has no values.
    #[error("--sweep {argument}: expected key=value,value,…")]
    Argument {
        /// The argument.
        argument: String,
    },
    /// An axis has no value.
    #[error("the sweep of {key} has no value")]
    EmptyAxis {
        /// The key.
        key: String,
    },
    /// Two axes have the same key.
    #[error("{key} is swept twice")]
    Twice {
        /// The key.
        key: String,
    },
    /// A key is both set and swept.
    #[error("--set {assignment}: the key is swept as well")]
    SetAndSwept {
        /// The override.
        assignment: String,
        /// The key.
        key: String,
    },
    /// The key does not exist in the experiment.
    #[error("the sweep of {key}: {problem}")]
    Key {
        /// The key.
        key: String,
        /// The problem.
        problem: String,
    },
    /// Two combinations result in the same experiment.
    #[error("two points are the same experiment: {} and {}", first.join(", "), second.join(", "))]
    SamePoint {
        /// The values of the first.
        first: Vec<String>,
        /// The values of the second.
        second: Vec<String>,
    },
    /// The values of a point cannot be part of its name.
    #[error("the point {name:?}: {source}")]
    Name {
        /// The name.
        name: String,
        /// The reason.
        source: InvalidFolderName,
    },
    /// A file or folder cannot be used.
    #[error(transparent)]
    File(#[from] FileError),
    /// A run folder cannot be used.
    #[error(transparent)]
    Folder(#[from] FolderError),
    /// The data of a point cannot be used.
    #[error(transparent)]
    Run(#[from] RunError),
    /// The folder contains files that do not belong to a sweep.
    #[error("{path} is in use, and not by a sweep")]
    Foreign {
        /// The folder.
        path: PathBuf,
    },
    /// The folder contains another sweep.
    #[error("{path} holds another sweep: {lost} of its {points} points are not points of this one")]
    OtherSweep {
        /// The folder.
        path: PathBuf,
        /// The number of points missing from the new sweep.
        lost: usize,
        /// The number of points of the sweep in the folder.
        points: usize,
    },
    /// The folder contains no sweep.
    #[error("{path} holds no sweep: there is no sweep.toml in it")]
    NoSweep {
        /// The folder.
        path: PathBuf,
    },
    /// The experiment in a run folder does not match the folder name.
    #[error("the experiment in {path} is not the one that its folder is named after")]
    Address {
        /// The run folder.
        path: PathBuf,
    },
    /// There is no folder to merge.
    #[error("there is no folder to merge")]
    NothingToMerge,
    /// Two folders to merge contain different sweeps.
    #[error("{first} and {second} are different sweeps")]
    DifferentSweeps {
        /// A folder.
        first: PathBuf,
        /// Another folder.
        second: PathBuf,
    },
    /// A point to merge is being trained.
    #[error("a process is training in {path}")]
    InTraining {
        /// The run folder.
        path: PathBuf,
    },
    /// Two points with the same data source were trained on different data.
    #[error("{first} and {second} trained on different data")]
    DifferentData {
        /// A run folder.
        first: PathBuf,
        /// Another run folder.
        second: PathBuf,
    },
}

impl From<deltafl_data::run_folder::RunFolderError> for SweepError {
    fn from(error: deltafl_data::run_folder::RunFolderError) -> Self {
        Self::Folder(error.into())
    }
}

impl Explain for SweepError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Experiment(error) => error.kind(),
            Self::File(error) => error.kind(),
            Self::Folder(error) => error.kind(),
            Self::Run(error) => error.kind(),
            _ => ErrorKind::InvalidInput,
        }
    }

    fn help(&self) -> Option<String> {
        let help = match self {
            Self::Experiment(error) => return error.help(),
            Self::File(error) => return error.help(),
            Self::Folder(error) => return error.help(),
            Self::Run(error) => return error.help(),
            Self::Argument { .. } => {
                "for example --sweep local.learning_rate=0.1,0.3 --sweep 'algorithm.1.theta=[0.8],[0.5]'"
            }
            Self::SetAndSwept { key, .. } => {
                return Some(format!("leave one of them out, or sweep other values: --sweep {key}=…"));
            }
            Self::Foreign { .. } => "there is no sweep.toml in it: name another folder with --out",
            Self::OtherSweep { .. } => {
                "a sweep grows by values and axes, and keeps its points: add to it, or name another folder with --out"
            }
            Self::NoSweep { .. } => "make one: deltafl sweep run EXPERIMENT.toml --out DIR",
            Self::Address { .. } => {
                "it was changed by hand: move the folder away, and the point is trained again"
            }
            Self::DifferentSweeps { .. } => {
                "their sweep.toml must be the same: run both with the same experiment, --set and --sweep"
            }
            Self::InTraining { .. } => {
                "wait until it ends, or end it: its point is merged with the rounds that are done"
            }
            Self::DifferentData { .. } => {
                "the federations that [data] names were not the same on both machines: data_hash in their \
                 experiment.toml differs"
            }
            Self::EmptyAxis { .. }
            | Self::Twice { .. }
            | Self::Key { .. }
            | Self::Name { .. }
            | Self::SamePoint { .. }
            | Self::NothingToMerge => return None,
        };
        Some(help.to_owned())
    }

    fn excerpt(&self) -> Option<Excerpt<'_>> {
        match self {
            Self::Experiment(error) => error.excerpt(),
            _ => None,
        }
    }
}
