//! The folder of a sweep, and how far its points have come.
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
use miette::{IntoDiagnostic, Report, Result, WrapErr};

use super::points::{Point, Sweep};
use crate::error::{bad_input, make_folder};
use crate::session::folder_error;

/// A sweep's folder.
#[derive(Clone, Debug)]
pub(crate) struct SweepFolder {
    path: PathBuf,
}

/// How far a point has come.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Standing {
    /// Nothing is there.
    Missing,
    /// Rounds done, over all seeds.
    Rounds(u64),
    Finished,
}

impl SweepFolder {
    /// The folder at a path, which need not exist.
    pub(crate) fn at(path: &Path) -> Self {
        Self { path: path.to_owned() }
    }

    /// The folder.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The description of the sweep.
    pub(crate) fn description(&self) -> PathBuf {
        self.path.join("sweep.toml")
    }

    /// The run folder of a point.
    pub(crate) fn point(&self, address: &str) -> PathBuf {
        self.path.join(address)
    }

    /// Writes down which sweep it is. Several processes may do so at once, each the same. A folder that holds something
    /// else is refused; a sweep may grow, but loses no point.
    pub(crate) fn describe(&self, sweep: &Sweep) -> Result<()> {
        match self.described()? {
            Some(before) if before == sweep.text => return Ok(()),
            Some(before) => self.check_grown(&before, sweep)?,
            None => {}
        }
        self.describe_anew(sweep)
    }

    /// Writes down which sweep it is, whatever it was before.
    pub(crate) fn describe_anew(&self, sweep: &Sweep) -> Result<()> {
        make_folder(&self.path)?;
        let path = self.description();
        let part = self.path.join(format!(".sweep.toml.{}", std::process::id()));
        fs::write(&part, &sweep.text)
            .and_then(|()| fs::rename(&part, &path))
            .into_diagnostic()
            .wrap_err_with(|| path.display().to_string())
    }

    /// What the folder was described as; `None` where there is nothing yet.
    fn described(&self) -> Result<Option<String>> {
        let read = || fs::read_to_string(self.description()).ok();
        let known = read();
        if known.is_some() || !self.has_entries()? {
            return Ok(known);
        }
        // Another process may have described it in between.
        match read() {
            Some(text) => Ok(Some(text)),
            None => Err(bad_input(format!("{} is in use, and not by a sweep", self.path.display()))
                .help("there is no sweep.toml in it: name another folder with --out")
                .into()),
        }
    }

    fn has_entries(&self) -> Result<bool> {
        let Ok(entries) = fs::read_dir(&self.path) else { return Ok(false) };
        for entry in entries {
            let entry = entry.into_diagnostic().wrap_err_with(|| self.path.display().to_string())?;
            if !entry.file_name().to_string_lossy().starts_with('.') {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Refuses a sweep that lacks a point of the one that the folder was made for.
    fn check_grown(&self, before: &str, sweep: &Sweep) -> Result<()> {
        let now: HashSet<&str> = sweep.points.iter().map(|point| point.address.as_str()).collect();
        let before = Sweep::new(&self.description(), before, &[], &[])?;
        let lost = before.points.iter().filter(|point| !now.contains(point.address.as_str())).count();
        if lost == 0 {
            return Ok(());
        }
        let message = format!(
            "{} holds another sweep: {lost} of its {} points are not points of this one",
            self.path.display(),
            before.points.len()
        );
        Err(bad_input(message)
            .help("a sweep grows by values and axes, and keeps its points: add to it, or name another folder with --out")
            .into())
    }

    /// The sweep that the folder was made for.
    pub(crate) fn sweep(&self) -> Result<Sweep> {
        let path = self.description();
        if !path.is_file() {
            return Err(bad_input(format!(
                "{} holds no sweep: there is no sweep.toml in it",
                self.path.display()
            ))
            .help("make one: deltafl sweep run EXPERIMENT.toml --out DIR")
            .into());
        }
        Ok(Sweep::read(&path, &[], &[])?)
    }

    /// How far a point has come.
    pub(crate) fn standing(&self, point: &Point) -> Result<Standing> {
        standing(&self.point(&point.address), &point.address)
    }
}

/// How far the run in a folder has come, which must be the run that its address promises.
pub(crate) fn standing(folder: &Path, address: &str) -> Result<Standing> {
    if !folder.join("experiment.toml").exists() {
        return Ok(Standing::Missing);
    }
    let experiment = run_folder::read_experiment(folder).map_err(folder_error)?;
    if experiment.address() != address {
        return Err(not_its_address(folder));
    }
    // The summary is the last file that a run writes.
    if folder.join("summary.json").exists() {
        return Ok(Standing::Finished);
    }
    let mut rounds = 0;
    for &seed in experiment.seeds() {
        let state = run_folder::read_checkpoint(folder, seed).map_err(folder_error)?;
        rounds += state.map_or(0, |state| state.round);
    }
    Ok(Standing::Rounds(rounds))
}

fn not_its_address(folder: &Path) -> Report {
    bad_input(format!("the experiment in {} is not the one that its folder is named after", folder.display()))
        .help("someone changed it by hand: move the folder away, and the point is trained again")
        .into()
}
