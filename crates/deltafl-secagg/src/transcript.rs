//! The hashes that devices sign, commit to and derive keys from.
//!
//! Every hash starts with the name and version of the protocol and a purpose. Every part of
//! variable length is preceded by its length. Therefore two different inputs never encode to the
//! same bytes.

use std::collections::BTreeMap;

use sha2::{Digest as _, Sha256};

use crate::defences::{Defence, is_on};
use crate::identity::DeviceId;
use crate::message::DeviceSet;
use crate::params::SlotSpec;

/// A SHA-256 digest.
pub type Sha256Digest = [u8; 32];

/// The name and version of the protocol, the first bytes of every hash and derivation.
pub(crate) const PROTOCOL: &[u8] = b"deltafl-secagg/2/";

/// SHA-256 over a purpose and a sequence of parts with an unambiguous encoding.
pub(crate) struct Hasher(Sha256);

impl Hasher {
    pub(crate) fn new(purpose: &str) -> Self {
        Self(Sha256::new()).part(PROTOCOL).part(purpose.as_bytes())
    }

    /// Appends a part of variable length.
    pub(crate) fn part(mut self, bytes: &[u8]) -> Self {
        self.0.update((bytes.len() as u64).to_le_bytes());
        self.0.update(bytes);
        self
    }

    pub(crate) fn digest(self, digest: &Sha256Digest) -> Self {
        self.part(digest)
    }

    pub(crate) fn number(mut self, number: u64) -> Self {
        self.0.update(number.to_le_bytes());
        self
    }

    pub(crate) fn device(self, id: DeviceId) -> Self {
        self.number(u64::from(id.0))
    }

    pub(crate) fn devices(self, ids: &DeviceSet) -> Self {
        ids.iter().fold(self.number(ids.len() as u64), Self::device)
    }

    pub(crate) fn finish(self) -> Sha256Digest {
        self.0.finalize().into()
    }
}

/// Returns the digest of the context that the caller binds to a slot. Δ-FL binds η and the hash of
/// w_t.
pub fn context_digest(context: &[u8]) -> Sha256Digest {
    Hasher::new("context").part(context).finish()
}

/// A digest of the events of a round, extended phase by phase.
///
/// Devices sign it in the consistency check. Therefore t valid signatures prove that t devices saw
/// the same members, slot contexts and survivors, in this slot and in all previous slots.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RoundTranscript(Sha256Digest);

impl RoundTranscript {
    /// Creates the transcript after members and keys are fixed.
    ///
    /// On a full graph, `members` contains the key bundles. On a drawn graph, no device sees all
    /// bundles: `members` contains the commitments, and `header` is the seed of the graph.
    pub(crate) fn new<T: AsRef<[u8]>>(header: &Sha256Digest, members: &BTreeMap<DeviceId, T>) -> Self {
        let header = if is_on(Defence::TranscriptHeader) { header } else { &[0; 32] };
        let hasher = Hasher::new("transcript").digest(header).number(members.len() as u64);
        if !is_on(Defence::TranscriptMembers) {
            return Self(hasher.finish());
        }
        Self(members.iter().fold(hasher, |hasher, (&id, pin)| hasher.device(id).part(pin.as_ref())).finish())
    }

    /// Returns the transcript after the survivors of a slot are fixed.
    #[must_use]
    pub(crate) fn with_slot(&self, spec: &SlotSpec, active: &DeviceSet, survivors: &DeviceSet) -> Self {
        let hasher = spec.hash(Hasher::new("slot").digest(&self.0));
        Self(hasher.devices(active).devices(survivors).finish())
    }

    /// Returns the bytes that a device signs with its masked input: the transcript and the active
    /// devices.
    pub(crate) fn masked(&self, spec: &SlotSpec, active: &DeviceSet) -> Vec<u8> {
        let chain = if is_on(Defence::MaskedChain) { &self.0 } else { &[0; 32] };
        let digest = spec.hash(Hasher::new("active").digest(chain)).devices(active).finish();
        [PROTOCOL, b"masked", &digest].concat()
    }

    /// Returns the bytes that a device signs in the consistency check.
    pub(crate) fn attestation(&self) -> Vec<u8> {
        [PROTOCOL, b"attestation", &self.0].concat()
    }

    /// Returns the digest.
    pub fn digest(&self) -> &Sha256Digest {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ring::Ring;

    fn transcript(header: u8, members: &[(u32, u8)]) -> RoundTranscript {
        let members: BTreeMap<DeviceId, [u8; 1]> =
            members.iter().map(|&(id, pin)| (DeviceId(id), [pin])).collect();
        RoundTranscript::new(&[header; 32], &members)
    }

    #[test]
    fn a_transcript_depends_on_the_round_and_on_the_members_and_their_keys() {
        let honest = transcript(1, &[(1, 5), (2, 6)]);
        assert_eq!(honest, transcript(1, &[(1, 5), (2, 6)]));
        assert_ne!(honest, transcript(2, &[(1, 5), (2, 6)]), "another round");
        assert_ne!(honest, transcript(1, &[(1, 5), (3, 6)]), "another member");
        assert_ne!(honest, transcript(1, &[(1, 5), (2, 7)]), "another key of a member");
    }

    #[test]
    fn the_signature_on_an_input_depends_on_everything_that_came_before() {
        let spec = SlotSpec::new(1, Ring::Z64, 3, b"eta");
        let active: DeviceSet = [DeviceId(1), DeviceId(2)].into_iter().collect();
        let start = transcript(1, &[(1, 5), (2, 6)]);
        let first = SlotSpec::new(0, Ring::Z64, 3, b"eta");
        let all = start.with_slot(&first, &active, &active);
        let fewer = start.with_slot(&first, &active, &[DeviceId(1)].into_iter().collect());
        assert_ne!(all.masked(&spec, &active), fewer.masked(&spec, &active), "other survivors before");
        assert_ne!(all.masked(&spec, &active), start.masked(&spec, &active), "a slot less before");
    }
}
