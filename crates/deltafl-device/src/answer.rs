//! The answer of a device to a question, computed by the core on the data of this device.

use deltafl::device::{HeldOut, LossCache, Member, stream_key};
use deltafl::memory::Memory;
use deltafl::params::{Params, ParamsId};
use deltafl::question::Question;
use deltafl::trainer::{TrainerError, Worker};

use super::Data;

/// F_k(w) in the current round.
pub(super) type Losses = LossCache<ParamsId, f64>;

/// An answer, and what it is bound to.
pub(super) struct Answer {
    pub(super) values: Vec<u64>,
    pub(super) context: Vec<u8>,
}

/// Everything that a device needs to answer a question.
pub(super) struct Task<'a> {
    pub(super) data: &'a Data,
    /// What its trainer predicts.
    pub(super) task: deltafl::task::Task,
}

impl Task<'_> {
    /// Returns the answers to all queries, one after the other. `own` is the memory of the device per
    /// query. The answers to `silent` queries are zero.
    pub(super) fn answer(
        &self,
        question: &Question,
        silent: &[usize],
        losses: &mut Losses,
        own: &mut [Memory],
        worker: &mut dyn Worker,
    ) -> Result<Answer, TrainerError> {
        let values = self.member().answers(question, silent, losses, own, worker)?;
        Ok(Answer { values, context: question.digest().as_bytes().to_vec() })
    }

    /// F_k at each of the params.
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
        Member { examples: federation.examples(*device), key: stream_key(self.data.name()), held_out }
    }
}
