//! A folder with an experiment in it, and the command.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

const EXPERIMENT: &str = r#"
name = "tiny"
seeds = [1, 2]
rounds = 6
cohort = 6
evaluate_every = 3

[data]
source = { kind = "glyphs", devices = 24, seed = 5, points = { min = 20, median = 30, max = 60 } }
split = { train = 0.5, seed = 1 }

[model]
kind = "linear"

[local]
epochs = 1
batch = 10
learning_rate = 0.1

[[algorithm]]
kind = "fedavg"

[[algorithm]]
kind = "delta-fl"
theta = [0.5, 0.2]
"#;

pub(crate) struct Desk {
    folder: tempfile::TempDir,
}

impl Desk {
    /// With the experiment `x.toml`.
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("x.toml"), EXPERIMENT).unwrap();
        Self { folder }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn command(&self, words: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_deltafl"));
        command.args(words.split_whitespace()).current_dir(self.folder.path()).stdin(Stdio::null());
        command
    }

    pub(crate) fn run(&self, words: &str) -> Output {
        self.command(words).output().unwrap()
    }

    /// Runs a command that must succeed, and returns what it prints.
    pub(crate) fn printed(&self, words: &str) -> String {
        let output = self.run(words);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{words}: {said}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// Runs a command that must fail as bad input does, and returns what it says.
    pub(crate) fn refusal(&self, words: &str) -> String {
        let output = self.run(words);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{words}: {said}");
        assert!(!said.contains("panicked"), "{words}: {said}");
        // A terminal would wrap the lines: so does miette.
        said.split_whitespace().filter(|word| *word != "│").collect::<Vec<_>>().join(" ")
    }
}

/// The names of the folders that hold a run, below a folder.
pub(crate) fn runs(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap())
        .filter(|entry| entry.path().join("experiment.toml").exists())
        .map(|entry| entry.file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

/// The names and the bytes of the checkpoints of a run.
pub(crate) type Checkpoints = Vec<(String, Vec<u8>)>;

/// The checkpoints of a run.
pub(crate) fn checkpoints(run: &Path) -> Checkpoints {
    let mut files: Vec<_> = fs::read_dir(run.join("checkpoint"))
        .unwrap()
        .map(|entry| {
            let entry = entry.unwrap();
            (entry.file_name().into_string().unwrap(), fs::read(entry.path()).unwrap())
        })
        .collect();
    files.sort();
    files
}
