//! Puts folders of one sweep together, as several machines leave them.

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};

use deltafl_data::experiment::Experiment;
use deltafl_data::run_folder;
use miette::{IntoDiagnostic, Result, WrapErr};

use super::folder::{self, Standing, SweepFolder};
use super::points::Sweep;
use crate::error::bad_input;
use crate::session::folder_error;

/// What a merge did.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Merged {
    /// Points that came in, or came further.
    pub(crate) taken: usize,
    /// Points that were as far already.
    pub(crate) known: usize,
    /// Runs in the folders that are not points of the sweep.
    pub(crate) foreign: usize,
}

/// Takes the points of other folders into `into`; of a point that is in several, the one that has come furthest.
pub(crate) fn merge(sources: &[PathBuf], into: &SweepFolder) -> Result<Merged> {
    let all: Vec<SweepFolder> = sources.iter().map(|path| SweepFolder::at(path)).collect();
    let sweep = Sweep::new(&into.description(), &description(&all, into)?, &[], &[])?;
    let points: HashSet<&str> = sweep.points.iter().map(|point| point.address.as_str()).collect();
    let mut data = DataSeen::default();
    for folder in all.iter().chain([into]) {
        for address in addresses(folder)?.iter().filter(|address| points.contains(address.as_str())) {
            let run = folder.point(address);
            if run_folder::is_locked(&run) {
                return Err(bad_input(format!("a process is training in {}", run.display()))
                    .help("wait for it, or end it: its point is merged as far as it came")
                    .into());
            }
            data.check(&run)?;
        }
    }
    into.describe(&sweep)?;
    let mut merged = Merged::default();
    for source in &all {
        for address in addresses(source)? {
            if !points.contains(address.as_str()) {
                merged.foreign += 1;
                continue;
            }
            let (from, to) = (source.point(&address), into.point(&address));
            let (ours, theirs) = (folder::standing(&to, &address)?, folder::standing(&from, &address)?);
            if further(&theirs, &ours) {
                replace(&from, &to)?;
                merged.taken += 1;
            } else {
                merged.known += 1;
            }
        }
    }
    Ok(merged)
}

/// The description that all share.
fn description(sources: &[SweepFolder], into: &SweepFolder) -> Result<String> {
    let read = |folder: &SweepFolder| {
        let path = folder.description();
        fs::read_to_string(&path)
            .map_err(|e| bad_input(format!("{} holds no sweep", folder.path().display())).because(e))
    };
    let mut all = sources.iter().map(|folder| Ok((folder, read(folder)?))).collect::<Result<Vec<_>>>()?;
    if into.description().exists() {
        all.push((into, read(into)?));
    }
    let Some((first, text)) = all.first() else {
        return Err(bad_input("there is no folder to merge").into());
    };
    match all.iter().find(|(_, other)| other != text) {
        Some((other, _)) => Err(bad_input(format!(
            "{} and {} are different sweeps",
            first.path().display(),
            other.path().display()
        ))
        .help("their sweep.toml must be the same: run both with the same experiment, --set and --sweep")
        .into()),
        None => Ok(text.clone()),
    }
}

/// The points that a folder holds.
fn addresses(folder: &SweepFolder) -> Result<Vec<String>> {
    let entries = match fs::read_dir(folder.path()) {
        Ok(entries) => entries,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(e) => return Err(e).into_diagnostic().wrap_err_with(|| folder.path().display().to_string()),
    };
    let mut names = Vec::new();
    for entry in entries {
        let entry = entry.into_diagnostic()?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if !name.starts_with('.') && entry.path().join("experiment.toml").is_file() {
            names.push(name);
        }
    }
    names.sort();
    Ok(names)
}

fn further(a: &Standing, b: &Standing) -> bool {
    let rank = |standing: &Standing| match standing {
        Standing::Missing => (0, 0),
        Standing::Rounds(rounds) => (1, *rounds),
        Standing::Finished => (2, 0),
    };
    rank(a) > rank(b)
}

/// Copies a run folder to its place; it appears there whole.
fn replace(from: &Path, to: &Path) -> Result<()> {
    let mut name = std::ffi::OsString::from(".");
    name.push(to.file_name().unwrap_or_default());
    let part = to.with_file_name(name);
    let place = || -> std::io::Result<()> {
        if part.exists() {
            fs::remove_dir_all(&part)?;
        }
        copy(from, &part)?;
        if to.exists() {
            fs::remove_dir_all(to)?;
        }
        fs::rename(&part, to)
    };
    place()
        .into_diagnostic()
        .wrap_err_with(|| format!("could not copy {} to {}", from.display(), to.display()))
}

fn copy(from: &Path, to: &Path) -> std::io::Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy(&entry.path(), &target)?;
        } else {
            fs::copy(entry.path(), target)?;
        }
    }
    Ok(())
}

/// The data behind the points: those that name the same must have trained on the same.
#[derive(Default)]
struct DataSeen {
    runs: Vec<(PathBuf, Experiment)>,
}

impl DataSeen {
    fn check(&mut self, run: &Path) -> Result<()> {
        let experiment = run_folder::read_experiment(run).map_err(folder_error)?;
        let hash = |experiment: &Experiment| experiment.resolved().map(|r| r.data_hash.clone());
        match self.runs.iter().find(|(_, other)| other.data() == experiment.data()) {
            Some((other, first)) if hash(first) != hash(&experiment) => {
                Err(bad_input(format!("{} and {} trained on different data", other.display(), run.display()))
                    .help("the federations that [data] names were not the same on both machines: data_hash in their experiment.toml differs")
                    .into())
            }
            Some(_) => Ok(()),
            None => {
                self.runs.push((run.to_owned(), experiment));
                Ok(())
            }
        }
    }
}
