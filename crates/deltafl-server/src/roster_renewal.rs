//! The roster of a federation's devices, signed by its authority on this server or elsewhere.
//!
//! The holder of the authority's keys can invent devices. A malicious server with these keys could
//! place a target in a cohort of invented devices. A server can therefore run without them. Devices
//! then enrol with the authority elsewhere, and [`signed`] signs the roster there.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use deltafl_wire::environment::{Clock, SystemClock};
use deltafl_wire::identity::FederationName;
use deltafl_wire::roster::{PreviousRoster, Roster, RosterEntry, RosterError, RosterVersion, SignedRoster};
use tokio::sync::Notify;
use tokio::task::JoinHandle;

use crate::authority::{Authority, Revocations};
use crate::live::Live;
use crate::serve::Host;
use crate::store::{EnrolledDevice, Store, StoreError};

/// The validity period of a roster signed by a server. The server renews it after half of that
/// time.
pub const LIFETIME: Duration = Duration::from_secs(30 * 86_400);

/// The interval at which a server checks for devices that another process enrolled or revoked.
const LOOK: Duration = Duration::from_secs(2);

/// The reason for which no roster is available.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RenewalError {
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The roster is invalid.
    #[error(transparent)]
    Roster(#[from] RosterError),
    /// The store contains no roster.
    #[error("nobody has signed the roster of this federation, and the authority's keys are not here")]
    Unsigned,
    /// The roster has expired.
    #[error("the roster of this federation has expired, and the authority's keys are not here")]
    Expired,
}

/// The enrolled devices of a federation.
#[derive(Clone, Debug)]
pub struct RosterRenewal {
    store: Store,
    federation: FederationName,
    /// The authority that signs rosters, if its keys are available.
    authority: Option<Arc<Authority>>,
    revocations: Revocations,
    /// Whether devices present certificates. Without them the roster is that of the data and does
    /// not change.
    is_certified: bool,
    /// The expiry of the current roster in seconds since 1970, or 0 before the first.
    expires: Arc<AtomicU64>,
    /// The number of runs that the authority signs, if its keys are available.
    runs: u64,
    clock: Arc<dyn Clock>,
}

impl RosterRenewal {
    /// The devices in the store, with certificates. `authority` signs their roster if its keys are
    /// available.
    pub fn new(store: Store, federation: FederationName, authority: Option<Arc<Authority>>) -> Self {
        let (revocations, expires) = (Revocations::new(), Arc::default());
        let clock = Arc::new(SystemClock);
        Self { store, federation, authority, revocations, is_certified: true, expires, runs: 1, clock }
    }

    /// Signs for at least this many runs if the keys of the authority are available.
    #[must_use]
    pub fn with_runs(self, runs: u64) -> Self {
        Self { runs, ..self }
    }

    /// Replaces the clock of the operating system.
    #[must_use]
    pub fn with_clock(self, clock: Arc<dyn Clock>) -> Self {
        Self { clock, ..self }
    }

    /// Devices without certificates on one machine. Their roster is not renewed.
    pub fn loopback(store: Store, federation: FederationName) -> Self {
        Self { is_certified: false, ..Self::new(store, federation, None) }
    }

    /// Returns the authority if its keys are available.
    pub fn authority(&self) -> Option<&Arc<Authority>> {
        self.authority.as_ref()
    }

    /// Returns the revoked certificates.
    pub fn revocations(&self) -> &Revocations {
        &self.revocations
    }

    /// Returns the number of devices that are enrolled and not revoked.
    pub async fn devices(&self) -> Result<u64, StoreError> {
        self.store.device_count(&self.federation).await
    }

    /// Returns a number that increases with every new roster.
    pub async fn version(&self) -> Result<u64, StoreError> {
        if self.authority.is_some() && self.is_due() {
            self.store.renew_roster(&self.federation).await?;
            self.expires.store(0, Ordering::Relaxed);
        }
        let version = match &self.authority {
            Some(_) => Some(self.store.roster_version(&self.federation).await?),
            None => self.store.kept_roster_version(&self.federation).await?,
        };
        Ok(version.unwrap_or(0))
    }

    /// Returns the roster and its remaining validity. Also updates the revocations.
    pub async fn roster(&self) -> Result<(SignedRoster, Duration), RenewalError> {
        self.renew_revocations().await?;
        let kept = match &self.authority {
            Some(authority) => Some(signed(&self.store, authority, LIFETIME, self.runs, &*self.clock).await?),
            None => self.store.kept_roster(&self.federation).await?,
        };
        let kept = kept.ok_or(RenewalError::Unsigned)?;
        let edition = Roster::decode(kept.bytes.clone())?.edition();
        let left = edition.time_left(&*self.clock).ok_or(RenewalError::Expired)?;
        self.expires.store(edition.expires, Ordering::Relaxed);
        Ok((kept, left))
    }

    /// Updates the roster of a server and the figures of its live page until the task is aborted.
    /// `enrolled` wakes it after an enrolment. `failed` is called with the error if a roster could
    /// not be renewed.
    ///
    /// # Panics
    /// If it is called outside of a tokio runtime.
    pub fn follow(
        self,
        host: Arc<Host>,
        live: Live,
        known: Option<u64>,
        enrolled: Arc<Notify>,
        failed: impl Fn(&RenewalError) + Send + 'static,
    ) -> JoinHandle<()> {
        tokio::spawn(live.clone().follow(host.status()));
        let mut known = known;
        tokio::spawn(async move {
            loop {
                let devices = self.devices().await.unwrap_or_default();
                let (online, ready) = host.presence();
                live.presence(online, ready, devices.max(online as u64));
                if self.is_certified
                    && let Err(error) = self.renew(&mut known, &host).await
                {
                    failed(&error);
                    known = None;
                }
                let _ = tokio::time::timeout(LOOK, enrolled.notified()).await;
            }
        })
    }

    /// Applies a changed roster and new revocations.
    async fn renew(&self, known: &mut Option<u64>, host: &Host) -> Result<(), RenewalError> {
        self.renew_revocations().await?;
        let version = self.version().await?;
        if known.replace(version) != Some(version) {
            host.change_roster(&self.roster().await?.0)?;
        }
        Ok(())
    }

    /// Returns `true` if half the validity of the current roster has passed.
    fn is_due(&self) -> bool {
        let expires = self.expires.load(Ordering::Relaxed);
        let edition = RosterVersion { version: 0, expires };
        expires > 0 && edition.time_left(&*self.clock).is_none_or(|left| left < LIFETIME / 2)
    }

    /// Applies new revocations. The certificates are refused immediately, even if the roster is not
    /// signed again.
    pub async fn renew_revocations(&self) -> Result<(), StoreError> {
        self.revocations.replace(self.store.revoked(&self.federation).await?);
        Ok(())
    }
}

/// Returns the signed roster of the enrolled devices for `runs` runs, or as many as before. Reuses
/// the stored roster if it has the current version, allows as many runs and has half of its
/// validity left.
pub async fn signed(
    store: &Store,
    authority: &Authority,
    lifetime: Duration,
    mut runs: u64,
    clock: &dyn Clock,
) -> Result<SignedRoster, RenewalError> {
    let federation = authority.federation();
    let mut version = store.roster_version(federation).await?;
    let mut previous = None;
    if let Some(kept) = store.kept_roster(federation).await? {
        let roster = Roster::decode(kept.bytes.clone()).ok();
        previous = roster.as_ref().map(|roster| PreviousRoster {
            version: roster.edition().version,
            hash: blake3::hash(&kept.bytes),
        });
        let allowed = roster.as_ref().map_or(0, Roster::runs);
        let is_enough = allowed >= runs;
        // A run that was signed once stays allowed.
        runs = runs.max(allowed);
        let edition = roster.map(|roster| roster.edition()).filter(|edition| edition.version == version);
        match edition {
            Some(edition)
                if is_enough && edition.time_left(clock).is_some_and(|left| left > lifetime / 2) =>
            {
                return Ok(kept);
            }
            // Devices accept one roster per version, so a new signature needs a new version.
            Some(_) => {
                store.renew_roster(federation).await?;
                version = store.roster_version(federation).await?;
            }
            None => {}
        }
    }
    let devices = store.devices(federation).await?;
    let entry = |device: EnrolledDevice| RosterEntry {
        name: device.name.to_string(),
        key: device.signing_key,
        revoked: device.revoked,
    };
    let edition = RosterVersion::expiring_in(version, lifetime, clock);
    // The server committed to its draws before this signature, from which they start.
    let draws = store.chain(federation).await?.map(|chain| chain.commitment());
    let roster = Roster::new(edition, devices.into_iter().map(entry).collect())?;
    let roster = roster.with_draws(draws).with_runs(runs).with_previous(previous);
    let roster = SignedRoster::new(&roster, |message| authority.sign(message));
    store.keep_roster(federation, version, &roster).await?;
    // Another server may have signed this version first. Its roster is then used.
    Ok(store.kept_roster(federation).await?.unwrap_or(roster))
}
