//! What is kept of every round: committed in the store first, then in the run folder.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use deltafl::exchange::SplitEvaluation;
use deltafl::superquantile::LossDistribution;
use deltafl::training::{Observer, ObserverError, RoundRecord, State, Survey};
use deltafl_data::run_folder::{RoundLine, RunFolder};

use deltafl_server::serve::Host;
use deltafl_server::store::{Lease, RoundLosses, StoreError};
use miette::Result;
use tokio::runtime::Handle;

use super::deployment::Deployment;

/// Where rounds are committed from.
#[derive(Clone, Copy)]
pub(super) struct RoundCommitter<'a> {
    pub(super) deployment: &'a Deployment,
    pub(super) lease: &'a Lease,
    pub(super) host: &'a Host,
    pub(super) runtime: &'a Handle,
    pub(super) rounds: u64,
}

impl RoundCommitter<'_> {
    pub(super) fn catch_up(
        &self,
        folder: &mut RunFolder,
        seed: u64,
        saved: Option<State>,
    ) -> Result<Option<State>> {
        self.runtime.block_on(self.deployment.catch_up(folder, seed, saved))
    }

    fn commit(&self, state: &State, observed: &Observed) -> Result<(), StoreError> {
        let phases = self.host.status().borrow().phases.clone();
        let publish = self.publishes(state.round);
        self.runtime.block_on(self.deployment.commit(self.lease, state, observed, &phases, publish))
    }

    /// Whether the params after so many rounds become a version that devices can pull.
    fn publishes(&self, rounds: u64) -> bool {
        rounds == self.rounds || rounds.is_multiple_of(self.deployment.evaluate_every)
    }
}

/// What happened since the last commit.
#[derive(Debug, Default)]
pub(super) struct Observed {
    pub(super) lines: Vec<RoundLine>,
    pub(super) losses: Vec<RoundLosses>,
}

/// Keeps every round: committed in the store first, then in the run folder.
pub(super) struct Recorder<'a> {
    pub(super) folder: &'a mut RunFolder,
    pub(super) committer: RoundCommitter<'a>,
    pub(super) stop: &'a AtomicBool,
    pub(super) quiet: bool,
    pub(super) survey: bool,
    pub(super) observed: Observed,
    pub(super) lap: Instant,
}

impl Observer for Recorder<'_> {
    fn round(&mut self, records: &[RoundRecord]) -> Result<ControlFlow<()>, ObserverError> {
        let seconds = self.lap.elapsed().as_secs_f64();
        self.folder.append(records, seconds)?;
        self.observed
            .lines
            .extend(records.iter().map(|record| RoundLine { record: record.clone(), seconds }));
        if let Some(record) = records.first().filter(|_| !self.quiet) {
            let RoundRecord { seed, round, cohort, dropped, .. } = record;
            let stayed = cohort - dropped;
            eprintln!("seed {seed}, round {}: {stayed} of {cohort} devices, {seconds:.1} s", round + 1);
        }
        self.lap = Instant::now();
        let stop = self.stop.load(Ordering::Relaxed);
        Ok(if stop { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
    }

    fn evaluation(&mut self, _: u64, _: &[SplitEvaluation]) -> Result<(), ObserverError> {
        Ok(())
    }

    fn checkpoint(&mut self, state: &State) -> Result<(), ObserverError> {
        self.committer.commit(state, &self.observed)?;
        self.observed = Observed::default();
        Ok(self.folder.checkpoint(state)?)
    }

    /// Everybody's when the params that the round starts from are a version that devices pull, and in the last round: its
    /// params are the nearest to the last version that a cohort is asked about.
    fn survey(&self, round: u64) -> Survey {
        let published = self.committer.publishes(round) || round + 1 == self.committer.rounds;
        if self.survey && published { Survey::All } else { Survey::Known }
    }

    fn losses(&mut self, round: u64, tracks: &[Option<LossDistribution>]) -> Result<(), ObserverError> {
        self.observed.losses.push(RoundLosses { round, tracks: tracks.to_vec() });
        Ok(())
    }

    fn every_round(&self) -> bool {
        true
    }
}
