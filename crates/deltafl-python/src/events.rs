//! The events of a run, for the callbacks of the user.

use deltafl::algorithm::TrackLabel;
use deltafl::exchange::SplitEvaluation;
use deltafl::training::{Event, State};
use deltafl_run::RunEvent;
use numpy::PyArray1;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};

use crate::listener::Stop;

/// Sends events to the methods `round`, `evaluated` and `checkpoint` of a Python object. They
/// return whether the run should stop.
pub(crate) struct Callbacks(Py<PyAny>);

impl Callbacks {
    /// Sends events to this object, a `deltafl._callbacks.Dispatcher`.
    pub(crate) fn new(dispatcher: Py<PyAny>) -> Self {
        Self(dispatcher)
    }

    /// Sends an event. If a callback asks for it or raises an exception, the run stops after the
    /// current round.
    pub(crate) fn handle(&self, event: &RunEvent<'_>, stop: &Stop) {
        let RunEvent::Training { seed, labels, event } = event else { return };
        if stop.is_abandoned() {
            return;
        }
        let stopped = Python::attach(|py| {
            let dispatcher = self.0.bind(py);
            let answer = match event {
                Event::RoundFinished { records } => {
                    let json = serde_json::to_string(records).unwrap_or_default();
                    dispatcher.call_method1("round", (*seed, json))
                }
                Event::Evaluated { round, splits } => evaluation(py, labels, splits)
                    .and_then(|splits| dispatcher.call_method1("evaluated", (*seed, *round, splits))),
                Event::Checkpoint { state } => params(py, labels, state)
                    .and_then(|params| dispatcher.call_method1("checkpoint", (*seed, state.round, params))),
                _ => return Ok(false),
            };
            answer?.extract::<bool>()
        });
        match stopped {
            Ok(false) => {}
            Ok(true) => stop.set(),
            Err(raised) => stop.fail(raised),
        }
    }
}

/// Returns w of each track by its name.
fn params<'py>(py: Python<'py>, labels: &[TrackLabel], state: &State) -> PyResult<Bound<'py, PyDict>> {
    let params = PyDict::new(py);
    for (label, track) in labels.iter().zip(&state.tracks) {
        params.set_item(&label.name, PyArray1::from_slice(py, track.params.as_slice()))?;
    }
    Ok(params)
}

/// Returns a dict per split: devices, examples, and the loss and metrics of each track.
fn evaluation<'py>(
    py: Python<'py>,
    labels: &[TrackLabel],
    splits: &[SplitEvaluation],
) -> PyResult<Bound<'py, PyList>> {
    let all = PyList::empty(py);
    for split in splits {
        let dict = PyDict::new(py);
        dict.set_item("split", split.split.name())?;
        dict.set_item("devices", split.devices.iter().map(|device| device.id.as_str()).collect::<Vec<_>>())?;
        let examples: Vec<u64> = split.devices.iter().map(|device| device.examples).collect();
        dict.set_item("examples", PyArray1::from_vec(py, examples))?;
        let tracks = PyDict::new(py);
        for (label, devices) in labels.iter().zip(&split.tracks) {
            let columns = PyDict::new(py);
            let losses: Vec<f64> = devices.iter().map(|device| device.loss).collect();
            columns.set_item("loss", PyArray1::from_vec(py, losses))?;
            for (i, metric) in split.task.metrics().iter().enumerate() {
                let values: Vec<f64> = devices.iter().map(|device| device.metrics[i]).collect();
                columns.set_item(metric.name, PyArray1::from_vec(py, values))?;
            }
            tracks.set_item(&label.name, columns)?;
        }
        dict.set_item("tracks", tracks)?;
        all.append(dict)?;
    }
    Ok(all)
}
