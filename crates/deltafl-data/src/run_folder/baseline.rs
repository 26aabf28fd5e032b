//! `baseline.json`: the error of the best constant prediction.

use std::fs;
use std::path::Path;

use deltafl::metrics::{Figures, FiguresOverSeeds};
use serde::{Deserialize, Serialize};

use super::{RunFolderError, atomic, io_error};

const FILE: &str = "baseline.json";

/// The error of a constant prediction on the reported devices.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Baseline {
    /// The prediction: the most frequent class or the mean of the train devices.
    pub name: String,
    /// The first metric of the task.
    pub test: FiguresOverSeeds,
}

impl Baseline {
    /// Returns the baseline with this error on each device; `None` without devices.
    pub fn new(name: String, errors: &[f64]) -> Option<Self> {
        let figures = Figures::unweighted(errors)?;
        Some(Self { name, test: FiguresOverSeeds::new(&[figures])? })
    }
}

pub(super) fn write(folder: &Path, baseline: &Baseline) -> Result<(), RunFolderError> {
    let file = folder.join(FILE);
    let json = serde_json::to_vec_pretty(baseline).expect("a baseline has string keys and finite numbers");
    atomic::write(&file, &json).map_err(io_error(&file))
}

/// Returns the baseline of a run; `None` if it has none.
pub(super) fn read(folder: &Path) -> Result<Option<Baseline>, RunFolderError> {
    let file = folder.join(FILE);
    let bytes = match fs::read(&file) {
        Ok(bytes) => bytes,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(io_error(&file)(e)),
    };
    let baseline = serde_json::from_slice(&bytes);
    baseline.map(Some).map_err(|e| RunFolderError::Malformed {
        path: file,
        line: e.line(),
        reason: e.to_string(),
    })
}
