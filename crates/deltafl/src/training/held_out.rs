//! What the cohort of a round tells of the examples that its devices hold out, where every device keeps its figures to itself.
//!
//! The questions travel with the first sum that the round asks for anyway, so that an evaluation costs a few kilobytes and no
//! message. The last params are those of no round: the cohort of the last round of a track is asked about them in one more sum.
//! A device answers one evaluation per round, so that this sum has the number of the round in which the track would train next.

use std::ops::Range;

use super::{Plan, State, TrackState, TrainingError};
use crate::evaluation::{CohortEvaluation, Measure};
use crate::exchange::{CohortSum, Exchange, ExchangeError, Round, Traffic};
use crate::question::{Ask, MAX_QUERIES, Query};
use crate::task::Task;
use crate::terms::TrackSchedule;

/// An evaluation that is to be asked for, and what it came to.
#[derive(Default)]
pub(super) struct HeldOutQueries {
    /// What is asked, each w once; empty when it has been, or when there is nothing to ask.
    queries: Vec<Query>,
    /// Which of them each of the tracks asks, by the number of the track.
    places: Vec<(usize, usize)>,
    sums: Vec<CohortSum>,
}

impl HeldOutQueries {
    /// What the cohort is asked about the params of some tracks; nothing unless the round evaluates.
    pub(super) fn new(plan: &Plan, tracks: &[TrackState], asking: Range<usize>, evaluates: bool) -> Self {
        let Some(task) = plan.held_out.filter(|_| evaluates) else { return Self::default() };
        // Devices that answer for every track answer once for those that share a w.
        let shared = plan.terms.schedule != TrackSchedule::Apart;
        let mut queries: Vec<Query> = Vec::new();
        let mut place = |track: usize| {
            let params = &tracks[track].params;
            let known = queries.iter().position(|query| shared && query.params.is_same(params));
            known.unwrap_or_else(|| {
                let ask = Ask::Evaluation(Measure::of_task(task));
                queries.push(Query::new(params.clone(), ask).of_track(track));
                queries.len() - 1
            })
        };
        let places = asking.map(|track| (track, place(track))).collect();
        Self { queries, places, sums: Vec::new() }
    }

    /// The sums of some queries, and along with the first of them what is asked here.
    pub(super) fn with(
        &mut self,
        exchange: &mut dyn Exchange,
        round: &Round<'_>,
        mut queries: Vec<Query>,
    ) -> Result<Vec<CohortSum>, ExchangeError> {
        let first = queries.len();
        if first + self.queries.len() > MAX_QUERIES {
            self.alone(exchange, round)?;
        }
        queries.append(&mut self.queries);
        let mut sums = exchange.secure_sum(round, &queries)?;
        self.sums.extend(sums.drain(first..).map(|sum| CohortSum {
            // The call is that of the others.
            traffic: Traffic { sums: 0, ..sum.traffic },
            ..sum
        }));
        Ok(sums)
    }

    /// Asks in a separate sum.
    pub(super) fn alone(
        &mut self,
        exchange: &mut dyn Exchange,
        round: &Round<'_>,
    ) -> Result<(), ExchangeError> {
        if !self.queries.is_empty() {
            self.sums = exchange.secure_sum(round, &std::mem::take(&mut self.queries))?;
        }
        Ok(())
    }

    /// Returns the evaluation of a track after `version` rounds and its traffic. Tracks with the same
    /// params share a sum; its traffic is counted for the first of them.
    pub(super) fn evaluation(
        &self,
        version: u64,
        task: Option<Task>,
        track: usize,
    ) -> (Option<CohortEvaluation>, Traffic) {
        let asked = self.places.iter().position(|(asking, _)| *asking == track);
        let (Some(task), Some(asked)) = (task, asked) else { return Default::default() };
        let (before, place) = (&self.places[..asked], self.places[asked].1);
        let Some(sum) = self.sums.get(place) else { return Default::default() };
        let is_first = before.iter().all(|&(_, other)| other != place);
        let traffic = if is_first { sum.traffic } else { Traffic::default() };
        (CohortEvaluation::new(version, task, &sum.values), traffic)
    }
}

/// Asks the cohort of the last round of some tracks about the params that these tracks ended with. A cohort whose aggregation
/// fails leaves them unevaluated: the round is done.
pub(super) fn after_the_last(
    exchange: &mut dyn Exchange,
    plan: &Plan,
    state: &State,
    round: &Round<'_>,
) -> Result<HeldOutQueries, TrainingError> {
    let cycle = round.terms.cycle(round.index);
    let next = round.index + (cycle.end - cycle.start);
    let ended = round.terms.tracks_of_round(round.index);
    let mut last = HeldOutQueries::new(plan, &state.tracks, ended, next >= plan.rounds);
    match last.alone(exchange, &Round { index: next, ..*round }) {
        Err(ExchangeError::NoSum { .. }) => Ok(HeldOutQueries::default()),
        ended => Ok(ended.map(|()| last)?),
    }
}
