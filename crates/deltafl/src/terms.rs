//! On what terms devices answer: the same in every round of a run, and part of every question that they sign.
//!
//! A sum over few devices, asked again and again, tells of each of them: Σ n_k over known devices is a linear system, and
//! once every n_k is known, the weight of a bin of losses names the devices in it. In private mode devices therefore count
//! with [`Weights`] that tell little or nothing of them.
//!
//! The tails of two thresholds at one w differ by the devices between the thresholds. The same holds for two w that differ
//! in the last binary place of one entry, so that no comparison of params is a defence. In a deployment no two tracks
//! therefore share a device in one round ([`TrackSchedule`]). In either mode devices may be told to bound the length of their
//! updates ([`Clip`]).

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
    /// let of = |examples| Weights::ALL.map(|weights| weights.weight(examples));
    /// assert_eq!(of(100), [100, 64, 1]);
    /// assert_eq!(of(7), [7, 4, 1]);
    /// assert_eq!(of(90_000), [90_000, 256, 1]);
    /// ```
    pub fn weight(self, examples: u64) -> u64 {
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

/// Which tracks of a run train in a round, and with which devices of the cohort.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TrackSchedule {
    /// Every track trains with the whole cohort in every round, as in the paper. For simulations only: the sums of two tracks
    /// differ by the devices between their thresholds.
    #[default]
    Together,
    /// One track trains in a round, with the whole cohort: track t mod k in round t. k tracks need k times the rounds, and no
    /// two tracks train with the same cohort.
    InTurn,
    /// Every track trains in every round. A device answers for one track, which is drawn in each round, so that a track
    /// has about m/k devices.
    Apart,
}

impl TrackSchedule {
    /// Every schedule; its place is its code in a question.
    pub const ALL: [Self; 3] = [Self::Together, Self::InTurn, Self::Apart];

    /// Its name in an experiment file.
    pub fn name(self) -> &'static str {
        match self {
            Self::Together => "together",
            Self::InTurn => "in-turn",
            Self::Apart => "apart",
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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// What a device counts with.
    pub weights: Weights,
    /// Which tracks train in a round, and with which devices.
    pub schedule: TrackSchedule,
    /// k: the number of tracks of the run, at least 1.
    pub tracks: u32,
    /// The largest norm of an update; unbounded if `None`.
    pub clip: Option<Clip>,
}

/// Those of [`Terms::OPEN`].
impl Default for Terms {
    fn default() -> Self {
        Self::OPEN
    }
}

impl Terms {
    /// Those of a simulation of one track whose server sees losses.
    pub const OPEN: Self =
        Self { weights: Weights::Exact, schedule: TrackSchedule::Together, tracks: 1, clip: None };
    /// Those of one track whose server sees sums alone.
    pub const PRIVATE: Self =
        Self { weights: Weights::Uniform, schedule: TrackSchedule::InTurn, tracks: 1, clip: None };

    /// Whether they hold for a device whose owner agreed to sums alone.
    pub fn are_private(self) -> bool {
        self.schedule != TrackSchedule::Together && self.weights != Weights::Exact
    }

    /// The tracks that train in round t.
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

    /// The rounds of the cycle to which round t belongs: in one cycle every track trains once. The params of a track are
    /// the same from the first round of a cycle until its own round.
    pub fn cycle(self, round: u64) -> std::ops::Range<u64> {
        let first = self.turn(round) * self.cycle_length();
        first..first + self.cycle_length()
    }

    /// How many rounds a track that trains in round t has trained before it. Learning rates and thresholds follow this number.
    pub fn turn(self, round: u64) -> u64 {
        round / self.cycle_length()
    }

    fn cycle_length(self) -> u64 {
        match self.schedule {
            TrackSchedule::Together | TrackSchedule::Apart => 1,
            TrackSchedule::InTurn => u64::from(self.tracks.max(1)),
        }
    }

    /// Among how many tracks the devices of a cohort are divided.
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
