//! Who the devices of a federation are, signed by its authority: here, where its keys are, or elsewhere.
//!
//! Whoever holds the authority's keys can invent devices, and a server that could would be alone with the one that it wants
//! to see. A server can therefore run without them: devices then enrol where the authority is, and the roster is signed
//! there with `deltafl certs roster`.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use deltafl_server::authority::{Authority, Revocations};
use deltafl_server::store::{EnrolledDevice, Store};
use deltafl_wire::identity::FederationName;
use deltafl_wire::roster::{Edition, Entry, Roster, SignedRoster};
use miette::{IntoDiagnostic, Result};

use super::deployment::store_error;
use crate::error::bad_input;

/// How long devices take a roster that a server signs; it is signed anew when half of that is over.
pub(crate) const LIFETIME: Duration = Duration::from_secs(30 * 86_400);
/// From here on a server that cannot sign says that somebody has to.
const SOON: Duration = Duration::from_secs(7 * 86_400);

/// The enrolled devices of a federation.
#[derive(Clone)]
pub(super) struct RosterRenewal {
    pub(super) store: Store,
    pub(super) federation: FederationName,
    /// Signs rosters, where its keys are at hand.
    pub(super) authority: Option<Arc<Authority>>,
    pub(super) revocations: Revocations,
    /// When the roster taken in last expires, in seconds since 1970; 0 before the first.
    pub(super) expires: Arc<AtomicU64>,
}

impl RosterRenewal {
    /// Grows whenever there is another roster to take in.
    pub(super) async fn version(&self) -> Result<u64> {
        if self.authority.is_some() && self.is_due() {
            self.store.renew_roster(&self.federation).await.map_err(store_error)?;
            self.expires.store(0, Ordering::Relaxed);
        }
        let version = match &self.authority {
            Some(_) => self.store.roster_version(&self.federation).await.map(Some),
            None => self.store.kept_roster_version(&self.federation).await,
        };
        Ok(version.map_err(store_error)?.unwrap_or(0))
    }

    /// The roster; the revocations are brought up to date with it.
    pub(super) async fn roster(&self) -> Result<SignedRoster> {
        self.renew_revocations().await?;
        let kept = match &self.authority {
            Some(authority) => Some(signed(&self.store, authority, LIFETIME).await?),
            None => self.store.kept_roster(&self.federation).await.map_err(store_error)?,
        };
        let help = "where they are:  deltafl certs roster --certs certs --database URL";
        let kept = kept.ok_or_else(|| {
            let what =
                "nobody has signed the roster of this federation, and the authority's keys are not here";
            bad_input(what).help(help)
        })?;
        let edition = Roster::decode(kept.bytes.clone()).into_diagnostic()?.edition();
        match edition.left() {
            None => {
                let what = "the roster of this federation has expired, and the authority's keys are not here";
                return Err(bad_input(what).help(help).into());
            }
            Some(left) if left < SOON => {
                eprintln!("the roster expires in {} days; {help}", left.as_secs() / 86_400);
            }
            Some(_) => {}
        }
        self.expires.store(edition.expires, Ordering::Relaxed);
        Ok(kept)
    }

    /// Whether the roster taken in last has lived half of its time.
    fn is_due(&self) -> bool {
        let expires = self.expires.load(Ordering::Relaxed);
        let edition = Edition { version: 0, expires };
        expires > 0 && edition.left().is_none_or(|left| left < LIFETIME / 2)
    }

    /// Certificates are refused as soon as they are revoked, whether or not the roster has been signed anew.
    pub(super) async fn renew_revocations(&self) -> Result<()> {
        self.revocations.replace(self.store.revoked(&self.federation).await.map_err(store_error)?);
        Ok(())
    }
}

/// The roster of the devices that are enrolled now, signed and kept: the one that is kept already, where it is of the present
/// version and has half of its time left.
pub(crate) async fn signed(store: &Store, authority: &Authority, lifetime: Duration) -> Result<SignedRoster> {
    let federation = authority.federation();
    let mut version = store.roster_version(federation).await.map_err(store_error)?;
    if let Some(kept) = store.kept_roster(federation).await.map_err(store_error)? {
        let edition = Roster::decode(kept.bytes.clone()).map(|roster| roster.edition());
        let edition = edition.ok().filter(|edition| edition.version == version);
        match edition {
            Some(edition) if edition.left().is_some_and(|left| left > lifetime / 2) => return Ok(kept),
            // Devices take one roster of a version: signed anew it is another version.
            Some(_) => {
                store.renew_roster(federation).await.map_err(store_error)?;
                version = store.roster_version(federation).await.map_err(store_error)?;
            }
            None => {}
        }
    }
    let devices = store.devices(federation).await.map_err(store_error)?;
    let entry = |device: EnrolledDevice| Entry {
        name: device.name.to_string(),
        key: device.signing_key,
        revoked: device.revoked,
    };
    let edition = Edition::lasting(version, lifetime);
    // The server committed to its draws before this signature, from which they start.
    let draws = store.chain(federation).await.map_err(store_error)?.map(|chain| chain.commitment());
    let roster = Roster::new(edition, devices.into_iter().map(entry).collect()).into_diagnostic()?;
    let roster = roster.with_draws(draws);
    let roster = SignedRoster::new(&roster, |message| authority.sign(message));
    store.keep_roster(federation, version, &roster).await.map_err(store_error)?;
    // Another server may have signed this version first: its roster is the one.
    Ok(store.kept_roster(federation).await.map_err(store_error)?.unwrap_or(roster))
}
