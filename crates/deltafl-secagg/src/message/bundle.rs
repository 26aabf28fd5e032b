//! The signed keys and commitments that a device advertises.

use prost::bytes::{BufMut, Bytes, BytesMut};

use crate::identity::{DeviceId, KeyRoster, SIGNATURE_LEN, Signed, SigningIdentity};
use crate::keys::{AGREEMENT_KEY_LEN, agreement};
use crate::params::MAX_SLOTS;
use crate::transcript::{Hasher, PROTOCOL, Sha256Digest};

/// A device's keys and commitments for one round, with its signature.
///
/// ```text
/// X25519 key 32 · ML-KEM-768 key 1184 · nonce commitment 32
/// · (deposit key commitment 32 · seed commitment 32) per slot · signature 64
/// ```
///
/// The bundle stores the received bytes, so that exactly the sent bytes are verified.
#[derive(Clone, PartialEq, Eq)]
pub struct KeyBundle(Bytes);

const NONCE_COMMITMENT: usize = AGREEMENT_KEY_LEN;
const HEAD: usize = NONCE_COMMITMENT + 32;
const SLOT: usize = 64;

impl KeyBundle {
    /// Returns the length in bytes of a bundle for this many slots.
    pub const fn len_for(slots: u32) -> usize {
        HEAD + SLOT * slots as usize + SIGNATURE_LEN
    }

    /// Creates a bundle from received bytes. Returns `None` if the length is invalid.
    pub fn from_bytes(bytes: Bytes) -> Option<Self> {
        let slots = bytes.len().checked_sub(HEAD + SIGNATURE_LEN)?;
        let whole = slots.is_multiple_of(SLOT) && (1..=MAX_SLOTS as usize).contains(&(slots / SLOT));
        whole.then_some(Self(bytes))
    }

    /// Returns the bytes.
    pub fn as_bytes(&self) -> &Bytes {
        &self.0
    }

    /// Returns the number of slots for which the bundle contains keys.
    pub fn slots(&self) -> u32 {
        ((self.0.len() - HEAD - SIGNATURE_LEN) / SLOT) as u32
    }

    /// Signs a device's keys and creates its bundle.
    pub(crate) fn sign(
        identity: &SigningIdentity,
        params: &Sha256Digest,
        agreement: &[u8; AGREEMENT_KEY_LEN],
        nonce_commitment: &Sha256Digest,
        slots: impl IntoIterator<Item = (Sha256Digest, Sha256Digest)>,
    ) -> Self {
        let mut bytes = BytesMut::new();
        bytes.put_slice(agreement);
        bytes.put_slice(nonce_commitment);
        for (deposit_commitment, seed_commitment) in slots {
            bytes.put_slice(&deposit_commitment);
            bytes.put_slice(&seed_commitment);
        }
        let signature = identity.sign(&signed(params, identity.id(), &bytes));
        bytes.put_slice(&signature);
        Self(bytes.freeze())
    }

    /// Returns true if the device signed this bundle for the round with these parameters.
    pub(crate) fn verifies(&self, roster: &KeyRoster, params: &Sha256Digest, id: DeviceId) -> bool {
        roster.first_forged(&[self.signed(params, id)]).is_none()
    }

    /// Returns the message and signature that the device claims for the round with these
    /// parameters.
    pub(crate) fn signed(&self, params: &Sha256Digest, by: DeviceId) -> Signed<'_> {
        let (contents, signature) = self.0.split_at(self.0.len() - SIGNATURE_LEN);
        let signature = signature.try_into().expect("split off with this length");
        Signed { by, message: signed(params, by, contents).into(), signature }
    }

    /// Returns the X25519 and ML-KEM-768 keys.
    pub(crate) fn agreement_key(&self) -> &[u8; AGREEMENT_KEY_LEN] {
        self.0.first_chunk().expect("every bundle is longer")
    }

    /// Returns a digest of everything that the device signed.
    pub(crate) fn digest(&self) -> Sha256Digest {
        Hasher::new("bundle").part(&self.0).finish()
    }

    /// Returns the commitment to the device's contribution to the graph's randomness.
    pub fn nonce_commitment(&self) -> Sha256Digest {
        self.field(NONCE_COMMITMENT)
    }

    /// Returns the commitment to the device's deposit key in a slot below [`Self::slots`].
    pub(crate) fn deposit_commitment(&self, slot: u32) -> Sha256Digest {
        self.field(HEAD + SLOT * slot as usize)
    }

    /// Returns the commitment to the seed of the device's self mask in a slot below
    /// [`Self::slots`].
    pub(crate) fn seed_commitment(&self, slot: u32) -> Sha256Digest {
        self.field(HEAD + SLOT * slot as usize + 32)
    }

    /// Returns true if the keys can be used for key agreement.
    pub(crate) fn has_sound_keys(&self) -> bool {
        agreement::are_sound(self.agreement_key())
    }

    fn field(&self, at: usize) -> [u8; 32] {
        self.0[at..at + 32].try_into().expect("thirty-two bytes")
    }
}

impl AsRef<[u8]> for KeyBundle {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

fn signed(params: &Sha256Digest, id: DeviceId, contents: &[u8]) -> Vec<u8> {
    [PROTOCOL, b"keys", params, &id.0.to_le_bytes(), contents].concat()
}

impl std::fmt::Debug for KeyBundle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "KeyBundle({} slots)", self.slots())
    }
}
