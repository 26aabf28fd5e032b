//! Who the devices of a federation are, signed by its authority: here, where its keys are, or elsewhere.
//!
//! Whoever holds the authority's keys can invent devices, and a server that could would be alone with the one that it wants
//! to see. A server can therefore run without them: devices then enrol where the authority is, and the roster is signed
//! there with [`signed`].

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use deltafl_wire::identity::FederationName;
use deltafl_wire::roster::{Roster, RosterEntry, RosterError, RosterVersion, SignedRoster};
use tokio::sync::Notify;
use tokio::task::JoinHandle;

use crate::authority::{Authority, Revocations};
use crate::live::Live;
use crate::serve::Host;
use crate::store::{EnrolledDevice, Store, StoreError};

/// How long devices take a roster that a server signs; it is signed anew when half of that is over.
pub const LIFETIME: Duration = Duration::from_secs(30 * 86_400);

/// How often a server looks for devices that were enrolled or revoked by another process.
const LOOK: Duration = Duration::from_secs(2);

/// Why there is no roster.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RenewalError {
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The roster is unsound.
    #[error(transparent)]
    Roster(#[from] RosterError),
    /// There is none.
    #[error("nobody has signed the roster of this federation, and the authority's keys are not here")]
    Unsigned,
    /// Its time is over.
    #[error("the roster of this federation has expired, and the authority's keys are not here")]
    Expired,
}

/// The enrolled devices of a federation.
#[derive(Clone, Debug)]
pub struct RosterRenewal {
    store: Store,
    federation: FederationName,
    /// Signs rosters, where its keys are at hand.
    authority: Option<Arc<Authority>>,
    revocations: Revocations,
    /// Whether devices show certificates; without them the roster is that of the data, and stays.
    is_certified: bool,
    /// When the roster taken in last expires, in seconds since 1970; 0 before the first.
    expires: Arc<AtomicU64>,
    /// Runs for which the authority signs, where its keys are at hand.
    runs: u64,
}

impl RosterRenewal {
    /// The devices that the store knows, with certificates; `authority` signs their roster, where its keys are at hand.
    pub fn new(store: Store, federation: FederationName, authority: Option<Arc<Authority>>) -> Self {
        let (revocations, expires) = (Revocations::new(), Arc::default());
        Self { store, federation, authority, revocations, is_certified: true, expires, runs: 1 }
    }

    /// Signs for so many runs at least, where the keys of the authority are at hand.
    #[must_use]
    pub fn with_runs(self, runs: u64) -> Self {
        Self { runs, ..self }
    }

    /// Devices without certificates, on one machine: their roster is not renewed.
    pub fn loopback(store: Store, federation: FederationName) -> Self {
        Self { is_certified: false, ..Self::new(store, federation, None) }
    }

    /// The authority, where its keys are at hand.
    pub fn authority(&self) -> Option<&Arc<Authority>> {
        self.authority.as_ref()
    }

    /// The certificates that are refused.
    pub fn revocations(&self) -> &Revocations {
        &self.revocations
    }

    /// Devices that are enrolled and not revoked.
    pub async fn devices(&self) -> Result<u64, StoreError> {
        self.store.device_count(&self.federation).await
    }

    /// Returns a number that grows whenever there is another roster to take in.
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

    /// The roster, and how long devices still take it; the revocations are brought up to date with it.
    pub async fn roster(&self) -> Result<(SignedRoster, Duration), RenewalError> {
        self.renew_revocations().await?;
        let kept = match &self.authority {
            Some(authority) => Some(signed(&self.store, authority, LIFETIME, self.runs).await?),
            None => self.store.kept_roster(&self.federation).await?,
        };
        let kept = kept.ok_or(RenewalError::Unsigned)?;
        let edition = Roster::decode(kept.bytes.clone())?.edition();
        let left = edition.time_left().ok_or(RenewalError::Expired)?;
        self.expires.store(edition.expires, Ordering::Relaxed);
        Ok((kept, left))
    }

    /// Keeps the roster of a server and the figures of its live page true, until the task is aborted. `enrolled` wakes it when a
    /// device enrols; `failed` hears why a roster could not be renewed.
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

    /// Takes in the roster if it has changed, and certificates that were revoked.
    async fn renew(&self, known: &mut Option<u64>, host: &Host) -> Result<(), RenewalError> {
        self.renew_revocations().await?;
        let version = self.version().await?;
        if known.replace(version) != Some(version) {
            host.change_roster(&self.roster().await?.0)?;
        }
        Ok(())
    }

    /// Whether the roster taken in last has lived half of its time.
    fn is_due(&self) -> bool {
        let expires = self.expires.load(Ordering::Relaxed);
        let edition = RosterVersion { version: 0, expires };
        expires > 0 && edition.time_left().is_none_or(|left| left < LIFETIME / 2)
    }

    /// Takes in the certificates that were revoked: they are refused at once, whether or not the roster was signed anew.
    pub async fn renew_revocations(&self) -> Result<(), StoreError> {
        self.revocations.replace(self.store.revoked(&self.federation).await?);
        Ok(())
    }
}

/// The roster of the devices that are enrolled now for `runs` runs or as many as before, signed and kept: the one that is kept
/// already, where it is of the present version, allows as many runs and has half of its time left.
pub async fn signed(
    store: &Store,
    authority: &Authority,
    lifetime: Duration,
    mut runs: u64,
) -> Result<SignedRoster, RenewalError> {
    let federation = authority.federation();
    let mut version = store.roster_version(federation).await?;
    if let Some(kept) = store.kept_roster(federation).await? {
        let roster = Roster::decode(kept.bytes.clone()).ok();
        let allowed = roster.as_ref().map_or(0, Roster::runs);
        let is_enough = allowed >= runs;
        // What was signed once stays allowed.
        runs = runs.max(allowed);
        let edition = roster.map(|roster| roster.edition()).filter(|edition| edition.version == version);
        match edition {
            Some(edition) if is_enough && edition.time_left().is_some_and(|left| left > lifetime / 2) => {
                return Ok(kept);
            }
            // Devices take one roster of a version: signed anew it is another version.
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
    let edition = RosterVersion::expiring_in(version, lifetime);
    // The server committed to its draws before this signature, from which they start.
    let draws = store.chain(federation).await?.map(|chain| chain.commitment());
    let roster = Roster::new(edition, devices.into_iter().map(entry).collect())?;
    let roster = roster.with_draws(draws).with_runs(runs);
    let roster = SignedRoster::new(&roster, |message| authority.sign(message));
    store.keep_roster(federation, version, &roster).await?;
    // Another server may have signed this version first: its roster is the one.
    Ok(store.kept_roster(federation).await?.unwrap_or(roster))
}
