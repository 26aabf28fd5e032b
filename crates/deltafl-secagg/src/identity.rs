//! Who is who: device ids, the keys they sign with, and the roster that pins one to the other.
//!
//! The roster is the public-key infrastructure of the protocol (Bonawitz et al. 2017, section 6.2): a device
//! that trusts a roster cannot be shown devices that the server made up.

use std::borrow::Cow;
use std::collections::BTreeMap;

use ed25519_dalek::{Signature, Signer, SigningKey, VerifyingKey, verify_batch};
use rand_core::CryptoRng;
use thiserror::Error;

use crate::draw::DrawCommitment;
use crate::field::FieldElement;

/// Length of a signature in bytes.
pub const SIGNATURE_LEN: usize = 64;

/// The identity of a device in a federation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceId(pub u32);

impl DeviceId {
    /// The point at which the device's shares lie: id + 1, never zero.
    pub(crate) fn point(self) -> FieldElement {
        FieldElement::from(self.0) + FieldElement::ONE
    }
}

impl std::fmt::Display for DeviceId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

/// A device's long-lived key pair (Ed25519, RFC 8032). The secret half is wiped when dropped.
pub struct SigningIdentity {
    id: DeviceId,
    key: SigningKey,
}

impl SigningIdentity {
    /// A new key pair.
    pub fn generate(id: DeviceId, rng: &mut impl CryptoRng) -> Self {
        let mut secret = zeroize::Zeroizing::new([0; 32]);
        rng.fill_bytes(&mut *secret);
        Self::from_secret(id, &secret)
    }

    /// The key pair of a stored secret.
    pub fn from_secret(id: DeviceId, secret: &[u8; 32]) -> Self {
        Self { id, key: SigningKey::from_bytes(secret) }
    }

    /// The device.
    pub fn id(&self) -> DeviceId {
        self.id
    }

    /// The public half, as a roster takes it.
    pub fn public(&self) -> [u8; 32] {
        self.key.verifying_key().to_bytes()
    }

    pub(crate) fn sign(&self, message: &[u8]) -> [u8; SIGNATURE_LEN] {
        self.key.sign(message).to_bytes()
    }
}

impl std::fmt::Debug for SigningIdentity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Identity({})", self.id)
    }
}

/// The verifying key of every device that may take part, and how cohorts are drawn from them.
#[derive(Debug, Clone, Default)]
pub struct KeyRoster {
    keys: BTreeMap<DeviceId, VerifyingKey>,
    draws: Option<DrawCommitment>,
}

/// Why a device cannot be put on a roster.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum KeyRosterError {
    /// The id is taken.
    #[error("device {0} is on the roster already")]
    Duplicate(DeviceId),
    /// Not a point of the curve, or one that would verify forged signatures.
    #[error("the public key of device {0} is not a sound Ed25519 key")]
    Key(DeviceId),
}

impl KeyRoster {
    /// A roster of nobody.
    pub fn new() -> Self {
        Self::default()
    }

    /// The same devices, whose cohorts are drawn.
    #[must_use]
    pub fn with_draws(self, draws: DrawCommitment) -> Self {
        Self { draws: Some(draws), ..self }
    }

    /// How cohorts are drawn; `None` where the server chooses them.
    pub fn draws(&self) -> Option<&DrawCommitment> {
        self.draws.as_ref()
    }

    /// The devices.
    pub fn ids(&self) -> impl Iterator<Item = DeviceId> + '_ {
        self.keys.keys().copied()
    }

    /// Puts a device and its Ed25519 public key on the roster.
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

    /// Whether the device is known.
    pub fn contains(&self, id: DeviceId) -> bool {
        self.keys.contains_key(&id)
    }

    /// Whether `signature` is the device's over `message`; `false` for a device not on the roster.
    pub fn verifies(&self, id: DeviceId, message: &[u8], signature: &[u8; SIGNATURE_LEN]) -> bool {
        let signature = Signature::from_bytes(signature);
        self.keys.get(&id).is_some_and(|key| key.verify_strict(message, &signature).is_ok())
    }

    /// A device whose signature is not its own over its message; `None` when all are right.
    ///
    /// They are looked at together, in less than half the time, and one by one where that fails: what [`Self::verifies`]
    /// accepts is accepted here. Beyond it, the owner of a key can sign with points of small order so that some batches
    /// accept it. It gains nothing: it may sign what it likes. Nobody else can sign for it.
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

/// A message that a device is said to have signed.
#[derive(Debug)]
pub(crate) struct Signed<'a> {
    /// Who signed it.
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
    fn a_signature_holds_for_its_message_and_its_device_only() {
        let identity = SigningIdentity::from_secret(DeviceId(3), &[1; 32]);
        let roster = roster(&identity);
        let signature = identity.sign(b"round 7");
        assert!(roster.verifies(DeviceId(3), b"round 7", &signature));
        assert!(!roster.verifies(DeviceId(3), b"round 8", &signature));
        assert!(!roster.verifies(DeviceId(4), b"round 7", &signature));
    }

    #[test]
    fn of_many_signatures_the_forged_one_is_named() {
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
        // The signatures of two devices, each under the name of the other.
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
    fn duplicate_ids_and_weak_keys_stay_off_the_roster() {
        let identity = SigningIdentity::from_secret(DeviceId(3), &[1; 32]);
        let mut roster = roster(&identity);
        assert_eq!(roster.add(DeviceId(3), &identity.public()), Err(KeyRosterError::Duplicate(DeviceId(3))));
        // The identity element of the curve, of order one.
        let mut neutral = [0; 32];
        neutral[0] = 1;
        assert_eq!(roster.add(DeviceId(4), &neutral), Err(KeyRosterError::Key(DeviceId(4))));
    }

    #[test]
    fn debug_prints_no_secret_key() {
        assert_eq!(format!("{:?}", SigningIdentity::from_secret(DeviceId(3), &[1; 32])), "Identity(3)");
    }
}
