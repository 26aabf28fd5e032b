//! A device from its configuration to its rounds.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use deltafl::data::Federation;
use deltafl::kernel::Isa;
use deltafl::model::{ModelMismatch, ModelSpec};
use deltafl::trainer::LocalTrainer;
use deltafl_wire::contract::ContractMismatch;
use deltafl_wire::environment::Environment;
use deltafl_wire::identity::{DeviceIdentity, IdentityError};
use deltafl_wire::loopback;
use deltafl_wire::threat::{Adversary, InvalidShare, ThreatOptions, permille};
use serde::Deserialize;

use crate::{
    Conditions, Consent, Credentials, Device, DeviceData, DeviceState, DialError, Hook, Hours, NotAllowed,
    Offer, ServerEndpoint, ServerTrust, SessionError, StateError, TimeWindow, Unmet, is_refused_certificate,
    model_trainer, offer,
};

/// How often a server may not know a device that starts.
const REFUSALS: u32 = 5;
/// The longest wait between two attempts to reach a server.
const LONGEST_WAIT: Duration = Duration::from_secs(30);
/// The smallest cohort that a device without certificates accepts: demonstrations are small.
const LOOPBACK_COHORT: usize = 3;

/// The configuration of a device. The fields have the names of the flags of `deltafl device`.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct DeviceConfig {
    /// The address of the server, HOST:PORT.
    pub server: String,
    /// The folder with the device's certificate and keys. Without one the device connects to a loopback address only, for
    /// demonstrations.
    pub identity: Option<PathBuf>,
    /// The name of the device in the data; the only one that trains if `None`.
    pub name: Option<String>,
    /// The folder of the device's state; `state` in the identity's folder if `None`, and none without an identity.
    pub state: Option<PathBuf>,
    /// The instruction set of the kernels; the best of this machine if `None`.
    pub kernel: Option<Isa>,
    /// The experiments in which the device takes part; any if empty.
    pub allow_experiment: Vec<String>,
    /// The kinds of model that the device trains; any that fits the data if empty.
    pub allow_model: Vec<String>,
    /// Whether the server may see the loss of this device by itself.
    pub open: bool,
    /// The fewest devices in a sum; 30 if `None`, and 3 without an identity.
    pub min_cohort: Option<usize>,
    /// Whether to stay away from federations whose server chooses the cohorts.
    pub drawn_only: bool,
    /// The largest share of the drawn devices that a server may leave out as unreachable.
    pub max_left_out: f64,
    /// Minutes of computing per day.
    pub work_per_day: u64,
    /// Passes over the device's examples for one question. 1,000 examples in steps are one pass.
    pub max_passes: u32,
    /// The most answers under one authority; an answer is a contribution to one sum.
    pub answers: u64,
    /// The most answers per day.
    pub answers_per_day: u64,
    /// The smallest batch of an update.
    pub min_batch: u64,
    /// The smallest number of steps of an update.
    pub min_steps: u64,
    /// The smallest number of examples behind an answer.
    pub min_examples: u64,
    /// Whether the server may weigh devices by classes of their numbers of examples.
    pub bucketed: bool,
    /// Whether not to report the error on the examples that the device holds out, not even inside sums.
    pub no_evaluation: bool,
    /// Rounds of a run between two rounds that the device answers.
    pub rounds_between: u64,
    /// Whether to draw batches from the server's seed, for the bits of a simulation. The server then knows every random
    /// number of the device.
    pub reproducible: bool,
    /// The assumed behaviour of the server, against which rounds must protect the device.
    pub adversary: Adversary,
    /// The share of a cohort that may collude with the server.
    pub gamma: f64,
    /// Devices of a cohort that may collude with the server, however small the cohort is.
    pub accomplices: u32,
    /// The times of the day at which the device takes part; any if empty.
    pub between: Vec<TimeWindow>,
    /// Whether to take part only on mains power.
    pub on_mains: bool,
    /// Whether to take part only while the default route is not a mobile modem's or Bluetooth.
    pub unmetered: bool,
    /// A command: the device takes part only while it ends with exit status 0.
    #[serde(rename = "while")]
    pub while_command: Option<String>,
}

impl Default for DeviceConfig {
    fn default() -> Self {
        let ThreatOptions { adversary, gamma, accomplices } = ThreatOptions::default();
        let consent = Consent::default();
        Self {
            server: String::new(),
            identity: None,
            name: None,
            state: None,
            kernel: None,
            allow_experiment: Vec::new(),
            allow_model: Vec::new(),
            open: consent.open,
            min_cohort: None,
            drawn_only: consent.drawn_only,
            max_left_out: f64::from(consent.max_left_out.get()) / 1000.0,
            work_per_day: consent.work_per_day.as_secs() / 60,
            max_passes: consent.max_passes,
            answers: consent.answers,
            answers_per_day: consent.answers_per_day,
            min_batch: consent.min_batch,
            min_steps: consent.min_steps,
            min_examples: consent.min_examples,
            bucketed: consent.bucketed,
            no_evaluation: !consent.evaluate,
            rounds_between: consent.rounds_between,
            reproducible: consent.reproducible,
            adversary,
            gamma,
            accomplices,
            between: Vec::new(),
            on_mains: false,
            unmetered: false,
            while_command: None,
        }
    }
}

/// The minute of the day in the owner's time zone.
pub type MinuteOfDay = fn() -> u16;

impl DeviceConfig {
    /// What the owner of the device agrees to.
    pub fn consent(&self, minute_of_day: MinuteOfDay) -> Result<Consent, DeviceError> {
        let list = |names: &[String]| (!names.is_empty()).then(|| names.to_vec());
        let (adversary, gamma, accomplices) = (self.adversary, self.gamma, self.accomplices);
        let certified = self.identity.is_some();
        let least = if certified { Consent::default().min_cohort } else { LOOPBACK_COHORT };
        let conditions = self.conditions(minute_of_day);
        // A system that does not show what a condition needs is an error.
        let shown = Conditions { hours: None, ..conditions.clone() };
        if let Err(unknown @ Unmet::Unknown { .. }) = shown.check() {
            return Err(DeviceError::Conditions(unknown));
        }
        Ok(Consent {
            experiments: list(&self.allow_experiment),
            models: list(&self.allow_model),
            open: self.open,
            min_cohort: self.min_cohort.unwrap_or(least),
            guard: ThreatOptions { adversary, gamma, accomplices }.assumptions()?,
            max_left_out: permille("max-left-out", self.max_left_out, f64::floor)?,
            drawn_only: self.drawn_only,
            work_per_day: Duration::from_secs(60 * self.work_per_day),
            max_passes: self.max_passes,
            answers: self.answers,
            answers_per_day: self.answers_per_day,
            min_batch: self.min_batch,
            min_steps: self.min_steps,
            min_examples: self.min_examples,
            bucketed: self.bucketed,
            evaluate: !self.no_evaluation,
            rounds_between: self.rounds_between,
            reproducible: self.reproducible,
            willing: conditions.willing(),
        })
    }

    fn conditions(&self, minute_of_day: MinuteOfDay) -> Conditions {
        Conditions {
            hours: (!self.between.is_empty())
                .then(|| Hours { windows: self.between.clone(), now: Arc::new(minute_of_day) }),
            on_mains: self.on_mains,
            unmetered: self.unmetered,
            hook: self.while_command.as_deref().map(Hook::new),
            ..Conditions::default()
        }
    }

    /// The device's credentials, and the server with the trust in it.
    fn endpoint(&self, data: &DeviceData) -> Result<(Credentials, ServerEndpoint), DeviceError> {
        check_address(&self.server)
            .map_err(|source| DeviceError::Address { address: self.server.clone(), source })?;
        let Some(folder) = &self.identity else {
            let server = ServerEndpoint { address: self.server.clone(), trust: ServerTrust::Loopback };
            return Ok((loopback::credentials(data.name()), server));
        };
        let identity = DeviceIdentity::open(folder).map_err(DeviceError::Identity)?;
        let server =
            ServerEndpoint::certified(&self.server, &identity).map_err(DeviceError::ServerEndpoint)?;
        Ok((Credentials::from(&identity), server))
    }

    /// The device's state, from its folder.
    fn open_state(&self) -> Result<DeviceState, StateError> {
        let beside = self.identity.as_ref().map(|identity| identity.join("state"));
        match self.state.clone().or(beside) {
            Some(folder) => DeviceState::open(&folder),
            None => Ok(DeviceState::default()),
        }
    }
}

/// An address that is not HOST:PORT.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidAddress {
    /// A URL.
    #[error("devices use a protocol of their own: without {scheme}://, as in {address}")]
    Scheme {
        /// The scheme.
        scheme: String,
        /// The rest of the URL.
        address: String,
    },
    /// Not a host and a port.
    #[error("host:port is expected, as in localhost:7700")]
    NoPort,
}

/// Checks the address of a server, HOST:PORT.
pub fn check_address(text: &str) -> Result<String, InvalidAddress> {
    if let Some((scheme, address)) = text.split_once("://") {
        return Err(InvalidAddress::Scheme { scheme: scheme.to_owned(), address: address.to_owned() });
    }
    match text.rsplit_once(':') {
        Some((host, port)) if !host.is_empty() && port.parse::<u16>().is_ok() => Ok(text.to_owned()),
        _ => Err(InvalidAddress::NoPort),
    }
}

/// Why a device does not take part.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// The data has no device of this name.
    #[error("{data} has no device {name}")]
    NoDevice {
        /// The name of the data.
        data: String,
        /// The name of the device.
        name: String,
    },
    /// The data has several devices that train, or none.
    #[error("{data} does not have one device that trains")]
    NotOneDevice {
        /// The name of the data.
        data: String,
    },
    /// The address of the server is invalid.
    #[error("the server {address:?} cannot be reached")]
    Address {
        /// The address.
        address: String,
        /// The problem.
        source: InvalidAddress,
    },
    /// The certificate and keys cannot be read.
    #[error(transparent)]
    Identity(IdentityError),
    /// The address of the server or the identity is invalid.
    #[error("the server cannot be authenticated")]
    ServerEndpoint(#[source] DialError),
    /// The state cannot be read.
    #[error("the device's state cannot be used")]
    State(#[from] StateError),
    /// An option is out of range.
    #[error(transparent)]
    Option(#[from] InvalidShare),
    /// A condition cannot be checked on this system.
    #[error(transparent)]
    Conditions(Unmet),
    /// The server refuses the device's certificate.
    #[error("the server refuses this device's certificate")]
    CertificateRefused,
    /// The server does not know the device.
    #[error("the server does not know this device")]
    Unknown(#[source] SessionError),
    /// The data does not meet the contract of the federation.
    #[error("the data in {data} does not fit the federation")]
    Contract {
        /// The name of the data.
        data: String,
        /// The difference.
        source: ContractMismatch,
    },
    /// The device has too few examples for the split of the federation.
    #[error("the federation is for devices with more examples than {name} has in {data}")]
    TooFewExamples {
        /// The name of the device.
        name: String,
        /// The name of the data.
        data: String,
    },
    /// The server names no contract of the data.
    #[error("the server names no contract of the data: it is for devices that bring their own trainer")]
    NoContract,
    /// This version does not know the model of the server.
    #[error("the server trains a model unknown here: {model}")]
    UnknownModel {
        /// The model.
        model: String,
        /// The error of its description.
        source: serde_json::Error,
    },
    /// The model of the server cannot be built for the data.
    #[error("the server's model does not fit this data")]
    Model(#[from] ModelMismatch),
    /// The owner's consent does not cover the questions of the server.
    #[error("this device does not take part")]
    NotAllowed(#[from] NotAllowed),
    /// The threads of the device cannot be started.
    #[error("the threads of the device cannot be started")]
    Runtime(#[source] io::Error),
}

impl DeviceError {
    /// How to fix it, if the error has a known fix.
    pub fn help(&self) -> Option<&'static str> {
        match self {
            Self::NotOneDevice { .. } => Some("name it with --name"),
            Self::CertificateRefused => Some(
                "it was revoked or has expired: deltafl certs show DIR prints its validity; ask the keeper of the authority",
            ),
            Self::Conditions(_) => Some(
                "use --while COMMAND with a command that checks the condition, in place of --on-mains or --unmetered",
            ),
            _ => None,
        }
    }
}

/// A notice of a device for its owner.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum DeviceNotice<'a> {
    /// The owner's conditions are not met; the device waits until they are.
    ConditionsUnmet,
    /// The server cannot be reached; the device tries again.
    Unreachable {
        /// The address of the server.
        address: &'a str,
        /// The wait before the next attempt.
        wait: Duration,
    },
    /// The server rejects sessions for now; the device tries again.
    Unavailable {
        /// The answer of the server.
        error: &'a SessionError,
        /// The wait before the next attempt.
        wait: Duration,
    },
    /// The device takes part.
    TakesPart {
        /// The name of the device.
        device: &'a str,
        /// The name of the experiment.
        experiment: &'a str,
        /// The name of the model; `None` with the owner's own trainer.
        model: Option<&'a str>,
    },
}

/// A line for the owner.
impl fmt::Display for DeviceNotice<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ConditionsUnmet => {
                f.write_str("the owner's conditions are not met; waiting until they are")
            }
            Self::Unreachable { address, wait } => {
                write!(f, "{address} cannot be reached; trying again in {} s", wait.as_secs())
            }
            Self::Unavailable { error, wait } => {
                write!(f, "{error}; trying again in {} s", wait.as_secs())
            }
            Self::TakesPart { device, experiment, model } => {
                write!(f, "{device} takes part in {experiment} ({})", model.unwrap_or("a trainer of its own"))
            }
        }
    }
}

/// A device of this process, ready to take part.
pub struct Participation<'a> {
    /// Its configuration.
    pub config: DeviceConfig,
    /// The federation that contains the device's examples.
    pub data: Arc<Federation>,
    /// The name of the data in messages.
    pub data_name: String,
    /// The owner's trainer; the model of the server if `None`.
    pub trainer: Option<Arc<dyn LocalTrainer>>,
    /// The owner's clock.
    pub minute_of_day: MinuteOfDay,
    /// Handles notices for the owner.
    pub notify: &'a (dyn Fn(&DeviceNotice<'_>) + Sync),
}

impl Participation<'_> {
    /// Takes part in a federation until `ended` returns true, or the owner's consent does not cover a question of the server.
    /// `ended` is called ten times a second.
    ///
    /// It blocks, and starts the threads of a tokio runtime of its own. Call it outside of a runtime.
    pub fn run(self, ended: &(dyn Fn() -> bool + Sync)) -> Result<(), DeviceError> {
        let data = self.device()?;
        let (credentials, server) = self.config.endpoint(&data)?;
        let (state, consent) = (self.config.open_state()?, self.config.consent(self.minute_of_day)?);
        let device = Device::new(server.clone(), credentials.clone(), consent.clone()).with_state(state);
        let runtime = tokio::runtime::Runtime::new().map_err(DeviceError::Runtime)?;
        let taking_part = async {
            wait_until_willing(&consent, self.notify).await;
            let offer = first_offer(&server, &credentials.name, self.notify).await?;
            self.take_part(device, &credentials.name, data, &offer).await
        };
        let stopped = async {
            while !ended() {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        };
        runtime.block_on(async {
            tokio::select! {
                ended = taking_part => ended,
                () = stopped => Ok(()),
            }
        })
    }

    /// The device's examples in the data.
    fn device(&self) -> Result<DeviceData, DeviceError> {
        let data = || self.data_name.clone();
        match &self.config.name {
            Some(name) => DeviceData::named(&self.data, name)
                .ok_or_else(|| DeviceError::NoDevice { data: data(), name: name.clone() }),
            None => {
                DeviceData::only_device(&self.data).ok_or_else(|| DeviceError::NotOneDevice { data: data() })
            }
        }
    }

    async fn take_part(
        &self,
        mut device: Device,
        name: &str,
        data: DeviceData,
        offer: &Offer,
    ) -> Result<(), DeviceError> {
        let data = match &offer.contract {
            Some(contract) => {
                let fitted = contract
                    .fit(Federation::clone(&self.data))
                    .map_err(|source| DeviceError::Contract { data: self.data_name.clone(), source })?;
                device = device.with_contract(contract);
                data.within(&Arc::new(fitted)).ok_or_else(|| DeviceError::TooFewExamples {
                    name: data.name().to_owned(),
                    data: self.data_name.clone(),
                })?
            }
            None if self.trainer.is_some() => data,
            None => return Err(DeviceError::NoContract),
        };
        let (trainer, model) = match &self.trainer {
            Some(trainer) => (Arc::clone(trainer), None),
            None => {
                let kernel = self.config.kernel.unwrap_or_else(Isa::detect);
                let (trainer, model) = offered_trainer(offer, &data, kernel)?;
                (trainer, Some(model))
            }
        };
        let experiment = &offer.experiment;
        (self.notify)(&DeviceNotice::TakesPart { device: name, experiment, model });
        Ok(device.run(trainer, data).await?)
    }
}

/// Waits until the owner's conditions are met, before anything is sent.
async fn wait_until_willing(consent: &Consent, notify: &(dyn Fn(&DeviceNotice<'_>) + Sync)) {
    let mut seconds = 0u32;
    while (consent.willing)().is_err() {
        if seconds == 2 {
            notify(&DeviceNotice::ConditionsUnmet);
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
        seconds = seconds.saturating_add(1);
    }
}

/// The offer of the server, as soon as it can be reached. A server that does not know the device yet may still be reading the
/// roster to which it was added.
async fn first_offer(
    server: &ServerEndpoint,
    name: &str,
    notify: &(dyn Fn(&DeviceNotice<'_>) + Sync),
) -> Result<Offer, DeviceError> {
    let mut refused = 0;
    let mut wait = Duration::from_secs(1);
    loop {
        let error = match offer(server, name, &Environment::default().network).await {
            Ok(offer) => return Ok(offer),
            Err(error) => error,
        };
        match &error {
            error if is_refused_certificate(error) => return Err(DeviceError::CertificateRefused),
            SessionError::Dial(DialError::Transport(_)) => {
                notify(&DeviceNotice::Unreachable { address: &server.address, wait });
            }
            error if error.is_unavailable() => notify(&DeviceNotice::Unavailable { error, wait }),
            SessionError::Status(_) if refused < REFUSALS => {
                refused += 1;
                wait = Duration::from_secs(1);
            }
            _ => return Err(DeviceError::Unknown(error)),
        }
        tokio::time::sleep(wait).await;
        wait = (2 * wait).min(LONGEST_WAIT);
    }
}

/// The server's model as a trainer, and its name.
fn offered_trainer(
    offer: &Offer,
    data: &DeviceData,
    kernel: Isa,
) -> Result<(Arc<dyn LocalTrainer>, &'static str), DeviceError> {
    let spec: ModelSpec = serde_json::from_str(&offer.model)
        .map_err(|source| DeviceError::UnknownModel { model: offer.model.clone(), source })?;
    let model = spec.build(data.federation(), kernel)?;
    Ok((Arc::new(model_trainer(model.into())), spec.name()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_a_host_and_a_port() {
        assert_eq!(check_address("[::1]:7700").unwrap(), "[::1]:7700");
        let scheme = check_address("http://fl.example.org:7700").unwrap_err().to_string();
        assert!(scheme.ends_with("as in fl.example.org:7700"), "{scheme}");
        for text in ["localhost", "localhost:", ":7700", "localhost:70000", ""] {
            assert_eq!(check_address(text), Err(InvalidAddress::NoPort), "{text}");
        }
    }

    #[test]
    fn options_have_the_names_of_flags_and_others_are_rejected() {
        let read = |json: &str| serde_json::from_str::<DeviceConfig>(json);
        let config = read(r#"{ "server": "a:1", "between": ["22:00-06:30"], "while": "true" }"#).unwrap();
        assert_eq!(config.while_command.as_deref(), Some("true"));
        assert_eq!(config, DeviceConfig { max_passes: 100, ..config.clone() });
        let unknown = read(r#"{ "min_cohorts": 3 }"#).unwrap_err().to_string();
        assert!(unknown.contains("unknown field `min_cohorts`"), "{unknown}");
        assert!(read(r#"{ "between": ["noon"] }"#).is_err());
    }
}
