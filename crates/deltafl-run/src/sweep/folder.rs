//! The folder of a sweep, and the progress of its points.
//!
//! ```text
//! sweeps/NAME/
//!   sweep.toml       the experiment, with its axes: read again, it is the same sweep
//!   ADDRESS/         a run folder per point, named after its experiment
//! ```
//!
//! The folder name of a point depends only on its experiment. Folders of several machines can
//! therefore be merged, and a sweep with an additional value trains only that value.

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};

use deltafl_data::run_folder;

use super::SweepError;
use super::points::{Sweep, SweepPoint};
use crate::error::{FileError, create_folder};

/// The folder of a sweep.
#[derive(Clone, Debug)]
pub struct SweepFolder {
    path: PathBuf,
}

/// The progress of a point.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It has not started.
    Missing,
    /// Rounds done, over all seeds.
    Rounds(u64),
    /// All seeds are done.
    Finished,
}

impl SweepFolder {
    /// Returns the folder at a path, which may not exist.
    pub fn at(path: &Path) -> Self {
        Self { path: path.to_owned() }
    }

    /// Returns the path of the folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the path of the sweep's description.
    pub fn description(&self) -> PathBuf {
        self.path.join("sweep.toml")
    }

    /// Returns the run folder of a point.
    pub fn point(&self, address: &str) -> PathBuf {
        self.path.join(address)
    }

    /// Writes the description of the sweep. Several processes may write the same description at
    /// once. Rejects a folder with other contents. A sweep may gain points, but not lose any.
    ///
    /// # Errors
    ///
    /// Fails if the folder contains other files or a sweep with points that this one lacks, or if
    /// it cannot be written.
    pub fn describe(&self, sweep: &Sweep) -> Result<(), SweepError> {
        match self.described()? {
            Some(before) if before == sweep.text => return Ok(()),
            Some(before) => self.check_grown(&before, sweep)?,
            None => {}
        }
        self.describe_anew(sweep)
    }

    /// Writes the description of the sweep and replaces any previous one.
    ///
    /// # Errors
    ///
    /// Fails if the folder cannot be written.
    pub fn describe_anew(&self, sweep: &Sweep) -> Result<(), SweepError> {
        create_folder(&self.path)?;
        let path = self.description();
        let part = self.path.join(format!(".sweep.toml.{}", std::process::id()));
        let written = fs::write(&part, &sweep.text).and_then(|()| fs::rename(&part, &path));
        Ok(written.map_err(FileError::write(&path))?)
    }

    /// Returns the existing description, or `None` if there is none yet.
    fn described(&self) -> Result<Option<String>, SweepError> {
        let read = || fs::read_to_string(self.description()).ok();
        let known = read();
        if known.is_some() || !self.has_entries()? {
            return Ok(known);
        }
        // Another process may have written it in between.
        match read() {
            Some(text) => Ok(Some(text)),
            None => Err(SweepError::Foreign { path: self.path.clone() }),
        }
    }

    fn has_entries(&self) -> Result<bool, SweepError> {
        let Ok(entries) = fs::read_dir(&self.path) else { return Ok(false) };
        for entry in entries {
            let entry = entry.map_err(FileError::read(&self.path))?;
            if !entry.file_name().to_string_lossy().starts_with('.') {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Rejects a sweep that lacks a point of the sweep in the folder.
    fn check_grown(&self, before: &str, sweep: &Sweep) -> Result<(), SweepError> {
        let now: HashSet<&str> = sweep.points.iter().map(|point| point.address.as_str()).collect();
        let before = Sweep::new(&self.description(), before, &[], &[])?;
        let lost = before.points.iter().filter(|point| !now.contains(point.address.as_str())).count();
        if lost == 0 {
            return Ok(());
        }
        Err(SweepError::OtherSweep { path: self.path.clone(), lost, points: before.points.len() })
    }

    /// Reads the sweep of the folder.
    ///
    /// # Errors
    ///
    /// Fails if the folder contains no valid sweep.
    pub fn sweep(&self) -> Result<Sweep, SweepError> {
        let path = self.description();
        if !path.is_file() {
            return Err(SweepError::NoSweep { path: self.path.clone() });
        }
        Sweep::read(&path, &[], &[])
    }

    /// Returns the progress of a point.
    ///
    /// # Errors
    ///
    /// Fails if the run folder cannot be read, or if it contains another experiment.
    pub fn standing(&self, point: &SweepPoint) -> Result<Standing, SweepError> {
        standing(&self.point(&point.address), &point.address)
    }
}

/// Returns the progress of the run in a folder. The run must match its address.
pub(crate) fn standing(folder: &Path, address: &str) -> Result<Standing, SweepError> {
    if !folder.join("experiment.toml").exists() {
        return Ok(Standing::Missing);
    }
    let experiment = run_folder::read_experiment(folder)?;
    if experiment.address() != address {
        return Err(SweepError::Address { path: folder.to_owned() });
    }
    // The summary is the last file that a run writes.
    if folder.join("summary.json").exists() {
        return Ok(Standing::Finished);
    }
    let mut rounds = 0;
    for &seed in experiment.seeds() {
        let state = run_folder::read_checkpoint(folder, seed)?;
        rounds += state.map_or(0, |state| state.round);
    }
    Ok(Standing::Rounds(rounds))
}
