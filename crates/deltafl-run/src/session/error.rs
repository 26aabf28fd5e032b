//! The errors of a run.

use deltafl::compute::ComputeError;
use deltafl::exchange::ExchangeError;
use deltafl::model::ModelMismatch;
use deltafl::training::{ObserverError, TrainingError};
use deltafl_cuda::GpuError;
use deltafl_data::experiment::LoadError;
use deltafl_data::run_folder::{CheckpointError, RunFolderError};

use crate::by_class::ByClassError;
use crate::error::{ErrorKind, Excerpt, Explain, FolderError};

/// The reason why a run fails.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// The data of the experiment cannot be loaded.
    #[error("the data of the experiment cannot be used")]
    Data(#[from] LoadError),
    /// The model cannot be built for the data.
    #[error("the model does not fit the data")]
    Model(#[from] ModelMismatch),
    /// The devices cannot compute, or there are none.
    #[error("the experiment cannot be trained")]
    Setup(#[source] ExchangeError),
    /// The GPU that the run requires cannot be used.
    #[error("--compute cuda:{ordinal} cannot be used")]
    Gpu {
        /// The number of the GPU.
        ordinal: usize,
        /// The error of the GPU.
        source: GpuError,
    },
    /// The GPU has too little memory for the seeds.
    #[error("the seeds do not fit on the GPU")]
    GpuMemory(#[source] GpuError),
    /// The run folder cannot be used.
    #[error(transparent)]
    Folder(#[from] FolderError),
    /// A round failed.
    #[error(transparent)]
    Training(#[from] TrainingError),
    /// The classes cannot be evaluated.
    #[error(transparent)]
    Classes(#[from] ByClassError),
    /// The state of rank 0 cannot be sent to the other ranks.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// Only the program that implements an algorithm of the experiment can train it.
    #[error("the algorithm {name} is implemented by a program: train it with that program")]
    External {
        /// The name of the algorithm.
        name: String,
    },
    /// A trainer cannot train an algorithm.
    #[error("{track} cannot be trained by your trainer: {reason}")]
    Untrainable {
        /// The name of the track.
        track: String,
        /// The part of the algorithm that trainers do not support.
        reason: &'static str,
    },
    /// A rank of an MPI job cannot take part, or the ranks disagree.
    #[error("{problem}")]
    Ranks {
        /// The problem.
        problem: String,
    },
    /// A rank of an MPI job cannot take part.
    #[error("{rank} cannot take part")]
    Rank {
        /// The rank, with its host.
        rank: String,
        /// The error on the rank.
        source: Box<Self>,
    },
}

impl RunError {
    /// Converts an error of the backend before training.
    pub(crate) fn compute(error: ComputeError) -> Self {
        Self::Setup(error.into())
    }
}

impl From<ObserverError> for RunError {
    fn from(error: ObserverError) -> Self {
        Self::Training(TrainingError::Observer(error))
    }
}

impl From<RunFolderError> for RunError {
    fn from(error: RunFolderError) -> Self {
        Self::Folder(error.into())
    }
}

impl Explain for RunError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Data(_)
            | Self::Model(_)
            | Self::Setup(_)
            | Self::Gpu { .. }
            | Self::GpuMemory(_)
            | Self::External { .. }
            | Self::Untrainable { .. }
            | Self::Ranks { .. } => ErrorKind::InvalidInput,
            Self::Folder(error) => error.kind(),
            Self::Training(_) | Self::Classes(_) | Self::Checkpoint(_) => ErrorKind::Failure,
            Self::Rank { source, .. } => source.kind(),
        }
    }

    fn help(&self) -> Option<String> {
        match self {
            Self::Gpu { .. } => Some(
                "train with --compute cpu, or auto for a GPU if one can be used; a run continues on the backend on \
                 which it was begun"
                    .to_owned(),
            ),
            Self::Folder(error) => error.help(),
            Self::Rank { source, .. } => source.help(),
            _ => None,
        }
    }

    fn excerpt(&self) -> Option<Excerpt<'_>> {
        None
    }
}
