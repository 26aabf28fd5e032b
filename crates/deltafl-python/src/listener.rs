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
pub(crate) struct Stop {
    flag: Arc<AtomicBool>,
    /// Whether nobody waits for the run any more.
    abandoned: Arc<AtomicBool>,
}

#[pymethods]
impl Stop {
    #[new]
    fn new() -> Self {
        Self::default()
    }

    /// Ends the run after its round.
    pub(crate) fn set(&self) {
        self.flag.store(true, Ordering::Relaxed);
    }

    /// Ends the run, with the devices at work where a trainer of Python computes them, and tells Python nothing of it any more:
    /// the interpreter may end before.
    fn abandon(&self) {
        self.abandoned.store(true, Ordering::Relaxed);
        self.set();
    }

    /// Whether the run is to end.
    pub(crate) fn is_set(&self) -> bool {
        self.flag.load(Ordering::Relaxed)
    }
}

impl Stop {
    /// Whether nobody waits for the run any more.
    pub(crate) fn is_abandoned(&self) -> bool {
        self.abandoned.load(Ordering::Relaxed)
    }

    /// The flag, shared.
    pub(crate) fn flag(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.flag)
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
        if self.stop.is_abandoned() {
            return;
        }
        Python::attach(|py| {
            // Handlers of signals run here, that of Ctrl-C among them, when this is the main thread.
            if let Err(raised) = py.check_signals().and_then(|()| call(self.progress.bind(py))) {
                self.stop.set();
                let mut first = self.raised.lock().unwrap_or_else(PoisonError::into_inner);
                // A later one is dropped behind the lock: dropping it may run Python.
                if first.is_none() {
                    *first = Some(raised);
                }
            }
        });
    }
}

impl Listener for PyListener {
    fn stop(&self) -> &AtomicBool {
        &self.stop.flag
    }

    fn begin(&self, experiment: &Experiment, seed: u64, done: u64) {
        self.lap.lock().unwrap_or_else(PoisonError::into_inner).round = done;
        let seeds: Vec<u64> = experiment.seeds().iter().copied().collect();
        let rounds = experiment.rounds();
        self.tell(|progress| progress.call_method1("begin", (seed, seeds, done, rounds)).map(drop));
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
