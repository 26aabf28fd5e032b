//! A folder with an experiment that trains quickly.

use std::fs;
use std::path::Path;

pub(crate) use crate::support::{Checkpoints, Workdir, checkpoints};

const EXPERIMENT: &str = r#"
name = "tiny"
seeds = [1, 2]
rounds = 6
cohort = 6
evaluate_every = 3

[data]
source = { kind = "glyphs", devices = 24, seed = 5, examples = { min = 20, median = 30, max = 60 } }
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

/// Creates a folder with the experiment `x.toml`.
pub(crate) fn workdir() -> Workdir {
    Workdir::with(EXPERIMENT)
}

/// Returns the names of the folders with a run below a folder.
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
