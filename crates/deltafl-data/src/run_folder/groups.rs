//! `groups.json`: the metric of each group of devices under each track, if devices declare groups.

use std::path::Path;

use serde::{Deserialize, Serialize};

use deltafl::data::Split;
use deltafl::metrics::OverSeeds;

use super::{RunFolderError, atomic, classes, io_error};

/// The metric of groups of devices after the last round.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Groups {
    /// The split of the devices.
    pub split: Split,
    /// The groups in the order of their names, without groups that have no device.
    pub groups: Vec<GroupFigures>,
}

/// The devices of one group.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GroupFigures {
    /// Its name.
    pub name: String,
    /// The number of devices.
    pub devices: u64,
    /// The mean of the task's metric over the devices, for each track.
    pub values: Vec<OverSeeds>,
}

const FILE_NAME: &str = "groups.json";

/// Writes the figures of a run.
pub(super) fn write(folder: &Path, groups: &Groups) -> Result<(), RunFolderError> {
    let file = folder.join(FILE_NAME);
    let json = serde_json::to_vec_pretty(groups).expect("figures have string keys and finite numbers");
    atomic::write(&file, &json).map_err(io_error(&file))
}

/// Reads the figures of a run; `None` if it has none.
pub(super) fn read(folder: &Path) -> Result<Option<Groups>, RunFolderError> {
    classes::read_json(&folder.join(FILE_NAME))
}
