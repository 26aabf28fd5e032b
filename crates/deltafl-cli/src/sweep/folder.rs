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

use std::fs;
use std::path::{Path, PathBuf};

use deltafl_data::run_folder::{self, Summary};
use miette::{IntoDiagnostic, Report, Result, WrapErr};

use super::points::{Point, Sweep};
use crate::error::bad_input;
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

    /// Writes down which sweep it is. Several processes may do so at once, each the same.
    pub(crate) fn describe(&self, text: &str) -> Result<()> {
        let path = self.description();
        if fs::read_to_string(&path).is_ok_and(|before| before == text) {
            return Ok(());
        }
        let part = self.path.join(format!(".sweep.toml.{}", std::process::id()));
        fs::create_dir_all(&self.path)
            .and_then(|()| fs::write(&part, text))
            .and_then(|()| fs::rename(&part, &path))
            .into_diagnostic()
            .wrap_err_with(|| path.display().to_string())
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

    /// What a point came to, so far as it has been evaluated.
    pub(crate) fn summary(&self, point: &Point) -> Option<Summary> {
        Summary::of(&self.point(&point.address)).ok()
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
    for &seed in &experiment.seeds {
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
