//! A device: it keeps its data, connects out, and answers inside sums.
//!
//! ```no_run
//! use std::sync::Arc;
//! use deltafl_device::{Consent, Credentials, Data, Device, Server, Trust, model_trainer};
//! # use deltafl::{data::Federation, kernel::Isa, model::ModelSpec};
//! # async fn app(credentials: Credentials, trust: Trust, data: Arc<Federation>) -> Result<(), Box<dyn std::error::Error>> {
//! let model = ModelSpec::LINEAR.build(&data, Isa::detect())?;
//! let server = Server { address: "fl.example.org:7700".into(), trust };
//! Device::connect(server, credentials, Consent::default())
//!     .serve(Arc::new(model_trainer(model.into())), Data::only_device(&data).ok_or("one device is expected")?)
//!     .await?;
//! # Ok(())
//! # }
//! ```
//!
//! [`model_trainer`] trains the library's models; anything that is a [`LocalTrainer`] takes its place (`examples/own_trainer.rs`).
//! The examples are a federation of one device: from a folder that `deltafl-data` opened, or built in memory with
//! [`FederationBuilder`](deltafl::data::FederationBuilder).
//!
//! What the server says is checked: the roster must bear the enrolment authority's signature and be the newest that the device
//! has seen ([`DeviceState`]), every round must meet the device's own [`Consent`], and secure aggregation checks the rest.
//! docs/src/explanation/threat-model.md says what a hostile server can do all the same. Memory: the parameters of a question, a working
//! copy, and the answer.

mod answer;
mod cache;
mod conditions;
mod consent;
mod dial;
pub mod enrolment;
pub mod fault;
mod fetch;
mod interruptible;
mod limits;
mod offer;
mod session;
mod state;
pub mod swarm;
mod workers;

use std::sync::Arc;
use std::time::Duration;

use deltafl::data::{
    DeviceExamples, Federation, FederationBuilder, FederationIndex, InputKind, InvalidDevice, Split,
};
use deltafl::trainer::LocalTrainer;
use deltafl_wire::contract::DataContract;
use tokio::sync::watch;
use tokio::time::sleep;

pub use deltafl_wire::identity::Credentials;

pub use self::cache::BlobCache;
pub use self::conditions::{Conditions, Hook, Hours, InvalidWindow, Root, TimeWindow, Unmet};
pub use self::consent::{Consent, NotAllowed, Reason, Willing};
pub use self::dial::{DialError, Server, Trust, is_refused_certificate};
pub use self::interruptible::model_trainer;
pub use self::limits::{TimeLimits, TimedOut};
pub use self::offer::{Offer, offer};
pub use self::session::SessionError;
pub use self::state::{
    Conflict, DeviceState, Digest, Event, StateError, Transcript, TranscriptError, conflicts,
};
pub use self::workers::Workers;
use crate::fault::Faults;

/// The data of one device.
#[derive(Clone)]
pub struct Data {
    federation: Arc<Federation>,
    device: FederationIndex,
    /// Where its examples lie that never train.
    held_out: Option<FederationIndex>,
}

impl Data {
    /// Device `device` of a federation that several share.
    ///
    /// # Panics
    /// When the federation has no such device.
    pub fn of(federation: Arc<Federation>, device: FederationIndex) -> Self {
        assert!(device.place() < federation.len(), "a device of the federation");
        let held_out = federation.held_out()[device.place()];
        Self { federation, device, held_out }
    }

    /// The same where the places of [`Federation::held_out`] are known, so that thousands of devices look for them once.
    pub(crate) fn holding_out(
        federation: &Arc<Federation>,
        device: FederationIndex,
        held_out: &[Option<FederationIndex>],
    ) -> Self {
        let held_out = held_out.get(device.place()).copied().flatten();
        Self { federation: Arc::clone(federation), device, held_out }
    }

    /// The one device that trains in a federation; `None` where there are others.
    pub fn only_device(federation: &Arc<Federation>) -> Option<Self> {
        let [device] = federation.split(Split::Train)[..] else { return None };
        Some(Self::of(Arc::clone(federation), device))
    }

    /// The device of this name: where its examples are split, with those that train.
    pub fn named(federation: &Arc<Federation>, name: &str) -> Option<Self> {
        let mut named = federation.devices().filter(|&k| federation.id(k) == name);
        let device = named.clone().find(|&k| federation.split_of(k) == Split::Train).or(named.next())?;
        Some(Self::of(Arc::clone(federation), device))
    }

    /// So many examples that the trainer holds itself: the library knows their number, and asks the trainer about ranges of
    /// them.
    pub fn held_by_trainer(name: &str, examples: usize) -> Result<Self, InvalidDevice> {
        // Rows of nothing, because only their number counts.
        let mut builder = FederationBuilder::of_values(name, InputKind::Dense { dim: 1 });
        let nothing = vec![0.0; examples];
        builder.push(name, Split::Train, DeviceExamples::Dense(&nothing), &nothing)?;
        Ok(Self { federation: Arc::new(builder.build()), device: FederationIndex(0), held_out: None })
    }

    /// The same device in the same data, prepared otherwise; `None` where that leaves it out.
    #[must_use]
    pub fn within(&self, federation: &Arc<Federation>) -> Option<Self> {
        Self::named(federation, self.name())
    }

    /// The federation that the device is of.
    pub fn federation(&self) -> &Federation {
        &self.federation
    }

    /// The name of the device.
    pub fn name(&self) -> &str {
        self.federation.id(self.device)
    }
}

/// A device that takes part in a federation.
pub struct Device {
    server: Server,
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
}

/// The defences of a device that tests can switch off, to show that the attack against which they are then succeeds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Defences {
    /// The device answers each round of a run once, at one w.
    pub once_per_round: bool,
    /// The device refuses questions in which several tracks share it, weights that tell of it, and runs that the authority did
    /// not sign.
    pub one_track_per_device: bool,
}

/// All of them.
impl Default for Defences {
    fn default() -> Self {
        Self { once_per_round: true, one_track_per_device: true }
    }
}

/// How long to wait before connecting again.
#[derive(Clone, Copy, Debug)]
pub struct Backoff {
    /// After the first failure; it doubles from then on.
    pub first: Duration,
    /// At most.
    pub longest: Duration,
}

impl Default for Backoff {
    fn default() -> Self {
        Self { first: Duration::from_secs(1), longest: Duration::from_secs(120) }
    }
}

impl Backoff {
    /// A wait drawn between nothing and the doubled one, so that a fleet that lost its server does not come back as one.
    fn wait(&self, failures: u32) -> Duration {
        drawn_below(self.first.saturating_mul(1 << failures.min(16)).min(self.longest))
    }
}

/// A wait drawn between nothing and `most`.
fn drawn_below(most: Duration) -> Duration {
    let mut bytes = [0; 8];
    let drawn = getrandom::fill(&mut bytes).map_or(u64::MAX, |()| u64::from_le_bytes(bytes));
    most.mul_f64(drawn as f64 / u64::MAX as f64)
}

/// Returns when the presence of a device has this value; never, if it has not and nobody decides on it any more.
async fn becomes(presence: &mut watch::Receiver<bool>, value: bool) {
    if presence.wait_for(|now| *now == value).await.is_err() {
        std::future::pending::<()>().await;
    }
}

impl Device {
    /// A device of a federation. Nothing is sent before [`Self::serve`].
    pub fn connect(server: Server, credentials: Credentials, consent: Consent) -> Self {
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
        }
    }

    /// Switches defences off, for tests of attacks.
    #[cfg(feature = "test-util")]
    #[must_use]
    pub fn with_defences(mut self, defences: Defences) -> Self {
        self.defences = defences;
        self
    }

    /// Remembers across restarts; without it the device remembers for as long as it lives.
    #[must_use]
    pub fn with_state(mut self, state: DeviceState) -> Self {
        self.state = state;
        self
    }

    /// Takes part only where the contract of the data is the one that the examples were prepared for.
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

    /// Misbehaves, for tests.
    #[must_use]
    pub fn with_faults(mut self, faults: Faults) -> Self {
        self.faults = faults;
        self
    }

    /// Connects while the value is true. When it turns false the device leaves at once, whatever it is doing, and remembers.
    #[must_use]
    pub fn with_presence(mut self, presence: watch::Receiver<bool>) -> Self {
        self.presence = presence;
        self
    }

    /// Waits so before it connects again.
    #[must_use]
    pub fn with_backoff(mut self, backoff: Backoff) -> Self {
        self.backoff = backoff;
        self
    }

    /// The properties of the device's link that a fetch depends on.
    fn link(&self) -> fetch::Link<'_> {
        fetch::Link { limits: &self.limits, faults: &self.faults }
    }

    /// Waits no longer than this for the server.
    #[must_use]
    pub fn with_time_limits(mut self, limits: TimeLimits) -> Self {
        self.limits = limits;
        self
    }

    /// Takes part in rounds, through lost connections and restarts of the server, until it is dropped or its owner's
    /// consent does not cover what the server asks. While the owner's conditions are not met it does not connect.
    pub async fn serve(mut self, trainer: Arc<dyn LocalTrainer>, data: Data) -> Result<(), NotAllowed> {
        let mut memory = session::Memory::default();
        let mut failures = 0;
        let mut presence = self.presence.clone();
        loop {
            becomes(&mut presence, true).await;
            while (self.consent.willing)().is_err() {
                // Drawn, because the hours of many owners begin at once.
                sleep(session::WILLING_EVERY / 2 + drawn_below(session::WILLING_EVERY)).await;
            }
            let error = tokio::select! {
                error = session::attend(&mut self, &trainer, &data, &mut memory) => error,
                () = becomes(&mut presence, false) => continue,
            };
            let timed_out = error.is_timed_out();
            failures = if memory.take_welcomed() && !timed_out { 0 } else { failures + 1 };
            if timed_out {
                tracing::error!(%error, failures, "the session ended: the device connects again");
            } else {
                tracing::debug!(%error, failures, "the connection ended");
            }
            let wait = match error {
                SessionError::NotAllowed(reason) => return Err(reason),
                SessionError::Drained { within } => {
                    drawn_below(Duration::from_secs(within.into()).min(self.backoff.longest))
                }
                _ => self.backoff.wait(failures),
            };
            sleep(wait).await;
        }
    }
}
