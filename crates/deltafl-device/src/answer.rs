//! Computes a device's answer to a question with the code that all exchanges share.

use deltafl::device::{HeldOut, Member, UpdateRandomness, stream_key};
use deltafl::memory::Memory;
use deltafl::params::Params;
use deltafl::question::{Query, Question};
use deltafl::trainer::{TrainerError, Worker};

use super::Data;

/// Caches F_k(w) at the params of the current round, so that it is computed once.
#[derive(Clone, Debug, Default)]
pub(super) struct Losses {
    round: Option<(u64, u64)>,
    by_params: Vec<(blake3::Hash, f64)>,
}

/// An answer and the round to which it is bound.
pub(super) struct Answer {
    pub(super) values: Vec<u64>,
    pub(super) context: Vec<u8>,
}

/// Everything a device needs to answer a question.
pub(super) struct Task<'a> {
    pub(super) data: &'a Data,
    /// The prediction task of its trainer.
    pub(super) task: deltafl::task::Task,
    /// The source of the random numbers of its updates.
    pub(super) randomness: UpdateRandomness,
}

/// The queries of a question that a device answers.
pub(super) struct Answering {
    /// The track whose queries it answers, or every track if `None`.
    pub(super) track: Option<u32>,
    /// The queries of the track to which the device contributes zeros.
    pub(super) silent: Vec<usize>,
}

impl Answering {
    fn covers(&self, place: usize, query: &Query) -> bool {
        self.track.is_none_or(|track| track == query.track) && !self.silent.contains(&place)
    }
}

impl Task<'_> {
    /// Returns the concatenated answers to all queries, with zeros for queries that the device does
    /// not answer. `own` is the device's memory for each query.
    pub(super) fn answer(
        &self,
        question: &Question,
        answering: &Answering,
        losses: &mut Losses,
        own: &mut [Memory],
        worker: &mut dyn Worker,
    ) -> Result<Answer, TrainerError> {
        losses.of_round((question.key.seed, question.key.round));
        let member = self.member();
        let mut values = Vec::with_capacity(question.queries.iter().map(Query::answer_len).sum());
        for (i, query) in question.queries.iter().enumerate() {
            let start = values.len();
            values.resize(start + query.answer_len(), 0);
            if !answering.covers(i, query) {
                continue;
            }
            let loss = match query.needs_loss() {
                true => Some(losses.at(&query.params, &member, worker)?),
                false => None,
            };
            member.answer(&question.key, query, loss, worker, &mut own[i], &mut values[start..])?;
        }
        Ok(Answer { values, context: question.digest().as_bytes().to_vec() })
    }

    /// Returns F_k at each of the params.
    pub(super) fn losses(
        &self,
        params: &[Params],
        worker: &mut dyn Worker,
    ) -> Result<Vec<f64>, TrainerError> {
        let member = self.member();
        params.iter().map(|params| member.loss(params, worker)).collect()
    }

    fn member(&self) -> Member<'_> {
        let Data { federation, device, held_out } = self.data;
        let held_out = held_out.map(|k| HeldOut { examples: federation.examples(k), task: self.task });
        let (examples, key) = (federation.examples(*device), stream_key(self.data.name()));
        Member { examples, key, randomness: self.randomness, held_out }
    }
}

impl Losses {
    fn of_round(&mut self, round: (u64, u64)) {
        if self.round != Some(round) {
            *self = Self { round: Some(round), by_params: Vec::new() };
        }
    }

    fn at(
        &mut self,
        params: &Params,
        member: &Member<'_>,
        worker: &mut dyn Worker,
    ) -> Result<f64, TrainerError> {
        let hash = params.hash();
        if let Some((_, loss)) = self.by_params.iter().find(|(known, _)| *known == hash) {
            return Ok(*loss);
        }
        let loss = member.loss(params, worker)?;
        self.by_params.push((hash, loss));
        Ok(loss)
    }
}
