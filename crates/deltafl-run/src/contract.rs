//! The contract of earlier data: of a run, of a federation folder, or in a file.

use std::path::{Path, PathBuf};

use deltafl::data::DataContract;
use deltafl_data::OpenError;
use deltafl_data::run_folder::{self, RunFolderError};

use crate::error::{ErrorKind, Excerpt, Explain, FolderError};

/// The reason why a contract cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ContractError {
    /// The run folder cannot be read.
    #[error(transparent)]
    Folder(#[from] FolderError),
    /// The federation folder cannot be opened.
    #[error("cannot open the federation {path}")]
    Open {
        /// The folder.
        path: PathBuf,
        /// The error of the folder.
        source: OpenError,
    },
    /// The path contains no contract.
    #[error("{path} is neither a run, nor a federation, nor the file of a contract")]
    None {
        /// The path.
        path: PathBuf,
    },
    /// The run was written by an earlier version.
    #[error("the run {path} has no contract.json, because an earlier version trained it")]
    OldRun {
        /// The run folder.
        path: PathBuf,
    },
}

impl From<RunFolderError> for ContractError {
    fn from(error: RunFolderError) -> Self {
        Self::Folder(error.into())
    }
}

impl Explain for ContractError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Folder(error) => error.kind(),
            _ => ErrorKind::InvalidInput,
        }
    }

    fn help(&self) -> Option<String> {
        match self {
            Self::Folder(error) => error.help(),
            Self::OldRun { .. } => Some("name its federation folder instead".to_owned()),
            _ => None,
        }
    }

    fn excerpt(&self) -> Option<Excerpt<'_>> {
        None
    }
}

/// Reads the contract of a run, of a federation folder, or of a file that contains it.
///
/// # Errors
///
/// Fails if the path contains no contract.
pub fn read(path: &Path) -> Result<DataContract, ContractError> {
    if path.join("federation.toml").exists() {
        let opened = deltafl_data::open(path);
        let federation = opened.map_err(|source| ContractError::Open { path: path.to_owned(), source })?;
        return Ok(DataContract::from_federation(&federation));
    }
    if path.join("experiment.toml").exists() {
        let contract = run_folder::read_contract(path)?;
        return contract.ok_or_else(|| ContractError::OldRun { path: path.to_owned() });
    }
    let none = || ContractError::None { path: path.to_owned() };
    let bytes = std::fs::read(path).map_err(|_| none())?;
    DataContract::from_bytes(&bytes).map_err(|_| none())
}
