//! The runs named on a command line: run folders, a sweep folder, or all entries of one
//! (`sweeps/x/*`).

use std::path::{Path, PathBuf};

use deltafl_data::run_folder;

use crate::sweep::SweepError;
use crate::sweep::folder::SweepFolder;

/// Runs in display order.
#[derive(Debug, PartialEq, Eq)]
pub struct RunList {
    /// The run folders; may be empty.
    pub runs: Vec<PathBuf>,
    /// The sweep that contains all of them as points.
    pub sweep: Option<PathBuf>,
    /// The number of points that are omitted because they are not evaluated yet.
    pub left_out: usize,
}

impl RunList {
    /// Finds the runs at some paths. The points of a sweep keep its order. Points that are not
    /// evaluated yet and other files in its folder are omitted.
    ///
    /// # Errors
    ///
    /// Fails if the description or a point of a sweep cannot be read.
    pub fn find(paths: &[PathBuf]) -> Result<Self, SweepError> {
        let mut runs: Vec<PathBuf> = Vec::new();
        let mut sweeps: Vec<Option<PathBuf>> = Vec::new();
        let mut early = 0;
        for path in paths {
            let sweep =
                if is_sweep(path) { Some(path.as_path()) } else { path.parent().filter(|p| is_sweep(p)) };
            let sweep = sweep.map(Path::to_owned);
            match &sweep {
                Some(sweep) if sweeps.contains(&Some(sweep.clone())) => continue,
                Some(sweep) => early += points(sweep, paths, &mut runs)?,
                None => runs.push(path.clone()),
            }
            sweeps.push(sweep);
        }
        let sweep = match sweeps.as_slice() {
            [Some(sweep)] => Some(sweep.clone()),
            _ => None,
        };
        Ok(Self { runs, sweep, left_out: early })
    }
}

fn is_sweep(folder: &Path) -> bool {
    folder.join("sweep.toml").is_file()
}

/// Adds the named points of a sweep, given individually or by its folder. Returns how many are not
/// evaluated yet.
fn points(sweep: &Path, paths: &[PathBuf], runs: &mut Vec<PathBuf>) -> Result<usize, SweepError> {
    let whole = paths.iter().any(|path| path == sweep);
    let mut early = 0;
    for point in SweepFolder::at(sweep).sweep()?.points {
        let run = sweep.join(&point.address);
        if !whole && !paths.contains(&run) {
            continue;
        }
        if run.join("devices").is_dir() && !run_folder::evaluations(&run)?.is_empty() {
            runs.push(run);
        } else {
            early += 1;
        }
    }
    Ok(early)
}
