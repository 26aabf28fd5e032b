//! On what terms devices answer: the same in every round of a run, and part of every question that they sign.
//!
//! A sum over few devices, asked again and again, tells of each of them: Σ n_k over known devices is a linear system, and
//! once every n_k is known, the weight of a bin of losses names the devices in it. And the tails of two thresholds at one w
//! differ by the devices between them. In private mode devices therefore count with [`Weights`] that tell little or nothing of
//! them, and train for one of the tracks that share a w ([`Terms::apart`]). Where the server sees losses anyway, neither is
//! asked for. In either mode devices may be told to bound the length of their updates ([`Clip`]).

use serde::{Deserialize, Serialize};

/// What a device counts with: α_k, as a function of the number n_k of its examples.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Weights {
    /// n_k, as in the paper.
    #[default]
    Exact,
    /// n_k rounded to the nearest of 1, 4, 16, 64 and 256 on a logarithmic scale: five classes of devices, and no device counts
    /// more than 256 times another.
    Bucketed,
    /// 1: a sum of weights is a number of devices.
    Uniform,
}

impl Weights {
    /// Every kind; its place is its code in a question.
    pub const ALL: [Self; 3] = [Self::Exact, Self::Bucketed, Self::Uniform];

    /// The most that a device counts with in private mode.
    pub const CAP: u64 = 256;

    /// α_k of a device with so many examples.
    ///
    /// ```
    /// use deltafl::terms::Weights;
    ///
    /// let of = |examples| Weights::ALL.map(|weights| weights.of(examples));
    /// assert_eq!(of(100), [100, 64, 1]);
    /// assert_eq!(of(7), [7, 4, 1]);
    /// assert_eq!(of(90_000), [90_000, 256, 1]);
    /// ```
    pub fn of(self, examples: u64) -> u64 {
        match self {
            Self::Exact => examples,
            // ⌊log₂ 2n⌋ / 2 is ⌊log₄ n + ½⌋: the nearest power of four.
            Self::Bucketed => (1 << (2 * (examples.max(1).saturating_mul(2).ilog2() / 2))).min(Self::CAP),
            Self::Uniform => 1,
        }
    }

    /// Its name in an experiment file.
    pub fn name(self) -> &'static str {
        match self {
            Self::Exact => "exact",
            Self::Bucketed => "bucketed",
            Self::Uniform => "uniform",
        }
    }
}

/// C: the largest Euclidean norm of an update w_k − w. A device shortens a longer one to it, before it weighs it.
///
/// The mean of updates that were clipped is no longer than C, whatever the weights. A server that knows C throws away a sum
/// that is longer; a device that lies within the sum is not found (docs/src/explanation/threat-model.md).
///
/// ```
/// use deltafl::terms::Clip;
///
/// let clip = Clip::try_from(2.0)?;
/// assert_eq!([1.0, 2.0, 8.0].map(|norm| clip.factor(norm)), [1.0, 1.0, 0.25]);
/// assert!(Clip::try_from(0.0).is_err());
/// # Ok::<(), deltafl::terms::InvalidClip>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd, Serialize, Deserialize)]
#[serde(try_from = "f64", into = "f64")]
pub struct Clip(f64);

/// It is finite.
impl Eq for Clip {}

/// A bound on norms that is none.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
#[error("expected a finite number above 0, got {got}")]
pub struct InvalidClip {
    /// The number.
    pub got: f64,
}

impl Clip {
    /// The number.
    pub fn get(self) -> f64 {
        self.0
    }

    /// What an update of this norm is multiplied by. One that is not a number is left as it is, to be refused.
    pub fn factor(self, norm: f64) -> f64 {
        if norm > self.0 { self.0 / norm } else { 1.0 }
    }
}

impl TryFrom<f64> for Clip {
    type Error = InvalidClip;

    fn try_from(got: f64) -> Result<Self, InvalidClip> {
        if got > 0.0 && got.is_finite() { Ok(Self(got)) } else { Err(InvalidClip { got }) }
    }
}

impl From<Clip> for f64 {
    fn from(clip: Clip) -> Self {
        clip.0
    }
}

/// On what terms devices answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Terms {
    /// What a device counts with.
    pub weights: Weights,
    /// Whether a device trains for one track alone where several that weigh devices differently share w, as all do in the
    /// first round. Their sums are then over devices that have nothing to do with each other, and no difference of two is the
    /// sum over the devices between two thresholds. Each track learns from its part of the cohort in such a round.
    pub apart: bool,
    /// How long an update may be; of any length where it is not said.
    pub clip: Option<Clip>,
}

impl Terms {
    /// Those of a server that sees losses, and of a simulation of one.
    pub const OPEN: Self = Self { weights: Weights::Exact, apart: false, clip: None };
    /// Those of a server that sees sums alone.
    pub const PRIVATE: Self = Self { weights: Weights::Uniform, apart: true, clip: None };

    /// Whether they hold for a device whose owner agreed to sums alone.
    pub fn are_private(self) -> bool {
        self.apart && self.weights != Weights::Exact
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_the_nearest_power_of_four_up_to_the_cap() {
        for examples in 1..3000_u64 {
            let nearest = 4_f64.powf(((examples as f64).log2() / 2.0 + 0.5).floor().min(4.0)) as u64;
            assert_eq!(Weights::Bucketed.of(examples), nearest, "{examples}");
        }
        assert_eq!([0, u64::MAX].map(|examples| Weights::Bucketed.of(examples)), [1, Weights::CAP]);
    }

    #[test]
    fn only_terms_that_tell_nothing_of_a_device_are_private() {
        assert!(Terms::PRIVATE.are_private());
        assert!(!Terms::OPEN.are_private());
        assert!(!Terms { weights: Weights::Exact, ..Terms::PRIVATE }.are_private());
        assert!(!Terms { apart: false, ..Terms::PRIVATE }.are_private());
    }
}
