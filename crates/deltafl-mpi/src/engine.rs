//! The engine over MPI ranks: threads within a rank, collectives between ranks.

use std::time::{Duration, Instant};

use deltafl::data::{Federation, Split};
use deltafl::engine::{Drawn, Engine, EngineError, Query, Round, SplitEvaluation, Sum, Threads};
use deltafl::model::Model;
use deltafl::params::Params;
use deltafl::superquantile::DeviceLoss;

use crate::ranks::Ranks;
use crate::throughput::{self, Throughput};
use crate::world::World;

/// The engine over MPI ranks. Every rank asks it the same questions in the same order.
pub struct MpiEngine<'a> {
    world: &'a World,
    threads: Threads<'a, Ranks<'a>>,
    /// Time spent in answers: on computing, and in collectives.
    answering: Duration,
}

impl<'a> MpiEngine<'a> {
    pub(crate) fn new(
        world: &'a World,
        model: &'a dyn Model,
        federation: &'a Federation,
        threads: usize,
    ) -> Result<Self, EngineError> {
        let threads = Threads::with_peers(model, federation, threads, Ranks::new(world))?;
        Ok(Self { world, threads, answering: Duration::ZERO })
    }

    /// Number of threads of this rank.
    pub fn threads(&self) -> usize {
        self.threads.threads()
    }

    /// What each rank has done so far, on rank 0; `None` elsewhere. Collective.
    pub fn throughput(&self) -> Option<Throughput> {
        let waited = self.threads.peers().waited();
        let busy = self.answering.saturating_sub(waited);
        throughput::gather(self.world, self.threads.share(), busy, waited)
    }

    fn timed<T>(&mut self, answer: impl FnOnce(&mut Threads<'a, Ranks<'a>>) -> T) -> T {
        let since = Instant::now();
        let answer = answer(&mut self.threads);
        self.answering += since.elapsed();
        answer
    }
}

impl Engine for MpiEngine<'_> {
    fn devices(&self) -> usize {
        self.threads.devices()
    }

    fn losses(&mut self, round: &Round<'_>, tracks: &[&Params]) -> Result<Vec<Vec<DeviceLoss>>, EngineError> {
        self.timed(|threads| threads.losses(round, tracks))
    }

    fn secure_sum(&mut self, round: &Round<'_>, queries: &[Query<'_>]) -> Result<Vec<Sum>, EngineError> {
        self.timed(|threads| threads.secure_sum(round, queries))
    }

    fn announce(&mut self, next: &[Drawn]) {
        self.threads.announce(next);
    }

    fn evaluate(&mut self, split: Split, tracks: &[&Params]) -> Result<Option<SplitEvaluation>, EngineError> {
        self.timed(|threads| threads.evaluate(split, tracks))
    }
}
