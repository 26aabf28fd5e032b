//! The terms of devices' answers. They are constant in a run and part of every signed question.
//!
//! Repeated sums over few devices reveal information about each of them. Σ n_k over known devices
//! is a linear system, and once every n_k is known, the weight of a bin of losses identifies its
//! devices. In private mode devices therefore count with [`Weights`] that reveal little or nothing.
//!
//! The tails of two thresholds at one w differ by the devices between the thresholds. The same
//! holds for two w that differ in the last bit of one entry, so comparing params is no defence. In
//! a deployment no two tracks therefore share a device in one round ([`TrackSchedule`]). In either
//! mode the terms may bound the norm of updates ([`Clip`]).

use serde::{Deserialize, Serialize};

/// The weight α_k of a device as a function of the number n_k of its examples.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Weights {
    /// n_k, as in the paper.
    #[default]
    Exact,
    /// n_k rounded to the nearest of 1, 4, 16, 64 and 256 on a logarithmic scale. There are five
    /// classes of devices, and no device counts more than 256 times another.
    Bucketed,
    /// 1, so that a sum of weights is a number of devices.
    Uniform,
}

impl Weights {
    /// All kinds. The index is the code in a question.
    pub const ALL: [Self; 3] = [Self::Exact, Self::Bucketed, Self::Uniform];

    /// The maximum weight of a device in private mode.
    pub const CAP: u64 = 256;

    /// Returns α_k of a device with this many examples.
    ///
    /// ```
    /// use deltafl::terms::Weights;
    ///
    /// let of = |examples| Weights::ALL.map(|weights| weights.weight(examples));
    /// assert_eq!(of(100), [100, 64, 1]);
    /// assert_eq!(of(7), [7, 4, 1]);
    /// assert_eq!(of(90_000), [90_000, 256, 1]);
    /// ```
    pub fn weight(self, examples: u64) -> u64 {
        match self {
            Self::Exact => examples,
            // ⌊log₂ 2n⌋ / 2 is ⌊log₄ n + ½⌋, the nearest power of four.
            Self::Bucketed => (1 << (2 * (examples.max(1).saturating_mul(2).ilog2() / 2))).min(Self::CAP),
            Self::Uniform => 1,
        }
    }

    /// Returns its name in an experiment file.
    pub fn name(self) -> &'static str {
        match self {
            Self::Exact => "exact",
            Self::Bucketed => "bucketed",
            Self::Uniform => "uniform",
        }
    }
}

/// The tracks of a run that train in a round, and their devices of the cohort.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TrackSchedule {
    /// Every track trains with the whole cohort in every round, as in the paper. For simulations
    /// only, because the sums of two tracks differ by the devices between their thresholds.
    #[default]
    Together,
    /// One track trains in a round with the whole cohort: track t mod k in round t. k tracks need k
    /// times the rounds, and no two tracks train with the same cohort.
    InTurn,
    /// Every track trains in every round. A device answers for one track, drawn in each round, so
    /// that a track has about m/k devices.
    Apart,
}

impl TrackSchedule {
    /// All schedules. The index is the code in a question.
    pub const ALL: [Self; 3] = [Self::Together, Self::InTurn, Self::Apart];

    /// Returns its name in an experiment file.
    pub fn name(self) -> &'static str {
        match self {
            Self::Together => "together",
            Self::InTurn => "in-turn",
            Self::Apart => "apart",
        }
    }
}

/// C: the maximum Euclidean norm of an update w_k − w. A device scales a longer update down to it
/// before weighting.
///
/// The mean of clipped updates has at most norm C, for any weights. A server that knows C discards
/// a longer sum. It cannot identify a malicious device within the sum
/// (docs/src/explanation/threat-model.md).
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

/// The value is finite.
impl Eq for Clip {}

/// The error for an invalid norm bound.
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

    /// Returns the factor for an update of this norm. A NaN norm leaves the update unchanged, to be
    /// refused later.
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

/// The terms of devices' answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// The weight of a device.
    pub weights: Weights,
    /// The tracks that train in a round, and their devices.
    pub schedule: TrackSchedule,
    /// k: the number of tracks of the run, at least 1.
    pub tracks: u32,
    /// The maximum norm of an update, unbounded if `None`.
    pub clip: Option<Clip>,
}

/// Returns [`Terms::OPEN`].
impl Default for Terms {
    fn default() -> Self {
        Self::OPEN
    }
}

impl Terms {
    /// The terms of a simulation of one track whose server sees losses.
    pub const OPEN: Self =
        Self { weights: Weights::Exact, schedule: TrackSchedule::Together, tracks: 1, clip: None };
    /// The terms of one track whose server sees only sums.
    pub const PRIVATE: Self =
        Self { weights: Weights::Uniform, schedule: TrackSchedule::InTurn, tracks: 1, clip: None };

    /// Returns `true` if they are acceptable for a device whose owner agreed to sums only.
    pub fn are_private(self) -> bool {
        self.schedule != TrackSchedule::Together && self.weights != Weights::Exact
    }

    /// Returns the tracks that train in round t.
    pub fn tracks_of_round(self, round: u64) -> std::ops::Range<usize> {
        let tracks = self.tracks.max(1);
        match self.schedule {
            TrackSchedule::Together | TrackSchedule::Apart => 0..tracks as usize,
            TrackSchedule::InTurn => {
                let turn = (round % u64::from(tracks)) as usize;
                turn..turn + 1
            }
        }
    }

    /// Returns the rounds of the cycle that contains round t. Every track trains once in a cycle.
    /// The params of a track are constant from the first round of a cycle until its own round.
    pub fn cycle(self, round: u64) -> std::ops::Range<u64> {
        let first = self.turn(round) * self.cycle_length();
        first..first + self.cycle_length()
    }

    /// Returns the number of earlier rounds of a track that trains in round t. Learning rates and
    /// thresholds depend on this number.
    pub fn turn(self, round: u64) -> u64 {
        round / self.cycle_length()
    }

    fn cycle_length(self) -> u64 {
        match self.schedule {
            TrackSchedule::Together | TrackSchedule::Apart => 1,
            TrackSchedule::InTurn => u64::from(self.tracks.max(1)),
        }
    }

    /// Returns the number of tracks among which the devices of a cohort are divided.
    pub fn divided_among(self) -> u64 {
        if self.schedule == TrackSchedule::Apart { u64::from(self.tracks.max(1)) } else { 1 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_the_nearest_power_of_four_up_to_the_cap() {
        for examples in 1..3000_u64 {
            let nearest = 4_f64.powf(((examples as f64).log2() / 2.0 + 0.5).floor().min(4.0)) as u64;
            assert_eq!(Weights::Bucketed.weight(examples), nearest, "{examples}");
        }
        assert_eq!([0, u64::MAX].map(|examples| Weights::Bucketed.weight(examples)), [1, Weights::CAP]);
    }

    #[test]
    fn only_terms_that_tell_nothing_of_a_device_are_private() {
        assert!(Terms::PRIVATE.are_private());
        assert!(!Terms::OPEN.are_private());
        assert!(!Terms { weights: Weights::Exact, ..Terms::PRIVATE }.are_private());
        assert!(!Terms { schedule: TrackSchedule::Together, ..Terms::PRIVATE }.are_private());
    }

    #[test]
    fn tracks_take_turns_and_every_cycle_serves_each_once() {
        let in_turn = Terms { tracks: 3, ..Terms::PRIVATE };
        let turns: Vec<usize> = (0..7).map(|round| in_turn.tracks_of_round(round).start).collect();
        assert_eq!(turns, [0, 1, 2, 0, 1, 2, 0]);
        assert!((0..7).all(|round| in_turn.tracks_of_round(round).len() == 1));
        assert_eq!([2, 3, 5].map(|round| in_turn.cycle(round)), [0..3, 3..6, 3..6]);
        assert_eq!([2, 3, 5].map(|round| in_turn.turn(round)), [0, 1, 1]);
        let apart = Terms { schedule: TrackSchedule::Apart, ..in_turn };
        assert_eq!((apart.tracks_of_round(5), apart.cycle(5), apart.divided_among()), (0..3, 5..6, 3));
        assert_eq!(in_turn.divided_among(), 1);
    }
}
