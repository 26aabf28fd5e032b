//! The params of a run, flat and by name.

use std::path::{Path, PathBuf};

use deltafl::kernel::Isa;
use deltafl::model::{Model, NamedTensor, named_tensors, state_dict as named};
use deltafl::params::Params;
use deltafl::trainer::Sgd;
use deltafl::training::State;
use deltafl_data::run_folder;
use deltafl_run::session;
use numpy::{PyArray1, PyArrayDyn, PyArrayMethods};
use pyo3::prelude::*;

use crate::failure::{exception, folder_exception, invalid};
use crate::federation::Federation;
use crate::run::{load, parsed};

/// Names and arrays.
type Tensors<'py> = Vec<(String, Bound<'py, PyArrayDyn<f32>>)>;

/// Returns w of a track and a seed at the last checkpoint, and the rounds done.
#[pyfunction]
pub(crate) fn params(
    py: Python<'_>,
    folder: PathBuf,
    track: usize,
    seed: u64,
) -> PyResult<(Bound<'_, PyArray1<f32>>, u64)> {
    let (params, round) = at_checkpoint(py, folder, track, seed)?;
    Ok((PyArray1::from_slice(py, params.as_slice()), round))
}

fn at_checkpoint(py: Python<'_>, folder: PathBuf, track: usize, seed: u64) -> PyResult<(Params, u64)> {
    let state = saved(py, &folder, seed)?;
    let at = state.tracks.get(track).ok_or_else(|| invalid(py, format!("there is no track {track}")))?;
    Ok((at.params.clone(), state.round))
}

fn saved(py: Python<'_>, folder: &Path, seed: u64) -> PyResult<State> {
    let state = py.detach(|| run_folder::read_checkpoint(folder, seed));
    let state = state.map_err(|e| folder_exception(py, e))?;
    state.ok_or_else(|| invalid(py, format!("{}: seed {seed} has no checkpoint", folder.display())))
}

/// Returns the tensors of a track and a seed at the last checkpoint, with PyTorch's names and
/// layouts.
#[pyfunction]
pub(crate) fn state_dict<'py>(
    py: Python<'py>,
    folder: PathBuf,
    track: usize,
    seed: u64,
) -> PyResult<Tensors<'py>> {
    let state = saved(py, &folder, seed)?;
    let at = state.tracks.get(track).ok_or_else(|| invalid(py, format!("there is no track {track}")))?;
    tensors(py, &named_tensors(&state.tensors, at.params.as_slice()))
}

/// Returns the initial tensors of a seed of an experiment.
#[pyfunction]
pub(crate) fn initial<'py>(
    py: Python<'py>,
    experiment: &str,
    federation: Option<&Bound<'py, Federation>>,
    seed: u64,
) -> PyResult<Tensors<'py>> {
    let experiment = parsed(py, experiment)?;
    let model = model(py, &experiment, federation)?;
    let state = experiment.plan().start(seed, &Sgd::new(&*model));
    tensors(py, &named(&*model, state.tracks[0].params.as_slice()))
}

fn model(
    py: Python<'_>,
    experiment: &deltafl_data::experiment::Experiment,
    federation: Option<&Bound<'_, Federation>>,
) -> PyResult<Box<dyn Model>> {
    let given = federation.map(|federation| federation.get().inner.clone());
    let built = py.detach(|| match &given {
        Some(federation) => session::build_model(experiment, federation, Isa::detect()),
        None => session::build_model(experiment, &load(experiment)?, Isa::detect()),
    });
    built.map_err(|e| exception(py, &e))
}

fn tensors<'py>(py: Python<'py>, tensors: &[NamedTensor]) -> PyResult<Tensors<'py>> {
    let of_tensor = |tensor: &NamedTensor| {
        let flat = PyArray1::from_slice(py, &tensor.values);
        Ok((tensor.name.clone(), flat.reshape(tensor.shape.clone())?))
    };
    tensors.iter().map(of_tensor).collect()
}
