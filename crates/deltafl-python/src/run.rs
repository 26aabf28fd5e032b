//! Experiments, and their training.

use std::path::PathBuf;

use deltafl::kernel::Isa;
use deltafl::trainer::LocalTrainer;
use deltafl_cli::embed::{self, End, Job};
use deltafl_cuda::Place;
use deltafl_data::experiment::Experiment;
use deltafl_data::run_folder;
use pyo3::prelude::*;

use crate::failure::{exception, invalid};
use crate::federation::Federation;
use crate::listener::{PyListener, Stop};
use crate::trainer::PyTrainer;

/// An experiment file with overrides, as TOML with every default in it.
#[pyfunction]
pub(crate) fn experiment_of_file(
    py: Python<'_>,
    path: PathBuf,
    overrides: Vec<String>,
) -> PyResult<(String, String)> {
    let experiment = embed::read_experiment(&path, &overrides).map_err(|e| exception(py, &e))?;
    Ok((experiment.name().to_owned(), experiment.to_toml()))
}

/// An experiment as JSON with overrides, as TOML with every default in it.
#[pyfunction]
pub(crate) fn experiment_of_json(
    py: Python<'_>,
    json: &str,
    overrides: Vec<String>,
) -> PyResult<(String, String)> {
    let json: serde_json::Value = serde_json::from_str(json).map_err(|e| invalid(py, e))?;
    let text = toml::to_string(&json).map_err(|e| invalid(py, e))?;
    let experiment = embed::parse_experiment("(dict)", &text, &overrides).map_err(|e| exception(py, &e))?;
    Ok((experiment.name().to_owned(), experiment.to_toml()))
}

/// The experiment of a run, as JSON.
#[pyfunction]
pub(crate) fn experiment_of_run(py: Python<'_>, folder: PathBuf) -> PyResult<String> {
    let experiment =
        run_folder::read_experiment(&folder).map_err(|e| exception(py, &embed::folder_failure(e)))?;
    serde_json::to_string(&experiment).map_err(|e| invalid(py, e))
}

/// Name, kind of algorithm and θ of every model of a run.
#[pyfunction]
pub(crate) fn tracks(py: Python<'_>, folder: PathBuf) -> PyResult<Vec<(String, String, f64)>> {
    let experiment =
        run_folder::read_experiment(&folder).map_err(|e| exception(py, &embed::folder_failure(e)))?;
    let labels = experiment.labels().into_iter();
    Ok(labels.map(|label| (label.name, label.algorithm, label.theta.get())).collect())
}

/// The experiment of a text that this module wrote.
pub(crate) fn parsed(py: Python<'_>, toml: &str) -> PyResult<Experiment> {
    Experiment::parse(toml).map_err(|e| invalid(py, e))
}

/// How to train, beside what the experiment says.
#[derive(FromPyObject)]
pub(crate) struct How {
    out: PathBuf,
    resume: bool,
    threads: usize,
    kernel: Option<String>,
    compute: String,
}

/// Trains an experiment into its run folder. Returns seed, rounds done and rounds planned when it was stopped.
#[pyfunction]
pub(crate) fn train(
    py: Python<'_>,
    experiment: &str,
    federation: Option<&Bound<'_, Federation>>,
    trainer: Option<Py<PyAny>>,
    how: How,
    stop: &Bound<'_, Stop>,
    progress: Py<PyAny>,
) -> PyResult<Option<(u64, u64, u64)>> {
    let experiment = parsed(py, experiment)?;
    let kernel = match &how.kernel {
        Some(name) => name.parse().map_err(|e| invalid(py, e))?,
        None => Isa::detect(),
    };
    let compute: Place = how.compute.parse().map_err(|e| invalid(py, e))?;
    let stop = stop.get();
    let listener = PyListener::new(stop.clone(), progress);
    let job =
        Job { out: &how.out, resume: how.resume, threads: how.threads, kernel, compute, listener: &listener };
    let given = federation.map(|federation| federation.get().inner.clone());
    let trainer = trainer.map(|trainer| PyTrainer::new(py, trainer, stop)).transpose()?;
    let ended = py.detach(|| {
        let federation = match &given {
            Some(federation) => embed::prepare(&experiment, federation)?,
            None => embed::load(&experiment)?,
        };
        let brought = trainer.as_ref().map(|trainer| trainer as &dyn LocalTrainer);
        let ended = embed::train(experiment, &federation, brought, &job);
        // Nobody waits for this thread, and an interpreter that ends must not be entered again: it would end the process.
        while stop.is_abandoned() && trainer.is_none() {
            std::thread::park();
        }
        ended
    });
    if let Some(raised) = listener.raised() {
        return Err(raised);
    }
    match ended {
        Ok(End::Finished) => Ok(None),
        Ok(End::Stopped { seed, rounds, planned }) => Ok(Some((seed, rounds, planned))),
        Err(failure) => match trainer.as_ref().and_then(|trainer| trainer.raised(py, &failure.message)) {
            Some(raised) => Err(raised),
            None => Err(exception(py, &failure)),
        },
    }
}
