//! A configured device that takes part in a federation.

use std::error::Error as _;
use std::fmt;
use std::io;
use std::ops::ControlFlow;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use deltafl::data::Federation;
use deltafl::kernel::Isa;
use deltafl::model::{ModelMismatch, ModelSpec};
use deltafl::trainer::LocalTrainer;
use deltafl_wire::chain;
use deltafl_wire::contract::ContractMismatch;
use deltafl_wire::environment::Environment;
use deltafl_wire::identity::IdentityError;
use deltafl_wire::threat::InvalidShare;
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};

use crate::{
    Consent, Device, DeviceConfig, DeviceData, DialError, InvalidAddress, MinuteOfDay, NotAllowed, Offer,
    ServerEndpoint, ServerTrust, SessionError, SessionEvent, SessionObserver, StateError, Unmet,
    is_refused_certificate, model_trainer, offer,
};

/// How often a server may not know a device that starts.
const REFUSALS: u32 = 5;
/// The longest wait between two attempts to reach a server.
const LONGEST_WAIT: Duration = Duration::from_secs(30);

/// Why a device does not take part.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// δ is not a probability.
    #[error("delta: {0}")]
    Delta(#[from] deltafl::privacy::InvalidDelta),
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
    /// The server does not answer a device without certificates.
    #[error("the server does not answer a connection without certificates")]
    WithoutCertificates(#[source] SessionError),
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
    #[error("the server has no contract of the data: it is for devices with their own trainer")]
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
            Self::WithoutCertificates(_) => Some(
                "if it has certificates, use --identity DIR, as deltafl enrol device wrote it, and not --insecure; devices connect to the port of serve --listen",
            ),
            Self::Conditions(_) => Some(
                "use --while COMMAND with a command that checks the condition instead of --on-mains or --unmetered",
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
        /// The error of the connection.
        error: &'a SessionError,
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
    /// The device answered questions of a round.
    Answered {
        /// The round, from 0.
        round: u64,
    },
    /// The device evaluated params on its held-out examples, in a sum without other questions.
    Evaluated,
    /// The server plans no further round.
    Finished,
    /// The connection ended; the device connects again.
    Disconnected {
        /// The address of the server.
        address: &'a str,
        /// The reason.
        reason: &'a str,
    },
    /// The device is connected again.
    Reconnected,
}

/// A line for the owner.
impl fmt::Display for DeviceNotice<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ConditionsUnmet => {
                f.write_str("the owner's conditions are not met; waiting until they are")
            }
            Self::Unreachable { address, error, wait } => {
                let (cause, wait) = (chain(*error), wait.as_secs());
                write!(f, "{address} cannot be reached ({cause}); trying again in {wait} s")
            }
            Self::Unavailable { error, wait } => {
                write!(f, "{}; trying again in {} s", chain(*error), wait.as_secs())
            }
            Self::TakesPart { device, experiment, model } => {
                write!(f, "{device} takes part in {experiment} ({})", model.unwrap_or("its own trainer"))
            }
            Self::Answered { round } => write!(f, "answered in round {}", round + 1),
            Self::Evaluated => f.write_str("evaluated a model on its held-out examples"),
            Self::Finished => {
                f.write_str("training is over: the server plans no further round; waiting for another one")
            }
            Self::Disconnected { address, reason } => {
                write!(f, "the connection to {address} ended ({reason}); connecting again")
            }
            Self::Reconnected => f.write_str("connected again"),
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
    /// Takes part in a federation until `ended` returns true, or the owner's consent does not cover
    /// a question of the server. `ended` is called ten times a second.
    ///
    /// It blocks and starts its own tokio runtime. Call it outside of a runtime.
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
        let (sender, mut events) = unbounded_channel();
        let device = device.with_observer(observer(sender));
        let mut is_refused = false;
        let notified = async {
            while let Some(event) = events.recv().await {
                match &event {
                    OwnerEvent::Answered(round) => (self.notify)(&DeviceNotice::Answered { round: *round }),
                    OwnerEvent::Evaluated => (self.notify)(&DeviceNotice::Evaluated),
                    OwnerEvent::Finished => (self.notify)(&DeviceNotice::Finished),
                    OwnerEvent::Disconnected(reason) => {
                        let address = self.config.server.as_str();
                        (self.notify)(&DeviceNotice::Disconnected { address, reason });
                    }
                    OwnerEvent::Reconnected => (self.notify)(&DeviceNotice::Reconnected),
                    OwnerEvent::Refused => is_refused = true,
                }
            }
        };
        let (ended, ()) = tokio::join!(device.run(trainer, data), notified);
        if is_refused { Err(DeviceError::CertificateRefused) } else { Ok(ended?) }
    }
}

/// An event on its way from the device to the owner.
enum OwnerEvent {
    Answered(u64),
    Evaluated,
    Finished,
    Disconnected(String),
    Reconnected,
    Refused,
}

/// The last state that the owner knows.
struct KnownState {
    is_connected: bool,
    is_finished: bool,
    answered: Option<u64>,
}

/// Returns an observer that forwards changes: a round is answered, training is over, a connection
/// is lost or established again. A device whose certificate is refused stops.
fn observer(sender: UnboundedSender<OwnerEvent>) -> SessionObserver {
    let known = Mutex::new(KnownState { is_connected: true, is_finished: false, answered: None });
    Arc::new(move |event: SessionEvent<'_>| {
        let mut known = known.lock().unwrap_or_else(PoisonError::into_inner);
        let change = match event {
            SessionEvent::Connected => {
                let was = std::mem::replace(&mut known.is_connected, true);
                (!was).then_some(OwnerEvent::Reconnected)
            }
            SessionEvent::Answered { round } => {
                known.is_finished = false;
                let before = known.answered.replace(round);
                (before != Some(round)).then_some(OwnerEvent::Answered(round))
            }
            SessionEvent::Evaluated => Some(OwnerEvent::Evaluated),
            SessionEvent::Finished => {
                let was = std::mem::replace(&mut known.is_finished, true);
                (!was).then_some(OwnerEvent::Finished)
            }
            SessionEvent::Ended { error } if is_refused_certificate(error) => {
                let _ = sender.send(OwnerEvent::Refused);
                return ControlFlow::Break(());
            }
            // The device ends with this reason.
            SessionEvent::Ended { error: SessionError::NotAllowed(_) } => None,
            SessionEvent::Ended { error } => {
                let was = std::mem::replace(&mut known.is_connected, false);
                was.then(|| OwnerEvent::Disconnected(chain(error)))
            }
        };
        if let Some(change) = change {
            let _ = sender.send(change);
        }
        ControlFlow::Continue(())
    })
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

/// The offer of the server, as soon as it can be reached. A server that does not know the device
/// yet may still be reading the roster to which it was added.
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
                notify(&DeviceNotice::Unreachable { address: &server.address, error: &error, wait });
            }
            error if error.is_unavailable() => notify(&DeviceNotice::Unavailable { error, wait }),
            SessionError::Status(_) if refused < REFUSALS => {
                refused += 1;
                wait = Duration::from_secs(1);
            }
            // A status with a source is an error of the connection, and not an answer.
            SessionError::Status(status)
                if matches!(server.trust, ServerTrust::Loopback) && status.source().is_some() =>
            {
                return Err(DeviceError::WithoutCertificates(error));
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
    fn the_owner_learns_the_cause_of_a_lost_connection() {
        let (sender, mut events) = unbounded_channel();
        let source = io::Error::other("no space left");
        let error = SessionError::State(StateError::Io { path: "state/ledger".into(), source });
        let observe = observer(sender);
        let refused = SessionError::NotAllowed(NotAllowed::Open);
        assert!(observe(SessionEvent::Ended { error: &refused }).is_continue());
        assert!(observe(SessionEvent::Ended { error: &error }).is_continue());
        let Ok(OwnerEvent::Disconnected(reason)) = events.try_recv() else { panic!("a lost connection") };
        assert_eq!(reason, "state/ledger: no space left");
        let notice =
            DeviceNotice::Unreachable { address: "a:1", error: &error, wait: Duration::from_secs(2) };
        assert!(notice.to_string().contains("(state/ledger: no space left)"), "{notice}");
    }
}
