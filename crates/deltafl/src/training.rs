//! The one round loop: Algorithms 2 and 3, for every algorithm and every exchange.
//!
//! A run trains several *tracks*, one model each. They share the cohorts and the random numbers, so that
//! they differ in their algorithm and in nothing else. The loop owns no clock, no file and no thread: it asks
//! an [`Exchange`] and tells an [`Observer`].

use std::num::NonZeroU64;
use std::ops::ControlFlow;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::algorithm::Track;
use crate::cohort::{Draw, Sampling};
use crate::data::Split;
use crate::evaluation::CohortEvaluation;
use crate::exchange::{Drawn, Exchange, ExchangeError, Reachable, Round, SplitEvaluation, Traffic};
use crate::memory::{DeviceMemories, Memory};
use crate::model::Tensor;
use crate::number::Positive;
use crate::params::{Params, UpdateSum, WrongLength};
use crate::question::{Ask, Parting, Query};
use crate::selection::{ETA, ETA_ROUND, SummedTail};
use crate::server_step::Applied;
use crate::stream::{Purpose, Stream};
use crate::superquantile::LossDistribution;
use crate::superquantile::private::RefusedSum;
use crate::task::Task;
use crate::terms::Terms;
use crate::trainer::{LocalPlan, LocalTrainer, Work};

mod held_out;
mod learning;
mod local;
mod records;

use self::held_out::HeldOut;
use self::learning::{Note, learn};
pub use self::records::Records;

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
    /// On what terms devices answer.
    pub terms: Terms,
    /// What the devices predict, where they keep their figures to themselves and cohorts are asked about the examples that
    /// they hold out, as often as the run evaluates; `None` asks nobody.
    pub held_out: Option<Task>,
    /// The models, one per track.
    pub tracks: Vec<Track>,
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
    pub factor: Positive,
    /// t₀.
    pub every: NonZeroU64,
}

impl Local {
    /// The local update of round t for a track.
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

/// Where a run stands: all that a checkpoint holds.
#[derive(Clone, Debug, PartialEq)]
pub struct State {
    /// The seed of the run.
    pub seed: u64,
    /// Rounds done.
    pub round: u64,
    /// The tensors of which the params of every track are made.
    pub tensors: Arc<[Tensor]>,
    /// A state per track.
    pub tracks: Vec<TrackState>,
}

/// Where a track stands.
#[derive(Clone, Debug, PartialEq)]
pub struct TrackState {
    /// w_t.
    pub params: Params,
    /// What its algorithm keeps between rounds.
    pub memory: Memory,
    /// What the devices of a simulation keep between rounds; nothing of a deployed device is ever here.
    pub devices: DeviceMemories,
}

impl TrackState {
    /// A track at these params, where nothing is remembered yet.
    pub fn new(params: Params) -> Self {
        Self { params, memory: Memory::default(), devices: DeviceMemories::default() }
    }
}

impl State {
    /// The start of a run: every track at the same w₀.
    pub fn new(seed: u64, tracks: usize, trainer: &dyn LocalTrainer) -> Self {
        let mut entries = vec![0.0; trainer.num_params()];
        trainer.init(&mut Stream::new(seed, Purpose::Init, 0, 0), &mut entries);
        let start = TrackState::new(entries.into());
        Self { seed, round: 0, tensors: trainer.tensors().into(), tracks: vec![start; tracks] }
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
    /// Its name.
    pub name: String,
    /// t, counted from 0.
    pub round: u64,
    /// η_t, where the algorithm has one.
    pub eta: Option<f64>,
    /// Rounds since η was found: 0 when it was found in this one.
    pub eta_age: Option<u64>,
    /// Weighted mean loss of the cohort; the server knows it in open mode only.
    pub loss: Option<f64>,
    /// |S_t|, distinct devices.
    pub cohort: u64,
    /// Devices that vanished.
    pub dropped: u64,
    /// |S_t'|, the devices in the sum.
    pub tail: u64,
    /// Σ α_k over the tail.
    pub tail_weight: f64,
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
    /// What the cohort told of the examples that it holds out: at w_t, and in the last round at the params that it ended with.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub evaluations: Vec<CohortEvaluation>,
}

/// An error of an observer, from the world outside: a full disk, say.
pub type ObserverError = Box<dyn std::error::Error + Send + Sync>;

/// What leaves the round loop. No method has a default: whoever wraps an observer passes on all of them. [`Records`] is the
/// smallest one.
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
    fn every_round(&self) -> bool;

    /// Whose losses in round t are to be told through [`Self::losses`].
    fn survey(&self, round: u64) -> Survey;

    /// How the losses of the cohort of round t lay at the params w_t, per track, where they were asked for. Heard of before
    /// the round's records.
    fn losses(&mut self, round: u64, tracks: &[Option<LossDistribution>]) -> Result<(), ObserverError>;
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
    Exchange(#[from] ExchangeError),
    /// Cohort after cohort came to no sum.
    #[error("round {round}: {attempts} cohorts in a row came to no sum; do too many devices vanish?")]
    NoSum {
        /// t.
        round: u64,
        /// Cohorts drawn.
        attempts: u64,
        /// Why the last of them came to none.
        source: ExchangeError,
    },
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
    exchange: &mut dyn Exchange,
    plan: &Plan,
    state: &mut State,
    observer: &mut dyn Observer,
) -> Result<Outcome, TrainingError> {
    if state.round == 0 {
        evaluate(exchange, state, observer)?;
    }
    let mut announced = first_cohort(exchange, plan, state, state.round);
    while state.round < plan.rounds {
        // Line 2, a round ahead: whoever waits for a sum can prepare the next cohort.
        let next = first_cohort(exchange, plan, state, state.round + 1);
        exchange.announce(&next.cohort);
        let survey = observer.survey(state.round);
        let Finished { records, losses } = finished_round(exchange, plan, state, announced, survey)?;
        announced = next;
        if survey != Survey::None {
            observer.losses(state.round - 1, &losses).map_err(TrainingError::Observer)?;
        }
        let flow = observer.round(&records).map_err(TrainingError::Observer)?;

        let evaluated = state.round == plan.rounds || state.round.is_multiple_of(plan.evaluate_every);
        if evaluated {
            evaluate(exchange, state, observer)?;
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
fn first_cohort(exchange: &dyn Exchange, plan: &Plan, state: &State, round: u64) -> Announced {
    let (devices, draw) = (exchange.devices(), Draw { seed: state.seed, round, attempt: 0 });
    Announced { cohort: plan.sampling.cohort(devices, draw, &Reachable::Everyone), devices }
}

/// A cohort that was drawn ahead.
struct Announced {
    cohort: Vec<Drawn>,
    /// How many devices there were then.
    devices: usize,
}

/// What a round leaves behind, per track.
struct Finished {
    records: Vec<RoundRecord>,
    losses: Vec<Option<LossDistribution>>,
}

/// A round, begun with the cohort announced if all of it can be reached and no device was enrolled since, and begun anew with
/// another whenever one came to no sum.
fn finished_round(
    exchange: &mut dyn Exchange,
    plan: &Plan,
    state: &mut State,
    announced: Announced,
    survey: Survey,
) -> Result<Finished, TrainingError> {
    let before = state.tracks.clone();
    let Announced { mut cohort, devices } = announced;
    let mut attempt = 0;
    loop {
        let present = exchange.reachable()?;
        let reached = || cohort.iter().all(|drawn| present.contains(drawn.device));
        if attempt > 0 || exchange.devices() != devices || !reached() {
            let draw = Draw { seed: state.seed, round: state.round, attempt };
            cohort = plan.sampling.cohort(exchange.devices(), draw, &present);
        }
        match one_round(exchange, plan, state, &cohort, survey) {
            // The η of a round that came to nothing is forgotten with it.
            Err(TrainingError::Exchange(source @ ExchangeError::NoSum { .. })) => {
                state.tracks.clone_from(&before);
                attempt += 1;
                if attempt == exchange.attempts() {
                    return Err(TrainingError::NoSum { round: state.round, attempts: attempt, source });
                }
            }
            ended => return ended,
        }
    }
}

/// One round of Algorithm 2 (open) or 3 (private), for all tracks, with the cohort S_t of line 2.
fn one_round(
    exchange: &mut dyn Exchange,
    plan: &Plan,
    state: &mut State,
    cohort: &[Drawn],
    survey: Survey,
) -> Result<Finished, TrainingError> {
    let round = Round { seed: state.seed, index: state.round, cohort, terms: plan.terms, own: &[] };

    let evaluates = state.round.is_multiple_of(plan.evaluate_every);
    let mut held_out = HeldOut::of(plan, &state.tracks, evaluates);

    // Lines 3–5: broadcast w_t, learn F_k(w_t) or sums of it, and set η_t.
    let mut notes = learn(exchange, plan, state, &round, survey, &mut held_out)?;

    // Lines 6–9: the tail trains, and the server learns the sum of its updates.
    let queries = update_queries(plan, state);
    let parting = Parting::of(&round.key(), &queries);
    let own: Vec<DeviceMemories> = state.tracks.iter().map(|at| at.devices.clone()).collect();
    let updates = held_out.with(exchange, &Round { own: &own, ..round }, queries.clone())?;
    let devices = exchange.devices();
    let mut records = Vec::with_capacity(plan.tracks.len());
    for (i, update) in updates.into_iter().enumerate() {
        notes[i].traffic += update.traffic;
        notes[i].answered = update.answered;
        let (track, at) = (&plan.tracks[i], &mut state.tracks[i]);
        let sum = UpdateSum::new(update.values, at.params.len() * (1 + queries[i].sent.len()))
            .map_err(|source| TrainingError::Update { round: round.index, source })?;
        update.remembered.into_iter().for_each(|(device, memory)| at.devices.set(device, memory));
        if let Some(params) =
            track.server.apply(&Applied { params: &at.params, devices }, &sum, &mut at.memory)
        {
            at.params = params;
        }
        // Where devices train for one of several tracks, so many of them answered for this one, in the mean.
        let answered = update.answered / parting.among(i);
        let summed = SummedTail { round: round.index, answered, tail_weight: sum.tail_weight() };
        track.selection.observe(&summed, &mut at.memory);
        records.push(record(&round, i, track, &at.memory, &sum, &notes[i]));
    }
    state.round += 1;
    let last = held_out::after_the_last(exchange, plan, state, &round)?;
    for (i, record) in records.iter_mut().enumerate() {
        record.tell(held_out.told(round.index, plan.held_out, i));
        record.tell(last.told(state.round, plan.held_out, i));
    }
    Ok(Finished { records, losses: notes.into_iter().map(Note::distribution).collect() })
}

/// The update that each track asks of the cohort.
fn update_queries(plan: &Plan, state: &State) -> Vec<Query> {
    let of_track = |(track, at): (&Track, &TrackState)| {
        let weighting = track.selection.weighting(&at.memory);
        let plan = plan.local.plan(state.round, track);
        let zero = || Params::from(vec![0.0; at.params.len()]);
        let names = plan.correction.map_or(&[][..], |correction| correction.sent);
        let sent = names.iter().map(|name| at.memory.vector(name).cloned().unwrap_or_else(zero)).collect();
        Query { params: at.params.clone(), sent, ask: Ask::Update { weighting, plan } }
    };
    plan.tracks.iter().zip(&state.tracks).map(of_track).collect()
}

fn record(
    round: &Round<'_>,
    index: usize,
    track: &Track,
    memory: &Memory,
    sum: &UpdateSum,
    note: &Note,
) -> RoundRecord {
    RoundRecord {
        seed: round.seed,
        track: index,
        name: track.label.name.clone(),
        round: round.index,
        eta: memory.number(ETA),
        eta_age: memory.number(ETA_ROUND).map(|found| round.index.saturating_sub(found as u64)),
        loss: note.loss,
        cohort: round.cohort.len() as u64,
        dropped: round.cohort.len() as u64 - note.answered,
        tail: sum.tail(),
        tail_weight: sum.tail_weight(),
        refused: sum.refused(),
        sums: note.traffic.sums,
        messages: note.traffic.messages,
        bytes_up: note.traffic.bytes_up,
        bytes_down: note.traffic.bytes_down,
        evaluations: Vec::new(),
    }
}

impl RoundRecord {
    /// Adds what the cohort told of the examples that it holds out, and what it cost.
    fn tell(&mut self, (told, cost): (Option<CohortEvaluation>, Traffic)) {
        self.evaluations.extend(told);
        self.sums += cost.sums;
        self.messages += cost.messages;
        self.bytes_up += cost.bytes_up;
        self.bytes_down += cost.bytes_down;
    }
}

/// Evaluates every device under every track, where the devices tell; those held out for validation, where there are any,
/// come last.
fn evaluate(
    exchange: &mut dyn Exchange,
    state: &State,
    observer: &mut dyn Observer,
) -> Result<(), TrainingError> {
    let mut splits = Vec::with_capacity(3);
    for split in [Split::Train, Split::Test, Split::Validation] {
        splits.extend(exchange.evaluate(split, &state.params())?);
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
        let decay = Some(Decay { factor: 0.5.try_into().unwrap(), every: 400.try_into().unwrap() });
        let local = Local { work: Work::Epochs(1), batch: 10, learning_rate: 0.32, decay };
        let track = Track::fed_avg();
        let rate = |round| local.plan(round, &track).learning_rate;
        assert_eq!([0, 399, 400, 799, 800].map(rate), [0.32, 0.32, 0.16, 0.16, 0.08]);
    }
}
