//! A Python trainer in the round loop.
//!
//! `deltafl._trainer.Bridge` connects the user's trainer to this module. It checks shapes and
//! converts predictions into sums. The interpreter lock is acquired for each call and released
//! afterwards, so workers wait for each other only while Python runs.

use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};

use deltafl::data::{BatchBuffer, Examples};
use deltafl::memory::AlgorithmState;
use deltafl::model::Score;
use deltafl::stream::Stream;
use deltafl::task::{RegressionLoss, Task};
use deltafl::trainer::{LocalPlan, LocalTask, LocalTrainer, TrainerError, Work, Worker};
use numpy::{PyArray1, PyReadonlyArray1};
use pyo3::call::PyCallArgs;
use pyo3::exceptions::PyKeyboardInterrupt;
use pyo3::prelude::*;

use crate::external::{entries_of, section_of, store};
use crate::failure::{invalid, raised};
use crate::federation::gathered;
use crate::listener::Stop;

/// The user's trainer.
pub(crate) struct PyTrainer {
    bridge: Py<PyAny>,
    num_params: usize,
    task: Task,
    /// Whether the trainer adds the drift of a correction to every gradient.
    corrects: bool,
    /// Trainer copies that no worker uses at the moment. A module is copied once per thread, not
    /// once per round.
    spare: Mutex<Vec<Py<PyAny>>>,
    /// The first exception.
    failed: Mutex<Option<Raised>>,
    /// When it is abandoned, no further devices are computed.
    stop: Stop,
}

/// An exception and its message. The message is stored because formatting it runs Python. A thread
/// that waits for the interpreter must not hold a lock that a thread inside it needs.
struct Raised {
    exception: PyErr,
    message: String,
}

impl PyTrainer {
    /// Creates a trainer from a `Bridge`.
    pub(crate) fn new(py: Python<'_>, bridge: Py<PyAny>, stop: &Stop) -> PyResult<Self> {
        let object = bridge.bind(py);
        let num_params = object.getattr("num_params")?.extract()?;
        let task: String = object.getattr("task")?.extract()?;
        let corrects = object.getattr("corrects")?.extract()?;
        let task = match task.as_str() {
            "classes" => Task::Classes,
            "binary" => Task::Binary,
            "next-symbol" => Task::NextSymbol,
            "regression" => Task::Regression(RegressionLoss::Squared),
            other => {
                let known = "classes, binary, next-symbol or regression";
                return Err(invalid(py, format!("task must be {known}, not {other:?}")));
            }
        };
        let stop = stop.clone();
        let (spare, failed) = Default::default();
        Ok(Self { bridge, num_params, task, corrects, spare, failed, stop })
    }

    /// Returns the adapter of the user's trainer.
    pub(crate) fn bridge<'py>(&self, py: Python<'py>) -> &Bound<'py, PyAny> {
        self.bridge.bind(py)
    }

    /// Returns whether the trainer adds the drift of a correction to every gradient.
    pub(crate) fn corrects(&self) -> bool {
        self.corrects
    }

    /// Prepares calls for many devices. Returns whether the trainer supports them.
    pub(crate) fn trains_cohorts(&self, py: Python<'_>) -> PyResult<bool> {
        self.bridge(py).call_method0("trains_cohorts")?.extract()
    }

    /// Returns the exception of a run that failed in the trainer. Its class indicates this, and its
    /// cause is the user's exception.
    pub(crate) fn raised(&self, py: Python<'_>, message: &str) -> Option<PyErr> {
        let cause = self.failed().take()?.exception;
        if cause.is_instance_of::<PyKeyboardInterrupt>(py) {
            return Some(cause);
        }
        let error = raised(py, "TrainerError", message);
        error.set_cause(py, Some(cause));
        Some(error)
    }

    /// Returns the same for a trainer of one device or none. The message begins with the
    /// computation that failed.
    pub(crate) fn failure(&self, py: Python<'_>, what: &str) -> Option<PyErr> {
        let message = self.message()?;
        self.raised(py, &format!("{what}: {message}"))
    }

    /// Returns whether the trainer raised an exception.
    pub(crate) fn has_failed(&self) -> bool {
        self.failed().is_some()
    }

    /// Returns the first exception in one line.
    fn message(&self) -> Option<String> {
        self.failed().as_ref().map(|raised| raised.message.clone())
    }

    fn failed(&self) -> MutexGuard<'_, Option<Raised>> {
        self.failed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn spare(&self) -> MutexGuard<'_, Vec<Py<PyAny>>> {
        self.spare.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Stores an exception and returns its message in one line.
    pub(crate) fn fail(&self, py: Python<'_>, error: PyErr) -> TrainerError {
        let message = error.to_string();
        self.failed()
            .get_or_insert_with(|| Raised { exception: error.clone_ref(py), message: message.clone() });
        message.into()
    }

    /// Fails with the exception of an earlier call that could not return it, or if the run was
    /// abandoned.
    pub(crate) fn earlier(&self) -> Result<(), TrainerError> {
        match self.message() {
            Some(message) => Err(message.into()),
            None if self.stop.is_abandoned() => Err("interrupted".into()),
            None => Ok(()),
        }
    }
}

impl LocalTrainer for PyTrainer {
    fn num_params(&self) -> usize {
        self.num_params
    }

    fn init(&self, stream: &mut Stream, params: &mut [f32]) {
        let seed = stream.next_u64();
        Python::attach(|py| {
            let start = self.bridge.bind(py).call_method1("init", (seed,));
            let start = start.and_then(|start| entries(&start, params.len()));
            match start {
                Ok(start) => params.copy_from_slice(&start),
                // The first computed device reports the error.
                Err(error) => drop(self.fail(py, error)),
            }
        });
    }

    fn task(&self) -> Task {
        self.task
    }

    fn corrects_gradients(&self) -> bool {
        self.corrects
    }

    fn worker(&self) -> Box<dyn Worker + '_> {
        let spare = self.spare().pop();
        let object = spare.unwrap_or_else(|| {
            Python::attach(|py| match self.bridge.call_method0(py, "worker") {
                Ok(object) => object,
                Err(error) => {
                    drop(self.fail(py, error));
                    self.bridge.clone_ref(py)
                }
            })
        });
        Box::new(PyWorker {
            trainer: self,
            object: Some(object),
            params: None,
            local: Vec::new(),
            batch: BatchBuffer::default(),
        })
    }
}

/// The trainer copy of a thread.
struct PyWorker<'a> {
    trainer: &'a PyTrainer,
    /// `None` only while this value is dropped.
    object: Option<Py<PyAny>>,
    params: Option<Py<PyArray1<f32>>>,
    local: Vec<f32>,
    batch: BatchBuffer,
}

impl PyWorker<'_> {
    fn call<'py>(
        &self,
        method: &str,
        py: Python<'py>,
        args: impl PyCallArgs<'py>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let object = self.object.as_ref().expect("there until it is dropped");
        object.bind(py).call_method1(method, args)
    }
}

impl Drop for PyWorker<'_> {
    fn drop(&mut self) {
        if let Some(object) = self.object.take() {
            self.trainer.spare().push(object);
        }
    }
}

impl Worker for PyWorker<'_> {
    fn load(&mut self, params: &[f32]) {
        self.params = Some(Python::attach(|py| PyArray1::from_slice(py, params).unbind()));
    }

    fn score(&mut self, examples: &Examples<'_>, block: Range<usize>) -> Result<Score, TrainerError> {
        self.trainer.earlier()?;
        Python::attach(|py| {
            let params = self.params.as_ref().map(|params| params.bind(py));
            let scored = gathered(py, &mut self.batch, examples, block)
                .and_then(|(inputs, targets)| self.call("score", py, (params, inputs, targets)))
                .and_then(|scored| scored.extract::<(f64, [f64; Score::SUMS])>());
            scored.map(|(loss, sums)| Score { loss, sums }).map_err(|e| self.trainer.fail(py, e))
        })
    }

    fn update(
        &mut self,
        task: &LocalTask<'_>,
        own: &mut AlgorithmState,
        stream: &mut Stream,
    ) -> Result<&[f32], TrainerError> {
        self.trainer.earlier()?;
        let &LocalTask { params, examples, plan, .. } = task;
        let algorithm = plan.correction.and_then(section_of);
        let correction = plan.correction.filter(|_| algorithm.is_none());
        if correction.is_some() && !self.trainer.corrects {
            plan.without_correction()?;
        }
        let drift = correction.map(|correction| {
            let mut drift = vec![0.0; params.len()];
            (correction.drift)(task.sent, own, &mut drift);
            drift
        });
        let order = order(plan, examples.len(), stream);
        let seed = stream.next_u64();
        Python::attach(|py| {
            let period = match plan.work {
                Work::Epochs(_) => examples.len(),
                Work::Steps(_) => order.len(),
            };
            let local = (
                PyArray1::from_vec(py, order),
                period,
                plan.batch,
                f64::from(plan.learning_rate),
                f64::from(plan.l2),
                f64::from(plan.proximal),
                seed,
            );
            let updated = gathered(py, &mut self.batch, examples, 0..examples.len())
                .and_then(|(inputs, targets)| {
                    let params = PyArray1::from_slice(py, params);
                    let state = entries_of(py, own)?;
                    let drift = drift.map(|drift| PyArray1::from_vec(py, drift));
                    let given = (params, inputs, targets, local, &state, algorithm, drift);
                    let updated = self.call("update", py, given)?;
                    // The trainer changes the state in place.
                    store(&state, own)?;
                    Ok(updated)
                })
                .and_then(|updated| entries(&updated, params.len()));
            self.local = updated.map_err(|e| self.trainer.fail(py, e))?;
            Ok(())
        })
        .map_err(|e: TrainerError| e)?;
        if let Some(correction) = correction {
            correction.append_changes(task, own, &mut self.local);
        }
        Ok(&self.local)
    }
}

/// Returns the examples of all batches in sequence, drawn like those of the built-in SGD.
pub(crate) fn order(plan: &LocalPlan, examples: usize, stream: &mut Stream) -> Vec<i64> {
    match plan.work {
        Work::Epochs(epochs) => {
            let mut all = Vec::with_capacity(examples * epochs as usize);
            let mut epoch: Vec<i64> = Vec::new();
            for _ in 0..epochs {
                epoch.clear();
                epoch.extend(0..examples as i64);
                stream.shuffle(&mut epoch);
                all.extend_from_slice(&epoch);
            }
            all
        }
        Work::Steps(steps) => {
            let drawn = steps as usize * plan.batch;
            (0..drawn).map(|_| stream.below(examples as u64) as i64).collect()
        }
    }
}

/// Returns the entries of a float32 vector of this length.
fn entries(vector: &Bound<'_, PyAny>, len: usize) -> PyResult<Vec<f32>> {
    let py = vector.py();
    let vector: PyReadonlyArray1<'_, f32> = vector.extract()?;
    let entries = vector.as_array().to_vec();
    if entries.len() == len {
        Ok(entries)
    } else {
        Err(invalid(py, format!("expected {len} params, got {}", entries.len())))
    }
}
