//! Algorithms written in Python, as parts of a track.
//!
//! `deltafl._algorithm.AlgorithmBridge` connects the user's class to this module and checks its
//! return values. The parts that the class does not define are those of a built-in algorithm.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use deltafl::algorithm::AlgorithmParts;
use deltafl::exchange::{CohortMember, TrainIndex};
use deltafl::memory::AlgorithmState;
use deltafl::params::{Params, UpdateSum};
use deltafl::selection::{
    DEVICE_RULE, DeviceFacts, DeviceRule, ETA, Learned, LossMean, Needs, OWN_REPORTS, Selection, SummedTail,
    UpdateFacts, Weighting,
};
use deltafl::server_step::{ServerStep, ServerStepInput};
use deltafl::stream::Stream;
use deltafl::trainer::{Correction, TrainerError};
use deltafl_data::experiment::ExternalAlgorithms;
use numpy::{PyArray1, PyReadonlyArray1};
use pyo3::exceptions::PyKeyboardInterrupt;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::failure::raised;

/// The prefix of the user's entries in a memory, so that they cannot replace those of built-in parts.
const OWN: &str = "own.";

/// The prefix of the name of a correction that stands for the local update of an algorithm.
const LOCAL_UPDATE: &str = "external-";

/// The algorithms of an experiment that are written in Python, by section.
pub(crate) struct PyAlgorithms(Vec<Option<Arc<PyAlgorithm>>>);

/// One algorithm.
struct PyAlgorithm {
    bridge: Py<PyAny>,
    weight: bool,
    select: bool,
    update: bool,
    server_step: bool,
    /// The first exception with its message in one line.
    failed: Mutex<Option<(PyErr, String)>>,
}

impl PyAlgorithms {
    /// Creates the algorithms from one `AlgorithmBridge` or None per section.
    pub(crate) fn new(py: Python<'_>, bridges: Vec<Option<Py<PyAny>>>) -> PyResult<Option<Self>> {
        let of_section = |bridge: Option<Py<PyAny>>| bridge.map(|bridge| PyAlgorithm::new(py, bridge));
        let sections = bridges.into_iter().map(|bridge| of_section(bridge).transpose());
        let sections = sections.collect::<PyResult<Vec<_>>>()?;
        Ok(sections.iter().any(Option::is_some).then_some(Self(sections)))
    }

    /// Returns the exception of a run that failed in an algorithm. Its cause is the user's exception.
    pub(crate) fn raised(&self, py: Python<'_>, message: &str) -> Option<PyErr> {
        let (cause, _) = self.0.iter().flatten().find_map(|algorithm| algorithm.failed().take())?;
        if cause.is_instance_of::<PyKeyboardInterrupt>(py) {
            return Some(cause);
        }
        let error = raised(py, "AlgorithmError", message);
        error.set_cause(py, Some(cause));
        Some(error)
    }
}

impl ExternalAlgorithms for PyAlgorithms {
    fn parts(&self, section: usize, _track: usize, base: AlgorithmParts) -> AlgorithmParts {
        let Some(Some(algorithm)) = self.0.get(section) else { return base };
        let mut parts = base;
        if algorithm.weight || algorithm.select {
            parts.selection =
                Box::new(PySelection { algorithm: algorithm.clone(), selected: Mutex::default() });
        }
        if algorithm.update {
            parts.correction = Some(local_update(section));
        }
        // A step of the base reports the exceptions of the other parts.
        parts.server = Box::new(PyServerStep { algorithm: algorithm.clone(), base: parts.server });
        parts
    }
}

/// Returns the correction that stands for the local update of a section's algorithm. A correction
/// is static. There is one per section, so that the memory of all of them is bounded.
fn local_update(section: usize) -> &'static Correction {
    static KNOWN: OnceLock<Mutex<BTreeMap<usize, &'static Correction>>> = OnceLock::new();
    let mut known = KNOWN.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner);
    known.entry(section).or_insert_with(|| {
        let name = Box::leak(format!("{LOCAL_UPDATE}{section}").into_boxed_str());
        let correction = Correction { name, sent: &[], drift: |_, _, _| {}, finish: |_, _, _| {} };
        Box::leak(Box::new(correction))
    })
}

/// Returns the section whose algorithm computes the local update, if the correction stands for one.
pub(crate) fn section_of(correction: &Correction) -> Option<usize> {
    correction.name.strip_prefix(LOCAL_UPDATE)?.parse().ok()
}

impl PyAlgorithm {
    fn new(py: Python<'_>, bridge: Py<PyAny>) -> PyResult<Arc<Self>> {
        let replaces: Vec<String> = bridge.getattr(py, "replaces")?.extract(py)?;
        let has = |part: &str| replaces.iter().any(|name| name == part);
        Ok(Arc::new(Self {
            weight: has("weight"),
            select: has("select"),
            update: has("update"),
            server_step: has("server-step"),
            failed: Mutex::default(),
            bridge,
        }))
    }

    fn failed(&self) -> MutexGuard<'_, Option<(PyErr, String)>> {
        self.failed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls a function that uses Python. Returns `None` after an exception, which is stored.
    fn attached<T>(&self, call: impl FnOnce(Python<'_>, &Bound<'_, PyAny>) -> PyResult<T>) -> Option<T> {
        if self.failed().is_some() {
            return None;
        }
        Python::attach(|py| match call(py, self.bridge.bind(py)) {
            Ok(value) => Some(value),
            Err(error) => {
                // Formatting runs Python, so that it must not hold the lock.
                let message = error.to_string();
                self.failed().get_or_insert((error, message));
                None
            }
        })
    }
}

/// Returns the state of an algorithm for its methods.
fn state<'py>(
    py: Python<'py>,
    bridge: &Bound<'py, PyAny>,
    memory: &AlgorithmState,
    facts: &Bound<'py, PyDict>,
) -> PyResult<Bound<'py, PyAny>> {
    facts.set_item("eta", memory.number(ETA))?;
    facts.set_item("mean_loss", LossMean::read(memory).map(|losses| losses.mean))?;
    bridge.call_method1("state", (entries_of(py, memory)?, facts))
}

/// Returns the user's entries of a memory.
pub(crate) fn entries_of<'py>(py: Python<'py>, memory: &AlgorithmState) -> PyResult<Bound<'py, PyDict>> {
    let entries = PyDict::new(py);
    for (name, number) in memory.numbers() {
        if let Some(name) = name.strip_prefix(OWN) {
            entries.set_item(name, number)?;
        }
    }
    for (name, vector) in memory.vectors() {
        if let Some(name) = name.strip_prefix(OWN) {
            entries.set_item(name, PyArray1::from_slice(py, vector.as_slice()))?;
        }
    }
    Ok(entries)
}

/// Replaces the user's entries of a memory.
pub(crate) fn store(entries: &Bound<'_, PyDict>, memory: &mut AlgorithmState) -> PyResult<()> {
    let names = memory.numbers().map(|(name, _)| name).chain(memory.vectors().map(|(name, _)| name));
    let names: Vec<String> = names.filter(|name| name.starts_with(OWN)).map(str::to_owned).collect();
    names.iter().for_each(|name| memory.forget(name));
    for (name, value) in entries.iter() {
        let name = format!("{OWN}{}", name.extract::<String>()?);
        match value.extract::<f64>() {
            Ok(number) => memory.set_number(&name, number),
            Err(_) => memory.set_vector(&name, vector(&value)?.into()),
        }
    }
    Ok(())
}

fn vector(array: &Bound<'_, PyAny>) -> PyResult<Vec<f32>> {
    let array: PyReadonlyArray1<'_, f32> = array.extract()?;
    Ok(array.as_array().to_vec())
}

/// The methods `weight` or `select`.
struct PySelection {
    algorithm: Arc<PyAlgorithm>,
    /// The factors of the devices with losses in the current round.
    selected: Mutex<Vec<(TrainIndex, f64)>>,
}

impl PySelection {
    fn selected(&self) -> MutexGuard<'_, Vec<(TrainIndex, f64)>> {
        self.selected.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Selection for PySelection {
    fn needs(&self, _round: u64, _memory: &AlgorithmState) -> Needs {
        if self.algorithm.select { Needs::NamedLosses } else { Needs::Nothing }
    }

    fn learn(&self, round: u64, learned: Learned<'_>, memory: &mut AlgorithmState) {
        let Learned::NamedLosses(named) = learned else { return };
        let shares = self.algorithm.attached(|py, bridge| {
            let losses = named.iter().map(|named| named.loss.loss());
            let weights: Vec<f64> = named.iter().map(|named| named.loss.weight()).collect();
            let facts = PyDict::new(py);
            facts.set_item("round", round)?;
            facts.set_item("weights", PyArray1::from_vec(py, weights))?;
            let state = state(py, bridge, memory, &facts)?;
            let selected =
                bridge.call_method1("select", (PyArray1::from_vec(py, losses.collect()), &state))?;
            let shares: PyReadonlyArray1<'_, f64> = selected.extract()?;
            store(state.getattr("_entries")?.cast::<PyDict>()?, memory)?;
            Ok(shares.as_array().to_vec())
        });
        let devices = named.iter().map(|named| named.device);
        *self.selected() = devices.zip(shares.unwrap_or_default()).collect();
        let weight: f64 = named.iter().map(|named| named.loss.weight()).sum();
        let loss: f64 = named.iter().map(|named| named.loss.loss() * named.loss.weight()).sum();
        if let Some(losses) = LossMean::from_reports(&[weight, loss]) {
            losses.store(memory);
        }
    }

    fn weighting(&self, _memory: &AlgorithmState) -> Weighting {
        let of_device = || Weighting::new(&DEVICE_RULE, &[]).expect("the rule has no numbers");
        if self.algorithm.weight { of_device() } else { Weighting::everyone() }
    }

    fn named_shares(
        &self,
        cohort: &[CohortMember],
        _stream: &mut Stream,
        _memory: &AlgorithmState,
    ) -> Option<Vec<f64>> {
        if !self.algorithm.select {
            return None;
        }
        let selected = self.selected();
        // A device without a finite loss is not in the list.
        let share = |member: &CohortMember| {
            selected.iter().find(|(device, _)| *device == member.device).map_or(0.0, |(_, share)| *share)
        };
        Some(cohort.iter().map(share).collect())
    }

    fn device_rule(&self, memory: &AlgorithmState) -> Option<Arc<dyn DeviceRule>> {
        if !self.algorithm.weight {
            return None;
        }
        let state = self
            .algorithm
            .attached(|py, bridge| state(py, bridge, memory, &PyDict::new(py)).map(Bound::unbind));
        Some(Arc::new(PyRule { algorithm: self.algorithm.clone(), state }))
    }

    fn observe(&self, summed: &SummedTail<'_>, memory: &mut AlgorithmState) {
        if let Some(losses) = LossMean::from_reports(summed.reports.get(..OWN_REPORTS).unwrap_or_default()) {
            losses.store(memory);
        }
    }
}

/// The methods `weight` and `report` in one round.
struct PyRule {
    algorithm: Arc<PyAlgorithm>,
    /// The state of the track. `None` after an exception.
    state: Option<Py<PyAny>>,
}

impl fmt::Debug for PyRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PyRule")
    }
}

impl DeviceRule for PyRule {
    fn share(&self, device: &DeviceFacts) -> f64 {
        let share = self.algorithm.attached(|_, bridge| {
            bridge.call_method1("weight", (device.loss, device.examples, &self.state))?.extract()
        });
        share.unwrap_or(0.0)
    }

    fn report(&self, update: &UpdateFacts, report: &mut [f64]) {
        let numbers = self.algorithm.attached(|_, bridge| {
            let facts = (update.device.loss, update.share, update.squared_norm, &self.state);
            bridge.call_method1("report", facts)?.extract::<Vec<f64>>()
        });
        for (place, number) in report.iter_mut().zip(numbers.unwrap_or_default()) {
            *place = number;
        }
    }
}

/// The method `server_step`, or the step of the base algorithm.
struct PyServerStep {
    algorithm: Arc<PyAlgorithm>,
    base: Box<dyn ServerStep>,
}

impl ServerStep for PyServerStep {
    fn apply(
        &self,
        at: &ServerStepInput<'_>,
        sum: &UpdateSum,
        memory: &mut AlgorithmState,
    ) -> Option<Params> {
        if !self.algorithm.server_step {
            return self.base.apply(at, sum, memory);
        }
        let mean: Vec<f64> = sum.mean()?.take(at.params.len()).collect();
        self.algorithm.attached(|py, bridge| {
            let facts = PyDict::new(py);
            facts.set_item("learning_rate", at.learning_rate)?;
            facts.set_item("devices", at.devices)?;
            facts.set_item("weight", sum.tail_weight())?;
            facts.set_item("tail", sum.tail())?;
            facts.set_item("reports", sum.reports().get(OWN_REPORTS..).unwrap_or_default().to_vec())?;
            let state = state(py, bridge, memory, &facts)?;
            let params = PyArray1::from_slice(py, at.params.as_slice());
            let stepped =
                bridge.call_method1("server_step", (params, PyArray1::from_vec(py, mean), &state))?;
            let stepped = vector(&stepped)?;
            store(state.getattr("_entries")?.cast::<PyDict>()?, memory)?;
            Ok(stepped.into())
        })
    }

    fn failure(&self) -> Option<TrainerError> {
        self.algorithm.failed().as_ref().map(|(_, message)| message.clone().into())
    }
}
