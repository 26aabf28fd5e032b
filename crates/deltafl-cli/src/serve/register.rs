//! Who the devices of a federation are, signed by its authority: here, where its keys are, or elsewhere.
//!
//! Whoever holds the authority's keys can invent devices, and a server that could would be alone with the one that it wants
//! to see. A server can therefore run without them: devices then enrol where the authority is, and the roster is signed
//! there with `deltafl certs roster`.

use std::sync::Arc;

use deltafl_net::identity::{Authority, FederationName, Revocations};
use deltafl_net::roster::{Entry, Roster, SignedRoster};
use deltafl_net::store::{EnrolledDevice, Store};
use miette::{IntoDiagnostic, Result};

use super::office::store_error;
use crate::error::bad_input;

/// The enrolled devices of a federation.
#[derive(Clone)]
pub(super) struct Register {
    pub(super) store: Store,
    pub(super) federation: FederationName,
    /// Signs rosters, where its keys are at hand.
    pub(super) authority: Option<Arc<Authority>>,
    pub(super) revocations: Revocations,
}

impl Register {
    /// Grows whenever there is another roster to take in.
    pub(super) async fn version(&self) -> Result<u64> {
        let version = match &self.authority {
            Some(_) => self.store.roster_version(&self.federation).await.map(Some),
            None => self.store.kept_roster_version(&self.federation).await,
        };
        Ok(version.map_err(store_error)?.unwrap_or(0))
    }

    /// The roster; the revocations are brought up to date with it.
    pub(super) async fn roster(&self) -> Result<SignedRoster> {
        self.renew_revocations().await?;
        if let Some(authority) = &self.authority {
            return signed(&self.store, authority).await;
        }
        let kept = self.store.kept_roster(&self.federation).await.map_err(store_error)?;
        kept.ok_or_else(|| {
            bad_input(
                "nobody has signed the roster of this federation, and the authority's keys are not here",
            )
            .help("where they are:  deltafl certs roster --certs certs --database URL")
            .into()
        })
    }

    /// Certificates are refused as soon as they are revoked, whether or not the roster has been signed anew.
    pub(super) async fn renew_revocations(&self) -> Result<()> {
        self.revocations.replace(self.store.revoked(&self.federation).await.map_err(store_error)?);
        Ok(())
    }
}

/// The roster of the devices that are enrolled now, signed.
pub(crate) async fn signed(store: &Store, authority: &Authority) -> Result<SignedRoster> {
    let devices = store.devices(authority.federation()).await.map_err(store_error)?;
    let entry = |device: EnrolledDevice| Entry {
        name: device.name.to_string(),
        key: device.signing_key,
        revoked: device.revoked,
    };
    let roster = Roster::new(devices.into_iter().map(entry).collect()).into_diagnostic()?;
    Ok(SignedRoster::new(&roster, |message| authority.sign(message)))
}
