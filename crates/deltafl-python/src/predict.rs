//! Predictions of the built-in models.

use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

use deltafl::data::{BatchBuffer, Examples, FederationIndex};
use deltafl::kernel::{Aligned, Isa};
use deltafl::model::{Batch, Model};
use deltafl::task::{Targets, Task};
use deltafl_data::run_folder;
use deltafl_run::session;
use numpy::{PyArray1, PyArrayMethods, PyReadonlyArray1};
use pyo3::prelude::*;
use rayon::prelude::*;

use crate::failure::{exception, folder_exception, invalid};
use crate::federation::Federation;
use crate::run::load;

/// Returns the outputs of a model of a run for the examples of a device, as a flat array, and the
/// number of outputs per example: log p of every class, or one real number.
///
/// A model computes losses only. The loss of an example with target c is −log p_c.
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
    let outputs = match task {
        Task::Regression(_) => 1,
        Task::Binary => 2,
        _ => federation.classes(),
    };
    let examples = federation.examples(FederationIndex(device));
    let pool = rayon::ThreadPoolBuilder::new().build().map_err(|e| invalid(py, e))?;
    let flat = py.detach(|| pool.install(|| all_outputs(&*model, &params, &examples, outputs)));
    let array = PyArray1::from_vec(py, flat).reshape([examples.len(), outputs])?;
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

/// The examples that a thread computes in sequence.
const PART: usize = 16;

fn all_outputs(model: &dyn Model, params: &[f32], examples: &Examples<'_>, outputs: usize) -> Vec<f64> {
    let mut working = Aligned::default();
    working.resize(model.working_len());
    model.load(params, &mut working);
    let parts: Vec<Range<usize>> =
        (0..examples.len()).step_by(PART).map(|start| start..(start + PART).min(examples.len())).collect();
    let of_part = |part: Range<usize>| {
        let mut scratch = Aligned::default();
        scratch.resize(model.scratch_len(1));
        let mut buffer = BatchBuffer::default();
        let mut values = Vec::with_capacity(part.len() * outputs);
        for example in part {
            let batch = buffer.gather(examples, example..example + 1);
            values.extend(outputs_of(model, &working, batch, outputs, &mut scratch));
        }
        values
    };
    parts.into_par_iter().map(of_part).collect::<Vec<_>>().concat()
}

/// Returns the outputs for one example.
fn outputs_of(
    model: &dyn Model,
    working: &[f32],
    batch: Batch<'_>,
    outputs: usize,
    scratch: &mut [f32],
) -> Vec<f64> {
    let mut score = |targets: Targets<'_>| model.evaluate(working, Batch { targets, ..batch }, scratch);
    match model.task() {
        Task::Regression(_) => {
            // The residuals at the targets 0 and 1 are y and y − 1: y = (r₀² − r₁² + 1) / 2.
            let squared = |target: f32, score: &mut dyn FnMut(Targets<'_>) -> deltafl::model::Score| {
                score(Targets::Values(&[target])).sums[0]
            };
            vec![(squared(0.0, &mut score) - squared(1.0, &mut score) + 1.0) / 2.0]
        }
        _ => (0..outputs as u32).map(|class| -score(Targets::Classes(&[class])).loss).collect(),
    }
}
