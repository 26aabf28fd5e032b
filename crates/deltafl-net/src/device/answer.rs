//! A device's answer to a question: the code of every engine, on this device's data.

use deltafl::device::{Member, Workspace, stream_key};
use deltafl::engine::{Query, context};
use deltafl::model::Model;
use deltafl::params::Params;

use super::Data;
use crate::wire::Question;

/// F_k(w) at the parameters of the present round, so that it is computed once.
#[derive(Clone, Debug, Default)]
pub(super) struct Losses {
    round: Option<(u64, u64)>,
    by_params: Vec<(blake3::Hash, f64)>,
}

/// An answer, and what it is bound to.
pub(super) struct Answer {
    pub(super) values: Vec<u64>,
    pub(super) context: Vec<u8>,
}

/// A question with everything that a device needs to answer it.
pub(super) struct Task<'a> {
    pub(super) model: &'a dyn Model,
    pub(super) data: &'a Data,
    /// The device's place on the roster.
    pub(super) index: u32,
}

impl Task<'_> {
    /// The answers to all queries, one behind the other; `params` has an entry per query.
    pub(super) fn answer(
        &self,
        question: &Question,
        params: &[Params],
        losses: &mut Losses,
        workspace: &mut Workspace,
    ) -> Answer {
        let round = question.round();
        losses.of_round((round.seed, round.index));
        let member = self.member(question.times(self.index));
        let queries: Vec<Query<'_>> =
            question.queries.iter().zip(params).map(|(query, params)| query.at(params)).collect();
        let mut values = Vec::with_capacity(queries.iter().map(Query::answer_len).sum());
        for query in &queries {
            let loss = query.needs_loss().then(|| losses.at(query.params(), &member, workspace));
            let start = values.len();
            values.resize(start + query.answer_len(), 0);
            member.answer(&round, query, loss, workspace, &mut values[start..]);
        }
        Answer { values, context: context(&round, &queries) }
    }

    /// F_k at each of the parameters.
    pub(super) fn losses(&self, params: &[Params], workspace: &mut Workspace) -> Vec<f64> {
        let member = self.member(1);
        params.iter().map(|params| member.loss(params, workspace)).collect()
    }

    fn member(&self, times: u32) -> Member<'_> {
        let Data { federation, device } = self.data;
        Member {
            model: self.model,
            examples: federation.examples(*device),
            weight: federation.count(*device) as f64 * f64::from(times),
            key: stream_key(self.data.name()),
        }
    }
}

impl Losses {
    fn of_round(&mut self, round: (u64, u64)) {
        if self.round != Some(round) {
            *self = Self { round: Some(round), by_params: Vec::new() };
        }
    }

    fn at(&mut self, params: &Params, member: &Member<'_>, workspace: &mut Workspace) -> f64 {
        let hash = params.hash();
        if let Some((_, loss)) = self.by_params.iter().find(|(known, _)| *known == hash) {
            return *loss;
        }
        let loss = member.loss(params, workspace);
        self.by_params.push((hash, loss));
        loss
    }
}
