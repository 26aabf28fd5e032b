//! The section `[privacy]`.

use std::num::{NonZeroU32, NonZeroU64};

use deltafl::data::synthetic::Fraction;
use deltafl::number::Positive;
use deltafl::privacy::{BudgetShares, ClipRule, Delta, Mechanism, Participation, PrivacyPlan, Rho};
use deltafl::terms::{Clip, TrackSchedule};
use serde::{Deserialize, Serialize};

use super::Experiment;

/// The differential privacy of an experiment.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PrivacySection {
    /// ε of a device over the whole run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub epsilon: Option<Positive>,
    /// The ratio of noise and sensitivity of all sums of one round together, instead of ε.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub noise: Option<Positive>,
    /// δ.
    #[serde(default = "delta")]
    pub delta: Delta,
    /// C in the first round.
    pub clip: Clip,
    /// Whether C follows the median norm of the updates.
    #[serde(default)]
    pub adaptive: bool,
    /// The party that adds the noise.
    #[serde(default)]
    pub mechanism: Mechanism,
    /// b: a device takes part at most every b rounds.
    #[serde(default = "one_round")]
    pub rounds_between: NonZeroU64,
    /// The smallest number of devices in a sum.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub survivors: Option<NonZeroU32>,
    /// The largest number of them that help the server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub accomplices: Option<u64>,
    /// The share of a track's round that its quantile receives.
    #[serde(default = "quantile_share")]
    pub quantile: Fraction,
    /// The share of the run that evaluations of held-out examples receive.
    #[serde(default = "evaluation_share")]
    pub evaluation: Fraction,
    /// Whether the noise that a sum does not need is removed after its survivors are known.
    #[serde(default)]
    pub remove_excess: bool,
}

fn delta() -> Delta {
    Delta::try_from(1e-6).expect("a millionth is between 0 and 1")
}

fn one_round() -> NonZeroU64 {
    NonZeroU64::MIN
}

fn quantile_share() -> Fraction {
    Fraction::try_from(0.2).expect("a fifth is a fraction")
}

fn evaluation_share() -> Fraction {
    Fraction::try_from(0.0).expect("zero is a fraction")
}

/// The cost of an experiment for one device, if it takes part as often as it can.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PrivacyCost {
    /// The number of times that the device answers.
    pub device: Participation,
    /// ρ of all its answers.
    pub total: Rho,
    /// ε against the server; `None` if the server sees sums without noise.
    pub epsilon_server: Option<f64>,
    /// ε against readers of the models, who do not know the cohorts.
    pub epsilon_readers: f64,
}

impl PrivacySection {
    /// Returns the section with a clipping bound and an ε, and all defaults.
    pub fn new(epsilon: Positive, clip: Clip) -> Self {
        Self {
            epsilon: Some(epsilon),
            noise: None,
            delta: delta(),
            clip,
            adaptive: false,
            mechanism: Mechanism::default(),
            rounds_between: one_round(),
            survivors: None,
            accomplices: None,
            quantile: quantile_share(),
            evaluation: evaluation_share(),
            remove_excess: false,
        }
    }

    fn shares(&self) -> BudgetShares {
        BudgetShares { quantile: self.quantile.get(), evaluation: self.evaluation.get() }
    }
}

impl Experiment {
    /// Returns the section `[privacy]`; `None` for exact sums.
    pub fn privacy(&self) -> Option<&PrivacySection> {
        self.0.privacy.as_ref()
    }

    /// Returns the same experiment with another section `[privacy]`.
    ///
    /// # Errors
    ///
    /// Something in the experiment cannot be combined with noise.
    pub fn with_privacy(mut self, privacy: Option<PrivacySection>) -> Result<Self, super::InvalidExperiment> {
        self.0.privacy = privacy;
        self.check_privacy()?;
        Ok(self)
    }

    /// Returns how often a device answers at most.
    pub fn participation(&self) -> Participation {
        let every = self.0.privacy.map_or(1, |section| section.rounds_between.get());
        Participation::new(self.rounds(), every, self.evaluate_every(), self.terms())
    }

    /// Returns the noise of the run, calibrated to its rounds, its cohort and its tracks.
    pub fn privacy_plan(&self) -> Option<PrivacyPlan> {
        let section = self.0.privacy.as_ref()?;
        let device = self.participation();
        let total = match (section.epsilon, section.noise) {
            (Some(epsilon), _) => Rho::within(epsilon.get(), section.delta),
            (None, Some(noise)) => Rho::from_noise_multiplier(noise.get()) * device.rounds,
            (None, None) => Rho::ZERO,
        };
        let (track_round, evaluation) = PrivacyPlan::divide(total, section.shares(), device);
        let cohort = u32::try_from(self.cohort()).unwrap_or(u32::MAX);
        let accomplices =
            section.accomplices.map_or(cohort.div_ceil(20), |given| given.try_into().unwrap_or(u32::MAX));
        // The threshold of the full graph of secret sharing: more than half of the honest devices.
        let threshold = cohort.saturating_add(accomplices) / 2 + 1;
        Some(PrivacyPlan {
            mechanism: section.mechanism,
            delta: section.delta,
            survivors: section.survivors.map_or(threshold.min(cohort), NonZeroU32::get),
            accomplices,
            rounds_between: section.rounds_between.get(),
            clip: ClipRule { start: section.clip, adaptive: section.adaptive },
            track_round,
            evaluation,
            quantile_share: section.quantile.get(),
            remove_excess: section.remove_excess,
        })
    }

    /// Returns the cost of the whole run for one of `devices` devices; `None` for exact sums.
    pub fn privacy_cost(&self, devices: usize) -> Option<PrivacyCost> {
        let (plan, device) = (self.privacy_plan()?, self.participation());
        let round = plan.track_round * device.tracks;
        let total = round * device.rounds + plan.evaluation * device.evaluations;
        let every_round = total.epsilon(plan.delta);
        let tracks = if self.terms().schedule == TrackSchedule::Together { device.tracks } else { 1 };
        let sampled = plan.sampled_round(&self.sampling(), devices, tracks);
        let sampled = sampled.map(|round| round.epsilon(self.rounds(), plan.delta));
        Some(PrivacyCost {
            device,
            total,
            epsilon_server: (plan.mechanism == Mechanism::Distributed).then_some(every_round),
            epsilon_readers: sampled.unwrap_or(f64::INFINITY).min(every_round),
        })
    }
}
