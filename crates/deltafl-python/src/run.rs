//! Experiments and their training.

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use deltafl::kernel::Isa;
use deltafl::memory::AlgorithmState;
use deltafl::selection::Needs;
use deltafl::terms::TrackSchedule;
use deltafl_cuda::BackendChoice;
use deltafl_data::experiment::{Experiment, ExternalAlgorithms};
use deltafl_data::run_folder::{self, Summary};
use deltafl_run::{
    Ended, Machine, RunError, RunOptions, Start, Stopped, experiment_file, idle_rounds, session,
};
use pyo3::prelude::*;

use crate::cohort;
use crate::external::PyAlgorithms;
use crate::failure::{exception, folder_exception, invalid, message};
use crate::federation::Federation;
use crate::listener::{PyListener, Stop};
use crate::trainer::PyTrainer;

/// Reads an experiment file with overrides. Returns TOML that contains every default.
#[pyfunction]
pub(crate) fn experiment_of_file(
    py: Python<'_>,
    path: PathBuf,
    overrides: Vec<String>,
) -> PyResult<(String, String)> {
    let experiment = experiment_file::read(&path, &overrides).map_err(|e| exception(py, &e))?;
    Ok((experiment.name().to_owned(), experiment.to_toml()))
}

/// Reads an experiment as JSON with overrides. Returns TOML that contains every default.
#[pyfunction]
pub(crate) fn experiment_of_json(
    py: Python<'_>,
    json: &str,
    overrides: Vec<String>,
) -> PyResult<(String, String)> {
    let json: serde_json::Value = serde_json::from_str(json).map_err(|e| invalid(py, e))?;
    let text = toml::to_string(&json).map_err(|e| invalid(py, e))?;
    let experiment =
        experiment_file::parse(Path::new("(dict)"), &text, &overrides).map_err(|e| exception(py, &e))?;
    Ok((experiment.name().to_owned(), experiment.to_toml()))
}

/// Returns the experiment of a run as JSON.
#[pyfunction]
pub(crate) fn experiment_of_run(py: Python<'_>, folder: PathBuf) -> PyResult<String> {
    let experiment = run_folder::read_experiment(&folder).map_err(|e| folder_exception(py, e))?;
    serde_json::to_string(&experiment).map_err(|e| invalid(py, e))
}

/// Returns name, algorithm and θ of every model of a run.
#[pyfunction]
pub(crate) fn tracks(py: Python<'_>, folder: PathBuf) -> PyResult<Vec<(String, String, f64)>> {
    let experiment = run_folder::read_experiment(&folder).map_err(|e| folder_exception(py, e))?;
    let labels = experiment.labels().into_iter();
    Ok(labels.map(|label| (label.name, label.algorithm, label.theta.get())).collect())
}

/// Parses the text of an experiment written by this module.
pub(crate) fn parsed(py: Python<'_>, toml: &str) -> PyResult<Experiment> {
    Experiment::parse(toml).map_err(|e| invalid(py, e))
}

/// The training options that are not part of the experiment.
#[derive(FromPyObject)]
pub(crate) struct How {
    out: PathBuf,
    resume: bool,
    /// One per core if `None`.
    threads: Option<i64>,
    kernel: Option<String>,
    compute: String,
    /// An `AlgorithmBridge` or None per section.
    algorithms: Vec<Option<Py<PyAny>>>,
    /// The object that receives the events of the run, if there are callbacks.
    callbacks: Option<Py<PyAny>>,
}

fn thread_count(py: Python<'_>, threads: i64) -> PyResult<NonZeroUsize> {
    let count = usize::try_from(threads).ok().and_then(NonZeroUsize::new);
    count.ok_or_else(|| {
        invalid(py, format!("threads = {threads}: expected 1 or above, or None for one per core"))
    })
}

/// Trains an experiment into its run folder. If it was stopped, returns the seed, the rounds done
/// and the rounds planned.
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
    let compute: BackendChoice = how.compute.parse().map_err(|e| invalid(py, e))?;
    let threads = how.threads.map(|threads| thread_count(py, threads)).transpose()?;
    let stop = stop.get();
    if trainer.is_some() && compute != BackendChoice::Cpu {
        let problem = format!(
            "compute={:?} applies to built-in models; your trainer chooses its own device",
            how.compute
        );
        return Err(invalid(py, format!("{problem}, such as torch.Module(…, device=\"cuda\")")));
    }
    let mut listener = PyListener::new(stop.clone(), progress).with_callbacks(how.callbacks);
    let algorithms = PyAlgorithms::new(py, how.algorithms)?;
    let options = RunOptions {
        out: &how.out,
        start: if how.resume { Start::Resume } else { Start::New },
        machine: Machine { threads, kernel, compute },
        concurrent_seeds: false,
        algorithms: algorithms.as_ref().map(|algorithms| algorithms as &dyn ExternalAlgorithms),
    };
    let given = federation.map(|federation| federation.get().inner.clone());
    let trainer = trainer.map(|trainer| PyTrainer::new(py, trainer, stop)).transpose()?.map(Arc::new);
    let in_cohorts = match &trainer {
        Some(trainer) => trainer.trains_cohorts(py)?,
        None => false,
    };
    let ended = py.detach(|| {
        private_among_others(&experiment).iter().for_each(|warning| listener.warn(warning));
        let federation = match &given {
            Some(federation) => session::prepare(&experiment, federation.as_ref().clone())?,
            None => load(&experiment)?,
        };
        let ended = match &trainer {
            Some(trainer) => {
                let wrap = cohort::wrap(trainer, in_cohorts);
                session::run_trainer(experiment, &federation, &**trainer, &wrap, &options, &mut listener)
            }
            None => session::run_on(experiment, &federation, &options, &mut listener),
        };
        if let Ok(Ended::Finished(summary)) = &ended {
            warn_of_idle_rounds(summary, &how.out, &listener)?;
        }
        // The caller no longer waits for this thread. Entering an interpreter that is shutting down
        // would end the process.
        while stop.is_abandoned() && trainer.is_none() {
            std::thread::park();
        }
        ended
    });
    if let Some(raised) = stop.raised() {
        return Err(raised);
    }
    match ended {
        Ok(Ended::Interrupted(Stopped { seed, rounds, rounds_planned, .. })) => {
            Ok(Some((seed, rounds, rounds_planned)))
        }
        Ok(_) => Ok(None),
        Err(error) => {
            let text = message(&error);
            let of_trainer = || trainer.as_ref().and_then(|trainer| trainer.raised(py, &text));
            let of_algorithm = || algorithms.as_ref().and_then(|algorithms| algorithms.raised(py, &text));
            Err(of_trainer().or_else(of_algorithm).unwrap_or_else(|| exception(py, &error)))
        }
    }
}

/// Returns a warning if a private quantile changes the training of other models of the run.
pub(crate) fn private_among_others(experiment: &Experiment) -> Option<String> {
    let tracks = experiment.tracks();
    let is_private = |needs: Needs| matches!(needs, Needs::Quantile(_));
    let needs = tracks.iter().map(|track| track.selection.needs(0, &AlgorithmState::default()));
    let private: Vec<bool> = needs.map(is_private).collect();
    let private_track = private.iter().position(|private| *private)?;
    let other = private.iter().position(|private| !private)?;
    let schedule = experiment.schedule().unwrap_or_default();
    let how = match schedule {
        TrackSchedule::Together => return None,
        TrackSchedule::InTurn => "the models take turns, one per round",
        TrackSchedule::Apart => "each device answers for one model per round",
    };
    let (private, other) = (&tracks[private_track].label.name, &tracks[other].label.name);
    Some(format!(
        "{private} finds η in secure sums, which changes {other} too: weights are {} and {how}. \
         Train them in separate runs, or choose weights= and tracks=",
        experiment.weights().name(),
    ))
}

/// Loads the data of an experiment.
pub(crate) fn load(experiment: &Experiment) -> Result<deltafl::data::Federation, RunError> {
    // The pool is local to this call, because the global pool does not survive a fork, and Python
    // forks.
    match rayon::ThreadPoolBuilder::new().build() {
        Ok(pool) => pool.install(|| session::load(experiment)),
        Err(_) => session::load(experiment),
    }
}

/// Emits a warning for every track in which most rounds changed nothing.
fn warn_of_idle_rounds(summary: &Summary, run: &Path, listener: &PyListener) -> Result<(), RunError> {
    let experiment = run_folder::read_experiment(run)?;
    idle_rounds::warnings(summary, &experiment).iter().for_each(|warning| listener.warn(warning));
    Ok(())
}
