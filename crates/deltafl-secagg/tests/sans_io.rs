//! The crate does no I/O: no socket, no file, no clock, no randomness of its own, no runtime.

use std::fs;
use std::path::{Path, PathBuf};

fn sources(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).expect("our own sources").map(|entry| entry.expect("readable").path());
    entries.flat_map(|path| if path.is_dir() { sources(&path) } else { vec![path] }).collect()
}

#[test]
fn the_sources_name_no_clock_no_socket_no_file_and_no_runtime() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let manifest = root.join("Cargo.toml");
    for file in sources(&root.join("src")).into_iter().chain([manifest]) {
        let text = fs::read_to_string(&file).expect("text");
        for word in [
            "Instant",
            "SystemTime",
            "std::net",
            "std::fs",
            "std::thread",
            "std::env",
            "tokio",
            "OsRng",
            "getrandom",
        ] {
            assert!(!text.contains(word), "{} names {word}", file.display());
        }
    }
}
