//! `classes.json`: how each class fares under each track, where labels are words.

use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};

use deltafl::data::Split;
use deltafl::metrics::OverSeeds;

use super::{RunFolderError, atomic, io_error};

/// How classes that have names fare after the last round.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Classes {
    /// The devices whose examples these are.
    pub split: Split,
    /// In the order of their numbers; without those that no example is of.
    pub classes: Vec<ClassFigures>,
}

/// The examples of one class, whichever device holds them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ClassFigures {
    /// Its name.
    pub name: String,
    /// How many there are.
    pub examples: u64,
    /// The share of them that is taken for another class, for each track.
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

/// Reads them; `None` of a run that has none.
pub(super) fn read(folder: &Path) -> Result<Option<Classes>, RunFolderError> {
    let file = path(folder);
    let text = match fs::read(&file) {
        Ok(text) => text,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(io_error(&file)(e)),
    };
    let malformed = |e: serde_json::Error| RunFolderError::Malformed {
        path: file.clone(),
        line: e.line(),
        reason: e.to_string(),
    };
    serde_json::from_slice(&text).map(Some).map_err(malformed)
}
