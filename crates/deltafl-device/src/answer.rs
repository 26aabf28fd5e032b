//! The answer of a device to a question, computed by the core on the data of this device.

use deltafl::device::{HeldOut, LossCache, Member, UpdateRandomness, stream_key};
use deltafl::memory::AlgorithmState;
use deltafl::params::{Params, ParamsId};
use deltafl::question::{Query, Question};
use deltafl::trainer::{TrainerError, Worker};
use deltafl_secagg::device::SurvivorKeys;

use super::DeviceData;

/// F_k(w) in the current round.
pub(super) type DeviceLosses = LossCache<ParamsId, f64>;

/// An answer and the round to which it is bound.
pub(super) struct Answer {
    pub(super) values: Vec<u64>,
    pub(super) context: Vec<u8>,
    /// The keys of the noise that the sum does not need, by the number of survivors.
    pub(super) keys: SurvivorKeys,
}

/// Everything a device needs to answer a question.
pub(super) struct AnswerTask<'a> {
    pub(super) data: &'a DeviceData,
    /// The prediction task of its trainer.
    pub(super) task: deltafl::task::Task,
    /// The source of the random numbers of its updates.
    pub(super) randomness: UpdateRandomness,
    /// Whether it trains although it is outside of the tail.
    pub(super) trains_always: bool,
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

impl AnswerTask<'_> {
    /// Returns the answers to all queries, one after the other. The answers to queries that the
    /// device does not answer are zero. `own` is the memory of the device per query.
    pub(super) fn answer(
        &self,
        question: &Question,
        answering: &Answering,
        losses: &mut DeviceLosses,
        own: &mut [AlgorithmState],
        worker: &mut dyn Worker,
    ) -> Result<Answer, TrainerError> {
        let covers = |place: usize, query: &Query| answering.covers(place, query);
        let member = self.member();
        let values = member.answers(question, covers, losses, own, worker)?;
        let keys = SurvivorKeys::new(member.excess_keys(question));
        Ok(Answer { values, context: question.digest().as_bytes().to_vec(), keys })
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
        let DeviceData { federation, device, held_out } = self.data;
        let held_out = held_out.map(|k| HeldOut { examples: federation.examples(k), task: self.task });
        let (examples, key) = (federation.examples(*device), stream_key(self.data.name()));
        let (randomness, trains_always) = (self.randomness, self.trains_always);
        Member { examples, key, randomness, held_out, trains_always }
    }
}
