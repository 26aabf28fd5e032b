//! Who belongs to the federation: names, places and signing keys, vouched for by the enrolment authority.
//!
//! A device believes nobody else about its neighbours in secure aggregation: a server that could make devices up would be
//! alone with the one that it wants to see.

use std::collections::HashMap;

use bytes::Bytes;
use deltafl_secagg::identity::{DeviceId, Roster as Keys};
use ed25519_dalek::{Signature, VerifyingKey};
use prost::Message as _;

use crate::wire::{Malformed, array, malformed, name, proto};

/// The longest roster, in bytes: half a million devices.
pub const MAX_ROSTER: usize = 64 << 20;

/// A device of the federation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its name: the id of the device in the federation's data, and in its certificate.
    pub name: String,
    /// Its Ed25519 public key.
    pub key: [u8; 32],
    /// It takes part no more. Its place stays, so that the others keep theirs.
    pub revoked: bool,
}

/// Why a roster is not believed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RosterError {
    /// It cannot be read.
    #[error(transparent)]
    Malformed(#[from] Malformed),
    /// Two devices of one name.
    #[error("device {0} has the name of another")]
    Duplicate(u32),
    /// A key that is not sound.
    #[error("the key of device {0} is not a sound Ed25519 key")]
    Key(u32),
    /// The authority did not sign it.
    #[error("the enrolment authority did not sign the roster")]
    Signature,
}

/// The devices of a federation. The place on the roster is the number by which cohorts and secure aggregation know a
/// device.
#[derive(Clone, Debug, Default)]
pub struct Roster {
    entries: Vec<Entry>,
    places: HashMap<String, u32>,
}

impl Roster {
    /// A roster of these devices, in this order.
    pub fn new(entries: Vec<Entry>) -> Result<Self, RosterError> {
        let mut places = HashMap::with_capacity(entries.len());
        for (place, entry) in (0..).zip(&entries) {
            if places.insert(entry.name.clone(), place).is_some() {
                return Err(RosterError::Duplicate(place));
            }
        }
        Ok(Self { entries, places })
    }

    /// The devices.
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// The place of a device.
    pub fn index(&self, name: &str) -> Option<u32> {
        self.places.get(name).copied()
    }

    /// The verifying keys of the devices that are not revoked.
    pub fn keys(&self) -> Result<Keys, RosterError> {
        let mut keys = Keys::new();
        for (place, entry) in (0..).zip(&self.entries).filter(|(_, entry)| !entry.revoked) {
            keys.add(DeviceId(place), &entry.key).map_err(|_| RosterError::Key(place))?;
        }
        Ok(keys)
    }

    /// The bytes of the roster, as devices fetch them.
    pub fn encode(&self) -> Bytes {
        let entry = |entry: &Entry| proto::RosterEntry {
            device: entry.name.clone(),
            key: Bytes::copy_from_slice(&entry.key),
            revoked: entry.revoked,
        };
        proto::RosterBlob { entries: self.entries.iter().map(entry).collect() }.encode_to_vec().into()
    }

    /// The roster of these bytes.
    pub fn decode(bytes: Bytes) -> Result<Self, RosterError> {
        let blob = proto::RosterBlob::decode(bytes).map_err(|_| malformed("roster"))?;
        let entry = |entry: proto::RosterEntry| {
            let (key, revoked) = (array(&entry.key, "key")?, entry.revoked);
            Ok(Entry { name: name(entry.device, "device")?, key, revoked })
        };
        Self::new(blob.entries.into_iter().map(entry).collect::<Result<_, Malformed>>()?)
    }
}

/// A roster with the signature of the enrolment authority.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SignedRoster {
    /// The encoded roster.
    pub bytes: Bytes,
    /// Ed25519 over [`Self::message`].
    pub signature: [u8; 64],
}

impl SignedRoster {
    /// A roster with the signature that the authority gives.
    pub fn new(roster: &Roster, sign: impl FnOnce(&[u8]) -> [u8; 64]) -> Self {
        let bytes = roster.encode();
        let signature = sign(&Self::message(&bytes));
        Self { bytes, signature }
    }

    /// What the authority signs.
    pub fn message(bytes: &[u8]) -> Vec<u8> {
        Self::message_of(&blake3::hash(bytes))
    }

    fn message_of(hash: &blake3::Hash) -> Vec<u8> {
        [b"deltafl roster v1\0", hash.as_bytes().as_slice()].concat()
    }

    /// Whether the authority signed the roster of this hash.
    pub fn verifies(hash: &blake3::Hash, signature: &[u8; 64], authority: &[u8; 32]) -> bool {
        let message = Self::message_of(hash);
        let signature = Signature::from_bytes(signature);
        VerifyingKey::from_bytes(authority).is_ok_and(|key| key.verify_strict(&message, &signature).is_ok())
    }

    /// The roster, if the authority signed it.
    pub fn open(&self, authority: &[u8; 32]) -> Result<Roster, RosterError> {
        if !Self::verifies(&blake3::hash(&self.bytes), &self.signature, authority) {
            return Err(RosterError::Signature);
        }
        Roster::decode(self.bytes.clone())
    }
}

#[cfg(test)]
mod tests {
    use deltafl_secagg::identity::Identity;
    use ed25519_dalek::{Signer, SigningKey};

    use super::*;

    fn entry(name: &str, seed: u8) -> Entry {
        let key = Identity::from_secret(DeviceId(0), &[seed; 32]).public();
        Entry { name: name.to_owned(), key, revoked: false }
    }

    fn signed(roster: &Roster, authority: &SigningKey) -> SignedRoster {
        SignedRoster::new(roster, |message| authority.sign(message).to_bytes())
    }

    #[test]
    fn a_roster_is_believed_from_its_authority_alone() {
        let (authority, other) = (SigningKey::from_bytes(&[1; 32]), SigningKey::from_bytes(&[2; 32]));
        let roster = Roster::new(vec![entry("anna", 3), entry("boris", 4)]).unwrap();
        let signed = signed(&roster, &authority);
        let opened = signed.open(authority.verifying_key().as_bytes()).unwrap();
        assert_eq!((opened.entries(), opened.index("boris")), (roster.entries(), Some(1)));
        assert_eq!(signed.open(other.verifying_key().as_bytes()).unwrap_err(), RosterError::Signature);
        let mut changed = signed;
        changed.bytes = Roster::new(vec![entry("anna", 3)]).unwrap().encode();
        assert_eq!(changed.open(authority.verifying_key().as_bytes()).unwrap_err(), RosterError::Signature);
    }

    #[test]
    fn a_revoked_device_keeps_its_place_and_loses_its_key() {
        let mut entries = vec![entry("anna", 3), entry("boris", 4), entry("chris", 5)];
        entries[1].revoked = true;
        let roster = Roster::new(entries).unwrap();
        let keys = roster.keys().unwrap();
        assert_eq!([0, 1, 2].map(|place| keys.contains(DeviceId(place))), [true, false, true]);
        assert_eq!(roster.index("chris"), Some(2));
    }

    #[test]
    fn two_devices_of_one_name_are_refused() {
        let entries = vec![entry("anna", 3), entry("anna", 4)];
        assert_eq!(Roster::new(entries).unwrap_err(), RosterError::Duplicate(1));
    }
}
