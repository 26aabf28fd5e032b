//! `classes.json`: the errors of each class under each track, if labels are words.

use std::fs;
use std::path::Path;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use deltafl::data::Split;
use deltafl::metrics::OverSeeds;

use super::{RunFolderError, atomic, io_error};

/// The errors of classes with names after the last round.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Classes {
    /// The split of the devices that hold the examples.
    pub split: Split,
    /// The classes in the order of their numbers, without classes that have no example.
    pub classes: Vec<ClassFigures>,
}

/// The examples of one class on all devices.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ClassFigures {
    /// Its name.
    pub name: String,
    /// The number of examples.
    pub examples: u64,
    /// The share of misclassified examples for each track.
    pub errors: Vec<OverSeeds>,
}

fn path(folder: &Path) -> std::path::PathBuf {
    folder.join("classes.json")
}

/// Writes the figures of a run.
pub(super) fn write(folder: &Path, classes: &Classes) -> Result<(), RunFolderError> {
    let file = path(folder);
    let json = serde_json::to_vec_pretty(classes).expect("figures have string keys and finite numbers");
    atomic::write(&file, &json).map_err(io_error(&file))
}

/// Reads the figures of a run; `None` if it has none.
pub(super) fn read(folder: &Path) -> Result<Option<Classes>, RunFolderError> {
    read_json(&path(folder))
}

/// Reads a file of figures; `None` if it does not exist.
pub(super) fn read_json<T: DeserializeOwned>(file: &Path) -> Result<Option<T>, RunFolderError> {
    let text = match fs::read(file) {
        Ok(text) => text,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(io_error(file)(e)),
    };
    let malformed = |e: serde_json::Error| RunFolderError::Malformed {
        path: file.to_owned(),
        line: e.line(),
        reason: e.to_string(),
    };
    serde_json::from_slice(&text).map(Some).map_err(malformed)
}
