//! The roster signed by the authority and the device's entry on it.

use std::sync::Arc;

use deltafl::evaluation;
use deltafl::params::UpdateCode;
use deltafl_secagg::device::Participant;
use deltafl_secagg::identity::{DeviceId, SigningIdentity};
use deltafl_wire::proto::federation_client::FederationClient;
use deltafl_wire::roster::{MAX_ROSTER, Roster, RosterError, SignedRoster, session_under};
use deltafl_wire::roster_log::LoggedRoster;
use deltafl_wire::{BlobId, MAX_QUERIES, array, malformed, proto};
use tonic::transport::Channel;

use super::{ConnectionCache, SessionError};
use crate::Device;
use crate::cache::Verified;
use crate::defences::Defence;

/// Returns the roster that the server announces. The authority's signature must be valid, and no
/// newer roster may be known.
pub(super) async fn verified(
    device: &mut Device,
    memory: &mut ConnectionCache,
    client: &mut FederationClient<Channel>,
    wire: Option<proto::Roster>,
) -> Result<Arc<Verified>, SessionError> {
    let wire = wire.ok_or(malformed("roster"))?;
    let (id, signature) = (BlobId::from_wire(wire.blob)?, array(&wire.signature, "signature")?);
    let is_checked = device.defences.has(Defence::RosterSignature);
    if is_checked && !SignedRoster::verifies(&id.hash, &signature, &device.credentials.authority) {
        return Err(RosterError::Signature.into());
    }
    let verified = match device.cache.roster(&id.hash) {
        Some(known) => known,
        None => {
            let bytes = memory.partial.fetch(client, id, MAX_ROSTER as u64, device.link()).await?;
            let roster = Roster::decode(bytes)?;
            let keys = Arc::new(roster.keys(&id.hash, &signature)?);
            device.cache.keep_roster(Verified { hash: id.hash, roster, keys })
        }
    };
    let (edition, previous) = (verified.roster.edition(), verified.roster.previous());
    device.state.take_roster(edition, &id.hash, previous)?;
    let (version, authority) = (edition.version, device.credentials.authority);
    device.state.log_roster(&LoggedRoster { version, hash: id.hash, previous, authority, signature })?;
    Ok(verified)
}

/// The device's membership in rounds under a roster.
pub(super) fn enrolment(
    device: &Device,
    roster: &Verified,
    index: u32,
    session: &[u8; 16],
    params: usize,
) -> Result<Participant, SessionError> {
    let identity = identity(device, roster, index)?;
    // A noisy update is padded to a power of two.
    let longest = MAX_QUERIES * UpdateCode::len(params.next_power_of_two()).max(evaluation::LONGEST);
    let longest = u32::try_from(longest).unwrap_or(u32::MAX);
    let (drawn, defences) = (roster.roster.has_committed_draws(), device.defences.protocol());
    let policy = device.consent.policy(longest, drawn, defences);
    let session = session_under(session, &roster.hash);
    let last = match device.defences.has(Defence::OneRoundCounter) {
        true => device.state.last_round(&device.credentials.authority),
        false => None,
    };
    let participant = Participant::new(identity, Arc::clone(&roster.keys), session, policy);
    Ok(participant.resumed(last, roster.roster.edition().version))
}

/// Returns this device's signing key with its number on the roster and the server.
fn identity(device: &Device, roster: &Verified, index: u32) -> Result<Arc<SigningIdentity>, SessionError> {
    let identity = SigningIdentity::from_secret(DeviceId(index), &device.credentials.signing);
    let entry = roster.roster.entries().get(index as usize);
    let mine = entry.is_some_and(|e| e.name == device.credentials.name && e.key == identity.public());
    if mine || !device.defences.has(Defence::OwnRosterEntry) {
        Ok(Arc::new(identity))
    } else {
        Err(SessionError::NotOnRoster)
    }
}
