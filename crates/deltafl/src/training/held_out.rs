//! Evaluation on the held-out examples of a cohort, for devices that keep their metrics private.
//!
//! The queries are part of the first secure sum of the round. An evaluation therefore costs a few
//! kilobytes and no extra message. No round starts from the final params, so the cohort of the last
//! round of a track evaluates them in one more sum. A device answers one evaluation per round, so
//! this sum has the number of the round in which the track would train next.

use std::ops::Range;

use super::spending::{self, Spending};
use super::{Plan, State, TrackState, TrainingError};
use crate::evaluation::{CohortEvaluation, Measure};
use crate::exchange::{CohortSum, Exchange, ExchangeError, Round, Traffic};
use crate::params::Params;
use crate::privacy::noise::projected;
use crate::privacy::{Noise, Rho};
use crate::question::{Ask, MAX_QUERIES, Query};
use crate::task::Task;
use crate::terms::TrackSchedule;

/// The evaluation queries of a round and their sums.
#[derive(Default)]
pub(super) struct HeldOutQueries {
    /// The pending queries, one for each distinct w.
    queries: Vec<Query>,
    /// Pairs of a track and the index of its query.
    places: Vec<(usize, usize)>,
    sums: Vec<CohortSum>,
    /// The noise of each query, if there is any.
    noises: Vec<Option<Noise>>,
    /// The cost of the sums, by track.
    spent: Vec<(usize, Rho)>,
}

impl HeldOutQueries {
    /// Creates the queries for the params of some tracks. There are none unless the round
    /// evaluates.
    pub(super) fn new(
        plan: &Plan,
        tracks: &[TrackState],
        asking: Range<usize>,
        evaluates: bool,
        round: &Round<'_>,
    ) -> Result<Self, TrainingError> {
        let evaluates = evaluates && plan.privacy.is_none_or(|privacy| privacy.evaluation > Rho::ZERO);
        let Some(task) = plan.held_out.filter(|_| evaluates) else { return Ok(Self::default()) };
        // Devices that answer for every track answer once for tracks with the same w.
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
        let mut noises = Vec::with_capacity(queries.len());
        if let Some(privacy) = &plan.privacy {
            for query in &mut queries {
                noises.push(spending::set_noise(plan, round, privacy.clip.start, false, query)?);
            }
        }
        Ok(Self { queries, places, noises, ..Self::default() })
    }

    /// Adds the noise of a central server to the sums, and their cost to the privacy spent.
    pub(super) fn settle(&mut self, plan: &Plan, round: &Round<'_>, spending: &mut Spending) {
        if let (Some(privacy), Some(task)) = (&plan.privacy, plan.held_out) {
            let ask = Ask::Evaluation(Measure::of_task(task));
            for (place, (sum, noise)) in self.sums.iter_mut().zip(&self.noises).enumerate() {
                let Some(noise) = noise else { continue };
                let Some((track, _)) = self.places.iter().find(|(_, asked)| *asked == place) else {
                    continue;
                };
                let query = Query::new(Params::from(Vec::new()), ask.clone()).of_track(*track);
                let rho = spending::release(privacy, round, &query, noise, sum.answered, &mut sum.values);
                self.spent.push((*track, rho));
                let counts = projected(&noise.counts(&sum.values));
                sum.values = counts;
            }
        }
        self.spent.drain(..).for_each(|(track, rho)| spending.add(track, rho));
    }

    /// Sums some queries together with the pending ones, and returns the sums of the former.
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
            // The other queries count the call.
            traffic: Traffic { sums: 0, ..sum.traffic },
            ..sum
        }));
        Ok(sums)
    }

    /// Sends the pending queries in a separate sum.
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

    /// Returns the evaluation of a track after `version` rounds and its traffic. Tracks with the
    /// same params share a sum; its traffic is counted for the first of them.
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

/// Evaluates the final params of some tracks with the cohort of their last round. If the
/// aggregation fails, they are not evaluated, because the round is already complete.
pub(super) fn after_the_last(
    exchange: &mut dyn Exchange,
    plan: &Plan,
    state: &State,
    round: &Round<'_>,
) -> Result<HeldOutQueries, TrainingError> {
    let cycle = round.terms.cycle(round.index);
    let next = round.index + (cycle.end - cycle.start);
    let ended = round.terms.tracks_of_round(round.index);
    let mut last = HeldOutQueries::new(plan, &state.tracks, ended, next >= plan.rounds, round)?;
    match last.alone(exchange, &Round { index: next, ..*round }) {
        Err(ExchangeError::NoSum { .. }) => Ok(HeldOutQueries::default()),
        ended => Ok(ended.map(|()| last)?),
    }
}
