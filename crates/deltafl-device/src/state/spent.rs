//! The privacy that a device has spent under each authority.
//!
//! The numbers of an authority are ρ, as the bits of an `f64`, and the number of answers without
//! noise. ρ is the sum of the costs of all noisy answers, computed by the device from its own
//! assumptions. The device adds a cost on disk before it computes the answer, so that a crash does
//! not erase it. An answer without noise has no finite ρ and is counted.

use deltafl::privacy::{Delta, Rho};

use super::StateError;
use super::by_authority::{AuthorityKey, ByAuthority, Entry};

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

impl Entry<2> for SpentPrivacy {
    const MAGIC: [u8; 8] = *b"dfl-rho1";

    fn to_numbers(self) -> [u64; 2] {
        [self.rho.get().to_bits(), self.exact]
    }

    fn from_numbers([rho, exact]: [u64; 2]) -> Self {
        Self { rho: Rho::new(f64::from_bits(rho)), exact }
    }
}

/// The privacy spent by a device, by authority.
pub(super) type SpentLedger = ByAuthority<SpentPrivacy, 2>;

impl SpentLedger {
    /// Checks that one more answer of this cost stays within the limit.
    pub(super) fn check(
        &self,
        authority: &AuthorityKey,
        rho: Rho,
        limit: PrivacyLimit,
    ) -> Result<(), PrivacyExhausted> {
        let Some(most) = limit.max_epsilon else { return Ok(()) };
        let epsilon = self.get(authority).plus(rho).epsilon(limit.delta);
        if epsilon <= most { Ok(()) } else { Err(PrivacyExhausted { epsilon, limit: most }) }
    }

    /// Adds the cost of an answer. It is on disk when this returns.
    pub(super) fn add(&mut self, authority: AuthorityKey, rho: Rho) -> Result<(), StateError> {
        self.set(authority, self.get(&authority).plus(rho))
    }
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
        let spent = SpentLedger::open(&path).unwrap().into_entries();
        assert!(spent[&AUTHORITY].epsilon(limit.delta) < 3.0);
        assert_eq!(spent[&[8; 32]].exact, 1);
        assert!(spent[&[8; 32]].epsilon(limit.delta).is_infinite());
    }
}
