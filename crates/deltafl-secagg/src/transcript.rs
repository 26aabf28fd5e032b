//! Hashes that bind: what devices sign, commit to and derive keys from.
//!
//! Every hash starts with the protocol's name and version and its own purpose, and every part of variable
//! length goes in behind its length, so that no two different things are ever the same bytes.

use std::collections::BTreeMap;

use sha2::{Digest as _, Sha256};

use crate::identity::DeviceId;
use crate::message::DeviceSet;
use crate::params::SlotSpec;

/// A SHA-256 digest.
pub type Sha256Digest = [u8; 32];

/// Protocol name and version, the first bytes of every hash and derivation.
pub(crate) const PROTOCOL: &[u8] = b"deltafl-secagg/2/";

/// SHA-256 over a purpose and parts of unambiguous length.
pub(crate) struct Hasher(Sha256);

impl Hasher {
    pub(crate) fn new(purpose: &str) -> Self {
        Self(Sha256::new()).part(PROTOCOL).part(purpose.as_bytes())
    }

    /// A part of variable length.
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

/// The digest of what the caller binds to a slot: for Δ-FL, η and the hash of w_t.
pub fn context_digest(context: &[u8]) -> Sha256Digest {
    Hasher::new("context").part(context).finish()
}

/// What all parties saw happen so far, as one digest that grows phase by phase.
///
/// Devices sign it in the consistency check, so t valid signatures mean that t devices were shown the same
/// members, the same slot contexts and the same survivors, in this slot and in every slot before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RoundTranscript(Sha256Digest);

impl RoundTranscript {
    /// The transcript once the members and their keys are settled.
    ///
    /// On a full graph the members are pinned by their key bundles. Where the graph is drawn and no device
    /// sees all bundles, by their commitments, and `header` is the seed of the graph.
    pub(crate) fn new<T: AsRef<[u8]>>(header: &Sha256Digest, members: &BTreeMap<DeviceId, T>) -> Self {
        let hasher = Hasher::new("transcript").digest(header).number(members.len() as u64);
        Self(members.iter().fold(hasher, |hasher, (&id, pin)| hasher.device(id).part(pin.as_ref())).finish())
    }

    /// The transcript after a slot has its survivors.
    #[must_use]
    pub(crate) fn with_slot(&self, spec: &SlotSpec, active: &DeviceSet, survivors: &DeviceSet) -> Self {
        let hasher = spec.hash(Hasher::new("slot").digest(&self.0));
        Self(hasher.devices(active).devices(survivors).finish())
    }

    /// The bytes that a device signs with its masked input: what it was shown, and between whom it masked.
    pub(crate) fn masked(&self, spec: &SlotSpec, active: &DeviceSet) -> Vec<u8> {
        let digest = spec.hash(Hasher::new("active").digest(&self.0)).devices(active).finish();
        [PROTOCOL, b"masked", &digest].concat()
    }

    /// The bytes that a device signs in the consistency check.
    pub(crate) fn attestation(&self) -> Vec<u8> {
        [PROTOCOL, b"attestation", &self.0].concat()
    }

    /// The digest.
    pub fn digest(&self) -> &Sha256Digest {
        &self.0
    }
}
