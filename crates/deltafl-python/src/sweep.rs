//! Sweeps: their points, which Python trains one after another, and their results.

use std::path::{Path, PathBuf};

use deltafl_run::experiment_file;
use deltafl_run::sweep::folder::{Standing, SweepFolder};
use deltafl_run::sweep::points::{Sweep, SweepPoint};
use deltafl_run::sweep::{SweepError, listing};
use pyo3::prelude::*;

use crate::failure::{exception, invalid};

/// A point: its settings as JSON, its experiment as TOML, its run folder, and its progress
/// (`missing`, `begun` or `finished`).
type PlannedPoint = (String, String, PathBuf, &'static str);

/// Plans a sweep of an experiment file, or of an experiment as JSON. Returns its folder and its
/// points.
#[pyfunction]
pub(crate) fn sweep_plan(
    py: Python<'_>,
    file: Option<PathBuf>,
    json: Option<&str>,
    overrides: Vec<String>,
    axes: Vec<String>,
    out: Option<PathBuf>,
) -> PyResult<(PathBuf, Vec<PlannedPoint>)> {
    let given = match json {
        Some(json) => {
            let json: serde_json::Value = serde_json::from_str(json).map_err(|e| invalid(py, e))?;
            Some(toml::to_string(&json).map_err(|e| invalid(py, e))?)
        }
        None => None,
    };
    let planned = || -> Result<_, SweepError> {
        let sweep = match (&file, &given) {
            (Some(path), _) => Sweep::new(path, &experiment_file::text(path)?, &overrides, &axes)?,
            (None, text) => {
                Sweep::new(Path::new("(dict)"), text.as_deref().unwrap_or_default(), &overrides, &axes)?
            }
        };
        let out = out.unwrap_or_else(|| Path::new("sweeps").join(&sweep.name));
        let folder = SweepFolder::at(&out);
        folder.describe(&sweep)?;
        points(&folder, sweep)
    };
    planned().map_err(|e| exception(py, &e))
}

/// Returns the folder and the points of a planned sweep.
#[pyfunction]
pub(crate) fn sweep_open(py: Python<'_>, folder: PathBuf) -> PyResult<(PathBuf, Vec<PlannedPoint>)> {
    let folder = SweepFolder::at(&folder);
    let planned = folder.sweep().and_then(|sweep| points(&folder, sweep));
    planned.map_err(|e| exception(py, &e))
}

/// Returns the results of a sweep: the table of the command, and JSON.
#[pyfunction]
pub(crate) fn sweep_results(py: Python<'_>, folder: PathBuf) -> PyResult<(String, String)> {
    let folder = SweepFolder::at(&folder);
    let read = || -> Result<_, SweepError> {
        let sweep = folder.sweep()?;
        let results = listing::results(&folder, &sweep, sweep.points.iter())?;
        Ok((listing::rendered(&sweep, &results), results))
    };
    let (text, results) = py.detach(read).map_err(|e| exception(py, &e))?;
    Ok((text, serde_json::to_string(&results).map_err(|e| invalid(py, e))?))
}

fn points(folder: &SweepFolder, sweep: Sweep) -> Result<(PathBuf, Vec<PlannedPoint>), SweepError> {
    let keys: Vec<String> = sweep.axes.iter().map(|axis| axis.key.clone()).collect();
    let planned = |point: SweepPoint| {
        let standing = match folder.standing(&point)? {
            Standing::Missing => "missing",
            Standing::Rounds(_) => "begun",
            Standing::Finished => "finished",
        };
        let run = folder.point(&point.address);
        let settings: serde_json::Map<_, _> = keys.iter().cloned().zip(point.typed).collect();
        let settings = serde_json::Value::from(settings).to_string();
        Ok((settings, point.experiment.to_toml(), run, standing))
    };
    let points = sweep.points.into_iter().map(planned).collect::<Result<_, SweepError>>()?;
    Ok((folder.path().to_owned(), points))
}
