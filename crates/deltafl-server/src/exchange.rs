//! The exchange with devices that connect over the network.
//!
//! The round loop runs on its own thread and uses this like any other exchange. The answers are the
//! same integers, so the results equal those of a simulation to the bit.
//! docs/src/explanation/threat-model.md describes the information that the server gains about one
//! device.

mod cohort_sum;
mod open_losses;
mod plausible;
mod round_in_progress;
mod rules;
mod waiting;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use deltafl::data::Split;
use deltafl::exchange::{
    CohortAnswers, CohortMember, CohortSum, Evaluation, Exchange, ExchangeError, NamedLoss, PersonalModels,
    Reachable, Round, SplitEvaluation, Traffic,
};
use deltafl::params::Params;
use deltafl::question::Query;
use deltafl::training::State;
use deltafl_secagg::Defences;
pub use deltafl_secagg::draw::DrawChain;
use deltafl_secagg::draw::{self, DrawCommitment, DrawOpening};
pub use deltafl_secagg::graph::Permille;
use deltafl_secagg::identity::DeviceId;
use tokio::runtime::Runtime;
use tokio::time::{Instant, sleep};

use self::cohort_sum::{CohortFailure, Current};
pub use self::plausible::Implausible;
use self::round_in_progress::RoundInProgress;
pub use self::round_in_progress::RoundJournal;
pub use self::rules::Rules;
use self::waiting::{GLANCE, WaitingLog};

use crate::hub::Status;
use crate::round::{DeviceLink, LoopRuntime};
use crate::store::StoreError;

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
    /// Creates the exchange with the devices of a server. Its calls block, so the round loop runs
    /// on a thread outside the runtime. `stop` ends the run before its next question.
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
}

/// Returns the sum over no devices.
fn nothing(query: &Query) -> CohortSum {
    let traffic = Traffic::default();
    CohortSum { values: vec![0; query.answer_len()], answered: 0, traffic, remembered: Vec::new() }
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
        self.secure_sums(round, queries).map_err(|failed| match failed {
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
