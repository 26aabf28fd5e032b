//! The data of a pair, and instructions to obtain it.

use std::path::{Path, PathBuf};

use super::presets::Preset;
use crate::error::{ErrorKind, Excerpt, Explain};

/// Returns the federation of a pair below a folder. If `named` is set, the folder itself may be the
/// federation.
pub fn find_federation(preset: &Preset, data: &Path, named: bool) -> Option<PathBuf> {
    let is_federation = |path: &PathBuf| path.join("federation.toml").is_file();
    let below = preset.folders.iter().map(|folder| data.join(folder));
    below.chain(named.then(|| data.to_owned())).find(is_federation)
}

/// An error: the data of some pairs is missing.
#[derive(Debug, thiserror::Error)]
#[error("there is no data for {} in {data}", self.names().join(", "))]
pub struct MissingData {
    /// The pairs.
    pub presets: Vec<&'static Preset>,
    /// The folder that was searched.
    pub data: PathBuf,
    /// Whether `deltafl data fetch` is available.
    pub can_fetch: bool,
}

impl MissingData {
    fn names(&self) -> Vec<&'static str> {
        self.presets.iter().map(|preset| preset.name).collect()
    }
}

impl Explain for MissingData {
    fn kind(&self) -> ErrorKind {
        ErrorKind::InvalidInput
    }

    fn help(&self) -> Option<String> {
        let mut help: Vec<String> = Vec::new();
        for preset in &self.presets {
            let how = how_to_get_it(preset, &self.data, self.can_fetch);
            if !help.contains(&how) {
                help.push(how);
            }
        }
        help.push("or name its folder: --data DIR".to_owned());
        Some(help.join("\n"))
    }

    fn excerpt(&self) -> Option<Excerpt<'_>> {
        None
    }
}

/// Returns the commands that import the data.
fn how_to_get_it(preset: &Preset, data: &Path, can_fetch: bool) -> String {
    let to = |folder: &str| data.join(folder).display().to_string();
    let import = format!("deltafl data import {} --out {}", preset.import, to(preset.folders[0]));
    if can_fetch {
        format!(
            "{import}\n  or, from its publisher: deltafl data fetch {} --out {}",
            preset.fetch,
            to(preset.fetch)
        )
    } else {
        import
    }
}
