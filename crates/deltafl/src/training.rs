//! The one round loop: Algorithms 2 and 3, for every algorithm and every engine.
//!
//! A run trains several *tracks*, one model w_θ each. They share the cohorts and the random numbers, so that
//! they differ in their algorithm and in nothing else. The loop owns no clock, no file and no thread: it asks
//! an [`Engine`] and tells an [`Observer`].

use std::ops::ControlFlow;

use serde::{Deserialize, Serialize};

use crate::algorithm::Algorithm;
use crate::cohort::{Draw, Sampling};
use crate::data::Split;
use crate::device::{LocalPlan, Work};
use crate::engine::{Drawn, Engine, EngineError, Query, Reachable, Round, SplitEvaluation};
use crate::model::{Model, Step};
use crate::params::{Params, UpdateSum, WrongLength};
use crate::stream::{Purpose, Stream};
use crate::superquantile::private::{LossRange, RefusedSum};
use crate::superquantile::{Conformity, LossDistribution};

mod thresholds;

use self::thresholds::{Note, set_thresholds};

/// What a run does in every round.
pub struct Plan {
    /// T.
    pub rounds: u64,
    /// How S_t is drawn.
    pub sampling: Sampling,
    /// How devices train.
    pub local: Local,
    /// Rounds between two evaluations of every device; the last round is always evaluated.
    pub evaluate_every: u64,
    /// The models, one per track.
    pub tracks: Vec<Track>,
}

/// One model of a run.
pub struct Track {
    /// How it is trained.
    pub algorithm: Box<dyn Algorithm>,
    /// λ of (λ/2)‖w‖².
    pub l2: f32,
}

/// LocalUpdate, with its learning rate over the rounds.
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
    pub factor: f64,
    /// t₀.
    pub every: u64,
}

impl Local {
    /// The local update of round t with the penalty λ.
    pub fn plan(&self, round: u64, l2: f32) -> LocalPlan {
        let decayed = self
            .decay
            .map_or(1.0, |decay| decay.factor.powi(i32::try_from(round / decay.every).unwrap_or(i32::MAX)));
        let step = Step { learning_rate: (self.learning_rate * decayed) as f32, l2 };
        LocalPlan { work: self.work, batch: self.batch, step }
    }
}

/// Where a run stands: all that a checkpoint holds.
#[derive(Clone, Debug, PartialEq)]
pub struct State {
    /// The seed of the run.
    pub seed: u64,
    /// Rounds done.
    pub round: u64,
    /// A state per track.
    pub tracks: Vec<TrackState>,
}

/// Where a track stands.
#[derive(Clone, Debug, PartialEq)]
pub struct TrackState {
    /// w_t.
    pub params: Params,
    /// η in force.
    pub eta: Option<f64>,
    /// The range of losses that a private quantile has settled on.
    pub range: LossRange,
}

impl State {
    /// The start of a run: every track at the same w₀.
    pub fn new(seed: u64, tracks: usize, model: &dyn Model) -> Self {
        let mut entries = vec![0.0; model.num_params()];
        model.init(&mut Stream::new(seed, Purpose::Init, 0, 0), &mut entries);
        let start = TrackState { params: entries.into(), eta: None, range: LossRange::default() };
        Self { seed, round: 0, tracks: vec![start; tracks] }
    }

    fn params(&self) -> Vec<&Params> {
        self.tracks.iter().map(|track| &track.params).collect()
    }
}

/// What happened to one track in one round: a line of `rounds.jsonl`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RoundRecord {
    /// The seed of the run.
    pub seed: u64,
    /// Index of the track.
    pub track: usize,
    /// Name of the algorithm.
    pub algorithm: String,
    /// θ.
    pub theta: Conformity,
    /// t, counted from 0.
    pub round: u64,
    /// η_t, where the algorithm has one.
    pub eta: Option<f64>,
    /// Weighted mean loss of the cohort; the server knows it in open mode only.
    pub loss: Option<f64>,
    /// |S_t|, distinct devices.
    pub cohort: u64,
    /// Devices that vanished.
    pub dropped: u64,
    /// |S_t'|, the devices in the sum.
    pub tail: u64,
    /// Σ α_k over the tail.
    pub weight: f64,
    /// Devices left out because their update was not finite.
    pub refused: u64,
    /// Calls of secure aggregation.
    pub sums: u64,
    /// Messages between devices and server.
    pub messages: u64,
    /// Bytes from the devices.
    pub bytes_up: u64,
    /// Bytes to the devices.
    pub bytes_down: u64,
}

/// An error of an observer, from the world outside: a full disk, say.
pub type ObserverError = Box<dyn std::error::Error + Send + Sync>;

/// What leaves the round loop.
pub trait Observer {
    /// A round is done, a record per track. `Break` ends the run after a checkpoint.
    fn round(&mut self, records: &[RoundRecord]) -> Result<ControlFlow<()>, ObserverError>;

    /// Every device of these splits has been evaluated after `round` rounds; not heard of where devices keep their
    /// figures to themselves.
    fn evaluation(&mut self, round: u64, splits: &[SplitEvaluation]) -> Result<(), ObserverError>;

    /// A state from which the run can go on: everything observed before belongs to it.
    fn checkpoint(&mut self, state: &State) -> Result<(), ObserverError>;

    /// Whether every round is checkpointed, and not the evaluated ones alone: a round that took devices an hour is not
    /// to be done again.
    fn every_round(&self) -> bool {
        false
    }

    /// Whose losses in round t are to be told through [`Self::losses`].
    fn survey(&self, round: u64) -> Survey {
        let _ = round;
        Survey::None
    }

    /// How the losses of the cohort of round t lay at the params w_t, per track, where they were asked for. Heard of before
    /// the round's records.
    fn losses(&mut self, round: u64, tracks: &[Option<LossDistribution>]) -> Result<(), ObserverError> {
        let _ = (round, tracks);
        Ok(())
    }
}

/// Whose losses an observer wants to hear of. Training comes to the same bits with any.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Survey {
    /// Nobody's.
    #[default]
    None,
    /// Of the tracks whose threshold the round looks for: they are known anyway.
    Known,
    /// Of every track: those that need no losses are asked for histograms, too.
    All,
}

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// All rounds are done.
    Finished,
    /// The observer asked to stop; the state is checkpointed.
    Stopped,
}

/// Why a run could not go on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TrainingError {
    /// The devices could not be asked.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// A sum for the quantile was malformed.
    #[error("round {round}: the private quantile refused a sum")]
    Quantile {
        /// t.
        round: u64,
        /// Why.
        source: RefusedSum,
    },
    /// A sum of updates was malformed.
    #[error("round {round}: {source}")]
    Update {
        /// t.
        round: u64,
        /// Why.
        source: WrongLength,
    },
    /// The observer failed.
    #[error("could not record the run")]
    Observer(#[source] ObserverError),
}

/// Trains every track from `state` to the last round.
pub fn train(
    engine: &mut dyn Engine,
    plan: &Plan,
    state: &mut State,
    observer: &mut dyn Observer,
) -> Result<Outcome, TrainingError> {
    if state.round == 0 {
        evaluate(engine, state, observer)?;
    }
    let mut announced = first_cohort(engine, plan, state, state.round);
    while state.round < plan.rounds {
        // Line 2, a round ahead: whoever waits for a sum can prepare the next cohort.
        let next = first_cohort(engine, plan, state, state.round + 1);
        engine.announce(&next);
        let survey = observer.survey(state.round);
        let Finished { records, losses } = finished_round(engine, plan, state, announced, survey)?;
        announced = next;
        if survey != Survey::None {
            observer.losses(state.round - 1, &losses).map_err(TrainingError::Observer)?;
        }
        let flow = observer.round(&records).map_err(TrainingError::Observer)?;

        let evaluated = state.round == plan.rounds || state.round.is_multiple_of(plan.evaluate_every);
        if evaluated {
            evaluate(engine, state, observer)?;
        }
        if evaluated || flow.is_break() || observer.every_round() {
            observer.checkpoint(state).map_err(TrainingError::Observer)?;
        }
        if flow.is_break() && state.round < plan.rounds {
            return Ok(Outcome::Stopped);
        }
    }
    Ok(Outcome::Finished)
}

/// The cohort of a round when everybody can be reached.
fn first_cohort(engine: &dyn Engine, plan: &Plan, state: &State, round: u64) -> Vec<Drawn> {
    plan.sampling.cohort(engine.devices(), Draw { seed: state.seed, round, attempt: 0 }, &Reachable::Everyone)
}

/// What a round leaves behind, per track.
struct Finished {
    records: Vec<RoundRecord>,
    losses: Vec<Option<LossDistribution>>,
}

/// A round, begun with the cohort announced if all of it can be reached, and begun anew with another whenever one came
/// to no sum.
fn finished_round(
    engine: &mut dyn Engine,
    plan: &Plan,
    state: &mut State,
    announced: Vec<Drawn>,
    survey: Survey,
) -> Result<Finished, TrainingError> {
    let before = state.tracks.clone();
    let mut cohort = announced;
    let mut attempt = 0;
    loop {
        let present = engine.reachable()?;
        if attempt > 0 || !cohort.iter().all(|drawn| present.contains(drawn.device)) {
            let draw = Draw { seed: state.seed, round: state.round, attempt };
            cohort = plan.sampling.cohort(engine.devices(), draw, &present);
        }
        match one_round(engine, plan, state, &cohort, survey) {
            // The η of a round that came to nothing is forgotten with it.
            Err(TrainingError::Engine(EngineError::NoSum { .. })) => state.tracks.clone_from(&before),
            ended => return ended,
        }
        attempt += 1;
    }
}

/// One round of Algorithm 2 (open) or 3 (private), for all tracks, with the cohort S_t of line 2.
fn one_round(
    engine: &mut dyn Engine,
    plan: &Plan,
    state: &mut State,
    cohort: &[Drawn],
    survey: Survey,
) -> Result<Finished, TrainingError> {
    let round = Round { seed: state.seed, index: state.round, cohort };

    // Lines 3–5: broadcast w_t, learn F_k(w_t) or sums of it, and set η_t.
    let mut notes = set_thresholds(engine, plan, state, &round, survey)?;

    // Lines 6–9: the tail trains, and the server learns the sum of its updates.
    let updates = engine.secure_sum(&round, &update_queries(plan, state))?;
    let mut records = Vec::with_capacity(plan.tracks.len());
    for (i, update) in updates.into_iter().enumerate() {
        notes[i].traffic += update.traffic;
        notes[i].answered = update.answered;
        let track = &mut state.tracks[i];
        let sum = UpdateSum::new(update.values, track.params.len())
            .map_err(|source| TrainingError::Update { round: round.index, source })?;
        if let Some(params) = sum.applied_to(&track.params) {
            track.params = params;
        }
        records.push(record(&round, i, &plan.tracks[i], track.eta, &sum, &notes[i]));
    }
    state.round += 1;
    Ok(Finished { records, losses: notes.into_iter().map(Note::distribution).collect() })
}

/// The update that each track asks of the cohort.
fn update_queries<'a>(plan: &Plan, state: &'a State) -> Vec<Query<'a>> {
    let of_track = |(track, at): (&Track, &'a TrackState)| Query::LocalUpdate {
        params: &at.params,
        admission: track.algorithm.admission(at.eta),
        plan: plan.local.plan(state.round, track.l2),
    };
    plan.tracks.iter().zip(&state.tracks).map(of_track).collect()
}

fn record(
    round: &Round<'_>,
    index: usize,
    track: &Track,
    eta: Option<f64>,
    sum: &UpdateSum,
    note: &Note,
) -> RoundRecord {
    RoundRecord {
        seed: round.seed,
        track: index,
        algorithm: track.algorithm.name().to_owned(),
        theta: track.algorithm.theta(),
        round: round.index,
        eta,
        loss: note.loss,
        cohort: round.cohort.len() as u64,
        dropped: round.cohort.len() as u64 - note.answered,
        tail: sum.kept(),
        weight: sum.weight(),
        refused: sum.refused(),
        sums: note.traffic.sums,
        messages: note.traffic.messages,
        bytes_up: note.traffic.bytes_up,
        bytes_down: note.traffic.bytes_down,
    }
}

/// Evaluates every device under every track, where the devices tell; those held out for validation, where there are any,
/// come last.
fn evaluate(
    engine: &mut dyn Engine,
    state: &State,
    observer: &mut dyn Observer,
) -> Result<(), TrainingError> {
    let mut splits = Vec::with_capacity(3);
    for split in [Split::Train, Split::Test, Split::Validation] {
        splits.extend(engine.evaluate(split, &state.params())?);
    }
    splits.retain(|evaluation| evaluation.split != Split::Validation || !evaluation.devices.is_empty());
    if splits.is_empty() {
        return Ok(());
    }
    observer.evaluation(state.round, &splits).map_err(TrainingError::Observer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_decays_in_steps() {
        let decay = Some(Decay { factor: 0.5, every: 400 });
        let local = Local { work: Work::Epochs(1), batch: 10, learning_rate: 0.32, decay };
        let rate = |round| local.plan(round, 0.0).step.learning_rate;
        assert_eq!([0, 399, 400, 799, 800].map(rate), [0.32, 0.32, 0.16, 0.16, 0.08]);
    }
}
