//! A temporary file with arbitrary bytes, and a folder for the output of an importer.

use std::path::{Path, PathBuf};

use deltafl_data::import::ImportTarget;

/// Calls `import` with a file that contains these bytes. The imported federation must open and
/// verify.
pub fn import<E>(
    bytes: &[u8],
    import: impl FnOnce(&Path, &ImportTarget) -> Result<deltafl_data::import::Imported, E>,
) {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let path: PathBuf = dir.path().join("input");
    std::fs::write(&path, bytes).expect("a temporary file");
    if let Ok(imported) = import(&path, &ImportTarget::new(dir.path().join("out"))) {
        let federation = imported.open().expect("an imported federation opens");
        federation.verify().expect("an imported federation matches its hash");
    }
}
