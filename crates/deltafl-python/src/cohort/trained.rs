//! Updates that need w_k of each device: corrections with a memory, reports and noise.
//!
//! The trainer trains the devices in one call and returns a row w_k per device. `add_trained` computes
//! the answers of the devices from these rows.

use deltafl::compute::UpdateTask;
use deltafl::memory::AlgorithmState;
use numpy::{PyArray1, PyArray2, PyArrayMethods};
use pyo3::prelude::*;
use rayon::prelude::*;

use crate::external::section_of;

/// Returns `true` if the answer to a task can be computed from w_k. A personal model and the local
/// update of an algorithm in Python need the trainer of the device, and a trainer may read the memory.
pub(super) fn needs_only_row(task: &UpdateTask<'_>) -> bool {
    task.personal.is_none()
        && match task.plan.correction {
            Some(correction) => section_of(correction).is_none(),
            None => task.own.is_none(),
        }
}

/// Returns `true` if the device trains. Otherwise, its answer is a refusal or noise.
pub(super) fn trains(task: &UpdateTask<'_>) -> bool {
    !task.weight.is_nan() && (task.noise.is_none() || task.weight > 0.0)
}

/// Returns the vectors that the devices add to every gradient, one row per device; `None` if no task
/// has a correction.
pub(super) fn drifts<'py>(
    py: Python<'py>,
    tasks: &[&UpdateTask<'_>],
) -> PyResult<Option<Bound<'py, PyArray2<f32>>>> {
    if tasks.iter().all(|task| task.plan.correction.is_none()) {
        return Ok(None);
    }
    let len = tasks.first().map_or(0, |task| task.params.len());
    let mut drifts = vec![0.0; tasks.len() * len];
    drifts.par_chunks_mut(len.max(1)).zip(tasks).for_each(|(drift, task)| {
        if let Some(correction) = task.plan.correction {
            let none = AlgorithmState::default();
            (correction.drift)(task.sent, task.own.unwrap_or(&none), drift);
        }
    });
    Ok(Some(PyArray1::from_vec(py, drifts).reshape([tasks.len(), len])?))
}
