//! A member's signed contribution to the graph's randomness.

use crate::identity::{DeviceId, KeyRoster, SIGNATURE_LEN, Signed, SigningIdentity};
use crate::transcript::{PROTOCOL, Sha256Digest};

/// The length of a reveal in bytes: a nonce and a signature.
pub(crate) const REVEAL_LEN: usize = 32 + SIGNATURE_LEN;

/// A nonce, and its owner's signature on the nonce and on the list of members.
///
/// The signature makes the list unique. Every member that determines the graph has signed the list
/// that a device accepts. At least one of these members does not collude, and it reveals only once.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Reveal([u8; REVEAL_LEN]);

impl Reveal {
    /// Signs a nonce for the members of `list`.
    pub(crate) fn sign(identity: &SigningIdentity, list: &Sha256Digest, nonce: &[u8; 32]) -> Self {
        let mut bytes = [0; REVEAL_LEN];
        bytes[..32].copy_from_slice(nonce);
        bytes[32..].copy_from_slice(&identity.sign(&signed(list, nonce)));
        Self(bytes)
    }

    /// Returns the nonce.
    pub fn nonce(&self) -> &[u8; 32] {
        self.0.first_chunk().expect("the first 32 of 96 bytes")
    }

    /// Returns true if the device signed the nonce for the members of `list`.
    pub(crate) fn verifies(&self, roster: &KeyRoster, list: &Sha256Digest, id: DeviceId) -> bool {
        roster.first_forged(&[self.signed(list, id)]).is_none()
    }

    /// Returns the message and signature that the device claims for the members of `list`.
    pub(crate) fn signed(&self, list: &Sha256Digest, by: DeviceId) -> Signed<'_> {
        let signature = self.0.last_chunk().expect("the last 64 of 96 bytes");
        Signed { by, message: signed(list, self.nonce()).into(), signature }
    }
}

fn signed(list: &Sha256Digest, nonce: &[u8; 32]) -> Vec<u8> {
    [PROTOCOL, b"reveal", list, nonce].concat()
}

impl From<[u8; REVEAL_LEN]> for Reveal {
    fn from(bytes: [u8; REVEAL_LEN]) -> Self {
        Self(bytes)
    }
}

impl AsRef<[u8]> for Reveal {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl std::fmt::Debug for Reveal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Reveal(..)")
    }
}
