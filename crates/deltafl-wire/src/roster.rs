//! The roster: names, indices and signing keys of the enrolled devices, signed by the authority.
//!
//! A device accepts the keys of its neighbours in secure aggregation only from a signed roster. A
//! server that could invent devices could otherwise surround one device with its own.

use std::collections::HashMap;
use std::time::Duration;

use bytes::Bytes;
use deltafl_secagg::draw::DrawCommitment;
use deltafl_secagg::identity::{DeviceId, KeyRoster};
use ed25519_dalek::{Signature, VerifyingKey};
use prost::Message as _;

use crate::environment::Clock;
use crate::{Malformed, array, malformed, name, proto};

/// The maximum size of a roster, in bytes. It allows about half a million devices.
pub const MAX_ROSTER: usize = 64 << 20;

/// A device on the roster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RosterEntry {
    /// The name of the device, in the federation's data and in its certificate.
    pub name: String,
    /// The Ed25519 public key of the device.
    pub key: [u8; 32],
    /// Whether the device is excluded. Its entry remains, so that no index changes.
    pub revoked: bool,
}

/// The reason a roster is rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RosterError {
    /// The bytes cannot be parsed.
    #[error(transparent)]
    Malformed(#[from] Malformed),
    /// Two devices have the same name.
    #[error("device {0} has the name of another device")]
    Duplicate(u32),
    /// A key is not a valid Ed25519 key.
    #[error("the key of device {0} is not a valid Ed25519 key")]
    Key(u32),
    /// The authority's signature is missing or wrong.
    #[error("the enrolment authority did not sign the roster")]
    Signature,
    /// The roster is older than one that this device has accepted.
    #[error("the server sent roster {version} after roster {seen}: it was rolled back")]
    RolledBack {
        /// The version received.
        version: u64,
        /// The newest version that this device has accepted.
        seen: u64,
    },
    /// Two different rosters have the same version.
    #[error("the server sent two different rosters of version {0}")]
    TwoOfOneVersion(u64),
    /// The log of the authority does not contain the roster that this device has accepted.
    #[error(
        "roster {version} does not follow roster {seen} that this device has accepted: the log was forked"
    )]
    Forked {
        /// The version received.
        version: u64,
        /// The newest version that this device has accepted.
        seen: u64,
    },
    /// The roster has expired.
    #[error("roster {0} has expired: the authority must sign a new one")]
    Expired(u64),
}

/// The version and expiry of a roster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RosterVersion {
    /// The version. It increases with every roster that the authority signs.
    pub version: u64,
    /// The expiry, in seconds since 1970.
    pub expires: u64,
}

impl RosterVersion {
    /// Returns a version that expires after `lifetime` from now.
    pub fn expiring_in(version: u64, lifetime: Duration, clock: &dyn Clock) -> Self {
        Self { version, expires: clock.since_1970().saturating_add(lifetime).as_secs() }
    }

    /// Returns the time until expiry, or `None` if the roster has expired.
    pub fn time_left(&self, clock: &dyn Clock) -> Option<Duration> {
        Duration::from_secs(self.expires).checked_sub(clock.since_1970()).filter(|left| !left.is_zero())
    }
}

/// The devices of a federation.
///
/// The index on the roster identifies a device in cohorts and in secure aggregation.
#[derive(Clone, Debug)]
pub struct Roster {
    edition: RosterVersion,
    entries: Vec<RosterEntry>,
    places: HashMap<String, u32>,
    /// The server's commitment to the randomness that draws cohorts.
    draws: Option<[u8; 32]>,
    /// Runs that the authority allows.
    runs: u64,
    previous: Option<PreviousRoster>,
}

/// The roster that the authority signed before another one. Rosters that name their predecessors
/// form an append-only log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PreviousRoster {
    /// Its version.
    pub version: u64,
    /// The hash of its bytes.
    pub hash: blake3::Hash,
}

impl Roster {
    /// Creates a roster with these devices, in this order.
    ///
    /// # Errors
    /// Fails if two devices have the same name.
    pub fn new(edition: RosterVersion, entries: Vec<RosterEntry>) -> Result<Self, RosterError> {
        let mut places = HashMap::with_capacity(entries.len());
        for (place, entry) in (0..).zip(&entries) {
            if places.insert(entry.name.clone(), place).is_some() {
                return Err(RosterError::Duplicate(place));
            }
        }
        Ok(Self { edition, entries, places, draws: None, runs: 1, previous: None })
    }

    /// Sets the commitment of the hash chain that draws cohorts.
    #[must_use]
    pub fn with_draws(self, commitment: Option<[u8; 32]>) -> Self {
        Self { draws: commitment, ..self }
    }

    /// The same devices, which take part in runs 0 to `runs` − 1; a roster allows one run at least.
    #[must_use]
    pub fn with_runs(self, runs: u64) -> Self {
        Self { runs: runs.max(1), ..self }
    }

    /// How many runs the authority allows. A device answers each round of a run once, so that a
    /// server that could invent runs could ask the same round again.
    pub fn runs(&self) -> u64 {
        self.runs
    }

    /// Sets the roster that the authority signed before this one.
    #[must_use]
    pub fn with_previous(self, previous: Option<PreviousRoster>) -> Self {
        Self { previous, ..self }
    }

    /// Returns the roster that the authority signed before this one, or `None` for the first.
    pub fn previous(&self) -> Option<PreviousRoster> {
        self.previous
    }

    /// Returns whether a committed hash chain draws the cohorts, instead of the server.
    pub fn has_committed_draws(&self) -> bool {
        self.draws.is_some()
    }

    /// Returns the version and expiry.
    pub fn edition(&self) -> RosterVersion {
        self.edition
    }

    /// Returns the devices, by index.
    pub fn entries(&self) -> &[RosterEntry] {
        &self.entries
    }

    /// Returns the index of a device.
    pub fn index(&self, name: &str) -> Option<u32> {
        self.places.get(name).copied()
    }

    /// Returns the verifying keys of the devices that are not revoked.
    ///
    /// If the roster contains a draw commitment, the result also contains the salt of the draws.
    /// The salt depends on the authority's signature, so the server cannot predict it.
    ///
    /// # Errors
    /// Fails if a key is not a valid Ed25519 key.
    pub fn keys(&self, hash: &blake3::Hash, signature: &[u8; 64]) -> Result<KeyRoster, RosterError> {
        let mut keys = KeyRoster::new();
        for (place, entry) in (0..).zip(&self.entries).filter(|(_, entry)| !entry.revoked) {
            keys.add(DeviceId(place), &entry.key).map_err(|_| RosterError::Key(place))?;
        }
        Ok(match self.draws {
            Some(commitment) => keys.with_draws(DrawCommitment { commitment, salt: salt(hash, signature) }),
            None => keys,
        })
    }

    /// Encodes the roster as devices fetch it.
    pub fn encode(&self) -> Bytes {
        let entry = |entry: &RosterEntry| proto::RosterEntry {
            device: entry.name.clone(),
            key: Bytes::copy_from_slice(&entry.key),
            revoked: entry.revoked,
        };
        let RosterVersion { version, expires } = self.edition;
        let entries = self.entries.iter().map(entry).collect();
        let draws = self.draws.map(|commitment| Bytes::copy_from_slice(&commitment)).unwrap_or_default();
        let previous_version = self.previous.map_or(0, |previous| previous.version);
        let hash = |previous: PreviousRoster| Bytes::copy_from_slice(previous.hash.as_bytes());
        let previous = self.previous.map(hash).unwrap_or_default();
        let blob = proto::RosterBlob {
            entries,
            version,
            expires,
            draws,
            runs: self.runs,
            previous_version,
            previous,
        };
        blob.encode_to_vec().into()
    }

    /// Decodes a roster.
    ///
    /// # Errors
    /// Fails if the bytes are malformed or two devices have the same name.
    pub fn decode(bytes: Bytes) -> Result<Self, RosterError> {
        let blob = proto::RosterBlob::decode(bytes).map_err(|_| malformed("roster"))?;
        let entry = |entry: proto::RosterEntry| {
            let (key, revoked) = (array(&entry.key, "key")?, entry.revoked);
            Ok(RosterEntry { name: name(entry.device, "device")?, key, revoked })
        };
        let edition = RosterVersion { version: blob.version, expires: blob.expires };
        let draws = if blob.draws.is_empty() { None } else { Some(array(&blob.draws, "draws")?) };
        let entries = blob.entries.into_iter().map(entry).collect::<Result<_, Malformed>>()?;
        let previous = match blob.previous.is_empty() {
            true => None,
            false => {
                let hash = blake3::Hash::from_bytes(array(&blob.previous, "previous")?);
                Some(PreviousRoster { version: blob.previous_version, hash })
            }
        };
        Ok(Self::new(edition, entries)?.with_draws(draws).with_runs(blob.runs).with_previous(previous))
    }
}

/// Computes the salt of a roster's draws.
fn salt(hash: &blake3::Hash, signature: &[u8; 64]) -> [u8; 32] {
    let mut hasher = blake3::Hasher::new_derive_key("deltafl draws from a signed roster v1");
    *hasher.update(hash.as_bytes()).update(signature).finalize().as_bytes()
}

/// Computes the session identifier of the rounds under a roster.
///
/// The identifier is part of the digest of a round's parameters, and therefore of every signature,
/// commitment and key. Messages signed under one roster are invalid under another.
pub fn session_under(session: &[u8; 16], roster: &blake3::Hash) -> [u8; 16] {
    let mut hasher = blake3::Hasher::new_derive_key("deltafl session under a roster v1");
    hasher.update(session).update(roster.as_bytes());
    let mut named = [0; 16];
    hasher.finalize_xof().fill(&mut named);
    named
}

/// A roster with the signature of the enrolment authority.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SignedRoster {
    /// The encoded roster.
    pub bytes: Bytes,
    /// The Ed25519 signature of [`Self::message`].
    pub signature: [u8; 64],
}

impl SignedRoster {
    /// Encodes a roster and signs it with `sign`.
    pub fn new(roster: &Roster, sign: impl FnOnce(&[u8]) -> [u8; 64]) -> Self {
        let bytes = roster.encode();
        let signature = sign(&Self::message(&bytes));
        Self { bytes, signature }
    }

    /// Returns the message that the authority signs.
    pub fn message(bytes: &[u8]) -> Vec<u8> {
        Self::message_for_hash(&blake3::hash(bytes))
    }

    fn message_for_hash(hash: &blake3::Hash) -> Vec<u8> {
        [b"deltafl roster v2\0", hash.as_bytes().as_slice()].concat()
    }

    /// Returns whether the authority signed the roster with this hash.
    pub fn verifies(hash: &blake3::Hash, signature: &[u8; 64], authority: &[u8; 32]) -> bool {
        let message = Self::message_for_hash(hash);
        let signature = Signature::from_bytes(signature);
        VerifyingKey::from_bytes(authority).is_ok_and(|key| key.verify_strict(&message, &signature).is_ok())
    }

    /// Verifies the authority's signature and decodes the roster.
    ///
    /// # Errors
    /// Fails if the signature is wrong or the roster is malformed.
    pub fn open(&self, authority: &[u8; 32]) -> Result<Roster, RosterError> {
        if !Self::verifies(&blake3::hash(&self.bytes), &self.signature, authority) {
            return Err(RosterError::Signature);
        }
        Roster::decode(self.bytes.clone())
    }
}

#[cfg(test)]
mod tests {
    use deltafl_secagg::identity::SigningIdentity;
    use ed25519_dalek::{Signer, SigningKey};

    use super::*;
    use crate::environment::SystemClock;

    const EDITION: RosterVersion = RosterVersion { version: 7, expires: u64::MAX };

    fn entry(name: &str, seed: u8) -> RosterEntry {
        let key = SigningIdentity::from_secret(DeviceId(0), &[seed; 32]).public();
        RosterEntry { name: name.to_owned(), key, revoked: false }
    }

    fn signed(roster: &Roster, authority: &SigningKey) -> SignedRoster {
        SignedRoster::new(roster, |message| authority.sign(message).to_bytes())
    }

    #[test]
    fn a_roster_is_believed_from_its_authority_alone() {
        let (authority, other) = (SigningKey::from_bytes(&[1; 32]), SigningKey::from_bytes(&[2; 32]));
        let roster = Roster::new(EDITION, vec![entry("anna", 3), entry("boris", 4)]).unwrap();
        let signed = signed(&roster, &authority);
        let opened = signed.open(authority.verifying_key().as_bytes()).unwrap();
        assert_eq!((opened.entries(), opened.index("boris")), (roster.entries(), Some(1)));
        assert_eq!(opened.edition(), EDITION);
        assert_eq!(signed.open(other.verifying_key().as_bytes()).unwrap_err(), RosterError::Signature);
        let mut changed = signed;
        changed.bytes = Roster::new(EDITION, vec![entry("anna", 3)]).unwrap().encode();
        assert_eq!(changed.open(authority.verifying_key().as_bytes()).unwrap_err(), RosterError::Signature);
    }

    #[test]
    fn a_revoked_device_keeps_its_place_and_loses_its_key() {
        let mut entries = vec![entry("anna", 3), entry("boris", 4), entry("chris", 5)];
        entries[1].revoked = true;
        let roster = Roster::new(EDITION, entries).unwrap();
        let keys = roster.keys(&blake3::hash(b""), &[0; 64]).unwrap();
        assert_eq!([0, 1, 2].map(|place| keys.contains(DeviceId(place))), [true, false, true]);
        assert_eq!(roster.index("chris"), Some(2));
    }

    #[test]
    fn draws_are_under_the_signature_and_start_from_it() {
        let roster = Roster::new(EDITION, vec![entry("anna", 3)]).unwrap();
        assert!(!Roster::decode(roster.encode()).unwrap().has_committed_draws());
        let drawn = roster.clone().with_draws(Some([5; 32]));
        assert_ne!(drawn.encode(), roster.encode());
        let read = Roster::decode(drawn.encode()).unwrap();
        let draws = |hash: &[u8], signature: u8| {
            *read.keys(&blake3::hash(hash), &[signature; 64]).unwrap().draws().unwrap()
        };
        assert_eq!(draws(b"one", 1).commitment, [5; 32]);
        assert_ne!(draws(b"one", 1).salt, draws(b"one", 2).salt);
        assert_ne!(draws(b"one", 1).salt, draws(b"two", 1).salt);
    }

    #[test]
    fn the_number_of_runs_is_under_the_signature() {
        let roster = Roster::new(EDITION, vec![entry("anna", 3)]).unwrap();
        assert_eq!(Roster::decode(roster.encode()).unwrap().runs(), 1);
        let more = roster.clone().with_runs(3);
        assert_ne!(more.encode(), roster.encode());
        assert_eq!(Roster::decode(more.encode()).unwrap().runs(), 3);
        // One that was signed before runs were counted.
        let bytes = proto::RosterBlob { runs: 0, ..proto::RosterBlob::decode(more.encode()).unwrap() };
        assert_eq!(Roster::decode(bytes.encode_to_vec().into()).unwrap().runs(), 1);
    }

    #[test]
    fn version_and_expiry_are_under_the_signature() {
        let authority = SigningKey::from_bytes(&[1; 32]);
        let entries = vec![entry("anna", 3)];
        let signed = signed(&Roster::new(EDITION, entries.clone()).unwrap(), &authority);
        for edition in [RosterVersion { version: 8, ..EDITION }, RosterVersion { expires: 1, ..EDITION }] {
            let bytes = Roster::new(edition, entries.clone()).unwrap().encode();
            let forged = SignedRoster { bytes, ..signed.clone() };
            let opened = forged.open(authority.verifying_key().as_bytes());
            assert_eq!(opened.unwrap_err(), RosterError::Signature);
        }
    }

    #[test]
    fn an_edition_ends() {
        assert_eq!(RosterVersion { version: 1, expires: 1 }.time_left(&SystemClock), None);
        let hour = Duration::from_secs(3600);
        assert!(
            RosterVersion::expiring_in(1, hour, &SystemClock)
                .time_left(&SystemClock)
                .is_some_and(|left| left <= hour && left > hour / 2)
        );
        assert!(EDITION.time_left(&SystemClock).is_some());
    }

    #[test]
    fn two_devices_of_one_name_are_refused() {
        let entries = vec![entry("anna", 3), entry("anna", 4)];
        assert_eq!(Roster::new(EDITION, entries).unwrap_err(), RosterError::Duplicate(1));
    }
}
