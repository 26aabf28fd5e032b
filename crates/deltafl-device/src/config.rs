//! The configuration of a device.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use deltafl::kernel::Isa;
use deltafl_wire::identity::DeviceIdentity;
use deltafl_wire::loopback;
use deltafl_wire::threat::{ServerBehaviour, ThreatOptions, permille};
use serde::Deserialize;

use crate::state::PrivacyLimit;
use crate::{
    Conditions, Consent, Credentials, DeviceData, DeviceError, DeviceState, Hook, Hours, ServerEndpoint,
    ServerTrust, StateError, TimeWindow, Unmet,
};

/// The smallest cohort that a device without certificates accepts: demonstrations are small.
const LOOPBACK_COHORT: usize = 3;

/// The configuration of a device. The fields have the names of the flags of `deltafl device`.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct DeviceConfig {
    /// The address of the server, HOST:PORT.
    pub server: String,
    /// The folder with the device's certificate and keys. Without one the device connects to a
    /// loopback address only, for demonstrations.
    pub identity: Option<PathBuf>,
    /// The name of the device in the data; the only one that trains if `None`.
    pub name: Option<String>,
    /// The folder of the device's state; `state` in the identity's folder if `None`, and none
    /// without an identity.
    pub state: Option<PathBuf>,
    /// The instruction set of the kernels; the best of this machine if `None`.
    pub kernel: Option<Isa>,
    /// The experiments in which the device takes part; any if empty.
    pub allow_experiment: Vec<String>,
    /// The kinds of model that the device trains; any that fits the data if empty.
    pub allow_model: Vec<String>,
    /// Whether the server may see the loss of this device, not only sums over cohorts.
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
    /// Whether not to report the error on the examples that the device holds out, not even inside
    /// sums.
    pub no_evaluation: bool,
    /// Rounds of a run between two rounds that the device answers.
    pub rounds_between: u64,
    /// The largest ε under one authority, over everything that the device has ever answered; no
    /// limit if `None`.
    pub max_epsilon: Option<f64>,
    /// δ of that ε.
    pub delta: f64,
    /// Whether to draw batches from the server's seed, for the bits of a simulation. The server
    /// then knows every random number of the device.
    pub reproducible: bool,
    /// The assumed behaviour of the server, against which rounds must protect the device.
    pub adversary: ServerBehaviour,
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
            max_epsilon: consent.privacy.max_epsilon,
            delta: consent.privacy.delta.get(),
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
    /// Returns the consent of the device's owner.
    pub fn consent(&self, minute_of_day: MinuteOfDay) -> Result<Consent, DeviceError> {
        let list = |names: &[String]| (!names.is_empty()).then(|| names.to_vec());
        let (adversary, gamma, accomplices) = (self.adversary, self.gamma, self.accomplices);
        let certified = self.identity.is_some();
        let least = if certified { Consent::default().min_cohort } else { LOOPBACK_COHORT };
        let conditions = self.conditions(minute_of_day);
        // It is an error if the system does not provide the data for a condition.
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
            privacy: PrivacyLimit { max_epsilon: self.max_epsilon, delta: self.delta.try_into()? },
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

    /// Returns the device's credentials, and the server with the trust in it.
    pub(super) fn endpoint(&self, data: &DeviceData) -> Result<(Credentials, ServerEndpoint), DeviceError> {
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

    /// Opens the device's state in its folder.
    pub(super) fn open_state(&self) -> Result<DeviceState, StateError> {
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
    #[error("devices do not use {scheme}: write the address without {scheme}://, as in {address}")]
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
