//! The one round loop: Algorithms 2 and 3, for every algorithm and every exchange.
//!
//! A run trains several *tracks*, one model each. In a simulation they share the cohorts and the
//! random numbers, so that they differ only in their algorithm. In a deployment no device serves
//! two tracks in one round ([`TrackSchedule`](crate::terms::TrackSchedule)). The loop owns no
//! clock, no file and no thread: it asks an [`Exchange`] and sends each [`Event`] to an
//! [`Observer`].

use std::sync::Arc;

use crate::cohort::Draw;
use crate::exchange::{CohortAnswers, CohortMember, Exchange, ExchangeError, Reachable, Round};
use crate::memory::{AlgorithmState, DeviceMemories};
use crate::model::Tensor;
use crate::params::{Params, UpdateSum};
use crate::privacy::Noise;
use crate::question::{Ask, Query};
use crate::selection::SummedTail;
use crate::server_step::ServerStepInput;
use crate::superquantile::LossDistribution;
use crate::terms::Clip;

mod error;
mod evaluated;
mod event;
mod held_out;
mod learning;
mod local;
mod plan;
mod records;
mod round_record;
mod spending;
mod updates;

pub use self::error::TrainingError;
use self::evaluated::evaluate;
pub use self::event::{
    Event, LossReporting, Observer, ObserverError, ObserverResult, SharedObserver, TrainOptions,
    TrainingObserver,
};
use self::held_out::HeldOutQueries;
use self::learning::{LossPhase, learn};
pub use self::plan::{Decay, InvalidPlan, Local, Plan, PlanBuilder};
pub use self::records::Records;
pub use self::round_record::RoundRecord;
use self::round_record::record;
pub use self::spending::PrivacySpent;
use self::spending::Spending;
use self::updates::{AskedUpdates, aggregated, simulated_update, update_queries};

/// The state of a run, which is the content of a checkpoint.
#[derive(Clone, Debug, PartialEq)]
pub struct State {
    /// The seed of the run.
    pub seed: u64,
    /// Rounds done.
    pub round: u64,
    /// The tensors that make up the params of each track.
    pub tensors: Arc<[Tensor]>,
    /// A state per track.
    pub tracks: Vec<TrackState>,
}

/// The state of a track.
#[derive(Clone, Debug, PartialEq)]
pub struct TrackState {
    /// w_t.
    pub params: Params,
    /// The state of its algorithm between rounds.
    pub memory: AlgorithmState,
    /// The state of simulated devices between rounds. A deployed device stores its own state.
    pub devices: DeviceMemories,
}

impl TrackState {
    /// Creates the state of a track that has not trained yet.
    pub fn new(params: Params) -> Self {
        Self { params, memory: AlgorithmState::default(), devices: DeviceMemories::default() }
    }
}

impl State {
    fn params(&self) -> Vec<&Params> {
        self.tracks.iter().map(|track| &track.params).collect()
    }
}

/// The end of a run that did not fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// All rounds are done.
    Finished,
    /// The observer asked to stop. The state was checkpointed.
    Stopped,
}

/// Trains every track from `state` to the last round, with the default [`TrainOptions`].
///
/// # Errors
///
/// Fails if the exchange or the observer fails, or if too many cohorts in a row fail.
pub fn train(
    exchange: &mut dyn Exchange,
    plan: &Plan,
    state: &mut State,
    observer: &mut TrainingObserver<'_>,
) -> Result<Outcome, TrainingError> {
    train_with(exchange, plan, state, TrainOptions::default(), observer)
}

/// Trains every track from `state` to the last round.
///
/// # Errors
///
/// Fails if the exchange or the observer fails, or if too many cohorts in a row fail.
pub fn train_with(
    exchange: &mut dyn Exchange,
    plan: &Plan,
    state: &mut State,
    options: TrainOptions,
    observer: &mut TrainingObserver<'_>,
) -> Result<Outcome, TrainingError> {
    let mut events = EventSink { observer, stop: false };
    if state.round == 0 {
        evaluate(exchange, plan, state, &mut events)?;
        if events.stop {
            events.send(Event::Checkpoint { state })?;
        }
    }
    let mut announced = first_cohort(exchange, plan, state, state.round);
    let mut spending = Spending::new(plan);
    while state.round < plan.rounds {
        if events.stop {
            return Ok(Outcome::Stopped);
        }
        // Line 2, one round ahead: an exchange that waits for a sum can prepare the next cohort.
        let next = first_cohort(exchange, plan, state, state.round + 1);
        exchange.announce(&next.cohort);
        let cycle = plan.terms.cycle(state.round);
        let reporting = cycle.map(|round| options.losses.in_round(plan, round)).max().unwrap_or_default();
        // Histograms for reports alone are exact, so that a private run has none.
        let reporting = if plan.privacy.is_some() { LossReporting::None } else { reporting };
        let Finished { records, losses } =
            finished_round(exchange, plan, state, announced, reporting, &mut spending)?;
        announced = next;
        if reporting != LossReporting::None {
            events.send(Event::Losses { round: state.round - 1, tracks: &losses })?;
        }
        events.send(Event::RoundFinished { records: &records })?;

        let evaluated = state.round == plan.rounds || state.round.is_multiple_of(plan.evaluate_every);
        if evaluated {
            evaluate(exchange, plan, state, &mut events)?;
        }
        if evaluated || events.stop || options.checkpoint_every_round {
            events.send(Event::Checkpoint { state })?;
        }
    }
    Ok(Outcome::Finished)
}

/// Sends events to an observer and stores its wish to stop.
struct EventSink<'a, 'o> {
    observer: &'a mut TrainingObserver<'o>,
    stop: bool,
}

impl EventSink<'_, '_> {
    fn send(&mut self, event: Event<'_>) -> Result<(), TrainingError> {
        self.stop |= self.observer.handle(event).map_err(TrainingError::Observer)?.is_break();
        Ok(())
    }
}

/// Draws the cohort of a round, assuming that all devices are reachable.
fn first_cohort(exchange: &dyn Exchange, plan: &Plan, state: &State, round: u64) -> Announced {
    let (devices, draw) = (exchange.devices(), Draw { seed: state.seed, round, attempt: 0 });
    let drawable = plan.drawable(devices, state.seed, round, Reachable::Everyone);
    Announced { cohort: plan.sampling.cohort(devices, draw, &drawable), devices }
}

/// A cohort drawn one round ahead.
struct Announced {
    cohort: Vec<CohortMember>,
    /// The number of devices at that time.
    devices: usize,
}

/// The results of a round, per track.
struct Finished {
    records: Vec<RoundRecord>,
    losses: Vec<Option<LossDistribution>>,
}

/// Runs a round. It starts with the announced cohort if all its devices are reachable and no device
/// was enrolled since. It is repeated with another cohort whenever the aggregation fails.
fn finished_round(
    exchange: &mut dyn Exchange,
    plan: &Plan,
    state: &mut State,
    announced: Announced,
    reporting: LossReporting,
    spending: &mut Spending,
) -> Result<Finished, TrainingError> {
    let before = state.tracks.clone();
    let Announced { mut cohort, devices } = announced;
    let mut attempt = 0;
    loop {
        let present = exchange.reachable()?;
        // A cohort of the devices that are connected is no sample of all devices.
        spending.drawn_from_all &= present == Reachable::Everyone;
        let reached = || cohort.iter().all(|drawn| present.contains(drawn.device));
        if attempt > 0 || exchange.devices() != devices || !reached() {
            let draw = Draw { seed: state.seed, round: state.round, attempt };
            let drawable = plan.drawable(exchange.devices(), state.seed, state.round, present);
            cohort = plan.sampling.cohort(exchange.devices(), draw, &drawable);
        }
        match one_round(exchange, plan, state, &cohort, reporting, spending) {
            // The η of a failed attempt is discarded.
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
    cohort: &[CohortMember],
    reporting: LossReporting,
    spending: &mut Spending,
) -> Result<Finished, TrainingError> {
    let terms = plan.terms;
    let round = Round { seed: state.seed, index: state.round, cohort, terms, own: &[] };
    let training = terms.tracks_of_round(state.round);

    spending::check_survivors(plan, round.answering())?;
    let evaluates = plan.evaluates(state.round);
    let mut held_out = HeldOutQueries::new(plan, &state.tracks, training.clone(), evaluates, &round)?;

    // Lines 3–5: broadcast w_t, learn F_k(w_t) or sums of it, and set η_t.
    let mut phases = learn(exchange, plan, state, &round, reporting, &mut held_out, spending)?;

    // Lines 6–9: the tail trains, and the server learns the sum of its updates.
    let (queries, noises): (Vec<Query>, Vec<Option<Noise>>) =
        update_queries(plan, state, &round, training.clone())?.into_iter().unzip();
    let own = training.clone().map(|i| simulated_update(plan, state, cohort, i)).collect();
    let asked = AskedUpdates { plan, first: training.start, queries: &queries, own };
    let updates = asked.answers(exchange, &round, &mut held_out)?;
    let devices = exchange.devices();
    let (mut records, mut clipping) = (Vec::with_capacity(training.len()), Vec::new());
    let asked = training.zip(queries.iter().zip(noises));
    for ((i, (query, noise)), CohortAnswers { each, sum: mut update }) in asked.zip(updates) {
        phases[i].traffic += update.traffic;
        phases[i].answered = update.answered;
        let (track, at) = (&plan.tracks[i], &mut state.tracks[i]);
        let Ask::Update { weighting, plan: local } = &query.ask else { continue };
        let (entries, reports) = (at.params.len() * (1 + query.sent.len()), weighting.kind().reports.len());
        let decoded = |values| {
            UpdateSum::with_reports(values, entries, reports)
                .map_err(|source| TrainingError::Update { round: round.index, source })
        };
        let mut unclipped = 0.0;
        let mut sum = match (&plan.privacy, &noise) {
            (Some(privacy), Some(noise)) => {
                // A sum without answers, as of a round that a server gives up, contains nothing to
                // protect.
                if update.answered > 0 {
                    spending::check_survivors(plan, update.answered)?;
                }
                let rho =
                    spending::release(privacy, &round, query, noise, update.answered, &mut update.values);
                spending.add(i, rho);
                let noisy = spending::NoisyUpdate::new(privacy, &round, query, noise, &update, at)?;
                unclipped = noisy.unclipped;
                noisy.sum
            }
            _ => decoded(update.values)?,
        };
        if let Some(aggregation) = &track.aggregation {
            let each = each.into_iter().map(decoded).collect::<Result<Vec<UpdateSum>, _>>()?;
            sum = aggregated(&**aggregation, sum, each);
        }
        update.remembered.into_iter().for_each(|(device, memory)| at.devices.set(device, memory));
        let input =
            ServerStepInput { params: &at.params, devices, learning_rate: local.learning_rate.into() };
        let stepped = track.server.apply(&input, &sum, &mut at.memory);
        if let Some(source) = track.server.failure() {
            let (round, track) = (round.index, track.label.name.clone());
            return Err(TrainingError::Algorithm { round, track, source });
        }
        if let Some(params) = stepped {
            at.params = params;
        }
        // Where the tracks divide the cohort, so many devices answered for this one, on average.
        let answered = update.answered / terms.divided_among();
        let turn = terms.turn(round.index);
        let summed =
            SummedTail { round: turn, answered, tail_weight: sum.tail_weight(), reports: &sum.reports() };
        track.selection.observe(&summed, &mut at.memory);
        records.push(record(&round, i, track, &at.memory, &sum, &phases[i]));
        clipping.push((noise.and_then(|noise| noise.clip), unclipped));
    }
    let mut last = held_out::after_the_last(exchange, plan, state, &round)?;
    held_out.settle(plan, &round, spending);
    // The evaluation after the last round has independent noise.
    last.settle(plan, &Round { index: plan.rounds.saturating_add(round.index), ..round }, spending);
    if let Some((epsilon_server, epsilon_readers)) = spending.end_round(plan, state, round.index, devices)
        && let Some(privacy) = &plan.privacy
    {
        for (record, (clip, unclipped)) in records.iter_mut().zip(clipping) {
            let (delta, clip) = (privacy.delta.get(), clip.map_or(0.0, Clip::get));
            let spent = PrivacySpent { epsilon_server, epsilon_readers, delta, clip, unclipped };
            record.privacy = Some(spent);
        }
    }
    state.round += 1;
    let version = terms.cycle(round.index).start;
    for record in &mut records {
        record.add(held_out.evaluation(version, plan.held_out, record.track));
        record.add(last.evaluation(plan.rounds, plan.held_out, record.track));
    }
    Ok(Finished { records, losses: phases.into_iter().map(LossPhase::distribution).collect() })
}
