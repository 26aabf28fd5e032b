//! The budget of a run, divided among its noisy sums.
//!
//! A device takes part at most every b rounds, so that it answers in at most k = ⌈T/b⌉ of T rounds.
//! The total ρ of the run is divided evenly among them. If all tracks train together, a device
//! answers for each of them, and the ρ of a round is divided evenly among the tracks. Of the ρ of a
//! track, the quantile of the losses receives the share [`BudgetShares::quantile`] if the track has
//! one, and the update receives the rest. [`BudgetShares::evaluation`] of the total is divided
//! among the evaluations of held-out examples.

use serde::{Deserialize, Serialize};

use super::noise::NoiseTooLarge;
use super::{Delta, Excess, Noise, Rho, SampledRound};
use crate::cohort::Sampling;
use crate::question::Ask;
use crate::stream::{Purpose, Stream};
use crate::terms::{Clip, Terms, TrackSchedule};

/// The party that adds the noise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mechanism {
    /// Each device adds its share of the noise before its answer is masked. No party sees a sum
    /// without noise.
    #[default]
    Distributed,
    /// The server adds the noise to the sum. This protects against readers of the models only.
    Central,
}

/// The number of samples that a central server adds to each entry.
const CENTRAL_SAMPLES: u32 = 16;

/// The shares of the budget.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BudgetShares {
    /// The share of a track's round that its quantile receives.
    pub quantile: f64,
    /// The share of the run that the evaluations of held-out examples receive.
    pub evaluation: f64,
}

/// The number of times that a device answers in a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Participation {
    /// k: rounds.
    pub rounds: u64,
    /// Tracks for which it answers in one round.
    pub tracks: u64,
    /// Evaluations of its held-out examples.
    pub evaluations: u64,
}

impl Participation {
    /// Returns the largest numbers of a device that takes part at most every `every` rounds of
    /// `rounds`, evaluated every `evaluate_every` rounds and after the last one.
    pub fn new(rounds: u64, every: u64, evaluate_every: u64, terms: Terms) -> Self {
        let answered = rounds.div_ceil(every.max(1)).max(1);
        let tracks = match terms.schedule {
            TrackSchedule::Together => u64::from(terms.tracks.max(1)),
            TrackSchedule::InTurn | TrackSchedule::Apart => 1,
        };
        let evaluations = (rounds.div_ceil(evaluate_every.max(1)) + 1) * u64::from(terms.tracks.max(1));
        Self { rounds: answered, tracks, evaluations: evaluations.min(2 * answered * tracks) }
    }
}

/// The rule for the clipping bound C.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ClipRule {
    /// C in the first round.
    pub start: Clip,
    /// Whether C follows the median norm of the updates: C·exp(−0.2·(u − ½)) for the noisy share u
    /// of updates below C (Andrew et al. 2021).
    pub adaptive: bool,
}

impl ClipRule {
    /// The rate with which C follows the median.
    const RATE: f64 = 0.2;

    /// Returns the next C after a round with this share of updates below it.
    pub(crate) fn next(&self, clip: Clip, unclipped: f64) -> Clip {
        if !self.adaptive {
            return clip;
        }
        let factor = (-Self::RATE * (unclipped.clamp(0.0, 1.0) - 0.5)).exp();
        Clip::try_from(clip.get() * factor).unwrap_or(clip)
    }
}

/// The differential privacy of a run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PrivacyPlan {
    /// The party that adds the noise.
    pub mechanism: Mechanism,
    /// δ of every reported ε.
    pub delta: Delta,
    /// The smallest number of devices in a sum.
    pub survivors: u32,
    /// The largest number of them that help the server to subtract their own noise.
    pub accomplices: u32,
    /// b: a device takes part at most every b rounds.
    pub rounds_between: u64,
    /// The clipping bound.
    pub clip: ClipRule,
    /// ρ of one track in one round.
    pub track_round: Rho,
    /// ρ of one evaluation; zero if no device is evaluated.
    pub evaluation: Rho,
    /// The share of a track's round that its quantile receives.
    pub quantile_share: f64,
    /// Whether devices reveal the keys of the noise that a sum does not need, after its survivors
    /// are known. It has no effect on a central mechanism.
    pub remove_excess: bool,
}

impl PrivacyPlan {
    /// Divides the budget `total` of a device over a run.
    pub fn divide(total: Rho, shares: BudgetShares, device: Participation) -> (Rho, Rho) {
        let evaluation = total * (shares.evaluation / device.evaluations.max(1) as f64);
        let track_round = total * ((1.0 - shares.evaluation) / (device.rounds * device.tracks) as f64);
        (track_round, evaluation)
    }

    /// Returns the number of devices whose noise a sum contains for certain.
    pub fn honest(&self) -> u32 {
        match self.mechanism {
            Mechanism::Distributed => self.survivors.saturating_sub(self.accomplices).max(1),
            Mechanism::Central => CENTRAL_SAMPLES,
        }
    }

    /// Returns the ρ of a sum. `has_quantile` is whether the track of an update also has a
    /// quantile.
    pub fn rho(&self, ask: &Ask, has_quantile: bool) -> Rho {
        match ask {
            Ask::Quantile(_) => self.track_round * self.quantile_share,
            Ask::Update { .. } if has_quantile => self.track_round * (1.0 - self.quantile_share),
            Ask::Update { .. } => self.track_round,
            Ask::Evaluation(_) => self.evaluation,
        }
    }

    /// Returns the noise of a sum over at most `members` devices, with the clipping bound of an
    /// update.
    ///
    /// # Errors
    ///
    /// The noise of one device would be too large.
    pub fn noise(
        &self,
        ask: &Ask,
        params: usize,
        clip: Clip,
        has_quantile: bool,
        members: u32,
    ) -> Result<Noise, NoiseTooLarge> {
        let clip = matches!(ask, Ask::Update { .. }).then_some(clip);
        let rho = self.rho(ask, has_quantile);
        let excess = self.remove_excess && self.mechanism == Mechanism::Distributed;
        let excess = excess.then_some(Excess { accomplices: self.accomplices, most: members });
        let excess = excess.filter(|excess| excess.fits(self.honest()));
        Noise::calibrated_with(ask, params, clip, rho, self.honest(), members, excess)
    }

    /// Returns the cost of a sum that contains the answers of `answered` devices.
    pub(crate) fn spent(&self, noise: &Noise, ask: &Ask, params: usize, answered: u64) -> Rho {
        match self.mechanism {
            Mechanism::Distributed if answered == 0 => Rho::ZERO,
            Mechanism::Distributed => noise.rho_after(ask, params, answered, self.accomplices.into()),
            Mechanism::Central => noise.rho_after(ask, params, CENTRAL_SAMPLES.into(), 0),
        }
    }

    /// Returns the noise that a question names. A central server keeps the variance to itself.
    pub(crate) fn asked(&self, noise: Noise) -> Noise {
        match self.mechanism {
            Mechanism::Distributed => noise,
            Mechanism::Central => Noise { variance: 0, ..noise },
        }
    }

    /// Adds the noise of a central server to a sum.
    pub(crate) fn add_central(&self, noise: &Noise, sum: &mut [u64], seed: u64, round: u64, place: u64) {
        if self.mechanism == Mechanism::Central {
            for sample in 0..CENTRAL_SAMPLES {
                let mut stream =
                    Stream::new(seed, Purpose::CentralNoise, round, place << 8 | u64::from(sample));
                noise.add_to(sum, &mut stream);
            }
        }
    }

    /// Returns the divergences of one round for a reader of the models, who does not know the
    /// cohorts, if each is drawn from this many devices. Returns `None` if cohorts are not
    /// independent samples: devices wait between two rounds, or their availability depends on the
    /// time of day.
    pub fn sampled_round(&self, sampling: &Sampling, devices: usize, tracks: u64) -> Option<SampledRound> {
        let q = (sampling.cohort_size as f64 / devices.max(1) as f64).min(1.0);
        let independent = self.rounds_between <= 1 && sampling.availability.diurnal.is_none();
        independent.then(|| SampledRound::new(q, self.track_round * tracks))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shares_of_a_budget_add_up_to_it() {
        let terms = Terms { tracks: 3, schedule: TrackSchedule::Together, ..Terms::PRIVATE };
        let device = Participation::new(100, 4, 10, terms);
        assert_eq!(device, Participation { rounds: 25, tracks: 3, evaluations: 33 });
        let total = Rho::from_noise_multiplier(2.0);
        let shares = BudgetShares { quantile: 0.2, evaluation: 0.1 };
        let (track_round, evaluation) = PrivacyPlan::divide(total, shares, device);
        let spent = track_round * 75 + evaluation * 33;
        assert!((spent.get() / total.get() - 1.0).abs() < 1e-12);
        let in_turn = Participation::new(100, 1, 10, Terms { tracks: 3, ..Terms::PRIVATE });
        assert_eq!((in_turn.rounds, in_turn.tracks), (100, 1));
    }

    #[test]
    fn the_clipping_bound_follows_the_median() {
        let start = Clip::try_from(0.1).unwrap();
        let rule = ClipRule { start, adaptive: true };
        let mut clip = start;
        // Norms are uniform in [0, 2], so that the median is 1.
        for _ in 0..200 {
            clip = rule.next(clip, clip.get() / 2.0);
        }
        assert!((clip.get() - 1.0).abs() < 0.01, "{clip:?}");
        assert_eq!(ClipRule { adaptive: false, ..rule }.next(start, 0.0), start);
    }
}
