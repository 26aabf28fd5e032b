//! Where the data of a pair lies, or how to get it.

use std::path::{Path, PathBuf};

use super::presets::Preset;
use crate::error::{BadInput, bad_input};

/// The federation of a pair below a folder; the folder itself, where it is one and `named` says which pair it is for.
pub(super) fn find(preset: &Preset, data: &Path, named: bool) -> Option<PathBuf> {
    let is_federation = |path: &PathBuf| path.join("federation.toml").is_file();
    let below = preset.folders.iter().map(|folder| data.join(folder));
    below.chain(named.then(|| data.to_owned())).find(is_federation)
}

/// What to say when none of these pairs has data.
pub(super) fn missing(presets: &[&Preset], data: &Path) -> BadInput {
    let names: Vec<&str> = presets.iter().map(|preset| preset.name).collect();
    let mut help: Vec<String> = Vec::new();
    for preset in presets {
        let how = how_to_get_it(preset, data);
        if !help.contains(&how) {
            help.push(how);
        }
    }
    help.push("or say where it lies: --data DIR".to_owned());
    bad_input(format!("there is no data for {} in {}", names.join(", "), data.display()))
        .help(help.join("\n"))
}

/// The commands that bring it in.
fn how_to_get_it(preset: &Preset, data: &Path) -> String {
    let to = |folder: &str| data.join(folder).display().to_string();
    let import = format!("deltafl data import {} --out {}", preset.import, to(preset.folders[0]));
    if cfg!(feature = "fetch") {
        format!(
            "{import}\n  or, from its publisher: deltafl data fetch {} --out {}",
            preset.fetch,
            to(preset.fetch)
        )
    } else {
        import
    }
}
