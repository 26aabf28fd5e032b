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

/// What to say when it is not there.
pub(super) fn missing(preset: &Preset, data: &Path) -> BadInput {
    let [imported, fetched] = preset.folders.map(|folder| data.join(folder).display().to_string());
    bad_input(format!(
        "there is no data for {}: neither {imported} nor {fetched} is a federation",
        preset.name
    ))
    .help(how_to_get_it(preset, data))
}

/// The commands that bring it in.
pub(super) fn how_to_get_it(preset: &Preset, data: &Path) -> String {
    let to = |folder: &str| data.join(folder).display().to_string();
    let import =
        format!("import it once:\n  deltafl data import {} --out {}", preset.import, to(preset.folders[0]));
    let fetch = format!("or download it:\n  deltafl data fetch {} --out {}", preset.fetch, to(preset.fetch));
    let fetch = if cfg!(feature = "fetch") { format!("{fetch}\n") } else { String::new() };
    format!("{import}\n{fetch}or say where it lies: --data DIR")
}
