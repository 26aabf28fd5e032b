//! The parts of an update that the host computes: pulls before training, and answers after it that
//! contain more than w_k.
//!
//! Corrections are functions of the memory of a device, which is on the host. Local steps run on
//! the GPU. The host computes the vector that every step adds, and after training the new memory,
//! by the same code as the CPU backend.

use deltafl::compute::{ComputeError, Remembered, add_task};
use deltafl::data::{Examples, Federation};
use deltafl::kernel::flush_denormals;
use deltafl::memory::AlgorithmState;
use deltafl::model::Score;
use deltafl::params::add_wrapping;
use deltafl::question::RoundKey;
use deltafl::stream::Stream;
use deltafl::trainer::{LocalResult, LocalTask, TrainerError, Worker};
use rayon::prelude::*;

use crate::wanted::RequestedUpdate;

/// Writes the vector that every step of a task adds, γ(μw_t − drift), for each task with a
/// correction.
pub(crate) fn pulls(wave: &[RequestedUpdate<'_>], len: usize, to: &mut [f32]) {
    to.par_chunks_exact_mut(len.max(1)).zip(wave).for_each(|(pull, wanted)| {
        let _flushed = flush_denormals();
        let task = &wanted.task;
        let Some(correction) = task.plan.correction else { return };
        pull.fill(0.0);
        let none = AlgorithmState::default();
        (correction.drift)(task.sent, task.own.unwrap_or(&none), pull);
        let (rate, proximal) = (task.plan.learning_rate, task.plan.proximal);
        for (pull, w) in pull.iter_mut().zip(task.params.as_slice()) {
            *pull = rate * (proximal * w - *pull);
        }
    });
}

/// Adds the answers of trained devices, each with its w_k, to their sums. Returns their memories.
pub(crate) fn update_sums(
    key: &RoundKey,
    federation: &Federation,
    answers: &[(RequestedUpdate<'_>, &[f32])],
    sums: &mut [Vec<u64>],
) -> Result<Remembered, ComputeError> {
    let lens: Vec<usize> = sums.iter().map(Vec::len).collect();
    let empty = || (vec![Vec::new(); lens.len()], Remembered::new());
    let add = |(mut sums, mut remembered): (Vec<Vec<u64>>, Remembered),
               (wanted, local): &(RequestedUpdate<'_>, &[f32])| {
        let _flushed = flush_denormals();
        let sum: &mut Vec<u64> = &mut sums[wanted.task.sum];
        sum.resize(lens[wanted.task.sum], 0);
        let mut worker = TrainedWorker { local, answer: Vec::new() };
        let memory = add_task(key, federation, &wanted.task, &mut worker, sum).map_err(|problem| {
            let device = federation.id(wanted.task.device).to_owned();
            ComputeError::Device { device, problem }
        })?;
        remembered.extend(memory.map(|memory| (wanted.index, memory)));
        Ok((sums, remembered))
    };
    let parts: Vec<(Vec<Vec<u64>>, Remembered)> = answers
        .par_iter()
        .map(Ok)
        .try_fold(empty, |part, answer| add(part, answer?))
        .collect::<Result<_, _>>()?;
    let mut all = Remembered::new();
    for (part, remembered) in parts {
        all.extend(remembered);
        for (sum, part) in sums.iter_mut().zip(part).filter(|(_, part)| !part.is_empty()) {
            add_wrapping(sum, &part);
        }
    }
    Ok(all)
}

/// A worker whose device has been trained.
struct TrainedWorker<'a> {
    local: &'a [f32],
    answer: Vec<f32>,
}

impl Worker for TrainedWorker<'_> {
    fn load(&mut self, _params: &[f32]) {}

    fn score(&mut self, _: &Examples<'_>, _: std::ops::Range<usize>) -> Result<Score, TrainerError> {
        Err("an update on the GPU evaluates nothing on the host".into())
    }

    /// Returns w_k and the changes of the vectors that were sent with w.
    fn update(
        &mut self,
        task: &LocalTask<'_>,
        own: &mut AlgorithmState,
        _stream: &mut Stream,
    ) -> Result<&[f32], TrainerError> {
        let LocalTask { params, sent, examples, plan } = *task;
        self.answer.clear();
        self.answer.extend_from_slice(self.local);
        self.answer.resize(params.len() * (1 + plan.sent()), 0.0);
        let (local, changes) = self.answer.split_at_mut(params.len());
        if let Some(correction) = plan.correction {
            let steps = plan.steps(examples.len() as u64);
            let (learning_rate, proximal) = (plan.learning_rate, plan.proximal);
            let trained = LocalResult { params, local, sent, steps, learning_rate, proximal };
            (correction.finish)(&trained, own, changes);
        }
        Ok(&self.answer)
    }
}
