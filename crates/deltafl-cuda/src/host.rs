//! The vectors of corrections that the host computes before training.
//!
//! A correction is a function of the memory of a device, which is on the host. Local steps run on
//! the GPU and add the vector in every step.

use deltafl::kernel::flush_denormals;
use deltafl::memory::AlgorithmState;
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
