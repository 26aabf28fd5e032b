//! Who belongs to the federation: names, places and signing keys, vouched for by the enrolment authority.
//!
//! A device believes nobody else about its neighbours in secure aggregation: a server that could make devices up would be
//! alone with the one that it wants to see.

use std::collections::HashMap;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use deltafl_secagg::draw::DrawCommitment;
use deltafl_secagg::identity::{DeviceId, KeyRoster};
use ed25519_dalek::{Signature, VerifyingKey};
use prost::Message as _;

use crate::{Malformed, array, malformed, name, proto};

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
    /// Older than one that this device has seen.
    #[error("the server shows roster {version}, and this device has seen {seen}: it was rolled back")]
    RolledBack {
        /// The version shown.
        version: u64,
        /// The newest version that this device has seen.
        seen: u64,
    },
    /// Two rosters of one version.
    #[error("the server shows another roster {0} than the one that this device has seen")]
    TwoOfOneVersion(u64),
    /// Its time is over.
    #[error("roster {0} has expired: the authority is to sign it anew")]
    Expired(u64),
}

/// Which roster it is, and until when devices take it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Edition {
    /// Grows with every roster that the authority signs.
    pub version: u64,
    /// Seconds since 1970.
    pub expires: u64,
}

impl Edition {
    /// A version that expires so long from now.
    pub fn lasting(version: u64, lifetime: Duration) -> Self {
        Self { version, expires: since_1970().saturating_add(lifetime).as_secs() }
    }

    /// How long devices still take it; `None` when it has expired.
    pub fn left(&self) -> Option<Duration> {
        Duration::from_secs(self.expires).checked_sub(since_1970()).filter(|left| !left.is_zero())
    }
}

/// The clock of this machine; the epoch where it stands before it.
fn since_1970() -> Duration {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default()
}

/// The devices of a federation. The place on the roster is the number by which cohorts and secure aggregation know a
/// device.
#[derive(Clone, Debug)]
pub struct Roster {
    edition: Edition,
    entries: Vec<Entry>,
    places: HashMap<String, u32>,
    /// What the server committed to draw cohorts by.
    draws: Option<[u8; 32]>,
    /// Runs that the authority allows.
    runs: u64,
}

impl Roster {
    /// A roster of these devices, in this order.
    pub fn new(edition: Edition, entries: Vec<Entry>) -> Result<Self, RosterError> {
        let mut places = HashMap::with_capacity(entries.len());
        for (place, entry) in (0..).zip(&entries) {
            if places.insert(entry.name.clone(), place).is_some() {
                return Err(RosterError::Duplicate(place));
            }
        }
        Ok(Self { edition, entries, places, draws: None, runs: 1 })
    }

    /// The same devices, whose cohorts are drawn by the chain of this commitment.
    #[must_use]
    pub fn with_draws(self, commitment: Option<[u8; 32]>) -> Self {
        Self { draws: commitment, ..self }
    }

    /// The same devices, which take part in runs 0 to `runs` − 1; a roster allows one run at least.
    #[must_use]
    pub fn with_runs(self, runs: u64) -> Self {
        Self { runs: runs.max(1), ..self }
    }

    /// How many runs the authority allows. A device answers each round of a run once, so that a server that could invent runs
    /// could ask the same round again.
    pub fn runs(&self) -> u64 {
        self.runs
    }

    /// Whether cohorts are drawn, and not chosen by the server.
    pub fn is_drawn(&self) -> bool {
        self.draws.is_some()
    }

    /// Which roster it is.
    pub fn edition(&self) -> Edition {
        self.edition
    }

    /// The devices.
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// The place of a device.
    pub fn index(&self, name: &str) -> Option<u32> {
        self.places.get(name).copied()
    }

    /// The verifying keys of the devices that are not revoked, and how cohorts are drawn from them: from the hash of the roster
    /// and the authority's signature, which no server can foresee.
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

    /// The bytes of the roster, as devices fetch them.
    pub fn encode(&self) -> Bytes {
        let entry = |entry: &Entry| proto::RosterEntry {
            device: entry.name.clone(),
            key: Bytes::copy_from_slice(&entry.key),
            revoked: entry.revoked,
        };
        let Edition { version, expires } = self.edition;
        let entries = self.entries.iter().map(entry).collect();
        let draws = self.draws.map(|commitment| Bytes::copy_from_slice(&commitment)).unwrap_or_default();
        proto::RosterBlob { entries, version, expires, draws, runs: self.runs }.encode_to_vec().into()
    }

    /// The roster of these bytes.
    pub fn decode(bytes: Bytes) -> Result<Self, RosterError> {
        let blob = proto::RosterBlob::decode(bytes).map_err(|_| malformed("roster"))?;
        let entry = |entry: proto::RosterEntry| {
            let (key, revoked) = (array(&entry.key, "key")?, entry.revoked);
            Ok(Entry { name: name(entry.device, "device")?, key, revoked })
        };
        let edition = Edition { version: blob.version, expires: blob.expires };
        let draws = if blob.draws.is_empty() { None } else { Some(array(&blob.draws, "draws")?) };
        let entries = blob.entries.into_iter().map(entry).collect::<Result<_, Malformed>>()?;
        Ok(Self::new(edition, entries)?.with_draws(draws).with_runs(blob.runs))
    }
}

/// What the draws of a roster start from.
fn salt(hash: &blake3::Hash, signature: &[u8; 64]) -> [u8; 32] {
    let mut hasher = blake3::Hasher::new_derive_key("deltafl draws from a signed roster v1");
    *hasher.update(hash.as_bytes()).update(signature).finalize().as_bytes()
}

/// The session of the rounds that a server runs with a roster. It stands in the digest of a round's parameters, and so in every
/// signature, commitment and key: what was said under one roster means nothing under another.
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
        [b"deltafl roster v2\0", hash.as_bytes().as_slice()].concat()
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
    use deltafl_secagg::identity::SigningIdentity;
    use ed25519_dalek::{Signer, SigningKey};

    use super::*;

    const EDITION: Edition = Edition { version: 7, expires: u64::MAX };

    fn entry(name: &str, seed: u8) -> Entry {
        let key = SigningIdentity::from_secret(DeviceId(0), &[seed; 32]).public();
        Entry { name: name.to_owned(), key, revoked: false }
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
        assert!(!Roster::decode(roster.encode()).unwrap().is_drawn());
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
        for edition in [Edition { version: 8, ..EDITION }, Edition { expires: 1, ..EDITION }] {
            let bytes = Roster::new(edition, entries.clone()).unwrap().encode();
            let forged = SignedRoster { bytes, ..signed.clone() };
            let opened = forged.open(authority.verifying_key().as_bytes());
            assert_eq!(opened.unwrap_err(), RosterError::Signature);
        }
    }

    #[test]
    fn an_edition_ends() {
        assert_eq!(Edition { version: 1, expires: 1 }.left(), None);
        let hour = Duration::from_secs(3600);
        assert!(Edition::lasting(1, hour).left().is_some_and(|left| left <= hour && left > hour / 2));
        assert!(EDITION.left().is_some());
    }

    #[test]
    fn two_devices_of_one_name_are_refused() {
        let entries = vec![entry("anna", 3), entry("anna", 4)];
        assert_eq!(Roster::new(EDITION, entries).unwrap_err(), RosterError::Duplicate(1));
    }
}
