//! The devices of this process and its peers, without masks.

use super::{
    ATTEMPTS, Alone, Drawn, Exchange, ExchangeError, Fleet, Peers, Reachable, Round, SplitEvaluation, Sum,
    Traffic,
};
use crate::compute::Compute;
use crate::data::{Federation, Split};
use crate::params::Params;
use crate::question::{Ask, Query};
use crate::superquantile::DeviceLoss;

/// The exchange of a simulation, which adds unmasked answers.
pub struct Direct<'a, C, P = Alone> {
    fleet: Fleet<'a, C, P>,
}

impl<'a, C: Compute> Direct<'a, C> {
    /// Creates the exchange for a federation whose devices are all in this process.
    pub fn new(compute: C, federation: &'a Federation) -> Result<Self, ExchangeError> {
        Ok(Self { fleet: Fleet::new(compute, federation, Alone)? })
    }
}

impl<'a, C: Compute, P: Peers> Direct<'a, C, P> {
    /// Creates the exchange for a fleet.
    pub fn of(fleet: Fleet<'a, C, P>) -> Self {
        Self { fleet }
    }

    /// Returns the fleet.
    pub fn fleet(&self) -> &Fleet<'a, C, P> {
        &self.fleet
    }
}

impl<C: Compute, P: Peers> Exchange for Direct<'_, C, P> {
    fn devices(&self) -> usize {
        self.fleet.devices()
    }

    fn attempts(&self) -> u64 {
        ATTEMPTS
    }

    fn reachable(&mut self) -> Result<Reachable, ExchangeError> {
        Ok(Reachable::Everyone)
    }

    fn announce(&mut self, next: &[Drawn]) {
        self.fleet.announce(next);
    }

    fn losses(
        &mut self,
        round: &Round<'_>,
        params: &[&Params],
    ) -> Result<Vec<Vec<DeviceLoss>>, ExchangeError> {
        self.fleet.losses(round, params)
    }

    fn secure_sum(&mut self, round: &Round<'_>, queries: &[Query]) -> Result<Vec<Sum>, ExchangeError> {
        let mut answers = self.fleet.sum(round, queries)?;
        let answered = round.answering();
        let values = std::mem::take(&mut answers.values);
        let sum = |(i, (values, query))| {
            let remembered = answers.remembered(round, i);
            Sum { values, answered, traffic: traffic(round, query), remembered }
        };
        Ok(values.into_iter().zip(queries).enumerate().map(sum).collect())
    }

    fn evaluate(
        &mut self,
        split: Split,
        params: &[&Params],
    ) -> Result<Option<SplitEvaluation>, ExchangeError> {
        self.fleet.evaluate(split, params).map(Some)
    }
}

/// Returns the traffic of an unmasked sum: a question to and an answer from each device. The params
/// are sent once per round and are counted with the update.
fn traffic(round: &Round<'_>, query: &Query) -> Traffic {
    let answering = round.answering();
    let asked = round.cohort.len() as u64;
    let question = match query.ask {
        Ask::Quantile(_) | Ask::Evaluation(_) => 24,
        Ask::Update { .. } => 4 * query.params.len() as u64,
    };
    Traffic {
        sums: 1,
        messages: asked + answering,
        bytes_up: answering * 8 * query.answer_len() as u64,
        bytes_down: asked * question,
    }
}
