//! A deployed federation: a device with a trainer of Python, and a server.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use deltafl::trainer::LocalTrainer;
use deltafl::training::{RoundRecord, State};
use deltafl_cli::embed::deployed::{self, Part, ServerListener, Service};
use deltafl_cli::embed::{Failure, FailureKind};
use deltafl_data::experiment::Experiment;
use deltafl_run::{Listener, SeedEvaluation};
use pyo3::prelude::*;

use crate::failure::raised;
use crate::federation::Federation;
use crate::listener::{PyListener, Stop};
use crate::logs;
use crate::run::parsed;
use crate::trainer::PyTrainer;

/// Takes part in a federation until `stop` is set, with the options of `deltafl device`.
#[pyfunction]
pub(crate) fn take_part(
    py: Python<'_>,
    words: Vec<OsString>,
    data: &Bound<'_, Federation>,
    trainer: Option<Py<PyAny>>,
    name: &str,
    stop: &Bound<'_, Stop>,
) -> PyResult<()> {
    logs::start(py)?;
    let (data, stop) = (data.get().inner.clone(), stop.get());
    let trainer = trainer.map(|trainer| PyTrainer::new(py, trainer, stop)).transpose()?.map(Arc::new);
    let has_failed = || trainer.as_ref().is_some_and(|trainer| trainer.has_failed());
    let part = Part {
        words,
        data,
        trainer: trainer.clone().map(|trainer| trainer as Arc<dyn LocalTrainer>),
        ended: &|| stop.is_set() || has_failed(),
        say: &|text| tracing::info!("{text}"),
    };
    let ended = py.detach(|| deployed::take_part(part));
    match trainer.and_then(|trainer| trainer.failure(py, &format!("device {name}"))) {
        Some(raised) => Err(raised),
        None => ended.map_err(|failure| failed(py, &failure)),
    }
}

fn failed(py: Python<'_>, failure: &Failure) -> PyErr {
    let class = if failure.kind == FailureKind::BadInput { "InvalidInput" } else { "Error" };
    raised(py, class, &failure.message)
}

/// What a server is, beside its experiment.
#[derive(FromPyObject)]
pub(crate) struct Served<'py> {
    words: Vec<OsString>,
    like: Option<Bound<'py, Federation>>,
    trainer: Option<Py<PyAny>>,
    devices: Option<Vec<String>>,
}

/// Trains with devices that connect, with the options of `deltafl serve`. Returns whether all seeds are done.
#[pyfunction]
pub(crate) fn serve(
    py: Python<'_>,
    experiment: &str,
    served: Served<'_>,
    stop: &Bound<'_, Stop>,
    progress: Py<PyAny>,
) -> PyResult<bool> {
    logs::start(py)?;
    let Served { words, like, trainer, devices } = served;
    let experiment = parsed(py, experiment)?;
    let trainer = trainer.map(|trainer| PyTrainer::new(py, trainer, stop.get())).transpose()?;
    let like = like.map(|like| like.get().inner.clone());
    let flag = stop.get().flag();
    let told = PyListener::new(stop.get().clone(), progress);
    let listener = Hearing { told, trainer: trainer.as_ref(), stop: stop.get() };
    let ended = py.detach(|| {
        let service = Service {
            words,
            experiment,
            like: like.as_deref(),
            trainer: trainer.as_ref().map(|trainer| trainer as &dyn LocalTrainer),
            devices,
        };
        deployed::serve(service, &listener, &flag)
    });
    if let Some(raised) = listener.told.raised() {
        return Err(raised);
    }
    match trainer.as_ref().and_then(|trainer| trainer.failure(py, "the start of the model")) {
        Some(raised) => Err(raised),
        None => ended.map_err(|failure| failed(py, &failure)),
    }
}

/// Tells an object of Python of a server: `listening` and `page` beside what a run tells.
struct Hearing<'a> {
    told: PyListener,
    trainer: Option<&'a PyTrainer>,
    stop: &'a Stop,
}

impl Listener for Hearing<'_> {
    fn stop(&self) -> &AtomicBool {
        self.told.stop()
    }

    fn shows_seeds_side_by_side(&self) -> bool {
        self.told.shows_seeds_side_by_side()
    }

    fn begin_side_by_side(&self, experiment: &Experiment, seeds: &[State]) {
        self.told.begin_side_by_side(experiment, seeds);
    }

    fn begin(&self, experiment: &Experiment, seed: u64, done: u64) {
        // w₀ is all that a server asks of a trainer, and it was asked for just now.
        if self.trainer.is_some_and(PyTrainer::has_failed) {
            self.stop.set();
        }
        self.told.begin(experiment, seed, done);
    }

    fn round(&self, records: &[RoundRecord]) {
        self.told.round(records);
    }

    fn evaluation(&self, evaluation: &SeedEvaluation<'_>) {
        self.told.evaluation(evaluation);
    }

    fn end(&self, seed: u64) {
        self.told.end(seed);
    }

    fn note(&self, text: &str) {
        self.told.note(text);
    }

    fn warn(&self, text: &str) {
        self.told.warn(text);
    }
}

impl ServerListener for Hearing<'_> {
    fn listening(&self, address: SocketAddr, _: usize) {
        let address = address.to_string();
        self.told.tell(|progress| progress.call_method1("listening", (address,)).map(drop));
    }

    fn page(&self, url: &str) {
        self.told.tell(|progress| progress.call_method1("page", (url,)).map(drop));
    }

    fn say(&self, text: &str) {
        tracing::info!("{text}");
    }
}
