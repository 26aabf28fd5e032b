//! The folder of a sweep, and the progress of its points.
//!
//! ```text
//! sweeps/NAME/
//!   sweep.toml       the experiment, with its axes: read again, it is the same sweep
//!   ADDRESS/         a run folder per point, named after what it trains
//! ```
//!
//! A point's place depends on nothing but what it trains, so folders of several machines can be put together, and a
//! sweep that grows by a value trains that value alone.

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};

use deltafl_data::run_folder;

use super::SweepError;
use super::points::{Point, Sweep};
use crate::error::{FileError, create_folder};

/// A sweep's folder.
#[derive(Clone, Debug)]
pub struct SweepFolder {
    path: PathBuf,
}

/// The progress of a point.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It has not been begun.
    Missing,
    /// Rounds done, over all seeds.
    Rounds(u64),
    /// All seeds are done.
    Finished,
}

impl SweepFolder {
    /// The folder at a path, which need not exist.
    pub fn at(path: &Path) -> Self {
        Self { path: path.to_owned() }
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The description of the sweep.
    pub fn description(&self) -> PathBuf {
        self.path.join("sweep.toml")
    }

    /// The run folder of a point.
    pub fn point(&self, address: &str) -> PathBuf {
        self.path.join(address)
    }

    /// Writes down which sweep it is. Several processes may do so at once, each the same. A folder that holds something
    /// else is refused; a sweep may grow, but loses no point.
    pub fn describe(&self, sweep: &Sweep) -> Result<(), SweepError> {
        match self.described()? {
            Some(before) if before == sweep.text => return Ok(()),
            Some(before) => self.check_grown(&before, sweep)?,
            None => {}
        }
        self.describe_anew(sweep)
    }

    /// Writes down which sweep it is, whatever it was before.
    pub fn describe_anew(&self, sweep: &Sweep) -> Result<(), SweepError> {
        create_folder(&self.path)?;
        let path = self.description();
        let part = self.path.join(format!(".sweep.toml.{}", std::process::id()));
        let written = fs::write(&part, &sweep.text).and_then(|()| fs::rename(&part, &path));
        Ok(written.map_err(FileError::write(&path))?)
    }

    /// What the folder was described as; `None` where there is nothing yet.
    fn described(&self) -> Result<Option<String>, SweepError> {
        let read = || fs::read_to_string(self.description()).ok();
        let known = read();
        if known.is_some() || !self.has_entries()? {
            return Ok(known);
        }
        // Another process may have described it in between.
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

    /// Refuses a sweep that lacks a point of the one that the folder was made for.
    fn check_grown(&self, before: &str, sweep: &Sweep) -> Result<(), SweepError> {
        let now: HashSet<&str> = sweep.points.iter().map(|point| point.address.as_str()).collect();
        let before = Sweep::new(&self.description(), before, &[], &[])?;
        let lost = before.points.iter().filter(|point| !now.contains(point.address.as_str())).count();
        if lost == 0 {
            return Ok(());
        }
        Err(SweepError::OtherSweep { path: self.path.clone(), lost, points: before.points.len() })
    }

    /// The sweep that the folder was made for.
    pub fn sweep(&self) -> Result<Sweep, SweepError> {
        let path = self.description();
        if !path.is_file() {
            return Err(SweepError::NoSweep { path: self.path.clone() });
        }
        Sweep::read(&path, &[], &[])
    }

    /// The progress of a point.
    pub fn standing(&self, point: &Point) -> Result<Standing, SweepError> {
        standing(&self.point(&point.address), &point.address)
    }
}

/// The progress of the run in a folder, which must be the run of its address.
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
    for &seed in &experiment.seeds {
        let state = run_folder::read_checkpoint(folder, seed)?;
        rounds += state.map_or(0, |state| state.round);
    }
    Ok(Standing::Rounds(rounds))
}
