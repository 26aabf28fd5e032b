//! Progress of a run, and Ctrl-C.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use deltafl::training::RoundRecord;
use deltafl_cli::embed::Listener;
use deltafl_data::experiment::Experiment;
use pyo3::prelude::*;

/// Time between two calls of Python: a round may take microseconds.
const LAP: Duration = Duration::from_millis(50);

/// A flag that ends a run after its round.
#[pyclass(frozen, module = "deltafl._deltafl")]
#[derive(Clone, Default)]
pub(crate) struct Stop(Arc<AtomicBool>);

#[pymethods]
impl Stop {
    #[new]
    fn new() -> Self {
        Self::default()
    }

    /// Ends the run after its round.
    pub(crate) fn set(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Whether the run is to end.
    pub(crate) fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

impl Stop {
    /// The flag, shared.
    pub(crate) fn flag(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.0)
    }
}

/// Tells an object of Python: `begin`, `round`, `evaluation`, `warn`.
pub(crate) struct PyListener {
    stop: Stop,
    progress: Py<PyAny>,
    lap: Mutex<Lap>,
    raised: Mutex<Option<PyErr>>,
}

struct Lap {
    began: Instant,
    round: u64,
}

impl PyListener {
    /// Tells `progress`, and ends when `stop` is set.
    pub(crate) fn new(stop: Stop, progress: Py<PyAny>) -> Self {
        let lap = Mutex::new(Lap { began: Instant::now(), round: 0 });
        Self { stop, progress, lap, raised: Mutex::default() }
    }

    /// What a callback raised; the run was ended for it.
    pub(crate) fn raised(&self) -> Option<PyErr> {
        self.raised.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Calls the object; an exception ends the run.
    pub(crate) fn tell(&self, call: impl FnOnce(&Bound<'_, PyAny>) -> PyResult<()>) {
        Python::attach(|py| {
            // Handlers of signals run here, that of Ctrl-C among them, when this is the main thread.
            if let Err(raised) = py.check_signals().and_then(|()| call(self.progress.bind(py))) {
                self.stop.set();
                self.raised.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(raised);
            }
        });
    }
}

impl Listener for PyListener {
    fn stop(&self) -> &AtomicBool {
        &self.stop.0
    }

    fn begin(&self, experiment: &Experiment, seed: u64, done: u64) {
        self.lap.lock().unwrap_or_else(PoisonError::into_inner).round = done;
        let rounds = experiment.rounds.get();
        self.tell(|progress| progress.call_method1("begin", (seed, done, rounds)).map(drop));
    }

    fn round(&self, records: &[RoundRecord]) {
        let round = {
            let mut lap = self.lap.lock().unwrap_or_else(PoisonError::into_inner);
            lap.round = records.first().map_or(lap.round, |record| record.round + 1);
            if lap.began.elapsed() < LAP {
                return;
            }
            lap.began = Instant::now();
            lap.round
        };
        self.tell(|progress| progress.call_method1("round", (round,)).map(drop));
    }

    fn evaluation(&self, seed: u64, round: u64, headline: &str) {
        self.tell(|progress| progress.call_method1("evaluation", (seed, round, headline)).map(drop));
    }

    fn warn(&self, text: &str) {
        self.tell(|progress| progress.call_method1("warn", (text,)).map(drop));
    }
}
