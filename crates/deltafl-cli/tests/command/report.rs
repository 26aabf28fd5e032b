//! Reports, comparisons, exports and listings of run folders.

pub(crate) mod browser;
mod committed_tables;
mod compare;
mod export;
mod files;
mod illustrate;
mod page;
mod recompute;
mod run_folders;
mod runs;
mod sample;
mod tasks;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

use deltafl_data::run_folder::Summary;

/// A trained run with its report, which the tests share and do not modify.
struct TrainedRun {
    path: PathBuf,
    summary: Summary,
    _folder: tempfile::TempDir,
}

fn trained_run() -> &'static TrainedRun {
    static RUN: OnceLock<TrainedRun> = OnceLock::new();
    RUN.get_or_init(|| {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("glyphs-linear");
        let summary = run_folders::trained(&path);
        printed(&["report", text(&path)]);
        TrainedRun { path, summary, _folder: folder }
    })
}

/// Runs the command.
fn deltafl(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_deltafl")).args(args).output().unwrap()
}

/// Runs the command, which must succeed, and returns its output.
fn printed(args: &[&str]) -> String {
    let output = deltafl(args);
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}
