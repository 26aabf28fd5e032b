//! Predictions of the built-in models.

use std::path::PathBuf;
use std::sync::Arc;

use deltafl::data::{FederationIndex, InputKind};
use deltafl::kernel::Isa;
use deltafl::model::Predictor;
use deltafl::task::Task;
use deltafl_data::run_folder;
use deltafl_run::session;
use numpy::{PyArray1, PyArrayMethods, PyReadonlyArray1};
use pyo3::prelude::*;

use crate::failure::{exception, folder_exception, invalid};
use crate::federation::Federation;
use crate::run::load;

/// Returns the outputs of a model of a run for the examples of a device, one row per example, and
/// the task: a probability per class, or one real number.
#[pyfunction]
pub(crate) fn predict<'py>(
    py: Python<'py>,
    folder: PathBuf,
    params: PyReadonlyArray1<'py, f32>,
    federation: &Bound<'py, Federation>,
    device: u32,
) -> PyResult<(Bound<'py, PyAny>, String)> {
    let experiment = run_folder::read_experiment(&folder).map_err(|e| folder_exception(py, e))?;
    let params = params.as_array().to_vec();
    let federation = federation.get().inner.clone();
    if device as usize >= federation.len() {
        return Err(invalid(py, format!("there is no device {device}")));
    }
    let model = py.detach(|| session::build_model(&experiment, &federation, Isa::detect()));
    let model = model.map_err(|e| exception(py, &e))?;
    if params.len() != model.num_params() {
        let problem = format!(
            "the model has {} params, but a model for these inputs and classes has {}",
            params.len(),
            model.num_params()
        );
        return Err(invalid(py, problem));
    }
    let task = model.task();
    let classes = if matches!(task, Task::Binary) { 2 } else { federation.classes() };
    let pool = rayon::ThreadPoolBuilder::new().build().map_err(|e| invalid(py, e))?;
    let (flat, outputs) = py.detach(|| {
        let predictor = Predictor::new(&*model, classes, &params);
        (pool.install(|| predictor.predict(&federation, FederationIndex(device))), predictor.outputs())
    });
    let rows = flat.len() / outputs;
    let array = PyArray1::from_vec(py, flat).reshape([rows, outputs])?;
    let name = match task {
        Task::Regression(_) => "regression",
        Task::Binary => "binary",
        Task::NextSymbol => "next-symbol",
        _ => "classes",
    };
    Ok((array.into_any(), name.to_owned()))
}

/// Returns the data of a run: the federation that it was trained on, split and normalised as in its
/// experiment, or the data that the experiment names.
#[pyfunction]
pub(crate) fn data_of_run(
    py: Python<'_>,
    folder: PathBuf,
    federation: Option<&Bound<'_, Federation>>,
) -> PyResult<Federation> {
    let experiment = run_folder::read_experiment(&folder).map_err(|e| folder_exception(py, e))?;
    let given = federation.map(|federation| federation.get().inner.clone());
    let data = py.detach(|| match given {
        Some(federation) => session::prepare(&experiment, federation.as_ref().clone()),
        None => load(&experiment),
    });
    Ok(Federation { inner: Arc::new(data.map_err(|e| exception(py, &e))?) })
}

/// Returns a federation with inputs coded and normalised as those of a run.
#[pyfunction]
pub(crate) fn prepared(
    py: Python<'_>,
    folder: PathBuf,
    federation: &Bound<'_, Federation>,
) -> PyResult<Federation> {
    let contract = run_folder::read_contract(&folder).map_err(|e| folder_exception(py, e))?;
    let inner = Arc::clone(&federation.get().inner);
    let Some(contract) = contract else { return Ok(Federation { inner }) };
    // A table has its own order of columns, categories and classes.
    let has_names = !inner.class_names().is_empty() && contract.inputs == inner.kind();
    if !inner.feature_columns().is_empty() || has_names {
        let fitted = contract.fit(inner.as_ref().clone()).map_err(|e| invalid(py, e))?;
        return Ok(Federation { inner: Arc::new(fitted) });
    }
    let Some(constants) = contract.normalisation else { return Ok(Federation { inner }) };
    // The constants of grey levels contain the factor 1/255.
    if contract.inputs != inner.kind() {
        let kind = |kind| if matches!(kind, InputKind::Bytes { .. }) { "uint8" } else { "float32" };
        let (expected, found) = (kind(contract.inputs), kind(inner.kind()));
        let problem = format!(
            "the model was trained on normalised inputs of type {expected}, got inputs of type {found}"
        );
        return Err(invalid(py, problem));
    }
    let normalised = inner.as_ref().clone().normalised_by(constants.scale, constants.shift);
    let normalised =
        normalised.ok_or_else(|| invalid(py, "the constants of the run do not fit its features"))?;
    Ok(Federation { inner: Arc::new(normalised) })
}
