//! The public parameters of a round, which server and devices agree on before they create keys.

use thiserror::Error;

use crate::draw::DrawOpening;
use crate::graph::GraphRule;
use crate::mask::MaskSuite;
use crate::ring::Ring;
use crate::transcript::{Hasher, Sha256Digest, context_digest};

/// The version of the protocol and of the wire format.
pub const VERSION: u32 = 2;
/// The largest cohort of a round.
pub const MAX_COHORT: u32 = 100_000;
/// The largest number of slots of a round.
pub const MAX_SLOTS: u32 = 16;

/// A round of a session (a training run). Every key and message belongs to one round.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RoundId {
    /// The id of the training run, drawn at random when it starts.
    pub session: [u8; 16],
    /// The round t. A device joins each round of a session at most once.
    pub round: u64,
}

/// The public parameters of a round.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RoundParams {
    /// The session and the round.
    pub id: RoundId,
    /// The cryptography of the round.
    pub suite: MaskSuite,
    /// The number of invited devices. A round with more members is invalid.
    pub cohort: u32,
    /// The rule that selects the graph of secret sharing.
    pub graph: GraphRule,
    /// The number of sums under this key set-up. Each sum has separate keys.
    pub slots: u32,
    /// The opening of the draw, if the roster requires that cohorts are drawn ([`crate::draw`]).
    pub draw: Option<DrawOpening>,
}

/// An error in the parameters of a round.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ParamsError {
    /// The cohort is too large, or has fewer than two devices.
    #[error("cohort size {0} is not in 2..={MAX_COHORT}")]
    Cohort(u32),
    /// The number of slots is out of range.
    #[error("slot count {0} is not in 1..={MAX_SLOTS}")]
    Slots(u32),
    /// The threshold is larger than the cohort, or zero.
    #[error("threshold {threshold} is not in 1..={cohort}")]
    Threshold {
        /// The requested threshold, or the threshold that the collusion bound requires.
        threshold: usize,
        /// The size of the cohort.
        cohort: u32,
    },
}

impl RoundParams {
    /// Checks whether a round can run under these parameters.
    ///
    /// # Errors
    ///
    /// Returns an error if the cohort, the slots or the threshold are out of range.
    pub fn check(&self) -> Result<(), ParamsError> {
        if !(2..=MAX_COHORT).contains(&self.cohort) {
            return Err(ParamsError::Cohort(self.cohort));
        }
        if !(1..=MAX_SLOTS).contains(&self.slots) {
            return Err(ParamsError::Slots(self.slots));
        }
        match self.graph.full_threshold(self.cohort) {
            Some(threshold) if !(1..=self.cohort as usize).contains(&threshold) => {
                Err(ParamsError::Threshold { threshold, cohort: self.cohort })
            }
            _ => Ok(()),
        }
    }

    /// Returns the digest that represents these parameters in every signature, commitment and key.
    pub fn digest(&self) -> Sha256Digest {
        let hasher = Hasher::new("params")
            .number(u64::from(VERSION))
            .part(&self.id.session)
            .number(self.id.round)
            .number(u64::from(self.suite.code()))
            .number(u64::from(self.cohort));
        let numbers = self.graph.numbers();
        let hasher = numbers.into_iter().fold(hasher, |hasher, number| hasher.number(u64::from(number)));
        let opening: &[u8] = self.draw.as_ref().map_or(&[], |opening| &opening.0);
        hasher.number(u64::from(self.slots)).part(opening).finish()
    }
}

/// One sum of a round: its slot, its ring, its length and the caller's context.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SlotSpec {
    /// The slot, starting at zero.
    pub slot: u32,
    /// The ring of the sum.
    pub ring: Ring,
    /// The number of coordinates.
    pub len: u32,
    /// The digest of the caller's context. Δ-FL binds η and w_t.
    pub context: Sha256Digest,
}

impl SlotSpec {
    /// Creates the specification of a slot that is bound to `context`.
    pub fn new(slot: u32, ring: Ring, len: u32, context: &[u8]) -> Self {
        Self { slot, ring, len, context: context_digest(context) }
    }

    /// Returns the length of a masked input in bytes.
    pub(crate) fn input_len(&self) -> usize {
        self.len as usize * self.ring.width()
    }

    pub(crate) fn hash(&self, hasher: Hasher) -> Hasher {
        hasher
            .number(u64::from(self.slot))
            .number(u64::from(self.ring.code()))
            .number(u64::from(self.len))
            .digest(&self.context)
    }

    /// Returns the digest from which this slot's mask keys are derived. It depends on the context.
    pub(crate) fn digest(&self) -> Sha256Digest {
        self.hash(Hasher::new("slot-spec")).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::{CollusionBound, Permille};

    fn permille(value: u16) -> Permille {
        Permille::new(value).unwrap()
    }

    fn active(gamma: CollusionBound, delta: u16) -> GraphRule {
        GraphRule::Active { gamma, delta: permille(delta) }
    }

    fn curious(gamma: CollusionBound) -> GraphRule {
        GraphRule::HonestButCurious { gamma, delta: permille(1) }
    }

    fn params() -> RoundParams {
        RoundParams {
            id: RoundId { session: [1; 16], round: 5 },
            suite: MaskSuite::default(),
            cohort: 10,
            graph: GraphRule::Full { threshold: 6 },
            slots: 3,
            draw: None,
        }
    }

    #[test]
    fn every_parameter_changes_the_digest() {
        let base = params();
        let others = [
            RoundParams { id: RoundId { session: [2; 16], round: 5 }, ..params() },
            RoundParams { id: RoundId { session: [1; 16], round: 6 }, ..params() },
            RoundParams { suite: MaskSuite::ChaCha20, ..params() },
            RoundParams { cohort: 11, ..params() },
            RoundParams { graph: GraphRule::Full { threshold: 7 }, ..params() },
            RoundParams { graph: active(CollusionBound::Share(permille(6)), 0), ..params() },
            RoundParams { graph: active(CollusionBound::Devices(6), 0), ..params() },
            RoundParams { graph: active(CollusionBound::Devices(6), 1), ..params() },
            RoundParams { graph: curious(CollusionBound::Devices(6)), ..params() },
            RoundParams { slots: 2, ..params() },
            RoundParams { draw: Some(DrawOpening([0; 32])), ..params() },
            RoundParams { draw: Some(DrawOpening([1; 32])), ..params() },
        ];
        let mut digests: Vec<Sha256Digest> = others.iter().map(RoundParams::digest).collect();
        digests.push(base.digest());
        digests.sort_unstable();
        digests.dedup();
        assert_eq!(digests.len(), others.len() + 1);
    }

    #[test]
    fn impossible_parameters_are_refused() {
        assert_eq!(params().check(), Ok(()));
        assert_eq!(RoundParams { cohort: 1, ..params() }.check(), Err(ParamsError::Cohort(1)));
        assert_eq!(RoundParams { slots: 0, ..params() }.check(), Err(ParamsError::Slots(0)));
        assert_eq!(RoundParams { slots: 17, ..params() }.check(), Err(ParamsError::Slots(17)));
        let graph = GraphRule::Full { threshold: 11 };
        assert!(matches!(RoundParams { graph, ..params() }.check(), Err(ParamsError::Threshold { .. })));
        let graph = active(CollusionBound::Devices(10), 0);
        assert!(matches!(RoundParams { graph, ..params() }.check(), Err(ParamsError::Threshold { .. })));
        assert_eq!(RoundParams { graph: active(CollusionBound::Devices(9), 0), ..params() }.check(), Ok(()));
    }
}
