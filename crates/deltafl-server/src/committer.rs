//! What is kept of every round: committed in the store first, then in the run folder.
//!
//! A round counts when the store has it: a server that dies behind the commit brings its run folder up to the store when it
//! starts again ([`RunStore::catch_up`]), and so does another server that takes over.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use deltafl::algorithm::TrackLabel;
use deltafl::model::ModelSpec;
use deltafl::training::{Event, LossReporting, Observer, ObserverError, RoundRecord, State, TrainOptions};
use deltafl_data::experiment::Experiment;
use deltafl_data::run_folder::{RoundLine, RunFolder, RunFolderError};
use deltafl_wire::contract::DataContract;
use deltafl_wire::identity::FederationName;
use tokio::runtime::Handle;

use crate::engine::RoundJournal;
use crate::live::{Fresh, Live, Role};
use crate::serve::{Host, Phase};
use crate::store::{Commit, Lease, LossPercentiles, RoundLosses, Store, StoreError};

/// Committed rounds read at once.
const CHUNK: u32 = 500;
/// How often a server that stands by looks whether the leader is gone: a leader is missed when its lease has run out, and not
/// much later.
const LOOK: Duration = Duration::from_millis(500);

/// Why a run folder was not brought up to the store.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CatchUpError {
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The run folder failed.
    #[error(transparent)]
    Folder(#[from] RunFolderError),
}

/// The rounds of an experiment in the store of a federation, and on the live page.
#[derive(Clone, Debug)]
pub struct RunStore {
    store: Store,
    federation: FederationName,
    live: Live,
    labels: Vec<TrackLabel>,
    model: ModelSpec,
    contract: Option<DataContract>,
    seeds: Vec<u64>,
    rounds: u64,
    publish_every: u64,
}

impl RunStore {
    /// The rounds of an experiment. Its params become a version that devices pull as often as it evaluates.
    pub fn new(
        store: Store,
        federation: FederationName,
        live: Live,
        experiment: &Experiment,
        contract: Option<DataContract>,
    ) -> Self {
        Self {
            store,
            federation,
            live,
            labels: experiment.labels(),
            model: experiment.model().spec().clone(),
            contract,
            seeds: experiment.seeds().iter().copied().collect(),
            rounds: experiment.rounds(),
            publish_every: experiment.evaluate_every(),
        }
    }

    /// Waits until this server leads the federation, and meanwhile shows what the leader commits. Returns `None` if it is to stop
    /// before. `standing_by` is called once, if another server leads.
    pub async fn lead(
        &self,
        stop: &AtomicBool,
        standing_by: impl FnOnce(),
    ) -> Result<Option<Lease>, StoreError> {
        let holder = format!("process {}", std::process::id());
        let mut read = vec![0; self.seeds.len()];
        let mut lease = self.store.try_lead(&self.federation, &holder).await?;
        if lease.is_none() {
            standing_by();
        }
        while lease.is_none() && !stop.load(Ordering::Relaxed) {
            self.look_on(&mut read).await?;
            tokio::time::sleep(LOOK).await;
            lease = self.store.try_lead(&self.federation, &holder).await?;
        }
        if lease.is_some() {
            self.live.role(Role::Leading);
        }
        Ok(lease)
    }

    /// Where the leader keeps the round under way.
    pub fn journal(&self, lease: &Lease) -> RoundJournal {
        RoundJournal::new(self.store.clone(), lease)
    }

    /// Takes in what another server has committed, so that the page of one that stands by is true; `read` counts the rounds of
    /// each seed.
    async fn look_on(&self, read: &mut [u64]) -> Result<(), StoreError> {
        for (&seed, next) in self.seeds.iter().zip(read) {
            for round in self.store.rounds(&self.federation, seed, *next, CHUNK).await? {
                self.live.remember(&round);
                *next = round.round + 1;
            }
        }
        let enrolled = self.store.device_count(&self.federation).await?;
        self.live.presence(0, 0, enrolled);
        Ok(())
    }

    /// The state of a seed that the store has committed, with the run folder brought up to it; `local` is what the folder has.
    pub async fn catch_up(
        &self,
        folder: &mut RunFolder,
        seed: u64,
        local: Option<State>,
    ) -> Result<Option<State>, CatchUpError> {
        let Some(state) = self.store.state(&self.federation, seed).await? else { return Ok(local) };
        let mut next = local.map_or(0, |state| state.round);
        for from in (0..state.round).step_by(CHUNK as usize) {
            for round in self.store.rounds(&self.federation, seed, from, CHUNK).await? {
                self.live.remember(&round);
                if round.round == next {
                    for line in &round.lines {
                        folder.append(std::slice::from_ref(&line.record), line.seconds)?;
                    }
                    next += 1;
                }
            }
        }
        folder.checkpoint(&state)?;
        Ok(Some(state))
    }

    /// The state of a seed from which training goes on, as [`Self::catch_up`] finds it; `None` at its beginning. It blocks.
    pub fn begin(
        &self,
        runtime: &Handle,
        folder: &mut RunFolder,
        seed: u64,
        params: usize,
    ) -> Result<Option<State>, CatchUpError> {
        let saved = folder.state(seed, params)?;
        runtime.block_on(self.catch_up(folder, seed, saved))
    }

    /// Whether the params after so many rounds become a version that devices can pull.
    fn publishes(&self, rounds: u64) -> bool {
        rounds == self.rounds || rounds.is_multiple_of(self.publish_every)
    }

    /// Commits what was observed since the last commit; the phases are those of the last round.
    async fn commit(
        &self,
        lease: &Lease,
        state: &State,
        observed: &Observed,
        phases: &[Phase],
    ) -> Result<(), StoreError> {
        let Observed { lines, losses } = observed;
        let commit = Commit {
            state,
            labels: &self.labels,
            model: &self.model,
            lines,
            timeline: phases,
            publish: self.publishes(state.round),
            losses,
            contract: self.contract.as_ref(),
        };
        self.store.commit(lease, &commit).await?;
        for lines in lines.chunk_by(|a, b| a.record.round == b.record.round) {
            let round = lines[0].record.round;
            let known = losses.iter().find(|known| known.round == round);
            let percentiles = known.iter().flat_map(|known| &known.tracks);
            let losses: Vec<_> =
                percentiles.map(|known| known.as_ref().and_then(LossPercentiles::of)).collect();
            let phases = if round + 1 == state.round { phases } else { &[] };
            self.live.committed(Fresh { lines, phases, losses: &losses });
        }
        Ok(())
    }
}

/// What happened since the last commit.
#[derive(Debug, Default)]
struct Observed {
    lines: Vec<RoundLine>,
    losses: Vec<RoundLosses>,
}

/// Keeps every round of a run: committed in the store first, then in the run folder.
pub struct RoundCommitter<'a> {
    /// Where rounds are committed.
    pub run: &'a RunStore,
    /// What lets this server commit.
    pub lease: &'a Lease,
    /// The server, which knows the phases of the last round.
    pub host: &'a Host,
    /// On which the store is asked.
    pub runtime: &'a Handle,
    /// The run folder.
    pub folder: &'a mut RunFolder,
    /// Raised to end the run after the present round.
    pub stop: &'a AtomicBool,
    /// Whether levels that need no losses are asked for them when a version is published.
    pub survey: bool,
    /// Hears of the first track of each round, and of the seconds that the round took.
    pub heard: &'a dyn Fn(&RoundRecord, f64),
    observed: Observed,
    lap: Instant,
}

impl<'a> RoundCommitter<'a> {
    /// A committer of rounds that nobody hears of, with surveys.
    pub fn new(
        run: &'a RunStore,
        lease: &'a Lease,
        host: &'a Host,
        runtime: &'a Handle,
        folder: &'a mut RunFolder,
        stop: &'a AtomicBool,
    ) -> Self {
        let (observed, lap) = (Observed::default(), Instant::now());
        Self { run, lease, host, runtime, folder, stop, survey: true, heard: &|_, _| {}, observed, lap }
    }
}

impl RoundCommitter<'_> {
    /// The options with which [`train_with`](deltafl::training::train_with) sends the events that a
    /// committer needs.
    ///
    /// All losses are reported in rounds that start from a published version of the params, and in
    /// the last round, whose params are closest to the last version.
    pub fn train_options(&self) -> TrainOptions {
        let losses = if self.survey { LossReporting::AllWhenEvaluated } else { LossReporting::Known };
        TrainOptions { checkpoint_every_round: true, losses }
    }

    /// Stores the records of a round until the next commit.
    fn round(&mut self, records: &[RoundRecord]) -> Result<(), ObserverError> {
        let seconds = self.lap.elapsed().as_secs_f64();
        self.folder.append(records, seconds)?;
        let line = |record: &RoundRecord| RoundLine { record: record.clone(), seconds };
        self.observed.lines.extend(records.iter().map(line));
        if let Some(record) = records.first() {
            (self.heard)(record, seconds);
        }
        self.lap = Instant::now();
        Ok(())
    }

    /// Commits the events since the last commit.
    fn checkpoint(&mut self, state: &State) -> Result<(), ObserverError> {
        let phases = self.host.status().borrow().phases.clone();
        self.runtime.block_on(self.run.commit(self.lease, state, &self.observed, &phases))?;
        self.observed = Observed::default();
        self.host.set_newest(state);
        Ok(self.folder.checkpoint(state)?)
    }
}

impl Observer for RoundCommitter<'_> {
    fn handle(&mut self, event: Event<'_>) -> Result<ControlFlow<()>, ObserverError> {
        match event {
            Event::Losses { round, tracks } => {
                self.observed.losses.push(RoundLosses { round, tracks: tracks.to_vec() });
            }
            Event::RoundFinished { records } => {
                self.round(records)?;
                if self.stop.load(Ordering::Relaxed) {
                    return Ok(ControlFlow::Break(()));
                }
            }
            Event::Checkpoint { state } => self.checkpoint(state)?,
            _ => {}
        }
        Ok(ControlFlow::Continue(()))
    }
}
