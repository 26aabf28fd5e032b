//! The updates that the tracks of a round ask of its cohort.

use std::ops::Range;

use super::held_out::HeldOutQueries;
use super::spending;
use super::{Plan, State, TrainingError};
use crate::aggregation::{Aggregation, DeviceUpdate};
use crate::exchange::{CohortAnswers, CohortMember, Exchange, Round, SimulatedUpdate};
use crate::params::{Params, UpdateSum};
use crate::privacy::Noise;
use crate::question::{Ask, Query};
use crate::selection::PROXIMAL;
use crate::stream::{Purpose, Stream};

/// Returns the part of a track's update that only a simulation has.
pub(super) fn simulated_update(
    plan: &Plan,
    state: &State,
    cohort: &[CohortMember],
    i: usize,
) -> SimulatedUpdate {
    let at = &state.tracks[i];
    let mut stream = Stream::new(state.seed, Purpose::Selection, state.round, i as u64);
    let shares = plan.tracks[i].selection.named_shares(cohort, &mut stream, &at.memory);
    let personal = plan.tracks[i].personal.map(|personal| personal.method);
    let rule = plan.tracks[i].selection.device_rule(&at.memory);
    SimulatedUpdate { memories: at.devices.clone(), shares, personal, rule }
}

/// The updates of a round.
pub(super) struct AskedUpdates<'a> {
    pub(super) plan: &'a Plan,
    /// The first training track.
    pub(super) first: usize,
    /// One query per training track.
    pub(super) queries: &'a [Query],
    pub(super) own: Vec<SimulatedUpdate>,
}

impl AskedUpdates<'_> {
    /// Returns the answers per query. Only tracks with an aggregation ask for individual answers.
    pub(super) fn answers(
        mut self,
        exchange: &mut dyn Exchange,
        round: &Round<'_>,
        held_out: &mut HeldOutQueries,
    ) -> Result<Vec<CohortAnswers>, TrainingError> {
        let is_each = |i: &usize| self.plan.tracks[self.first + *i].aggregation.is_some();
        let (each, summed): (Vec<usize>, Vec<usize>) = (0..self.queries.len()).partition(is_each);
        let mut part = |places: &[usize]| -> (Vec<Query>, Vec<SimulatedUpdate>) {
            places.iter().map(|&i| (self.queries[i].clone(), std::mem::take(&mut self.own[i]))).unzip()
        };
        let (asked, own) = part(&summed);
        let round_of = |own| Round { own, ..*round };
        let sums = match asked.is_empty() {
            true => held_out.alone(exchange, round).map(|()| Vec::new())?,
            false => held_out.with(exchange, &round_of(&own), asked)?,
        };
        let mut answers: Vec<Option<CohortAnswers>> = vec![None; self.queries.len()];
        for (i, sum) in summed.into_iter().zip(sums) {
            answers[i] = Some(CohortAnswers { each: Vec::new(), sum });
        }
        if !each.is_empty() {
            let (asked, own) = part(&each);
            for (i, told) in each.into_iter().zip(exchange.each_answer(&round_of(&own), &asked)?) {
                answers[i] = Some(told);
            }
        }
        Ok(answers.into_iter().flatten().collect())
    }
}

/// Replaces the mean of a sum by the aggregate of the updates of which it consists.
pub(super) fn aggregated(aggregation: &dyn Aggregation, sum: UpdateSum, each: Vec<UpdateSum>) -> UpdateSum {
    let updates: Vec<DeviceUpdate> = each.into_iter().filter_map(DeviceUpdate::new).collect();
    if updates.is_empty() { sum } else { sum.with_mean(&aggregation.aggregate(&updates)) }
}

/// The update that each of these tracks asks of the cohort, with its noise.
pub(super) fn update_queries(
    plan: &Plan,
    state: &State,
    round: &Round<'_>,
    training: Range<usize>,
) -> Result<Vec<(Query, Option<Noise>)>, TrainingError> {
    let turn = plan.terms.turn(state.round);
    let of_track = |i: usize| -> Result<(Query, Option<Noise>), TrainingError> {
        let (track, at) = (&plan.tracks[i], &state.tracks[i]);
        let weighting = track.selection.weighting(&at.memory);
        let mut local = plan.local.plan(turn, track);
        if let Some(proximal) = at.memory.number(PROXIMAL) {
            local.proximal = proximal as f32;
        }
        let zero = || Params::from(vec![0.0; at.params.len()]);
        let names = local.correction.map_or(&[][..], |correction| correction.sent);
        let sent = names.iter().map(|name| at.memory.vector(name).cloned().unwrap_or_else(zero)).collect();
        let ask = Ask::Update { weighting, plan: local };
        let mut query = Query { sent, ..Query::new(at.params.clone(), ask).of_track(i) };
        let noise = match &plan.privacy {
            Some(privacy) => {
                let has_quantile = spending::asks_quantile(plan, state, i, turn);
                spending::set_noise(plan, round, spending::clip(privacy, at), has_quantile, &mut query)?
            }
            None => None,
        };
        Ok((query, noise))
    };
    training.map(of_track).collect()
}
