//! The plan of a run.

use std::num::NonZeroU64;

use serde::{Deserialize, Serialize};

use super::{State, TrackState};
use crate::algorithm::Track;
use crate::cohort::{Availability, Sampling};
use crate::exchange::{Reachable, TrainIndex};
use crate::memory::AlgorithmState;
use crate::model::Tensor;
use crate::number::Positive;
use crate::params::Params;
use crate::privacy::PrivacyPlan;
use crate::selection::Needs;
use crate::stream::{Purpose, Stream};
use crate::superquantile::private::QuantileQuery;
use crate::task::Task;
use crate::terms::{Terms, Weights};
use crate::trainer::{LocalPlan, LocalTrainer, Work};

/// The work of every round of a run.
///
/// [`Plan::builder`] is the only way to create a plan, so that a plan is valid.
///
/// # Examples
///
/// ```
/// use deltafl::algorithm::{Tail, Track};
/// use deltafl::training::Plan;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let plan = Plan::builder()
///     .rounds(50)
///     .cohort(20)
///     .learning_rate(0.05)
///     .track(Track::fed_avg())
///     .track(Tail::new(0.5.try_into()?))
///     .build()?;
/// assert_eq!(plan.tracks().len(), 2);
/// # Ok(())
/// # }
/// ```
pub struct Plan {
    pub(super) rounds: u64,
    pub(super) sampling: Sampling,
    pub(super) local: Local,
    pub(super) evaluate_every: u64,
    pub(super) terms: Terms,
    pub(super) held_out: Option<Task>,
    pub(super) privacy: Option<PrivacyPlan>,
    pub(super) tracks: Vec<Track>,
}

/// The local update of a device, with its learning rate over the rounds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Local {
    /// Epochs or steps.
    pub work: Work,
    /// Examples per step.
    pub batch: usize,
    /// γ₀.
    pub learning_rate: f64,
    /// c and t₀, if the rate decays.
    pub decay: Option<Decay>,
}

/// γ_t = γ₀·c^⌊t/t₀⌋.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Decay {
    /// c.
    pub factor: Positive,
    /// t₀.
    pub every: NonZeroU64,
}

impl Local {
    /// Returns the local update of a track that has trained `round` rounds.
    pub fn plan(&self, round: u64, track: &Track) -> LocalPlan {
        let decayed = self.decay.map_or(1.0, |decay| {
            decay.factor.get().powi(i32::try_from(round / decay.every).unwrap_or(i32::MAX))
        });
        LocalPlan {
            work: self.work,
            batch: self.batch,
            learning_rate: (self.learning_rate * decayed) as f32,
            l2: track.l2,
            proximal: track.proximal,
            correction: track.correction,
        }
    }
}

impl Plan {
    /// Number of rounds between two evaluations, unless the plan states another number.
    pub const EVALUATE_EVERY: u64 = 10;

    /// Returns a builder. Its defaults are 100 rounds of cohorts of 10 devices, one local epoch in
    /// batches of 10 examples at a learning rate of 0.1, an evaluation every
    /// [`EVALUATE_EVERY`](Self::EVALUATE_EVERY) rounds, and open mode. Only tracks have no default.
    pub fn builder() -> PlanBuilder {
        PlanBuilder(Self {
            rounds: 100,
            sampling: Sampling {
                cohort_size: 10,
                with_replacement: false,
                availability: Availability::default(),
            },
            local: Local { work: Work::Epochs(1), batch: 10, learning_rate: 0.1, decay: None },
            evaluate_every: Self::EVALUATE_EVERY,
            terms: Terms::OPEN,
            held_out: None,
            privacy: None,
            tracks: Vec::new(),
        })
    }

    /// Returns a builder with the values of this plan, to change some of them.
    pub fn into_builder(self) -> PlanBuilder {
        PlanBuilder(self)
    }

    /// Returns the state at the start of a run: every track has the same w₀.
    pub fn start(&self, seed: u64, trainer: &dyn LocalTrainer) -> State {
        let mut entries = vec![0.0; trainer.num_params()];
        trainer.init(&mut Stream::new(seed, Purpose::Init, 0, 0), &mut entries);
        self.start_from(seed, entries.into(), trainer.tensors())
    }

    /// Returns the state at the start of a run whose tracks start from these params. A server can
    /// start a run without a trainer.
    pub fn start_from(&self, seed: u64, params: Params, tensors: Vec<Tensor>) -> State {
        let tracks = self.tracks.iter().map(|_| TrackState::new(params.clone())).collect();
        State { seed, round: 0, tensors: tensors.into(), tracks }
    }

    /// Whether devices are evaluated at the params of round t: those of the tracks that train in
    /// it. All rounds of a cycle are evaluated if one of them is.
    pub(super) fn evaluates(&self, round: u64) -> bool {
        self.terms.cycle(round).any(|round| round.is_multiple_of(self.evaluate_every))
    }

    /// T.
    pub fn rounds(&self) -> u64 {
        self.rounds
    }

    /// How S_t is drawn.
    pub fn sampling(&self) -> &Sampling {
        &self.sampling
    }

    /// How devices train.
    pub fn local(&self) -> &Local {
        &self.local
    }

    /// Rounds between two evaluations of every device. The last round is always evaluated.
    pub fn evaluate_every(&self) -> u64 {
        self.evaluate_every
    }

    /// The terms on which devices answer, with the number of tracks.
    pub fn terms(&self) -> Terms {
        self.terms
    }

    /// The task of devices that keep their metrics private. Their cohorts are asked for histograms
    /// of the metrics over held-out examples, as often as the run evaluates. `None` asks no device.
    pub fn held_out(&self) -> Option<Task> {
        self.held_out
    }

    /// The differential privacy of the run; `None` for exact sums.
    pub fn privacy(&self) -> Option<&PrivacyPlan> {
        self.privacy.as_ref()
    }

    /// The devices that may be drawn in a round, among those that are present: devices that wait
    /// between two rounds have turns.
    pub(super) fn drawable(&self, devices: usize, seed: u64, round: u64, present: Reachable) -> Reachable {
        let turns = self.privacy.map_or(1, |privacy| privacy.rounds_between);
        if turns <= 1 {
            return present;
        }
        let has_turn = |device: usize| {
            let turn = Stream::new(seed, Purpose::Turn, 0, device as u64).below(turns);
            turn == round % turns && present.contains(TrainIndex(device as u32))
        };
        Reachable::Some((0..devices).map(has_turn).collect())
    }

    /// The models, one per track.
    pub fn tracks(&self) -> &[Track] {
        &self.tracks
    }
}

/// Builds a [`Plan`]. [`Plan::builder`] lists the defaults.
#[must_use]
pub struct PlanBuilder(Plan);

impl PlanBuilder {
    /// Sets T.
    pub fn rounds(mut self, rounds: u64) -> Self {
        self.0.rounds = rounds;
        self
    }

    /// Sets m, the number of devices in a cohort.
    pub fn cohort(mut self, devices: usize) -> Self {
        self.0.sampling.cohort_size = devices;
        self
    }

    /// Sets how devices drop out.
    pub fn availability(mut self, availability: Availability) -> Self {
        self.0.sampling.availability = availability;
        self
    }

    /// Sets how cohorts are drawn: m and the availability in one value.
    pub fn sampling(mut self, sampling: Sampling) -> Self {
        self.0.sampling = sampling;
        self
    }

    /// Sets the number of epochs or steps of a local update.
    pub fn work(mut self, work: Work) -> Self {
        self.0.local.work = work;
        self
    }

    /// Sets the number of examples per local step.
    pub fn batch(mut self, examples: usize) -> Self {
        self.0.local.batch = examples;
        self
    }

    /// Sets γ₀.
    pub fn learning_rate(mut self, rate: f64) -> Self {
        self.0.local.learning_rate = rate;
        self
    }

    /// Sets the local update in one value.
    pub fn local(mut self, local: Local) -> Self {
        self.0.local = local;
        self
    }

    /// Sets the number of rounds between two evaluations of every device.
    pub fn evaluate_every(mut self, rounds: u64) -> Self {
        self.0.evaluate_every = rounds;
        self
    }

    /// Sets the terms on which devices answer. [`build`](Self::build) sets their number of tracks.
    pub fn terms(mut self, terms: Terms) -> Self {
        self.0.terms = terms;
        self
    }

    /// Asks cohorts for the metrics of held-out examples. See [`Plan::held_out`].
    pub fn held_out(mut self, task: impl Into<Option<Task>>) -> Self {
        self.0.held_out = task.into();
        self
    }

    /// Makes the sums of the run noisy. See [`Plan::privacy`].
    pub fn privacy(mut self, privacy: impl Into<Option<PrivacyPlan>>) -> Self {
        self.0.privacy = privacy.into();
        self
    }

    /// Adds a track.
    pub fn track(mut self, track: impl Into<Track>) -> Self {
        self.0.tracks.push(track.into());
        self
    }

    /// Replaces all tracks.
    pub fn tracks(mut self, tracks: impl IntoIterator<Item = Track>) -> Self {
        self.0.tracks = tracks.into_iter().collect();
        self
    }

    /// Returns the plan.
    ///
    /// # Errors
    ///
    /// Fails if a value is out of range, or if two values contradict each other.
    pub fn build(mut self) -> Result<Plan, InvalidPlan> {
        self.0.terms.tracks = u32::try_from(self.0.tracks.len()).unwrap_or(u32::MAX);
        let Plan { sampling, local, evaluate_every, terms, tracks, .. } = &self.0;
        let counts = [
            ("devices in a cohort", sampling.cohort_size as u64),
            ("examples in a batch", local.batch as u64),
            ("rounds between two evaluations", *evaluate_every),
            ("tracks", tracks.len() as u64),
            match local.work {
                Work::Epochs(epochs) => ("local epochs", epochs.into()),
                Work::Steps(steps) => ("local steps", steps.into()),
            },
        ];
        if let Some(&(what, _)) = counts.iter().find(|(_, count)| *count == 0) {
            return Err(InvalidPlan::Zero { what });
        }
        if Positive::try_from(local.learning_rate).is_err() {
            return Err(InvalidPlan::NotPositive { what: "learning rate", got: local.learning_rate });
        }
        if let Some(privacy) = &self.0.privacy {
            check_privacy(privacy, &self.0)?;
        }
        let sends_more = |track: &&Track| track.correction.is_some_and(|kind| !kind.sent.is_empty());
        match tracks.iter().find(sends_more) {
            Some(track) if terms.clip.is_some() => {
                Err(InvalidPlan::Clipped { track: track.label.name.clone() })
            }
            _ => Ok(self.0),
        }
    }
}

/// Checks that every sum of a plan can be noisy.
fn check_privacy(privacy: &PrivacyPlan, plan: &Plan) -> Result<(), InvalidPlan> {
    let refused = |what: &str, reason| Err(InvalidPlan::Private { what: what.to_owned(), reason });
    if plan.terms.weights != Weights::Uniform {
        return refused("weights", "only uniform weights bound the influence of a device");
    }
    if plan.sampling.with_replacement {
        return refused("with_replacement", "a device that is drawn twice counts twice");
    }
    if plan.terms.clip.is_some() {
        return refused("clip", "the privacy of a run has its own clipping bound");
    }
    if privacy.accomplices >= privacy.survivors || privacy.survivors as usize > plan.sampling.cohort_size {
        return refused("survivors", "they are more than the accomplices and at most the cohort");
    }
    for track in &plan.tracks {
        let memory = AlgorithmState::default();
        let weighting = track.selection.weighting(&memory);
        let reason = match track.selection.needs(0, &memory) {
            Needs::Losses | Needs::NamedLosses => "the server sees the losses of devices (open mode)",
            Needs::Quantile(search) if !matches!(search.query(), Some(QuantileQuery::Tree(_))) => {
                "its quantile needs exact sums: use quantile = \"tree\""
            }
            _ if track.selection.keeps_threshold() => "η must be found in every round: use eta_every = 1",
            _ if track.aggregation.is_some() => "it needs the updates of individual devices",
            _ if track.personal.is_some() => "personal models are not supported with noise",
            _ if track.correction.is_some_and(|kind| !kind.sent.is_empty()) => {
                "it sends additional vectors without noise (control variates)"
            }
            _ if !weighting.kind().reports.is_empty() => "it sends additional numbers without noise",
            _ if weighting.kind().most > 1.0 => "the influence of a device is not bounded",
            _ => continue,
        };
        return refused(&track.label.name, reason);
    }
    Ok(())
}

/// The values of a plan are invalid.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidPlan {
    /// A number is zero.
    #[error("the number of {what} must be at least 1")]
    Zero {
        /// The counted things.
        what: &'static str,
    },
    /// A number is not positive and finite.
    #[error("the {what} must be a positive number, got {got}")]
    NotPositive {
        /// The name of the number.
        what: &'static str,
        /// Its value.
        got: f64,
    },
    /// A part of the plan cannot be combined with differential privacy.
    #[error("{what} cannot be combined with [privacy]: {reason}")]
    Private {
        /// The key or the name of the track.
        what: String,
        /// The reason.
        reason: &'static str,
    },
    /// A track sends vectors in addition to w, to which the clipping bound of the plan does not
    /// apply.
    #[error("updates are clipped, but {track} sends vectors that the clipping bound does not apply to")]
    Clipped {
        /// The name of the track.
        track: String,
    },
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::SCAFFOLD;
    use crate::privacy::{ClipRule, Mechanism, Rho};
    use crate::terms::Clip;

    #[test]
    fn devices_that_wait_have_one_turn_in_b_rounds() {
        let clip = Clip::try_from(1.0).unwrap();
        let privacy = PrivacyPlan {
            mechanism: Mechanism::Distributed,
            delta: 1e-6.try_into().unwrap(),
            survivors: 5,
            accomplices: 0,
            rounds_between: 4,
            clip: ClipRule { start: clip, adaptive: false },
            track_round: Rho::from_noise_multiplier(1.0),
            evaluation: Rho::ZERO,
            quantile_share: 0.2,
            remove_excess: false,
        };
        let plan =
            Plan::builder().track(Track::fed_avg()).terms(Terms::PRIVATE).privacy(privacy).build().unwrap();
        let turns: Vec<Reachable> =
            (0..8).map(|round| plan.drawable(100, 1, round, Reachable::Everyone)).collect();
        for device in (0..100).map(TrainIndex) {
            let rounds: Vec<usize> = (0..8).filter(|&round| turns[round].contains(device)).collect();
            assert!(rounds.len() == 2 && rounds[1] == rounds[0] + 4, "{rounds:?}");
        }
        let none = plan.drawable(100, 1, 0, Reachable::Some(vec![false; 100]));
        assert!(!none.contains(TrainIndex(3)));
    }

    #[test]
    fn the_rate_decays_in_steps() {
        let decay = Some(Decay { factor: 0.5.try_into().unwrap(), every: 400.try_into().unwrap() });
        let local = Local { work: Work::Epochs(1), batch: 10, learning_rate: 0.32, decay };
        let track = Track::fed_avg();
        let rate = |round| local.plan(round, &track).learning_rate;
        assert_eq!([0, 399, 400, 799, 800].map(rate), [0.32, 0.32, 0.16, 0.16, 0.08]);
    }

    #[test]
    fn a_plan_that_cannot_be_trained_is_refused() {
        let valid = || Plan::builder().track(Track::fed_avg());
        assert!(valid().build().is_ok());
        let zero = |builder: PlanBuilder| match builder.build() {
            Err(InvalidPlan::Zero { what }) => what,
            _ => "no error",
        };
        assert_eq!(zero(Plan::builder()), "tracks");
        assert_eq!(zero(valid().cohort(0)), "devices in a cohort");
        assert_eq!(zero(valid().work(Work::Steps(0))), "local steps");
        assert_eq!(zero(valid().batch(0)), "examples in a batch");
        assert_eq!(zero(valid().evaluate_every(0)), "rounds between two evaluations");
        for rate in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            let refused = valid().learning_rate(rate).build().err();
            assert!(matches!(refused, Some(InvalidPlan::NotPositive { what: "learning rate", .. })));
        }
        let scaffold = Track::from_options(&SCAFFOLD, &SCAFFOLD.options_with([]).unwrap(), 0.0).unwrap();
        let terms = Terms { clip: Clip::try_from(1.0).ok(), ..Terms::PRIVATE };
        let refused = valid().track(scaffold).terms(terms).build().err().unwrap();
        assert!(refused.to_string().starts_with("updates are clipped, but SCAFFOLD"), "{refused}");
    }
}
