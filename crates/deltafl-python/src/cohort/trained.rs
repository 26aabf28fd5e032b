//! Updates that need w_k of each device: corrections with a memory, reports and noise.
//!
//! The trainer trains the devices in one call and returns a row w_k per device. All cores compute the
//! answers of the devices from these rows, with the code for a device that trains alone.

use std::ops::Range;

use deltafl::compute::{ComputeError, Remembered, UpdateTask, add_task};
use deltafl::data::{Examples, Federation};
use deltafl::memory::AlgorithmState;
use deltafl::model::Score;
use deltafl::params::add_wrapping;
use deltafl::question::RoundKey;
use deltafl::stream::Stream;
use deltafl::trainer::{LocalTask, TrainerError, Worker};
use numpy::{PyArray1, PyArray2, PyArrayMethods};
use pyo3::prelude::*;
use rayon::prelude::*;

use crate::external::section_of;
use crate::trainer::finish_correction;

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

/// Adds the answers of devices to their sums. Each task has its index among the tasks of the round,
/// and a row if its device has trained.
pub(super) fn add_rows(
    key: &RoundKey,
    federation: &Federation,
    tasks: &[(usize, &UpdateTask<'_>, Option<&[f32]>)],
    sums: &mut [Vec<u64>],
) -> Result<Remembered, ComputeError> {
    let lens: Vec<usize> = sums.iter().map(Vec::len).collect();
    let added = tasks.par_chunks(tasks.len().div_ceil(rayon::current_num_threads()).max(1)).map(|tasks| {
        // A thread has memory only for the sums that it adds to.
        let mut own = vec![Vec::new(); lens.len()];
        let mut remembered = Remembered::new();
        for &(index, task, row) in tasks {
            own[task.sum].resize(lens[task.sum], 0);
            let mut worker = TrainedWorker { row: row.unwrap_or_default(), answer: Vec::new() };
            let memory = add_task(key, federation, task, &mut worker, &mut own[task.sum]);
            let memory = memory.map_err(|problem| {
                let device = federation.id(task.device).to_owned();
                ComputeError::Device { device, problem }
            })?;
            remembered.extend(memory.map(|memory| (index, memory)));
        }
        Ok((own, remembered))
    });
    let mut remembered = Remembered::new();
    for (own, memories) in added.collect::<Result<Vec<_>, ComputeError>>()? {
        remembered.extend(memories);
        for (sum, own) in sums.iter_mut().zip(own).filter(|(_, own)| !own.is_empty()) {
            add_wrapping(sum, &own);
        }
    }
    Ok(remembered)
}

/// A worker whose device has already trained.
struct TrainedWorker<'a> {
    /// w_k.
    row: &'a [f32],
    /// w_k and the changes of the vectors sent with w.
    answer: Vec<f32>,
}

impl Worker for TrainedWorker<'_> {
    fn load(&mut self, _params: &[f32]) {}

    fn score(&mut self, _examples: &Examples<'_>, _block: Range<usize>) -> Result<Score, TrainerError> {
        Err("a trained device computes no losses".into())
    }

    fn update(
        &mut self,
        task: &LocalTask<'_>,
        own: &mut AlgorithmState,
        _stream: &mut Stream,
    ) -> Result<&[f32], TrainerError> {
        self.answer = self.row.to_vec();
        if let Some(correction) = task.plan.correction {
            finish_correction(correction, task, own, &mut self.answer);
        }
        Ok(&self.answer)
    }
}
