//! The exchange over MPI ranks: any compute backend within a rank, collectives between ranks.

use std::time::{Duration, Instant};

use deltafl::compute::Compute;
use deltafl::data::{Federation, Split};
use deltafl::exchange::{
    Direct, Drawn, Exchange, ExchangeError, Fleet, Masked, Reachable, Round, SplitEvaluation, Sum,
};
use deltafl::params::Params;
use deltafl::question::Query;
use deltafl::superquantile::DeviceLoss;

use crate::ranks::Ranks;
use crate::throughput::{self, Throughput};
use crate::world::World;

/// The compute backend of a rank.
type AnyCompute<'a> = Box<dyn Compute + 'a>;

/// The way in which the answers of a cohort are added.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Masks {
    /// Without masks.
    None,
    /// By secure aggregation. A device drops out with this probability.
    Real {
        /// The probability in [0, 1].
        drop_out: f64,
    },
}

/// The exchange over MPI ranks. Every rank must ask the same questions in the same order.
pub struct MpiExchange<'a> {
    world: &'a World,
    ranks: Kind<'a>,
    /// The time spent on answers: computing, and in collectives.
    answering: Duration,
}

enum Kind<'a> {
    Direct(Box<Direct<'a, AnyCompute<'a>, Ranks<'a>>>),
    Masked(Box<Masked<'a, AnyCompute<'a>, Ranks<'a>>>),
}

impl<'a> MpiExchange<'a> {
    pub(crate) fn new(
        world: &'a World,
        compute: AnyCompute<'a>,
        federation: &'a Federation,
        masks: Masks,
    ) -> Result<Self, ExchangeError> {
        let fleet = Fleet::new(compute, federation, Ranks::new(world))?;
        let ranks = match masks {
            Masks::None => Kind::Direct(Box::new(Direct::of(fleet))),
            Masks::Real { drop_out } => Kind::Masked(Box::new(Masked::of(fleet, drop_out))),
        };
        Ok(Self { world, ranks, answering: Duration::ZERO })
    }

    /// Returns the work of each rank so far on rank 0, and `None` on other ranks. Collective.
    pub fn throughput(&self) -> Option<Throughput> {
        let fleet = match &self.ranks {
            Kind::Direct(direct) => direct.fleet(),
            Kind::Masked(masked) => masked.fleet(),
        };
        let waited = fleet.peers().waited();
        let busy = self.answering.saturating_sub(waited);
        throughput::gather(self.world, fleet.share(), busy, waited)
    }

    fn inner(&self) -> &dyn Exchange {
        match &self.ranks {
            Kind::Direct(direct) => &**direct,
            Kind::Masked(masked) => &**masked,
        }
    }

    fn inner_mut(&mut self) -> &mut (dyn Exchange + 'a) {
        match &mut self.ranks {
            Kind::Direct(direct) => &mut **direct,
            Kind::Masked(masked) => &mut **masked,
        }
    }

    fn timed<T>(&mut self, answer: impl FnOnce(&mut (dyn Exchange + 'a)) -> T) -> T {
        let since = Instant::now();
        let answer = answer(self.inner_mut());
        self.answering += since.elapsed();
        answer
    }
}

impl Exchange for MpiExchange<'_> {
    fn devices(&self) -> usize {
        self.inner().devices()
    }

    fn attempts(&self) -> u64 {
        self.inner().attempts()
    }

    fn reachable(&mut self) -> Result<Reachable, ExchangeError> {
        self.inner_mut().reachable()
    }

    fn announce(&mut self, next: &[Drawn]) {
        self.inner_mut().announce(next);
    }

    fn losses(
        &mut self,
        round: &Round<'_>,
        params: &[&Params],
    ) -> Result<Vec<Vec<DeviceLoss>>, ExchangeError> {
        self.timed(|ranks| ranks.losses(round, params))
    }

    fn secure_sum(&mut self, round: &Round<'_>, queries: &[Query]) -> Result<Vec<Sum>, ExchangeError> {
        self.timed(|ranks| ranks.secure_sum(round, queries))
    }

    fn evaluate(
        &mut self,
        split: Split,
        params: &[&Params],
    ) -> Result<Option<SplitEvaluation>, ExchangeError> {
        self.timed(|ranks| ranks.evaluate(split, params))
    }
}
