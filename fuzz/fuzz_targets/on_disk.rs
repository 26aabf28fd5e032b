//! A file of the fuzzer's bytes, and a place for what an importer makes of it.

use std::path::{Path, PathBuf};

use deltafl_data::import::ImportTarget;

/// Calls `import` with a file that holds these bytes; what it makes must open and verify.
pub fn import<E>(
    bytes: &[u8],
    import: impl FnOnce(&Path, &ImportTarget) -> Result<deltafl_data::import::Imported, E>,
) {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let path: PathBuf = dir.path().join("input");
    std::fs::write(&path, bytes).expect("a temporary file");
    if let Ok(imported) = import(&path, &ImportTarget::new(dir.path().join("out"))) {
        let federation = imported.open().expect("what was imported opens");
        federation.verify().expect("what was imported is what its hash says");
    }
}
