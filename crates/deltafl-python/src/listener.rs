//! Progress of a run, and handling of Ctrl-C.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use deltafl::training::{Event, Observer, ObserverResult, RoundRecord};
use deltafl_data::experiment::Experiment;
use deltafl_run::RunEvent;
use deltafl_run::event::headline;
use pyo3::prelude::*;

use crate::events::Callbacks;

/// The minimum time between two calls of Python. A round may take microseconds.
const LAP: Duration = Duration::from_millis(50);

/// A flag that ends a run after the current round.
#[pyclass(frozen, module = "deltafl._deltafl")]
#[derive(Clone, Default)]
pub(crate) struct Stop {
    flag: Arc<AtomicBool>,
    /// Whether the caller has stopped waiting for the run.
    abandoned: Arc<AtomicBool>,
    /// The exception of a callback that ended the run.
    raised: Arc<Mutex<Option<PyErr>>>,
}

#[pymethods]
impl Stop {
    #[new]
    fn new() -> Self {
        Self::default()
    }

    /// Ends the run after the current round.
    pub(crate) fn set(&self) {
        self.flag.store(true, Ordering::Relaxed);
    }

    /// Ends the run and stops calling Python, because the interpreter may exit before the run ends.
    /// With a Python trainer, no further devices are computed.
    fn abandon(&self) {
        self.abandoned.store(true, Ordering::Relaxed);
        self.set();
    }

    /// Returns whether the run should end.
    pub(crate) fn is_set(&self) -> bool {
        self.flag.load(Ordering::Relaxed)
    }
}

impl Stop {
    /// Returns whether the caller has stopped waiting for the run.
    pub(crate) fn is_abandoned(&self) -> bool {
        self.abandoned.load(Ordering::Relaxed)
    }

    /// Returns the exception of a callback, which ended the run.
    pub(crate) fn raised(&self) -> Option<PyErr> {
        self.raised.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Ends the run after the current round because of an exception.
    pub(crate) fn fail(&self, raised: PyErr) {
        self.set();
        // A later exception is dropped after the lock is released, because dropping it may run
        // Python.
        let mut first = self.raised.lock().unwrap_or_else(PoisonError::into_inner);
        if first.is_none() {
            *first = Some(raised);
        }
    }

    /// Returns the shared flag.
    pub(crate) fn flag(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.flag)
    }
}

/// Forwards progress to the methods `begin`, `round`, `evaluation` and `warn` of a Python object.
pub(crate) struct PyListener {
    stop: Stop,
    progress: Py<PyAny>,
    called: Instant,
    callbacks: Option<Callbacks>,
}

impl PyListener {
    /// Creates a listener that calls `progress` and ends the run when `stop` is set.
    pub(crate) fn new(stop: Stop, progress: Py<PyAny>) -> Self {
        Self { stop, progress, called: Instant::now(), callbacks: None }
    }

    /// Calls the object. An exception ends the run.
    pub(crate) fn call(&self, call: impl for<'py> FnOnce(&Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>>) {
        if self.stop.is_abandoned() {
            return;
        }
        Python::attach(|py| {
            // On the main thread, this runs signal handlers, including that of Ctrl-C.
            if let Err(raised) = py.check_signals().and_then(|()| call(self.progress.bind(py)).map(drop)) {
                self.stop.fail(raised);
            }
        });
    }

    /// Sends the events of the run to an object with callbacks.
    pub(crate) fn with_callbacks(self, callbacks: Option<Py<PyAny>>) -> Self {
        Self { callbacks: callbacks.map(Callbacks::new), ..self }
    }

    /// Reports that a seed begins, with `done` rounds trained earlier.
    pub(crate) fn begin(&self, experiment: &Experiment, seed: u64, done: u64) {
        let (seeds, rounds) = (experiment.seeds().to_vec(), experiment.rounds());
        self.call(|progress| progress.call_method1("begin", (seed, seeds, done, rounds)));
    }

    /// Reports the number of finished rounds, if enough time has passed.
    pub(crate) fn round(&mut self, record: &RoundRecord) {
        if self.called.elapsed() >= LAP {
            self.called = Instant::now();
            self.call(|progress| progress.call_method1("round", (record.round + 1,)));
        }
    }

    /// Reports a warning.
    pub(crate) fn warn(&self, text: &str) {
        self.call(|progress| progress.call_method1("warn", (text,)));
    }

    /// Returns `Break` if the run should end.
    pub(crate) fn flow(&self) -> ControlFlow<()> {
        if self.stop.is_set() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }
}

impl Observer<RunEvent<'_>> for PyListener {
    fn handle(&mut self, event: RunEvent<'_>) -> ObserverResult {
        if let Some(callbacks) = &self.callbacks {
            callbacks.handle(&event, &self.stop);
        }
        match event {
            RunEvent::Warning(text) => self.warn(text),
            RunEvent::SeedBegins { experiment, seed, done } => self.begin(experiment, seed, done),
            RunEvent::Training { event: Event::RoundFinished { records: [record, ..] }, .. } => {
                self.round(record);
            }
            RunEvent::Training { seed, labels, event: Event::Evaluated { round, splits } } => {
                let headline = headline(labels, splits);
                self.call(|progress| progress.call_method1("evaluation", (seed, round, headline)));
            }
            _ => {}
        }
        Ok(self.flow())
    }
}
