//! The reasons why a field cannot be planned, trained or read.

use std::path::PathBuf;

use deltafl::algorithm::ALGORITHMS;
use deltafl::data::synthetic::Spec;
use deltafl_data::OpenError;

use crate::drawing::DrawingError;
use crate::error::{ErrorKind, Excerpt, Explain, FileError, FolderError};
use crate::experiment_file::ExperimentFileError;
use crate::report::ReportError;
use crate::session::RunError;
use crate::sweep::SweepError;
use crate::sweep::train::Tally;

/// The reason why a field cannot be planned, trained or read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FieldError {
    /// The text is neither a folder nor the name of a synthetic federation.
    #[error("{name} is neither a federation folder nor a synthetic federation")]
    UnknownFederation {
        /// The text.
        name: String,
    },
    /// The federation folder cannot be opened.
    #[error("cannot open the federation {path}")]
    Open {
        /// The folder.
        path: PathBuf,
        /// The error of the folder.
        source: OpenError,
    },
    /// The shared experiment is invalid.
    #[error(transparent)]
    Experiment(#[from] ExperimentFileError),
    /// There is no algorithm of this kind.
    #[error("there is no algorithm {kind:?}")]
    UnknownMethod {
        /// The kind.
        kind: String,
    },
    /// A method is invalid, or does not fit the experiment.
    #[error("{method}: {problem}")]
    Method {
        /// The method.
        method: String,
        /// The problem.
        problem: String,
    },
    /// A method is given twice.
    #[error("{method} is given twice")]
    Twice {
        /// The method.
        method: String,
    },
    /// The split by lists has no validation devices.
    #[error("methods are tuned on validation devices, and the split has none")]
    NoValidation,
    /// No candidate of a method has a finite error.
    #[error("every candidate of {method} diverged, or there are no validation devices")]
    Diverged {
        /// The method.
        method: String,
    },
    /// Points failed, were interrupted, or are trained by another process.
    #[error("the field is not finished: run the same command again")]
    Unfinished {
        /// The folder of the points.
        folder: PathBuf,
        /// The results of training.
        tally: Tally,
    },
    /// Points of methods are missing, for example because another shard trains them.
    #[error("{} of the methods are not trained yet: {}", methods.len(), methods.join(", "))]
    Missing {
        /// The methods.
        methods: Vec<String>,
    },
    /// Two points were evaluated on different devices.
    #[error("{method}: its evaluation has other devices than that of the first method")]
    DifferentDevices {
        /// The method.
        method: String,
    },
    /// The points cannot be trained or read.
    #[error(transparent)]
    Sweep(#[from] SweepError),
    /// The data or the model cannot be used.
    #[error(transparent)]
    Run(#[from] RunError),
    /// A run folder cannot be used.
    #[error(transparent)]
    Folder(#[from] FolderError),
    /// A file cannot be written.
    #[error(transparent)]
    File(#[from] FileError),
    /// The picture cannot be drawn.
    #[error(transparent)]
    Drawing(#[from] DrawingError),
    /// The page cannot be written.
    #[error(transparent)]
    Report(#[from] ReportError),
}

impl FieldError {
    /// Returns the underlying error with its own explanation.
    fn inner(&self) -> Option<&dyn Explain> {
        match self {
            Self::Experiment(error) => Some(error),
            Self::Sweep(error) => Some(error),
            Self::Run(error) => Some(error),
            Self::Folder(error) => Some(error),
            Self::File(error) => Some(error),
            Self::Report(error) => Some(error),
            _ => None,
        }
    }
}

impl Explain for FieldError {
    fn kind(&self) -> ErrorKind {
        match (self.inner(), self) {
            (Some(error), _) => error.kind(),
            (None, Self::Unfinished { .. } | Self::Drawing(_)) => ErrorKind::Failure,
            (None, Self::Missing { .. }) => ErrorKind::Busy,
            _ => ErrorKind::InvalidInput,
        }
    }

    fn help(&self) -> Option<String> {
        if let Some(error) = self.inner() {
            return error.help();
        }
        let kinds = || ALGORITHMS.iter().map(|algorithm| algorithm.kind).collect::<Vec<_>>().join(", ");
        Some(match self {
            Self::UnknownFederation { .. } => format!(
                "name a folder, an experiment file, {} or synthetic(α,β)",
                Spec::KINDS.join(", ")
            ),
            Self::UnknownMethod { .. } => format!("the algorithms are: {}", kinds()),
            Self::NoValidation => "add validation devices to data.split.given".to_owned(),
            Self::Diverged { .. } => {
                "try a smaller rate, for example --set local.learning_rate=0.01, or more devices".to_owned()
            }
            Self::Missing { .. } => {
                "run the other shards, copy their points into this folder, and run the command without --shard"
                    .to_owned()
            }
            _ => return None,
        })
    }

    fn excerpt(&self) -> Option<Excerpt<'_>> {
        self.inner().and_then(Explain::excerpt)
    }
}
