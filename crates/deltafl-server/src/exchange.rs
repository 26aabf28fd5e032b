//! The exchange with devices that connect over the network.
//!
//! The round loop runs on its own thread and uses this like any other exchange. The answers are the
//! same integers, so the results equal those of a simulation to the bit.
//! docs/src/explanation/threat-model.md describes the information that the server gains about one device.

mod open_losses;
mod plausible;
mod round_in_progress;
mod rules;
mod waiting;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use deltafl::data::Split;
use deltafl::exchange::{
    CohortAnswers, CohortMember, CohortSum, Evaluation, Exchange, ExchangeError, NamedLoss, PersonalModels,
    Reachable, Round, SLOTS, SplitEvaluation, Traffic,
};
use deltafl::params::Params;
use deltafl::privacy::ExcessKey;
use deltafl::question::{Ask, Query, RoundKey, encode};
use deltafl::training::State;
use deltafl_secagg::Defences;
pub use deltafl_secagg::draw::DrawChain;
use deltafl_secagg::draw::{self, DrawCommitment, DrawOpening};
pub use deltafl_secagg::graph::Permille;
use deltafl_secagg::identity::DeviceId;
use deltafl_secagg::mask::MaskSuite;
use deltafl_secagg::message::DeviceSet;
use deltafl_secagg::params::{RoundId, RoundParams};
use deltafl_secagg::ring::{Ring, RingVector};
use deltafl_secagg::server::{RoundFailure, ServerRoundConfig};
use deltafl_wire::params_blob;
use deltafl_wire::proto;
use deltafl_wire::roster::session_under;
use tokio::runtime::Runtime;
use tokio::time::{Instant, sleep};

pub use self::plausible::Implausible;
pub use self::round_in_progress::RoundJournal;
use self::round_in_progress::{QuestionMismatch, RoundInProgress};
pub use self::rules::Rules;
use self::waiting::{GLANCE, WaitingLog};

use crate::hub::{PhasePurpose, Status};
use crate::refusal::Refusal;
use crate::round::{DeviceLink, Invitation, LoopRuntime, Protocol};
use crate::store::{SlotKey, StoreError, StoredQuestion};

/// The reason for which the aggregation of a cohort failed.
#[derive(Debug, thiserror::Error)]
enum CohortFailure {
    /// Secure aggregation failed.
    #[error(transparent)]
    Verdict(#[from] RoundFailure),
    /// The sum is implausible.
    #[error("implausible sum: {0}")]
    Implausible(#[from] Implausible),
    /// A previous server sent a different question.
    #[error(transparent)]
    Begun(#[from] QuestionMismatch),
    /// The current round could not be stored, so no question is sent.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// The numbers of key set-ups that a server reserves at once. A restart skips those not used.
const RESERVED_SETUPS: u64 = 32;

/// The devices of a federation, online or offline.
pub struct NetworkExchange {
    link: DeviceLink,
    rules: Rules,
    /// Set to end the run.
    stop: Arc<AtomicBool>,
    /// The number of the run in the federation, starting at 0. A device answers each round of a run
    /// once.
    run: u64,
    /// The number of the last key set-up. A device participates in each once.
    setups: u64,
    /// The last number that is reserved in the store.
    reserved: u64,
    /// Counts questions in open mode.
    asked: u64,
    current: Option<Current>,
    /// The chain that draws cohorts, if the roster requires it.
    chain: Option<DrawChain>,
    /// The last unfinished round and its number of failed cohorts.
    failed: ((u64, u64), u32),
    round_in_progress: RoundInProgress,
    /// The store of the current round.
    journal: Option<RoundJournal>,
    /// A size of the cohort other than that of the invitation, for tests of attacks.
    announced: Option<u32>,
    defences: Defences,
}

/// The key set-up of the current round.
struct Current {
    round: (u64, u64),
    protocol: Protocol,
    slots_left: u32,
}

/// The run was stopped.
#[derive(Debug, thiserror::Error)]
#[error("the server is shutting down")]
pub struct ShuttingDown;

/// A device that counts more than once would have its own weight in a question that all devices
/// sign. Two sums, with and without it, would then reveal its update.
#[derive(Debug, thiserror::Error)]
#[error("device {0} was drawn more than once: deployed, cohorts are drawn without replacement")]
pub struct DrawnTwice(pub u32);

impl NetworkExchange {
    /// Creates the exchange with the devices of a server. Its calls block, so the round loop runs on
    /// a thread outside the runtime. `stop` ends the run before its next question.
    pub fn new(link: DeviceLink, rules: Rules, stop: Arc<AtomicBool>) -> Self {
        Self {
            link,
            rules,
            stop,
            run: 0,
            setups: 0,
            reserved: 0,
            asked: 0,
            current: None,
            chain: None,
            failed: ((0, 0), 0),
            round_in_progress: RoundInProgress::default(),
            journal: None,
            announced: None,
            defences: Defences::default(),
        }
    }

    /// Runs the connections only while the round loop waits for them, on the thread of the loop.
    /// `runtime` is the current-thread runtime on which the server was started. With paused time, a
    /// whole federation then runs in one thread and in virtual time.
    #[must_use]
    pub fn driving(mut self, runtime: Arc<Runtime>) -> Self {
        self.link.runtime = LoopRuntime::Driven(runtime);
        self
    }

    /// Announces a cohort of this size and switches off checks of the server, for tests of attacks.
    #[cfg(feature = "test-util")]
    pub fn announce(&mut self, cohort: u32, defences: Defences) {
        (self.announced, self.defences) = (Some(cohort), defences);
    }

    /// Stores the current round, so that the next server can resume it.
    #[must_use]
    pub fn kept_in(self, journal: RoundJournal) -> Self {
        Self { journal: Some(journal), ..self }
    }

    /// Trains the following seeds as this run of the federation, starting at 0. Run numbers only
    /// increase. The authority signs the number of runs ([`Host::runs`](crate::serve::Host::runs)),
    /// and devices refuse others.
    pub fn set_run(&mut self, run: u64) {
        self.run = run;
    }

    /// Starts or resumes the seed of this state: publishes its params and reads the uncommitted
    /// round of a previous server. Must be called before each seed is trained.
    pub fn resume(&mut self, state: &State) -> Result<(), StoreError> {
        let (seed, round) = (state.seed, state.round);
        let runtime = self.link.runtime.handle();
        let _clock = runtime.enter();
        self.link.hub.set_newest(state);
        self.round_in_progress = RoundInProgress::default();
        if let Some(journal) = &self.journal {
            let slots = journal.slots(&self.link.runtime, seed, round)?;
            if !slots.is_empty() {
                tracing::info!(seed, round, questions = slots.len(), "a previous server began the round");
            }
            self.round_in_progress = RoundInProgress::resumed((seed, round), slots);
        }
        Ok(())
    }

    /// Continues the numbers of key set-ups of an earlier server without a store. Devices join no
    /// set-up whose number does not increase.
    #[must_use]
    pub fn after_setup(self, setup: u64) -> Self {
        Self { setups: setup, ..self }
    }

    /// Returns the number of the last key set-up.
    pub fn last_setup(&self) -> u64 {
        self.setups
    }

    /// Ensures that the number of the next key set-up is larger than any that a previous server
    /// used.
    fn reserve_setup(&mut self) -> Result<(), StoreError> {
        if let Some(journal) = &self.journal
            && self.setups >= self.reserved
        {
            let last = journal.reserve_setups(&self.link.runtime, RESERVED_SETUPS)?;
            self.setups = self.setups.max(last);
            self.reserved = last + RESERVED_SETUPS;
        }
        Ok(())
    }

    /// Draws cohorts with this chain if the roster contains its commitment.
    #[must_use]
    pub fn drawing_by(self, chain: DrawChain) -> Self {
        Self { chain: Some(chain), ..self }
    }

    /// Returns the opening of a set-up's draw. Returns `None` if the roster contains no commitment
    /// or that of another chain.
    fn opening(&self, setup: u64) -> Option<(DrawCommitment, DrawOpening)> {
        let known = self.link.hub.known();
        let (draws, opening) = (*known.keys.draws()?, self.chain.as_ref()?.opening(setup)?);
        draws.verifies(setup, &opening).then_some((draws, opening))
    }

    /// Returns the ready devices that the next set-up may invite: the first in the order of its
    /// draw.
    fn drawn(&self, mut ready: Vec<bool>) -> Vec<bool> {
        let next = self.setups + 1;
        let Some((draws, opening)) = self.opening(next) else { return ready };
        let order = draws.order(next, &opening, self.link.hub.known().keys.ids());
        let is_ready = |id: DeviceId| ready.get(id.0 as usize).copied().unwrap_or(false);
        let cohort = draw::cohort(&order, self.rules.present.max(self.rules.cohort), is_ready);
        ready.iter_mut().zip(0..).for_each(|(ready, place)| *ready = cohort.contains(DeviceId(place)));
        ready
    }

    fn check_stop(&self) -> Result<(), ExchangeError> {
        // Devices do not reconnect to a server that was shut down, so there is nothing to wait for.
        if self.stop.load(Ordering::Relaxed) || self.link.hub.is_closed() {
            let source = Box::new(ShuttingDown);
            return Err(ExchangeError::Transport { context: "no further round was started", source });
        }
        Ok(())
    }

    /// Rejects a cohort that contains a device more than once.
    fn check_cohort(round: &Round<'_>) -> Result<(), ExchangeError> {
        match round.cohort.iter().find(|drawn| drawn.times > 1) {
            Some(drawn) => {
                let source = Box::new(DrawnTwice(drawn.device.0));
                Err(ExchangeError::Transport { context: "invalid cohort", source })
            }
            None => Ok(()),
        }
    }

    /// Returns `true` if the round has used all its attempts.
    fn is_given_up(&self, round: (u64, u64)) -> bool {
        self.failed.0 == round && self.failed.1 >= self.rules.attempts
    }

    /// Abandons the current round, which then changes nothing.
    fn give_up(&mut self) {
        self.failed = (self.round_in_progress.round(), self.rules.attempts);
        tracing::error!(round = self.round_in_progress.round().1, "the round is given up and moves nothing");
    }

    /// Records that the aggregation of a cohort failed.
    fn fail(&mut self, round: &Round<'_>, failed: &CohortFailure) {
        let key = (round.seed, round.index);
        let before = if self.failed.0 == key { self.failed.1 } else { 0 };
        self.failed = (key, before + 1);
        tracing::warn!(round = round.index, attempt = before + 1, %failed, "the aggregation of the cohort failed");
        if self.is_given_up(key) {
            self.give_up();
        }
        self.round_in_progress.begin_anew();
        self.link.hub.status.send_modify(Status::fail);
    }

    /// Returns keys with a free slot, from the current round or from a new set-up.
    fn ready(&mut self, round: &Round<'_>) -> Result<Current, CohortFailure> {
        let key = (round.seed, round.index);
        let mut present: DeviceSet = round
            .cohort
            .iter()
            .filter(|drawn| !drawn.dropped)
            .map(|drawn| DeviceId(drawn.device.0))
            .collect();
        if let Some(current) = self.current.take() {
            if current.round == key && current.slots_left > 0 {
                return Ok(current);
            }
            if current.round == key {
                present = current.protocol.active().clone();
            }
            current.protocol.end(&self.link);
        }
        self.reserve_setup()?;
        self.setups += 1;
        self.link.hub.status.send_modify(|status| status.turn_to(key, PhasePurpose::Keys));
        let known = self.link.hub.known();
        let session = session_under(&self.link.hub.introduction().session, known.hash());
        let cohort = u32::try_from(present.len()).unwrap_or(u32::MAX);
        let announced = self.announced.unwrap_or(cohort);
        let params = RoundParams {
            id: RoundId { session, round: self.setups },
            suite: MaskSuite::default(),
            cohort: announced,
            graph: self.rules.guard.graph(announced, self.rules.dropping_of(cohort)),
            slots: SLOTS,
            draw: self.opening(self.setups).map(|(_, opening)| opening),
        };
        let config = ServerRoundConfig {
            params,
            cohort: present,
            roster: Arc::clone(&known.keys),
            min_members: self.rules.quorum,
            phase_timeout: Duration::ZERO,
        };
        let deadlines = self.rules.deadlines;
        let invitation = Invitation { config, deadlines, target: self.rules.cohort, defences: self.defences };
        let protocol = Protocol::begin(&mut self.link, invitation)?;
        Ok(Current { round: key, protocol, slots_left: SLOTS })
    }

    /// Records the recipients of a question if the round is stored.
    fn keep_asked(
        &mut self,
        cohort: BTreeSet<u32>,
        asked: &DeviceSet,
        question: blake3::Hash,
    ) -> Result<SlotKey, StoreError> {
        let asked: BTreeSet<u32> = asked.iter().map(|id| id.0).collect();
        let key = self.round_in_progress.ask(asked.iter().copied());
        if let Some(journal) = &self.journal {
            journal.asked(
                &self.link.runtime,
                key,
                &StoredQuestion { question, cohort, asked, sums: None },
            )?;
        }
        Ok(key)
    }

    fn slot(&mut self, round: &Round<'_>, queries: &[Query]) -> Result<Vec<CohortSum>, CohortFailure> {
        let key = (round.seed, round.index);
        let canonical = encode(&RoundKey { run: self.run, ..round.key() }, queries);
        let signed = blake3::hash(&canonical);
        let cohort: BTreeSet<u32> = round.cohort.iter().map(|drawn| drawn.device.0).collect();
        self.round_in_progress.turn_to(key);
        if let Some(known) = self.round_in_progress.known(&cohort, &signed)? {
            return Ok(known);
        }
        self.link.hub.blobs.keep_params(queries.iter().flat_map(Query::named));
        let mut current = self.ready(round)?;
        current.slots_left -= 1;
        let kept = match self.keep_asked(cohort, current.protocol.active(), signed) {
            Ok(kept) => kept,
            Err(error) => {
                current.protocol.end(&self.link);
                return Err(error.into());
            }
        };
        self.link.hub.status.send_modify(|status| status.turn_to(key, purpose(queries)));
        let len: usize = queries.iter().map(Query::answer_len).sum();
        let len = u32::try_from(len).expect("the number of parameters is far below 2^32");
        let question = proto::Question { canonical: canonical.into() };
        // Noisy sums fit into 32 bits.
        let is_noisy = queries.iter().all(|query| query.noise.is_some());
        let ring = if is_noisy { Ring::Z32 } else { Ring::Z64 };
        let sum = current.protocol.sum(&mut self.link, &question, ring, len, signed.as_bytes());
        let sum = match sum {
            Ok(sum) => sum,
            Err(verdict) => {
                current.protocol.end(&self.link);
                return Err(verdict.into());
            }
        };
        let mut traffic = current.protocol.take_traffic();
        if current.slots_left == SLOTS - 1 {
            // Parameters are sent once per round, to the devices that set up keys.
            let fetched = current.protocol.active().len() as u64;
            traffic.bytes_down +=
                fetched * distinct(queries).map(|params| params_blob(params).len).sum::<u64>();
        }
        let values: Vec<u64> = match sum.sum {
            RingVector::Z64(values) => values,
            RingVector::Z32(values) => values.into_iter().map(u64::from).collect(),
        };
        let answered = sum.survivors.len() as u64;
        let values = without_excess(queries, answered, sum.revealed.values(), values);
        let mut rest = values.as_slice();
        let part = |(i, query): (usize, &Query)| {
            let (values, behind) = rest.split_at(query.answer_len());
            rest = behind;
            let traffic = traffic.part(i as u64, queries.len() as u64);
            // What devices remember stays with them.
            CohortSum { values: values.to_vec(), answered, traffic, remembered: Vec::new() }
        };
        let sums: Vec<CohortSum> = queries.iter().enumerate().map(part).collect();
        for (query, sum) in queries.iter().zip(&sums) {
            let step = plausible::StepBounds { most: self.rules.max_step, clip: round.terms.clip };
            if let Err(implausible) = plausible::check(query, sum, round.cohort.len(), step) {
                tracing::error!(round = round.index, %implausible, "a device of the cohort sent an invalid answer");
                self.link.hub.refusals.count(Refusal::Implausible);
                current.protocol.end(&self.link);
                return Err(implausible.into());
            }
        }
        self.current = Some(current);
        if let Some(journal) = &self.journal {
            journal.summed(&self.link.runtime, kept, &sums)?;
        }
        Ok(sums)
    }
}

/// Subtracts the noise that a sum over this many devices does not need, by the keys that devices
/// revealed.
fn without_excess<'k>(
    queries: &[Query],
    survivors: u64,
    revealed: impl Iterator<Item = &'k [u8; 32]>,
    mut values: Vec<u64>,
) -> Vec<u64> {
    for &key in revealed {
        let key = ExcessKey::revealed(queries, survivors, key);
        let mut rest = values.as_mut_slice();
        for query in queries {
            let (of_query, behind) = rest.split_at_mut(query.answer_len());
            rest = behind;
            if let Some(noise) = &query.noise {
                noise.subtract_parts(key, query.number(), of_query);
            }
        }
    }
    values
}

/// Returns the sum over no devices.
fn nothing(query: &Query) -> CohortSum {
    let traffic = Traffic::default();
    CohortSum { values: vec![0; query.answer_len()], answered: 0, traffic, remembered: Vec::new() }
}

/// Returns the purpose of a sum, for the status.
fn purpose(queries: &[Query]) -> PhasePurpose {
    let update = |query: &Query| matches!(query.ask, Ask::Update { .. });
    if queries.iter().any(update) { PhasePurpose::Updates } else { PhasePurpose::Losses }
}

/// Returns the params of the queries without duplicates.
fn distinct(queries: &[Query]) -> impl Iterator<Item = &Params> {
    let named: Vec<&Params> = queries.iter().flat_map(Query::named).collect();
    let first = |i: usize| named[..i].iter().all(|earlier| !earlier.is_same(named[i]));
    (0..named.len()).filter(|&i| first(i)).map(|i| named[i]).collect::<Vec<_>>().into_iter()
}

impl Exchange for NetworkExchange {
    fn devices(&self) -> usize {
        self.link.hub.known().roster.entries().len()
    }

    /// Devices connect and disconnect, so another cohort may succeed.
    fn attempts(&self) -> u64 {
        u64::MAX
    }

    /// Does nothing: the devices that will be connected in the next round are not known yet.
    fn announce(&mut self, _: &[CohortMember]) {}

    /// Waits until enough devices are ready for a round. A server stops only here. A round that has
    /// started is completed, because devices would not answer its questions again.
    fn reachable(&mut self) -> Result<Reachable, ExchangeError> {
        let runtime = self.link.runtime.handle();
        let _clock = runtime.enter();
        if let Some(cohort) = self.round_in_progress.left_cohort().cloned() {
            if self.comes_back(&cohort)? {
                let places = 0..self.devices() as u32;
                return Ok(Reachable::Some(places.map(|place| cohort.contains(&place)).collect()));
            }
            self.round_in_progress.begin_anew();
        }
        if self.round_in_progress.take_again() {
            if self.is_given_up(self.round_in_progress.round()) {
                return Ok(Reachable::Everyone);
            }
            if !self.round_in_progress.is_untouched() {
                return self.others();
            }
        }
        let mut log = WaitingLog::new(self.rules.present);
        loop {
            self.check_stop()?;
            if self.link.wait_for(self.rules.present, Instant::now() + GLANCE) {
                self.reserve_setup().map_err(|error| ExchangeError::Transport {
                    context: "failed to reserve a key set-up",
                    source: error.into(),
                })?;
                return Ok(Reachable::Some(self.drawn(self.link.hub.ready())));
            }
            log.note(&self.link.hub);
        }
    }

    fn losses(
        &mut self,
        round: &Round<'_>,
        tracks: &[&Params],
    ) -> Result<Vec<Vec<NamedLoss>>, ExchangeError> {
        Self::check_cohort(round)?;
        let runtime = self.link.runtime.handle();
        let _clock = runtime.enter();
        if self.is_given_up((round.seed, round.index)) {
            return Ok(vec![Vec::new(); tracks.len()]);
        }
        Ok(self.open_losses(round, tracks))
    }

    fn secure_sum(&mut self, round: &Round<'_>, queries: &[Query]) -> Result<Vec<CohortSum>, ExchangeError> {
        Self::check_cohort(round)?;
        let runtime = self.link.runtime.handle();
        let _clock = runtime.enter();
        if self.is_given_up((round.seed, round.index)) {
            return Ok(queries.iter().map(nothing).collect());
        }
        self.slot(round, queries).map_err(|failed| match failed {
            CohortFailure::Store(error) => ExchangeError::Transport {
                context: "failed to store the current round",
                source: error.into(),
            },
            failed => {
                self.fail(round, &failed);
                self.link.runtime.block_on(sleep(self.rules.pause));
                ExchangeError::NoSum { source: Box::new(failed) }
            }
        })
    }

    /// Fails: devices send contributions to sums only.
    fn each_answer(&mut self, _: &Round<'_>, _: &[Query]) -> Result<Vec<CohortAnswers>, ExchangeError> {
        Err(ExchangeError::SumsOnly)
    }

    /// Returns nothing: the evaluation of a model on a device stays on the device.
    fn evaluate(&mut self, _: Split, _: &[&Params]) -> Result<Option<SplitEvaluation>, ExchangeError> {
        Ok(None)
    }

    /// Returns nothing: personal models stay on their devices.
    fn evaluate_personal(
        &mut self,
        _: Split,
        _: &PersonalModels<'_>,
    ) -> Result<Option<Vec<Evaluation>>, ExchangeError> {
        Ok(None)
    }
}
