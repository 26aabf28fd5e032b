//! The privacy that a device has spent under each authority.
//!
//! ```text
//! privacy    magic · for each authority: its key, ρ f64, answers without noise u64 · BLAKE3
//! ```
//!
//! ρ is the sum of the costs of all noisy answers, computed by the device from its own assumptions. The
//! device adds a cost on disk before it computes the answer, so that a crash does not erase it. An
//! answer without noise has no finite ρ and is counted.

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use deltafl::privacy::{Delta, Rho};

use super::{StateError, io_error, replace};

const MAGIC: &[u8; 8] = b"dfl-rho1";
const ENTRY: usize = 32 + 2 * 8;

/// The privacy that an owner allows under one authority.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PrivacyLimit {
    /// The largest ε; `None` for no limit. Answers without noise exceed every limit.
    pub max_epsilon: Option<f64>,
    /// δ of that ε.
    pub delta: Delta,
}

/// No limit, and δ = 10⁻⁶.
impl Default for PrivacyLimit {
    fn default() -> Self {
        Self { max_epsilon: None, delta: Delta::try_from(1e-6).expect("a millionth is between 0 and 1") }
    }
}

/// An answer would exceed the owner's limit.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
#[error(
    "this answer would raise ε to {epsilon:.3} under this authority, above the {limit} that this device's \
     owner allows"
)]
pub struct PrivacyExhausted {
    /// ε after the answer.
    pub epsilon: f64,
    /// The owner's limit.
    pub limit: f64,
}

/// The privacy spent under one authority.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct SpentPrivacy {
    /// The cost of all noisy answers.
    pub rho: Rho,
    /// The number of answers without noise.
    pub exact: u64,
}

impl SpentPrivacy {
    /// Returns ε at δ. It is infinite after an answer without noise.
    pub fn epsilon(&self, delta: Delta) -> f64 {
        if self.exact == 0 { self.rho.epsilon(delta) } else { f64::INFINITY }
    }

    /// Returns the same after one more answer.
    fn plus(self, rho: Rho) -> Self {
        match rho == Rho::UNBOUNDED {
            true => Self { exact: self.exact + 1, ..self },
            false => Self { rho: self.rho + rho, ..self },
        }
    }
}

/// The privacy spent by a device, on disk or in memory.
#[derive(Debug, Default)]
pub(super) struct SpentLedger {
    path: Option<PathBuf>,
    spent: BTreeMap<[u8; 32], SpentPrivacy>,
}

impl SpentLedger {
    /// Opens the ledger in a file. In a missing file nothing is spent.
    pub(super) fn open(path: &Path) -> Result<Self, StateError> {
        let spent = match fs::read(path) {
            Ok(bytes) => parse(&bytes).ok_or_else(|| StateError::Damaged { path: path.to_owned() })?,
            Err(error) if error.kind() == ErrorKind::NotFound => BTreeMap::new(),
            Err(source) => return Err(io_error(path)(source)),
        };
        Ok(Self { path: Some(path.to_owned()), spent })
    }

    /// Checks that one more answer of this cost stays within the limit.
    pub(super) fn check(
        &self,
        authority: &[u8; 32],
        rho: Rho,
        limit: PrivacyLimit,
    ) -> Result<(), PrivacyExhausted> {
        let Some(most) = limit.max_epsilon else { return Ok(()) };
        let epsilon = self.spent.get(authority).copied().unwrap_or_default().plus(rho).epsilon(limit.delta);
        if epsilon <= most { Ok(()) } else { Err(PrivacyExhausted { epsilon, limit: most }) }
    }

    /// Adds the cost of an answer. It is on disk when this returns.
    pub(super) fn add(&mut self, authority: [u8; 32], rho: Rho) -> Result<(), StateError> {
        let spent = self.spent.entry(authority).or_default();
        *spent = spent.plus(rho);
        match &self.path {
            Some(path) => replace(path, &to_bytes(&self.spent)),
            None => Ok(()),
        }
    }
}

/// Reads the privacy spent by authority, without a lock on the folder.
pub(super) fn read(path: &Path) -> Result<BTreeMap<[u8; 32], SpentPrivacy>, StateError> {
    SpentLedger::open(path).map(|ledger| ledger.spent)
}

fn to_bytes(all: &BTreeMap<[u8; 32], SpentPrivacy>) -> Vec<u8> {
    let mut bytes = MAGIC.to_vec();
    for (authority, spent) in all {
        bytes.extend_from_slice(authority);
        bytes.extend_from_slice(&spent.rho.get().to_le_bytes());
        bytes.extend_from_slice(&spent.exact.to_le_bytes());
    }
    let hash = blake3::hash(&bytes);
    bytes.extend_from_slice(hash.as_bytes());
    bytes
}

fn parse(bytes: &[u8]) -> Option<BTreeMap<[u8; 32], SpentPrivacy>> {
    let (body, hash) = bytes.split_last_chunk::<32>()?;
    if blake3::hash(body) != blake3::Hash::from_bytes(*hash) {
        return None;
    }
    let (entries, cut) = body.strip_prefix(MAGIC)?.as_chunks::<ENTRY>();
    let entry = |entry: &[u8; ENTRY]| {
        let (authority, rest) = entry.split_first_chunk::<32>()?;
        let (numbers, _) = rest.as_chunks::<8>();
        let [rho, exact] = *numbers else { return None };
        Some((
            *authority,
            SpentPrivacy { rho: Rho::new(f64::from_le_bytes(rho)), exact: u64::from_le_bytes(exact) },
        ))
    };
    if cut.is_empty() { entries.iter().map(entry).collect() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AUTHORITY: [u8; 32] = [7; 32];

    #[test]
    fn the_limit_lasts_across_restarts_and_is_that_of_one_authority() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("privacy");
        let limit = PrivacyLimit { max_epsilon: Some(3.0), ..PrivacyLimit::default() };
        let rho = Rho::within(3.0, limit.delta) * 0.3;
        let mut given = 0;
        for _ in 0..10 {
            let mut ledger = SpentLedger::open(&path).unwrap();
            if ledger.check(&AUTHORITY, rho, limit).is_ok() {
                ledger.add(AUTHORITY, rho).unwrap();
                given += 1;
            }
        }
        assert_eq!(given, 3);
        let mut ledger = SpentLedger::open(&path).unwrap();
        assert!(ledger.check(&AUTHORITY, rho, limit).unwrap_err().epsilon > 3.0);
        assert_eq!(ledger.check(&[8; 32], rho, limit), Ok(()), "another authority");
        assert_eq!(ledger.check(&AUTHORITY, rho, PrivacyLimit::default()), Ok(()), "no limit");
        assert!(ledger.check(&[8; 32], Rho::UNBOUNDED, limit).is_err(), "an answer without noise");
        ledger.add([8; 32], Rho::UNBOUNDED).unwrap();
        let spent = read(&path).unwrap();
        assert!(spent[&AUTHORITY].epsilon(limit.delta) < 3.0);
        assert_eq!(spent[&[8; 32]].exact, 1);
        assert!(spent[&[8; 32]].epsilon(limit.delta).is_infinite());
    }

    #[test]
    fn a_damaged_ledger_is_not_taken_for_an_empty_one() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("privacy");
        SpentLedger::open(&path).unwrap().add(AUTHORITY, Rho::from_noise_multiplier(1.0)).unwrap();
        let bytes = fs::read(&path).unwrap();
        for cut in 0..bytes.len() {
            fs::write(&path, &bytes[..cut]).unwrap();
            assert!(matches!(SpentLedger::open(&path), Err(StateError::Damaged { .. })), "{cut}");
        }
    }
}
