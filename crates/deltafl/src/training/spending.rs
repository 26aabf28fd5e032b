//! The privacy that a run has spent.

use serde::{Deserialize, Serialize};

use super::{Plan, State, TrackState, TrainingError};
use crate::exchange::{CohortSum, ExchangeError, Round};
use crate::params::{UpdateSum, WrongLength};
use crate::privacy::update::DecodedUpdate;
use crate::privacy::{Mechanism, Noise, PrivacyPlan, Rho, SampledRound};
use crate::question::Query;
use crate::selection::Needs;
use crate::terms::{Clip, TrackSchedule};

/// The name of C in the track's memory.
const CLIP: &str = "privacy.clip";

/// The privacy that a run has spent up to a round, and the clipping of that round.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct PrivacySpent {
    /// ε of a device against the server, which sees every sum and knows every cohort. `None` if the
    /// server sees sums without noise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub epsilon_server: Option<f64>,
    /// ε of a device against readers of the models, who do not know the cohorts.
    pub epsilon_readers: f64,
    /// δ of both.
    pub delta: f64,
    /// C of the round.
    pub clip: f64,
    /// The noisy share of updates that were not shortened.
    pub unclipped: f64,
}

/// Adds up the cost of the sums of a run.
pub(super) struct Spending {
    /// ρ of the current round per track, over all its cohorts.
    by_track: Vec<Rho>,
    /// Whether all cohorts so far were drawn from all devices.
    pub(super) drawn_from_all: bool,
    /// The cost of one round for readers of the models, for this number of devices.
    readers: Option<(usize, Option<SampledRound>)>,
}

impl Spending {
    pub(super) fn new(plan: &Plan) -> Self {
        Self { by_track: vec![Rho::ZERO; plan.tracks.len()], drawn_from_all: true, readers: None }
    }

    /// Adds the cost of a sum of a track.
    pub(super) fn add(&mut self, track: usize, rho: Rho) {
        self.by_track[track] += rho;
    }

    /// Ends a round. Stores its cost in the state and returns ε so far against the server and
    /// against readers of the models.
    pub(super) fn end_round(
        &mut self,
        plan: &Plan,
        state: &mut State,
        round: u64,
        devices: usize,
    ) -> Option<(Option<f64>, f64)> {
        let privacy = plan.privacy.as_ref()?;
        let tracks = std::mem::replace(&mut self.by_track, vec![Rho::ZERO; plan.tracks.len()]);
        let cost: Rho = match plan.terms.schedule {
            // A device answers for one of the tracks.
            TrackSchedule::Apart => tracks.into_iter().fold(Rho::ZERO, |a, b| if a > b { a } else { b }),
            TrackSchedule::Together | TrackSchedule::InTurn => tracks.into_iter().sum(),
        };
        // Devices that may be drawn in this round have been drawn only in rounds of the same turn.
        let name = |turn: u64| format!("privacy.rho.{turn}");
        let own = name(round % privacy.rounds_between.max(1));
        let first = &mut state.tracks[plan.terms.tracks_of_round(round).start].memory;
        first.set_number(&own, first.number(&own).unwrap_or(0.0) + cost.get());
        let total = |turn: u64| -> f64 {
            state.tracks.iter().filter_map(|track| track.memory.number(&name(turn))).sum()
        };
        let worst = (0..privacy.rounds_between.max(1)).map(total).fold(0.0, f64::max);
        let every_round = Rho::new(worst).epsilon(privacy.delta);
        let server = (privacy.mechanism == Mechanism::Distributed).then_some(every_round);
        let sampled = self.drawn_from_all.then(|| self.readers(plan, privacy, devices)).flatten();
        let readers = sampled.map_or(f64::INFINITY, |sampled| sampled.epsilon(round + 1, privacy.delta));
        Some((server, readers.min(every_round)))
    }

    fn readers(&mut self, plan: &Plan, privacy: &PrivacyPlan, devices: usize) -> Option<&SampledRound> {
        if self.readers.as_ref().is_none_or(|(known, _)| *known != devices) {
            let tracks = match plan.terms.schedule {
                TrackSchedule::Together => plan.tracks.len() as u64,
                TrackSchedule::InTurn | TrackSchedule::Apart => 1,
            };
            self.readers = Some((devices, privacy.sampled_round(&plan.sampling, devices, tracks)));
        }
        self.readers.as_ref().and_then(|(_, sampled)| sampled.as_ref())
    }
}

/// Returns C of a track.
pub(super) fn clip(privacy: &PrivacyPlan, track: &TrackState) -> Clip {
    let known = track.memory.number(CLIP).and_then(|clip| Clip::try_from(clip).ok());
    known.unwrap_or(privacy.clip.start)
}

/// Stores C for the next round of a track.
pub(super) fn set_clip(track: &mut TrackState, clip: Clip) {
    track.memory.set_number(CLIP, clip.get());
}

/// Returns the noise of a query, with which its sum is decoded. Sets the noise that the query
/// names.
pub(super) fn set_noise(
    plan: &Plan,
    round: &Round<'_>,
    clip: Clip,
    has_quantile: bool,
    query: &mut Query,
) -> Result<Option<Noise>, TrainingError> {
    let Some(privacy) = &plan.privacy else { return Ok(None) };
    let (params, members) = (query.params.len(), round.cohort.len() as u32);
    let noise = privacy.noise(&query.ask, params, clip, has_quantile, members);
    let noise = noise.map_err(|source| TrainingError::Noise { round: round.index, source })?;
    query.noise = Some(privacy.asked(noise));
    Ok(Some(noise))
}

/// Fails if fewer devices answer than the noise is calibrated for.
pub(super) fn check_survivors(plan: &Plan, answering: u64) -> Result<(), TrainingError> {
    match &plan.privacy {
        Some(privacy) if privacy.mechanism == Mechanism::Distributed => {
            let least = u64::from(privacy.survivors);
            if answering < least {
                let source = format!("{answering} devices answer, but the noise needs {least}").into();
                return Err(ExchangeError::NoSum { source }.into());
            }
            Ok(())
        }
        _ => Ok(()),
    }
}

/// Returns whether a track asks for a quantile.
pub(super) fn asks_quantile(plan: &Plan, state: &State, track: usize, turn: u64) -> bool {
    matches!(plan.tracks[track].selection.needs(turn, &state.tracks[track].memory), Needs::Quantile(_))
}

/// Adds the noise of a central server to a sum, if there is one. Returns the cost of the sum.
pub(super) fn release(
    privacy: &PrivacyPlan,
    round: &Round<'_>,
    query: &Query,
    noise: &Noise,
    answered: u64,
    values: &mut [u64],
) -> Rho {
    privacy.add_central(noise, values, round.seed, round.index, query.number().into());
    privacy.spent(noise, &query.ask, query.params.len(), answered)
}

/// Returns the share that a noisy part has of a noisy weight.
pub(super) fn share(part: f64, weight: f64) -> f64 {
    (part / weight.max(1.0)).clamp(0.0, 1.0)
}

/// A decoded noisy sum of updates.
pub(super) struct NoisyUpdate {
    /// The sum for the server step.
    pub(super) sum: UpdateSum,
    /// The noisy share of updates that were not shortened.
    pub(super) unclipped: f64,
}

impl NoisyUpdate {
    /// Decodes a sum and stores C of the next round.
    pub(super) fn new(
        privacy: &PrivacyPlan,
        round: &Round<'_>,
        query: &Query,
        noise: &Noise,
        update: &CohortSum,
        track: &mut TrackState,
    ) -> Result<Self, TrainingError> {
        let (clip, params) = (noise.clip.unwrap_or(privacy.clip.start), query.params.len());
        let mut signs = round.key().rotation(query.number());
        let decoded = DecodedUpdate::new(noise, clip, params, &update.values, &mut signs);
        let decoded = decoded.ok_or(TrainingError::Update {
            round: round.index,
            source: WrongLength { expected: query.answer_len(), got: update.values.len() },
        })?;
        let unclipped = share(decoded.unclipped, decoded.weight);
        if update.answered > 0 {
            set_clip(track, privacy.clip.next(clip, unclipped));
        }
        // Below two standard deviations the weight is mostly noise.
        let samples = match privacy.mechanism {
            Mechanism::Distributed => update.answered,
            Mechanism::Central => privacy.honest().into(),
        };
        let least = (2.0 * DecodedUpdate::weight_deviation(noise, samples)).max(1.0);
        Ok(Self { sum: decoded.into_sum(least), unclipped })
    }
}
