//! The crate performs no I/O: no socket, file, clock, system randomness or runtime.

use std::fs;
use std::path::{Path, PathBuf};

fn sources(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).expect("our own sources").map(|entry| entry.expect("readable").path());
    entries.flat_map(|path| if path.is_dir() { sources(&path) } else { vec![path] }).collect()
}

#[test]
fn the_sources_use_no_clock_socket_file_or_runtime() {
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
