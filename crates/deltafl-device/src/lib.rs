//! A device of a federation, for embedding. It keeps its data, connects to the server, and
//! contributes answers to sums.
//!
//! ```no_run
//! use std::sync::Arc;
//!
//! use deltafl::prelude::*;
//! use deltafl_device::{Consent, Credentials, Device, DeviceData, ServerEndpoint, ServerTrust, model_trainer};
//!
//! # async fn app(credentials: Credentials, trust: ServerTrust, data: Arc<Federation>) -> Result<(), Box<dyn std::error::Error>> {
//! let model = ModelSpec::LINEAR.build(&data, Isa::detect())?;
//! let trainer = Arc::new(model_trainer(model.into()));
//! let data = DeviceData::only_device(&data).ok_or("one device is expected")?;
//! let server = ServerEndpoint { address: "fl.example.org:7700".into(), trust };
//! Device::new(server, credentials, Consent::default()).run(trainer, data).await?;
//! # Ok(())
//! # }
//! ```
//!
//! # Where to go
//!
//! | to | see |
//! |---|---|
//! | train with your own code | [`LocalTrainer`] and `examples/own_trainer.rs` |
//! | load the examples | `deltafl-data`, [`FederationBuilder`], or [`DeviceData::held_by_trainer`] |
//! | get a certificate | [`enrolment`] and [`ServerEndpoint::certified`] |
//! | limit what a server may ask, and when | [`Consent`] and [`Conditions`] |
//! | keep the state across restarts | [`DeviceState`] and [`Device::with_state`] |
//! | configure a device by a file | [`DeviceConfig`] and [`Participation`] |
//! | run many devices in one process | [`swarm`] |
//! | replace the network, the clock or the random numbers | [`Device::with_environment`] |
//!
//! # Security
//!
//! The device checks every message of the server. The enrolment authority must have signed the
//! roster, and no newer roster may be known ([`DeviceState`]). Every round must satisfy the
//! device's [`Consent`], and secure aggregation checks the rest.
//! docs/src/explanation/threat-model.md describes the remaining powers of a malicious server. The
//! device needs memory for the parameters of a question, a working copy, and the answer.

mod answer;
mod cache;
mod conditions;
mod config;
mod consent;
mod defences;
mod dial;
pub mod enrolment;
mod events;
pub mod fault;
mod fetch;
mod interruptible;
mod limits;
mod offer;
mod participation;
mod session;
mod state;
pub mod swarm;
mod workers;

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use deltafl::data::{
    DeviceExamples, Federation, FederationBuilder, FederationIndex, InputKind, InvalidDevice, Split,
};
use deltafl::trainer::LocalTrainer;
use deltafl_wire::chain;
use deltafl_wire::contract::DataContract;
use deltafl_wire::environment::RandomSource;
use tokio::sync::watch;
use tokio::time::sleep;
use zeroize::Zeroizing;

pub use deltafl_wire::environment::{self, Environment};
pub use deltafl_wire::identity::Credentials;

pub use self::cache::BlobCache;
pub use self::conditions::{Conditions, Hook, Hours, InvalidWindow, Root, TimeWindow, Unmet};
pub use self::config::{DeviceConfig, InvalidAddress, MinuteOfDay, check_address};
pub use self::consent::{Consent, NotAllowed, Reason, Willing};
pub use self::defences::{Defence, Defences};
pub use self::dial::{DialError, ServerEndpoint, ServerTrust, is_refused_certificate};
pub use self::events::{SessionEvent, SessionObserver};
pub use self::interruptible::model_trainer;
pub use self::limits::{TimeLimits, TimedOut};
pub use self::offer::{Offer, offer};
pub use self::participation::{DeviceError, DeviceNotice, Participation};
pub use self::session::SessionError;
pub use self::state::{
    AnswerCount, BudgetSpent, Conflict, DeviceState, Digest, PrivacyExhausted, PrivacyLimit, SpentPrivacy,
    StateError, Transcript, TranscriptError, TranscriptEvent, conflicts,
};
pub use self::workers::Workers;
use crate::fault::Faults;

/// The data of one device.
#[derive(Clone)]
pub struct DeviceData {
    federation: Arc<Federation>,
    device: FederationIndex,
    /// The position of its held-out examples.
    held_out: Option<FederationIndex>,
}

impl DeviceData {
    /// Selects device `device` of a shared federation.
    ///
    /// # Panics
    /// Panics if the federation has no such device.
    pub fn new(federation: Arc<Federation>, device: FederationIndex) -> Self {
        assert!(device.place() < federation.len(), "a device of the federation");
        let held_out = federation.held_out()[device.place()];
        Self { federation, device, held_out }
    }

    /// Like [`Self::of`], with the known positions of [`Federation::held_out`], so that thousands
    /// of devices search for them once.
    pub(crate) fn holding_out(
        federation: &Arc<Federation>,
        device: FederationIndex,
        held_out: &[Option<FederationIndex>],
    ) -> Self {
        let held_out = held_out.get(device.place()).copied().flatten();
        Self { federation: Arc::clone(federation), device, held_out }
    }

    /// Selects the only training device of a federation. Returns `None` if there are several.
    pub fn only_device(federation: &Arc<Federation>) -> Option<Self> {
        let [device] = federation.split(Split::Train)[..] else { return None };
        Some(Self::new(Arc::clone(federation), device))
    }

    /// Selects the device with this name. If its examples are split, selects the training part.
    pub fn named(federation: &Arc<Federation>, name: &str) -> Option<Self> {
        let mut named = federation.devices().filter(|&k| federation.id(k) == name);
        let device = named.clone().find(|&k| federation.split_of(k) == Split::Train).or(named.next())?;
        Some(Self::new(Arc::clone(federation), device))
    }

    /// Creates a device whose trainer stores `examples` examples itself. The library knows only
    /// their number and passes ranges of them to the trainer.
    pub fn held_by_trainer(name: &str, examples: usize) -> Result<Self, InvalidDevice> {
        // The rows are empty because only their number matters.
        let mut builder = FederationBuilder::of_values(name, InputKind::Dense { dim: 1 });
        let nothing = vec![0.0; examples];
        builder.push(name, Split::Train, DeviceExamples::Dense(&nothing), &nothing)?;
        Ok(Self { federation: Arc::new(builder.build()), device: FederationIndex(0), held_out: None })
    }

    /// Returns the same device in data that was prepared differently. Returns `None` if that data
    /// does not contain the device.
    #[must_use]
    pub fn within(&self, federation: &Arc<Federation>) -> Option<Self> {
        Self::named(federation, self.name())
    }

    /// The federation that contains the device.
    pub fn federation(&self) -> &Federation {
        &self.federation
    }

    /// The name of the device.
    pub fn name(&self) -> &str {
        self.federation.id(self.device)
    }
}

/// A device that participates in a federation.
pub struct Device {
    server: ServerEndpoint,
    credentials: Credentials,
    consent: Consent,
    workers: Arc<Workers>,
    cache: Arc<BlobCache>,
    faults: Faults,
    backoff: Backoff,
    limits: TimeLimits,
    state: DeviceState,
    contract: Option<blake3::Hash>,
    presence: watch::Receiver<bool>,
    defences: Defences,
    environment: Environment,
    observer: Option<SessionObserver>,
}

/// The delays before reconnecting.
#[derive(Clone, Copy, Debug)]
pub struct Backoff {
    /// The delay after the first failure. It doubles with every further failure.
    pub first: Duration,
    /// The maximum delay.
    pub longest: Duration,
}

impl Default for Backoff {
    fn default() -> Self {
        Self { first: Duration::from_secs(1), longest: Duration::from_secs(120) }
    }
}

impl Backoff {
    /// Returns a random delay between zero and the doubled one, so that the devices of a fleet do
    /// not reconnect at the same time.
    fn wait(&self, failures: u32, random: &dyn RandomSource) -> Duration {
        drawn_below(self.first.saturating_mul(1 << failures.min(16)).min(self.longest), random)
    }
}

/// Returns a random delay between zero and `most`.
fn drawn_below(most: Duration, random: &dyn RandomSource) -> Duration {
    let mut bytes = [0; 8];
    let drawn = random.fill(&mut bytes).map_or(u64::MAX, |()| u64::from_le_bytes(bytes));
    most.mul_f64(drawn as f64 / u64::MAX as f64)
}

/// Returns when the presence of a device has this value. Never returns if the sender is dropped
/// before.
async fn becomes(presence: &mut watch::Receiver<bool>, value: bool) {
    if presence.wait_for(|now| *now == value).await.is_err() {
        std::future::pending::<()>().await;
    }
}

impl Device {
    /// Creates a device of a federation. Nothing is sent before [`Self::serve`].
    pub fn new(server: ServerEndpoint, credentials: Credentials, consent: Consent) -> Self {
        Self {
            server,
            credentials,
            consent,
            workers: Arc::new(Workers::new(1)),
            cache: Arc::default(),
            faults: Faults::none(),
            backoff: Backoff::default(),
            limits: TimeLimits::default(),
            state: DeviceState::default(),
            contract: None,
            presence: watch::channel(true).1,
            defences: Defences::default(),
            environment: Environment::default(),
            observer: None,
        }
    }

    /// Sends the events of the device to an observer, which can stop it.
    #[must_use]
    pub fn with_observer(mut self, observer: SessionObserver) -> Self {
        self.observer = Some(observer);
        self
    }

    fn observe(&self, event: SessionEvent<'_>) -> ControlFlow<()> {
        self.observer.as_ref().map_or(ControlFlow::Continue(()), |observer| observer(event))
    }

    /// Disables defences, for tests of attacks.
    #[cfg(feature = "test-util")]
    #[must_use]
    pub fn with_defences(mut self, defences: Defences) -> Self {
        self.defences = defences;
        self
    }

    /// Stores the state across restarts. Without it the state lasts as long as the device.
    #[must_use]
    pub fn with_state(mut self, state: DeviceState) -> Self {
        self.state = state;
        self.state.clock = Arc::clone(&self.environment.clock);
        self
    }

    /// Replaces the network, the clock and the random numbers of the operating system.
    ///
    /// The random numbers must be unpredictable outside of tests, because secure aggregation
    /// derives its keys from them.
    #[must_use]
    pub fn with_environment(mut self, environment: Environment) -> Self {
        self.state.clock = Arc::clone(&environment.clock);
        self.environment = environment;
        self
    }

    /// Returns fresh random bytes.
    fn random(&self) -> Result<Zeroizing<[u8; 32]>, SessionError> {
        let mut bytes = Zeroizing::new([0; 32]);
        self.environment.random.fill(&mut *bytes).map_err(|_| SessionError::Randomness)?;
        Ok(bytes)
    }

    /// Participates only if the server uses the data contract for which the examples were prepared.
    #[must_use]
    pub fn with_contract(mut self, contract: &DataContract) -> Self {
        self.contract = Some(contract.hash());
        self
    }

    /// Shares threads and downloaded blobs with other devices of the same process.
    #[must_use]
    pub fn sharing(mut self, workers: Arc<Workers>, cache: Arc<BlobCache>) -> Self {
        (self.workers, self.cache) = (workers, cache);
        self
    }

    /// Injects faults, for tests.
    #[must_use]
    pub fn with_faults(mut self, faults: Faults) -> Self {
        self.faults = faults;
        self
    }

    /// Connects while the value is true. When it becomes false the device disconnects immediately
    /// and keeps its state.
    #[must_use]
    pub fn with_presence(mut self, presence: watch::Receiver<bool>) -> Self {
        self.presence = presence;
        self
    }

    /// Sets the delays before reconnecting.
    #[must_use]
    pub fn with_backoff(mut self, backoff: Backoff) -> Self {
        self.backoff = backoff;
        self
    }

    /// The properties of the device's link that a fetch depends on.
    fn link(&self) -> fetch::Link<'_> {
        fetch::Link { limits: &self.limits, faults: &self.faults }
    }

    /// Sets the time limits for the server.
    #[must_use]
    pub fn with_time_limits(mut self, limits: TimeLimits) -> Self {
        self.limits = limits;
        self
    }

    /// Participates in rounds across lost connections and server restarts. Ends when the future is
    /// dropped, when an observer stops the device, or when the server's request exceeds the owner's
    /// consent. The device does not connect while the owner's conditions are not met.
    pub async fn run(mut self, trainer: Arc<dyn LocalTrainer>, data: DeviceData) -> Result<(), NotAllowed> {
        let mut memory = session::ConnectionCache::default();
        let random = Arc::clone(&self.environment.random);
        let mut failures = 0;
        let mut presence = self.presence.clone();
        loop {
            becomes(&mut presence, true).await;
            while (self.consent.willing)().is_err() {
                // The delay is random because the hours of many owners begin at the same time.
                sleep(session::WILLING_EVERY / 2 + drawn_below(session::WILLING_EVERY, &*random)).await;
            }
            let error = tokio::select! {
                error = session::attend(&mut self, &trainer, &data, &mut memory) => error,
                () = becomes(&mut presence, false) => continue,
            };
            let timed_out = error.is_timed_out();
            failures = if memory.take_opened() && !timed_out { 0 } else { failures + 1 };
            if timed_out {
                tracing::error!(
                    error = chain(&error),
                    failures,
                    "the session ended: the device connects again"
                );
            } else {
                tracing::debug!(error = chain(&error), failures, "the connection ended");
            }
            if self.observe(SessionEvent::Ended { error: &error }).is_break() {
                return Ok(());
            }
            let wait = match error {
                SessionError::NotAllowed(reason) => return Err(reason),
                SessionError::Drained { within } => {
                    drawn_below(Duration::from_secs(within.into()).min(self.backoff.longest), &*random)
                }
                _ => self.backoff.wait(failures, &*random),
            };
            sleep(wait).await;
        }
    }
}
