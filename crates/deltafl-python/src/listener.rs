//! Progress of a run, and handling of Ctrl-C.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use deltafl::training::{RoundRecord, State};
use deltafl_data::experiment::Experiment;
use deltafl_run::{Listener, SeedEvaluation};
use pyo3::prelude::*;

/// The minimum time between two calls of Python. A round may take microseconds.
const LAP: Duration = Duration::from_millis(50);

/// A flag that ends a run after the current round.
#[pyclass(frozen, module = "deltafl._deltafl")]
#[derive(Clone, Default)]
pub(crate) struct Stop {
    flag: Arc<AtomicBool>,
    /// Whether the caller has stopped waiting for the run.
    abandoned: Arc<AtomicBool>,
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

    /// Returns the shared flag.
    pub(crate) fn flag(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.flag)
    }
}

/// Forwards progress to the methods `begin`, `round`, `evaluation` and `warn` of a Python object.
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
    /// Creates a listener that calls `progress` and ends the run when `stop` is set.
    pub(crate) fn new(stop: Stop, progress: Py<PyAny>) -> Self {
        let lap = Mutex::new(Lap { began: Instant::now(), round: 0 });
        Self { stop, progress, lap, raised: Mutex::default() }
    }

    /// Returns the exception raised by a callback, which ended the run.
    pub(crate) fn raised(&self) -> Option<PyErr> {
        self.raised.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Calls the object. An exception ends the run.
    pub(crate) fn tell(&self, call: impl FnOnce(&Bound<'_, PyAny>) -> PyResult<()>) {
        if self.stop.is_abandoned() {
            return;
        }
        Python::attach(|py| {
            // On the main thread, this runs signal handlers, including that of Ctrl-C.
            if let Err(raised) = py.check_signals().and_then(|()| call(self.progress.bind(py))) {
                self.stop.set();
                let mut first = self.raised.lock().unwrap_or_else(PoisonError::into_inner);
                // A later exception is dropped after the lock is released, because dropping it may
                // run Python.
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

    fn shows_seeds_side_by_side(&self) -> bool {
        false
    }

    fn begin_side_by_side(&self, _: &Experiment, _: &[State]) {}

    fn begin(&self, experiment: &Experiment, seed: u64, done: u64) {
        self.lap.lock().unwrap_or_else(PoisonError::into_inner).round = done;
        let seeds: Vec<u64> = experiment.seeds.iter().copied().collect();
        let rounds = experiment.rounds.get();
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

    fn evaluation(&self, evaluation: &SeedEvaluation<'_>) {
        let SeedEvaluation { seed, round, .. } = *evaluation;
        let headline = evaluation.headline();
        self.tell(|progress| progress.call_method1("evaluation", (seed, round, headline)).map(drop));
    }

    fn end(&self, _: u64) {}

    fn note(&self, _: &str) {}

    fn warn(&self, text: &str) {
        self.tell(|progress| progress.call_method1("warn", (text,)).map(drop));
    }
}
