//! Device ids, signing keys, and the roster that binds keys to ids.
//!
//! The roster is the public-key infrastructure of the protocol (Bonawitz et al. 2017, section 6.2).
//! The server cannot invent devices for a device that trusts the roster.

use std::borrow::Cow;
use std::collections::BTreeMap;

use ed25519_dalek::{Signature, Signer, SigningKey, Verifier as _, VerifyingKey, verify_batch};
use rand_core::CryptoRng;
use thiserror::Error;

use crate::defences::{Defence, is_on};
use crate::draw::DrawCommitment;
use crate::field::FieldElement;

/// The length of a signature in bytes.
pub const SIGNATURE_LEN: usize = 64;

/// The id of a device in a federation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceId(pub u32);

impl DeviceId {
    /// Returns the evaluation point of the device's shares: id + 1, never zero.
    pub(crate) fn point(self) -> FieldElement {
        FieldElement::from(self.0) + FieldElement::ONE
    }
}

impl std::fmt::Display for DeviceId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

/// A device's long-term key pair (Ed25519, RFC 8032). The secret key is wiped on drop.
pub struct SigningIdentity {
    id: DeviceId,
    key: SigningKey,
}

impl SigningIdentity {
    /// Generates a key pair.
    pub fn generate(id: DeviceId, rng: &mut impl CryptoRng) -> Self {
        let mut secret = zeroize::Zeroizing::new([0; 32]);
        rng.fill_bytes(&mut *secret);
        Self::from_secret(id, &secret)
    }

    /// Creates the key pair from a stored secret.
    pub fn from_secret(id: DeviceId, secret: &[u8; 32]) -> Self {
        Self { id, key: SigningKey::from_bytes(secret) }
    }

    /// Returns the device's id.
    pub fn id(&self) -> DeviceId {
        self.id
    }

    /// Returns the public key in the format of [`KeyRoster::add`].
    pub fn public(&self) -> [u8; 32] {
        self.key.verifying_key().to_bytes()
    }

    pub(crate) fn sign(&self, message: &[u8]) -> [u8; SIGNATURE_LEN] {
        self.key.sign(message).to_bytes()
    }
}

impl std::fmt::Debug for SigningIdentity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "SigningIdentity({})", self.id)
    }
}

/// The verifying keys of all admitted devices, and the commitment from which cohorts are drawn.
#[derive(Debug, Clone, Default)]
pub struct KeyRoster {
    keys: BTreeMap<DeviceId, VerifyingKey>,
    draws: Option<DrawCommitment>,
}

/// An error from [`KeyRoster::add`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum KeyRosterError {
    /// The id is already on the roster.
    #[error("device {0} is already on the roster")]
    Duplicate(DeviceId),
    /// The key is not a point of the curve, or would accept forged signatures.
    #[error("the public key of device {0} is not a valid Ed25519 key")]
    Key(DeviceId),
}

impl KeyRoster {
    /// Creates an empty roster.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the same roster with a commitment from which cohorts are drawn.
    #[must_use]
    pub fn with_draws(self, draws: DrawCommitment) -> Self {
        Self { draws: Some(draws), ..self }
    }

    /// Returns the draw commitment, or `None` if the server chooses cohorts freely.
    pub fn draws(&self) -> Option<&DrawCommitment> {
        self.draws.as_ref()
    }

    /// Returns the ids of all devices.
    pub fn ids(&self) -> impl Iterator<Item = DeviceId> + '_ {
        self.keys.keys().copied()
    }

    /// Returns the number of devices.
    pub fn len(&self) -> usize {
        self.keys.len()
    }

    /// Returns true if there is no device.
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// Adds a device and its Ed25519 public key.
    ///
    /// # Errors
    ///
    /// Returns an error if the id is taken or the key is invalid.
    pub fn add(&mut self, id: DeviceId, public: &[u8; 32]) -> Result<(), KeyRosterError> {
        let key = VerifyingKey::from_bytes(public).map_err(|_| KeyRosterError::Key(id))?;
        if key.is_weak() {
            return Err(KeyRosterError::Key(id));
        }
        if self.keys.contains_key(&id) {
            return Err(KeyRosterError::Duplicate(id));
        }
        self.keys.insert(id, key);
        Ok(())
    }

    /// Returns true if the device is on the roster.
    pub fn contains(&self, id: DeviceId) -> bool {
        self.keys.contains_key(&id)
    }

    /// Returns true if `signature` is the device's signature on `message`. Returns `false` for an
    /// unknown device.
    pub fn verifies(&self, id: DeviceId, message: &[u8], signature: &[u8; SIGNATURE_LEN]) -> bool {
        let signature = Signature::from_bytes(signature);
        let verifies = |key: &VerifyingKey| match is_on(Defence::StrictSignatures) {
            true => key.verify_strict(message, &signature),
            false => key.verify(message, &signature),
        };
        self.keys.get(&id).is_some_and(|key| verifies(key).is_ok())
    }

    /// Returns the first device whose signature is invalid, or `None` if all signatures are valid.
    ///
    /// Batch verification takes less than half the time. If it fails, the signatures are checked
    /// one by one, so every signature that [`Self::verifies`] accepts is accepted here. The owner
    /// of a key can construct signatures with points of small order that only some batches accept.
    /// This gains nothing, because the owner may sign any message and cannot sign for another
    /// device.
    pub(crate) fn first_forged(&self, signed: &[Signed<'_>]) -> Option<DeviceId> {
        if signed.len() > 1 && self.verify_together(signed) {
            return None;
        }
        signed.iter().find(|one| !self.verifies(one.by, &one.message, one.signature)).map(|one| one.by)
    }

    fn verify_together(&self, signed: &[Signed<'_>]) -> bool {
        let keys: Option<Vec<VerifyingKey>> =
            signed.iter().map(|one| self.keys.get(&one.by).copied()).collect();
        let messages: Vec<&[u8]> = signed.iter().map(|one| &*one.message).collect();
        let signatures: Vec<Signature> =
            signed.iter().map(|one| Signature::from_bytes(one.signature)).collect();
        keys.is_some_and(|keys| verify_batch(&messages, &signatures, &keys).is_ok())
    }
}

/// A message with the signature that a device is claimed to have made.
#[derive(Debug)]
pub(crate) struct Signed<'a> {
    /// The claimed signer.
    pub(crate) by: DeviceId,
    pub(crate) message: Cow<'a, [u8]>,
    pub(crate) signature: &'a [u8; SIGNATURE_LEN],
}

#[cfg(test)]
mod tests {
    use super::*;

    fn roster(identity: &SigningIdentity) -> KeyRoster {
        let mut roster = KeyRoster::new();
        roster.add(identity.id(), &identity.public()).unwrap();
        roster
    }

    #[test]
    fn a_signature_is_valid_only_for_its_message_and_device() {
        let identity = SigningIdentity::from_secret(DeviceId(3), &[1; 32]);
        let roster = roster(&identity);
        let signature = identity.sign(b"round 7");
        assert!(roster.verifies(DeviceId(3), b"round 7", &signature));
        assert!(!roster.verifies(DeviceId(3), b"round 8", &signature));
        assert!(!roster.verifies(DeviceId(4), b"round 7", &signature));
    }

    #[test]
    fn batch_verification_names_the_forged_signature() {
        let identities: Vec<SigningIdentity> =
            (0..20).map(|i| SigningIdentity::from_secret(DeviceId(i), &[i as u8; 32])).collect();
        let mut roster = KeyRoster::new();
        identities.iter().for_each(|one| roster.add(one.id(), &one.public()).unwrap());
        let messages: Vec<[u8; 1]> = (0..20).map(|i| [i]).collect();
        let mut signatures: Vec<_> =
            identities.iter().zip(&messages).map(|(identity, message)| identity.sign(message)).collect();
        let forged = |signatures: &[[u8; SIGNATURE_LEN]]| {
            let signed = (0..).map(DeviceId).zip(&messages).zip(signatures);
            let signed =
                signed.map(|((by, message), signature)| Signed { by, message: message.into(), signature });
            roster.first_forged(&signed.collect::<Vec<_>>())
        };
        assert_eq!(forged(&signatures), None);
        assert_eq!(forged(&[]), None);
        // Swap the signatures of two devices.
        signatures.swap(3, 7);
        assert_eq!(forged(&signatures), Some(DeviceId(3)));
        signatures.swap(3, 7);
        signatures[12][40] ^= 1;
        assert_eq!(forged(&signatures), Some(DeviceId(12)));
        let signature = &identities[0].sign(b"a stranger");
        let stranger = Signed { by: DeviceId(99), message: b"a stranger".into(), signature };
        assert_eq!(roster.first_forged(&[stranger]), Some(DeviceId(99)));
    }

    #[test]
    fn duplicate_ids_and_weak_keys_are_rejected() {
        let identity = SigningIdentity::from_secret(DeviceId(3), &[1; 32]);
        let mut roster = roster(&identity);
        assert_eq!(roster.add(DeviceId(3), &identity.public()), Err(KeyRosterError::Duplicate(DeviceId(3))));
        // The neutral element of the curve, of order one.
        let mut neutral = [0; 32];
        neutral[0] = 1;
        assert_eq!(roster.add(DeviceId(4), &neutral), Err(KeyRosterError::Key(DeviceId(4))));
    }

    #[test]
    fn debug_prints_no_secret_key() {
        assert_eq!(
            format!("{:?}", SigningIdentity::from_secret(DeviceId(3), &[1; 32])),
            "SigningIdentity(3)"
        );
    }

    /// The owner of a key can construct a signature with R of small order. Plain verification
    /// accepts it, strict verification does not. `SHA-512(R ‖ A ‖ M)·a` was computed by an
    /// independent program.
    #[test]
    fn a_signature_with_a_point_of_small_order_is_invalid() {
        let identity = SigningIdentity::from_secret(DeviceId(0), &[5; 32]);
        let roster = roster(&identity);
        let mut signature = [0; SIGNATURE_LEN];
        signature[0] = 1;
        signature[32..].copy_from_slice(&[
            0x18, 0x33, 0xee, 0xf1, 0x2f, 0x4d, 0x5b, 0xc8, 0x5a, 0x90, 0x8b, 0x06, 0xf9, 0x31, 0x4e, 0xa6,
            0xc7, 0xd0, 0xf4, 0x24, 0x04, 0x14, 0x0b, 0x4c, 0xb7, 0x00, 0xc6, 0xf6, 0x02, 0x6d, 0x19, 0x03,
        ]);
        assert!(roster.keys[&DeviceId(0)].verify(b"a message", &Signature::from_bytes(&signature)).is_ok());
        assert!(!roster.verifies(DeviceId(0), b"a message", &signature));
    }
}
