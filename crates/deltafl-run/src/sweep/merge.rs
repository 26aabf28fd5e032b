//! Merges the folders of one sweep from several machines.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use deltafl_data::experiment::Experiment;
use deltafl_data::run_folder;

use super::SweepError;
use super::folder::{self, Standing, SweepFolder};
use super::points::Sweep;
use crate::error::FileError;

/// The result of a merge.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Merged {
    /// Points that were added or have more rounds than before.
    pub taken: usize,
    /// Points that already had as many rounds.
    pub known: usize,
    /// Runs in the folders that are not points of the sweep.
    pub foreign: usize,
}

/// Merges the points of other folders into `into`. Of a point in several folders, the one with the
/// most rounds is kept.
///
/// # Errors
///
/// Fails if the folders contain different sweeps or data, if a point is being trained, or if files
/// cannot be copied.
pub fn merge(sources: &[PathBuf], into: &SweepFolder) -> Result<Merged, SweepError> {
    let all: Vec<SweepFolder> = sources.iter().map(|path| SweepFolder::at(path)).collect();
    let sweep = Sweep::new(&into.description(), &description(&all, into)?, &[], &[])?;
    let points: HashSet<&str> = sweep.points.iter().map(|point| point.address.as_str()).collect();
    let mut data = DataSeen::default();
    for folder in all.iter().chain([into]) {
        for address in addresses(folder)?.iter().filter(|address| points.contains(address.as_str())) {
            let run = folder.point(address);
            if run_folder::is_locked(&run) {
                return Err(SweepError::InTraining { path: run });
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

/// Returns the description that all folders share.
fn description(sources: &[SweepFolder], into: &SweepFolder) -> Result<String, SweepError> {
    let read = |folder: &SweepFolder| {
        let path = folder.description();
        fs::read_to_string(&path).map_err(|source| match source.kind() {
            io::ErrorKind::NotFound => SweepError::NoSweep { path: folder.path().to_owned() },
            _ => FileError::Read { path, source }.into(),
        })
    };
    let all = sources.iter().map(|folder| Ok((folder, read(folder)?)));
    let mut all = all.collect::<Result<Vec<_>, SweepError>>()?;
    if into.description().exists() {
        all.push((into, read(into)?));
    }
    let Some((first, text)) = all.first() else {
        return Err(SweepError::NothingToMerge);
    };
    match all.iter().find(|(_, other)| other != text) {
        Some((other, _)) => Err(SweepError::DifferentSweeps {
            first: first.path().to_owned(),
            second: other.path().to_owned(),
        }),
        None => Ok(text.clone()),
    }
}

/// Returns the points in a folder.
fn addresses(folder: &SweepFolder) -> Result<Vec<String>, SweepError> {
    let entries = match fs::read_dir(folder.path()) {
        Ok(entries) => entries,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(e) => return Err(FileError::read(folder.path())(e).into()),
    };
    let mut names = Vec::new();
    for entry in entries {
        let entry = entry.map_err(FileError::read(folder.path()))?;
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

/// Copies a run folder atomically to its destination.
fn replace(from: &Path, to: &Path) -> Result<(), SweepError> {
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
    let copied =
        place().map_err(|source| FileError::Copy { from: from.to_owned(), to: to.to_owned(), source });
    Ok(copied?)
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

/// The data of the points. Points with the same data source must have been trained on the same
/// data.
#[derive(Default)]
struct DataSeen {
    runs: Vec<(PathBuf, Experiment)>,
}

impl DataSeen {
    fn check(&mut self, run: &Path) -> Result<(), SweepError> {
        let experiment = run_folder::read_experiment(run)?;
        let hash = |experiment: &Experiment| experiment.resolved.as_ref().map(|r| r.data_hash.clone());
        match self.runs.iter().find(|(_, other)| other.data == experiment.data) {
            Some((other, first)) if hash(first) != hash(&experiment) => {
                Err(SweepError::DifferentData { first: other.clone(), second: run.to_owned() })
            }
            Some(_) => Ok(()),
            None => {
                self.runs.push((run.to_owned(), experiment));
                Ok(())
            }
        }
    }
}
