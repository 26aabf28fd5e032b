//! The records of every round, committed first to the store and then to the run folder.
//!
//! A round counts once the store contains it. A server that crashes after the commit updates its
//! run folder from the store when it restarts ([`RunStore::catch_up`]). Another server that takes
//! over does the same.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use deltafl::algorithm::TrackLabel;
use deltafl::model::ModelSpec;
use deltafl::training::{
    Event, LossReporting, Observer, ObserverError, ObserverResult, RoundRecord, State, TrainOptions,
};
use deltafl_data::experiment::Experiment;
use deltafl_data::run_folder::{RoundLine, RunFolder, RunFolderError};
use deltafl_wire::contract::DataContract;
use deltafl_wire::identity::FederationName;
use tokio::runtime::Handle;
use tokio::time::Instant;

use crate::exchange::RoundJournal;
use crate::live::{Fresh, Live, Role};
use crate::serve::{Host, Phase};
use crate::store::{Commit, Lease, PublishedLosses, RoundLosses, Store, StoreError};

/// The number of committed rounds read at once.
const CHUNK: u32 = 500;
/// The interval at which a standby server checks the leader's lease, so that it takes over soon
/// after expiry.
const LOOK: Duration = Duration::from_millis(500);

/// The reason for which a run folder could not be updated from the store.
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

/// The rounds of an experiment in a federation's store and on the live page.
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
    /// Creates the rounds of an experiment. Params become a version that devices can pull at the
    /// interval of evaluations.
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
            seeds: experiment.seeds().to_vec(),
            rounds: experiment.rounds(),
            publish_every: experiment.evaluate_every(),
        }
    }

    /// Waits until this server leads the federation. Meanwhile it publishes the leader's commits.
    /// Returns `None` if it must stop before. `standing_by` is called once if another server leads.
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

    /// Returns the journal in which the leader stores the current round.
    pub fn journal(&self, lease: &Lease) -> RoundJournal {
        RoundJournal::new(self.store.clone(), lease)
    }

    /// Reads the commits of another server, so that the page of a standby server is current. `read`
    /// counts the rounds of each seed.
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

    /// Returns the committed state of a seed and updates the run folder. `local` is the state in
    /// the folder. It is newer than the store if the store was restored from a backup.
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
        if next > state.round {
            folder.rewind(&state)?;
        } else {
            folder.checkpoint(&state)?;
        }
        Ok(Some(state))
    }

    /// Returns the state from which training of a seed resumes, as in [`Self::catch_up`]. Returns
    /// `None` for a new seed. This call blocks.
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

    /// Returns `true` if the params after this many rounds become a version that devices can pull.
    fn publishes(&self, rounds: u64) -> bool {
        rounds == self.rounds || rounds.is_multiple_of(self.publish_every)
    }

    /// Commits the records since the last commit. The phases are those of the last round.
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
            let losses: Vec<_> = percentiles
                .map(|known| known.as_ref().and_then(PublishedLosses::from_distribution))
                .collect();
            let phases = if round + 1 == state.round { phases } else { &[] };
            self.live.committed(Fresh { lines, phases, losses: &losses });
        }
        Ok(())
    }
}

/// The records since the last commit.
#[derive(Debug, Default)]
struct Observed {
    lines: Vec<RoundLine>,
    losses: Vec<RoundLosses>,
}

/// Stores every round of a run, first in the store and then in the run folder.
pub struct RoundCommitter<'a> {
    /// The store for rounds.
    pub run: &'a RunStore,
    /// The lease that permits this server to commit.
    pub lease: &'a Lease,
    /// The server, which provides the phases of the last round.
    pub host: &'a Host,
    /// The runtime for calls to the store.
    pub runtime: &'a Handle,
    /// The run folder.
    pub folder: &'a mut RunFolder,
    /// Set to end the run after the current round.
    pub stop: &'a AtomicBool,
    /// Whether levels that need no losses are surveyed when a version is published.
    pub survey: bool,
    /// Called with the first track of each round and the duration of the round in seconds.
    pub on_round: &'a dyn Fn(&RoundRecord, f64),
    observed: Observed,
    lap: Instant,
}

impl<'a> RoundCommitter<'a> {
    /// Creates a committer with surveys and without a callback.
    pub fn new(
        run: &'a RunStore,
        lease: &'a Lease,
        host: &'a Host,
        runtime: &'a Handle,
        folder: &'a mut RunFolder,
        stop: &'a AtomicBool,
    ) -> Self {
        let (observed, lap) = (Observed::default(), Instant::now());
        Self { run, lease, host, runtime, folder, stop, survey: true, on_round: &|_, _| {}, observed, lap }
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
            (self.on_round)(record, seconds);
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

impl Observer<Event<'_>> for RoundCommitter<'_> {
    fn handle(&mut self, event: Event<'_>) -> ObserverResult {
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
