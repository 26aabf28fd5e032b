//! Exports of a run for other programs: TensorBoard, CSV, Parquet, cohorts, and its models.

use std::path::{Path, PathBuf};

mod cohorts;
mod event;
mod models;
mod onnx;
mod tabular;
mod tensorboard;

use deltafl_data::run_folder::RunFolderError;
use parquet::errors::ParquetError;

use crate::error::{ErrorKind, Excerpt, Explain, FileError, FolderError, create_folder};
use crate::predict::PredictError;
use crate::session::RunError;

/// The format of an export.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ExportFormat {
    /// Event files: a TensorBoard run per track and seed.
    Tensorboard,
    /// `rounds.csv`, `evaluations.csv` and `devices.csv`.
    Csv,
    /// `rounds.parquet`, `evaluations.parquet` and `devices.parquet`.
    Parquet,
    /// `cohorts.csv`: the devices drawn in every round of a simulation.
    Cohorts,
    /// A network per track that onnxruntime runs, with the preparation of its inputs.
    Onnx,
    /// The named tensors of each track as safetensors.
    Safetensors,
    /// The named tensors of each track as a file for `torch.load`.
    Torch,
}

impl ExportFormat {
    /// Returns the name of the format, which is also the name of its default folder.
    pub fn name(self) -> &'static str {
        match self {
            Self::Tensorboard => "tensorboard",
            Self::Csv => "csv",
            Self::Parquet => "parquet",
            Self::Cohorts => "cohorts",
            Self::Onnx => "onnx",
            Self::Safetensors => "safetensors",
            Self::Torch => "torch",
        }
    }
}

/// The reason why a run cannot be exported.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ExportError {
    /// The run folder cannot be used.
    #[error(transparent)]
    Folder(#[from] FolderError),
    /// A file cannot be written.
    #[error(transparent)]
    File(#[from] FileError),
    /// A Parquet file cannot be written.
    #[error("cannot write {path}")]
    Parquet {
        /// The file.
        path: PathBuf,
        /// The error of the encoder.
        source: ParquetError,
    },
    /// The data of the experiment cannot be used.
    #[error(transparent)]
    Data(#[from] RunError),
    /// The models cannot be read.
    #[error(transparent)]
    Model(#[from] PredictError),
    /// The model has no ONNX form.
    #[error("the model {model} has no ONNX form")]
    NoGraph {
        /// The model.
        model: &'static str,
    },
    /// The data differs from the training data of the run.
    #[error("the data differs from the training data of the run: its hash is {hash}")]
    OtherData {
        /// The hash of the data.
        hash: String,
    },
    /// No attempt draws the cohort recorded for a round.
    #[error(
        "seed {seed}, round {round}: no cohort of {cohort} devices of which {dropped} vanish is drawn from these {devices} \
         train devices; was the run deployed?"
    )]
    Cohort {
        /// The seed.
        seed: u64,
        /// The round.
        round: u64,
        /// Devices in the recorded cohort.
        cohort: u64,
        /// Devices of the cohort that vanished.
        dropped: u64,
        /// Train devices of the data.
        devices: usize,
    },
}

impl From<RunFolderError> for ExportError {
    fn from(error: RunFolderError) -> Self {
        Self::Folder(error.into())
    }
}

impl Explain for ExportError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Folder(error) => error.kind(),
            Self::File(error) => error.kind(),
            Self::Data(error) => error.kind(),
            Self::Model(error) => error.kind(),
            Self::NoGraph { .. } => ErrorKind::InvalidInput,
            _ => ErrorKind::Failure,
        }
    }

    fn help(&self) -> Option<String> {
        match self {
            Self::Folder(error) => error.help(),
            Self::File(error) => error.help(),
            Self::Data(error) => error.help(),
            Self::Model(error) => error.help(),
            Self::NoGraph { .. } => Some("--format safetensors exports its tensors".to_owned()),
            _ => None,
        }
    }

    fn excerpt(&self) -> Option<Excerpt<'_>> {
        None
    }
}

/// Exports a run into a folder. Returns the paths of the files.
///
/// # Errors
///
/// Fails if the run cannot be read or a file cannot be written. Cohorts also require the training
/// data of the run.
pub fn export(run: &Path, format: ExportFormat, out: &Path) -> Result<Vec<PathBuf>, ExportError> {
    create_folder(out)?;
    match format {
        ExportFormat::Tensorboard => tensorboard::write(run, out),
        ExportFormat::Csv => tabular::write_csv(run, out),
        ExportFormat::Parquet => tabular::write_parquet(run, out),
        ExportFormat::Cohorts => cohorts::write(run, out),
        ExportFormat::Onnx | ExportFormat::Safetensors | ExportFormat::Torch => {
            models::write(run, format, out)
        }
    }
}
