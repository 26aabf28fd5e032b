//! Sweeps: their points, which Python trains one after the other, and their results.

use std::path::PathBuf;

use deltafl_cli::embed::sweep::{self, Planned, PlannedPoint, PointStanding, Swept};
use pyo3::prelude::*;

use crate::failure::{exception, invalid};

/// A point: its settings as JSON, its experiment as TOML, its run folder, and "missing", "begun" or "finished".
type Point = (String, String, PathBuf, &'static str);

/// Plans a sweep of an experiment file, or of an experiment as JSON. Returns its folder and its points.
#[pyfunction]
pub(crate) fn sweep_plan(
    py: Python<'_>,
    file: Option<PathBuf>,
    json: Option<&str>,
    overrides: Vec<String>,
    axes: Vec<String>,
    out: Option<PathBuf>,
) -> PyResult<(PathBuf, Vec<Point>)> {
    let text = match json {
        Some(json) => {
            let json: serde_json::Value = serde_json::from_str(json).map_err(|e| invalid(py, e))?;
            toml::to_string(&json).map_err(|e| invalid(py, e))?
        }
        None => String::new(),
    };
    let swept = file.as_deref().map_or(Swept::Text(&text), Swept::File);
    let planned = sweep::plan(&swept, &overrides, &axes, out.as_deref()).map_err(|e| exception(py, &e))?;
    points(py, planned)
}

/// The folder and the points of a sweep that was planned.
#[pyfunction]
pub(crate) fn sweep_open(py: Python<'_>, folder: PathBuf) -> PyResult<(PathBuf, Vec<Point>)> {
    points(py, sweep::open(&folder).map_err(|e| exception(py, &e))?)
}

/// The results of a sweep: the table of the command, and JSON.
#[pyfunction]
pub(crate) fn sweep_results(py: Python<'_>, folder: PathBuf) -> PyResult<(String, String)> {
    py.detach(|| sweep::results(&folder)).map_err(|e| exception(py, &e))
}

fn points(py: Python<'_>, planned: Planned) -> PyResult<(PathBuf, Vec<Point>)> {
    let of_point = |point: PlannedPoint| {
        let settings: serde_json::Map<_, _> = point.settings.into_iter().collect();
        let settings = serde_json::to_string(&settings).map_err(|e| invalid(py, e))?;
        let standing = match point.standing {
            PointStanding::Missing => "missing",
            PointStanding::Begun => "begun",
            PointStanding::Finished => "finished",
        };
        Ok((settings, point.experiment.to_toml(), point.folder, standing))
    };
    Ok((planned.folder, planned.points.into_iter().map(of_point).collect::<PyResult<_>>()?))
}
