//! A deployed federation: a device with a trainer of Python, and a server.

use std::sync::Arc;

use chrono::{Local, Timelike as _};
use deltafl::kernel::Isa;
use deltafl::trainer::{LocalTrainer, Sgd};
use deltafl::training::{Observer, ObserverResult, Outcome};
use deltafl_data::experiment::{Experiment, ExternalAlgorithms};
use deltafl_device::{DeviceConfig, DeviceError, Participation};
use deltafl_run::session::{self, thin_tail_warnings};
use deltafl_run::{FolderError, RunError};
use deltafl_server::server::contract_of;
use deltafl_server::{ServedModel, Server, ServerConfig, ServerError, ServerEvent};
use pyo3::prelude::*;
use serde::de::DeserializeOwned;

use crate::external::PyAlgorithms;
use crate::failure::{causes, exception, invalid, message, raised};
use crate::federation::Federation;
use crate::listener::{PyListener, Stop};
use crate::logs;
use crate::run::{load, parsed, private_among_others};
use crate::trainer::PyTrainer;

/// The options of a server or a device, as JSON.
fn options<T: DeserializeOwned>(py: Python<'_>, json: &str) -> PyResult<T> {
    let value: serde_json::Value = serde_json::from_str(json).map_err(|e| invalid(py, e))?;
    serde_json::from_value(value).map_err(|e| invalid(py, e))
}

/// Takes part in a federation until `stop` is set, with options of a [`DeviceConfig`] as JSON.
#[pyfunction]
pub(crate) fn take_part(
    py: Python<'_>,
    config: &str,
    data: &Bound<'_, Federation>,
    trainer: Option<Py<PyAny>>,
    name: &str,
    stop: &Bound<'_, Stop>,
) -> PyResult<()> {
    logs::start(py)?;
    let config: DeviceConfig = options(py, config)?;
    let (data, stop) = (data.get().inner.clone(), stop.get());
    let trainer = trainer.map(|trainer| PyTrainer::new(py, trainer, stop)).transpose()?.map(Arc::new);
    let has_failed = || trainer.as_ref().is_some_and(|trainer| trainer.has_failed());
    let participation = Participation {
        config,
        data_name: data.name().to_owned(),
        data,
        trainer: trainer.clone().map(|trainer| trainer as Arc<dyn LocalTrainer>),
        minute_of_day,
        notify: &|notice| tracing::info!("{notice}"),
    };
    let ended = py.detach(|| participation.run(&|| stop.is_set() || has_failed()));
    match trainer.and_then(|trainer| trainer.failure(py, &format!("device {name}"))) {
        Some(raised) => Err(raised),
        None => ended.map_err(|error| device_exception(py, &error)),
    }
}

/// By this machine's clock and time zone.
fn minute_of_day() -> u16 {
    let now = Local::now();
    (60 * now.hour() + now.minute()) as u16
}

fn device_exception(py: Python<'_>, error: &DeviceError) -> PyErr {
    let class = if matches!(error, DeviceError::Runtime(_)) { "Error" } else { "InvalidInput" };
    let mut lines = causes(error);
    lines.extend(error.help().map(str::to_owned));
    raised(py, class, &lines.join("\n"))
}

/// What a server trains, beside its experiment.
#[derive(FromPyObject)]
pub(crate) struct Served<'py> {
    config: String,
    like: Option<Bound<'py, Federation>>,
    trainer: Option<Py<PyAny>>,
    devices: Option<Vec<String>>,
    algorithms: Vec<Option<Py<PyAny>>>,
}

/// Trains with devices that connect, with options of a [`ServerConfig`] as JSON. Returns whether all seeds are done.
#[pyfunction]
pub(crate) fn serve(
    py: Python<'_>,
    experiment: &str,
    served: Served<'_>,
    stop: &Bound<'_, Stop>,
    progress: Py<PyAny>,
) -> PyResult<bool> {
    logs::start(py)?;
    let Served { config, like, trainer, devices, algorithms } = served;
    let config: ServerConfig = options(py, &config)?;
    let experiment = parsed(py, experiment)?;
    let trainer = trainer.map(|trainer| PyTrainer::new(py, trainer, stop.get())).transpose()?.map(Arc::new);
    let like = like.map(|like| like.get().inner.clone());
    let algorithms = PyAlgorithms::new(py, algorithms)?;
    let flag = stop.get().flag();
    let listener = PyServerListener {
        progress: PyListener::new(stop.get().clone(), progress),
        trainer: trainer.clone(),
        stop: stop.get().clone(),
    };
    let ended = py.detach(|| {
        Server::check(&config, &experiment)?;
        thin_tail_warnings(&experiment).iter().for_each(|warning| listener.progress.warn(warning));
        let data = match (&like, &trainer) {
            (Some(like), _) => Some(session::prepare(&experiment, like.as_ref().clone())?),
            (None, Some(_)) => None,
            (None, None) => Some(load(&experiment)?),
        };
        let model = match (&data, &trainer) {
            (Some(data), None) => {
                let kernel = config.kernel.unwrap_or_else(Isa::detect);
                Some(session::build_model(&experiment, data, kernel)?)
            }
            _ => None,
        };
        let own = model.as_deref().map(Sgd::new);
        let brought = trainer.as_deref().map(|trainer| trainer as &dyn LocalTrainer);
        let trainer = brought.or(own.as_ref().map(|own| own as _)).expect("a trainer, or data with a model");
        private_among_others(&experiment).iter().for_each(|warning| listener.progress.warn(warning));
        let mut model = served_model(trainer, data.as_ref(), &experiment, devices);
        model.algorithms = algorithms.as_ref().map(|algorithms| algorithms as &dyn ExternalAlgorithms);
        Ok::<_, ServeError>(Server::new(config, experiment, model)?.run(&flag, listener)?)
    });
    if let Some(raised) = stop.get().raised() {
        return Err(raised);
    }
    let of_trainer = || trainer.as_ref().and_then(|trainer| trainer.failure(py, "the start of the model"));
    let of_algorithm = || {
        let text = ended.as_ref().err().map(ServeError::message).unwrap_or_default();
        algorithms.as_ref().and_then(|algorithms| algorithms.raised(py, &text))
    };
    match of_trainer().or_else(of_algorithm) {
        Some(raised) => Err(raised),
        None => ended.map(|ended| ended == Outcome::Finished).map_err(|error| error.exception(py)),
    }
}

/// The model of a server, for the devices of these names or those of the data that train.
fn served_model<'a>(
    trainer: &'a dyn LocalTrainer,
    data: Option<&deltafl::data::Federation>,
    experiment: &Experiment,
    devices: Option<Vec<String>>,
) -> ServedModel<'a> {
    let mut model = match data {
        Some(data) => ServedModel::for_data(trainer, data, experiment),
        None => ServedModel::for_devices(trainer, []),
    };
    if let Some(data) = data {
        model.data_hash = contract_of(data, experiment).hash().to_hex().to_string();
    }
    model.devices = devices.unwrap_or(model.devices);
    model
}

/// Why a server does not start, or ends.
enum ServeError {
    Run(RunError),
    Server(ServerError),
}

impl From<RunError> for ServeError {
    fn from(error: RunError) -> Self {
        Self::Run(error)
    }
}

impl From<ServerError> for ServeError {
    fn from(error: ServerError) -> Self {
        Self::Server(error)
    }
}

impl ServeError {
    fn message(&self) -> String {
        match self {
            Self::Run(error) => message(error),
            Self::Server(error) => causes(error).join("\n"),
        }
    }

    fn exception(self, py: Python<'_>) -> PyErr {
        match self {
            Self::Run(error) => exception(py, &error),
            Self::Server(ServerError::Folder(error)) => exception(py, &FolderError::from(error)),
            Self::Server(error) => {
                let class = if error.is_invalid_input() { "InvalidInput" } else { "Error" };
                let mut lines = causes(&error);
                lines.extend(error.help());
                raised(py, class, &lines.join("\n"))
            }
        }
    }
}

/// Forwards the events of a server to the methods `begin`, `round`, `listening` and `page` of a
/// Python object.
struct PyServerListener {
    progress: PyListener,
    trainer: Option<Arc<PyTrainer>>,
    stop: Stop,
}

impl Observer<ServerEvent<'_>> for PyServerListener {
    fn handle(&mut self, event: ServerEvent<'_>) -> ObserverResult {
        match event {
            ServerEvent::SeedBegins { experiment, seed, done } => {
                // A server calls the trainer only for w₀, before this event.
                if self.trainer.as_ref().is_some_and(|trainer| trainer.has_failed()) {
                    self.stop.set();
                }
                self.progress.begin(experiment, seed, done);
            }
            ServerEvent::Round { record, .. } => {
                tracing::info!("{event}");
                self.progress.round(record);
            }
            ServerEvent::Listening { address, .. } => {
                let address = address.to_string();
                self.progress.call(|progress| progress.call_method1("listening", (address,)));
            }
            ServerEvent::Page { url } => {
                self.progress.call(|progress| progress.call_method1("page", (url,)));
            }
            event => tracing::info!("{event}"),
        }
        Ok(self.progress.flow())
    }
}
