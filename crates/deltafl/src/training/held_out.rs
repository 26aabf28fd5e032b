//! What the cohort of a round tells of the examples that its devices hold out, where every device keeps its figures to itself.
//!
//! The questions travel with the first sum that the round asks for anyway, so that an evaluation costs a few kilobytes and no
//! message. The last params are those of no round: the cohort of the last round is asked about them in one more sum.

use super::{Plan, State, TrackState, TrainingError};
use crate::evaluation::{CohortEvaluation, Measure};
use crate::exchange::{Exchange, ExchangeError, Round, Sum, Traffic};
use crate::params::Params;
use crate::question::{Ask, MAX_QUERIES, Query};
use crate::task::Task;

/// An evaluation that is to be asked for, and what it came to.
#[derive(Default)]
pub(super) struct HeldOut {
    /// What is asked, each w once; empty when it has been, or when there is nothing to ask.
    queries: Vec<Query>,
    /// Which of them each track stands at.
    places: Vec<usize>,
    sums: Vec<Sum>,
}

impl HeldOut {
    /// What the cohort is asked about the params of every track; nothing unless the round evaluates.
    pub(super) fn of(plan: &Plan, tracks: &[TrackState], evaluates: bool) -> Self {
        let Some(task) = plan.held_out.filter(|_| evaluates) else { return Self::default() };
        let mut queries: Vec<Query> = Vec::new();
        let mut place = |params: &Params| {
            queries.iter().position(|query| query.params.is_same(params)).unwrap_or_else(|| {
                queries.push(Query::new(params.clone(), Ask::Evaluation(Measure::of_task(task))));
                queries.len() - 1
            })
        };
        let places = tracks.iter().map(|track| place(&track.params)).collect();
        Self { queries, places, sums: Vec::new() }
    }

    /// The sums of some queries, and along with the first of them what is asked here.
    pub(super) fn with(
        &mut self,
        exchange: &mut dyn Exchange,
        round: &Round<'_>,
        mut queries: Vec<Query>,
    ) -> Result<Vec<Sum>, ExchangeError> {
        let first = queries.len();
        if first + self.queries.len() > MAX_QUERIES {
            self.alone(exchange, round)?;
        }
        queries.append(&mut self.queries);
        let mut sums = exchange.secure_sum(round, &queries)?;
        self.sums.extend(sums.drain(first..).map(|sum| Sum {
            // The call is that of the others.
            traffic: Traffic { sums: 0, ..sum.traffic },
            ..sum
        }));
        Ok(sums)
    }

    /// Asks in a sum of its own.
    fn alone(&mut self, exchange: &mut dyn Exchange, round: &Round<'_>) -> Result<(), ExchangeError> {
        if !self.queries.is_empty() {
            self.sums = exchange.secure_sum(round, &std::mem::take(&mut self.queries))?;
        }
        Ok(())
    }

    /// What it came to for a track after `version` rounds, and what it cost the first track that stands there.
    pub(super) fn told(
        &self,
        version: u64,
        task: Option<Task>,
        track: usize,
    ) -> (Option<CohortEvaluation>, Traffic) {
        let (Some(task), Some(&place)) = (task, self.places.get(track)) else { return Default::default() };
        let Some(sum) = self.sums.get(place) else { return Default::default() };
        let is_first = self.places[..track].iter().all(|&other| other != place);
        let traffic = if is_first { sum.traffic } else { Traffic::default() };
        (CohortEvaluation::new(version, task, &sum.values), traffic)
    }
}

/// Asks the cohort of the last round about the params that it ended with. A cohort that comes to no sum leaves them
/// unevaluated: the round is done.
pub(super) fn after_the_last(
    exchange: &mut dyn Exchange,
    plan: &Plan,
    state: &State,
    round: &Round<'_>,
) -> Result<HeldOut, TrainingError> {
    let mut last = HeldOut::of(plan, &state.tracks, state.round == plan.rounds);
    match last.alone(exchange, round) {
        Err(ExchangeError::NoSum { .. }) => Ok(HeldOut::default()),
        ended => Ok(ended.map(|()| last)?),
    }
}
