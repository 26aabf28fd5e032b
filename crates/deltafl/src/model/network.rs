//! What the networks share: a step is a pass forward, a way back and a descent, in memory that is lent.

use super::layout::{section, take};
use super::{Batch, Model, Step};

/// A model that is trained by a pass forward and a way back.
pub(super) trait Network: Model {
    /// Examples that a pass holds at once: larger batches go part by part.
    const PART: usize;
    /// What the way back leaves for the descent.
    type Slopes<'a>;

    /// Forward and back, with the slope of every loss multiplied by `scale`.
    fn differentiate<'a>(
        &self,
        working: &[f32],
        batch: Batch<'_>,
        scale: f32,
        memory: &'a mut [f32],
    ) -> Self::Slopes<'a>;

    /// working ← decay·working + gradient. No gradient is formed: the batch is added to the parameters.
    fn descend(&self, working: &mut [f32], decay: f32, slopes: Self::Slopes<'_>);
}

/// [`Model::step`] of a network.
pub(super) fn step(
    network: &impl Network,
    working: &mut [f32],
    batch: Batch<'_>,
    step: Step<'_>,
    scratch: &mut [f32],
) {
    let scale = -step.learning_rate / batch.len() as f32;
    let slopes = network.differentiate(working, batch, scale, scratch);
    network.descend(working, step.decay(), slopes);
    step.add_pull(working);
}

/// [`Model::gradient`] of a network: descents from zero, part by part.
pub(super) fn gradient(
    network: &impl Network,
    params: &[f32],
    batch: Batch<'_>,
    gradient: &mut [f32],
    scratch: &mut [f32],
) -> f64 {
    let mut memory = scratch;
    let working = take(&mut memory, network.working_len());
    let total = take(&mut memory, network.working_len());
    network.load(params, working);
    total.fill(0.0);
    let (mut loss, scale) = (0.0, 1.0 / batch.len() as f32);
    for part in parts(network, batch) {
        loss += network.evaluate(working, part, memory).loss;
        let slopes = network.differentiate(working, part, scale, memory);
        network.descend(total, 1.0, slopes);
    }
    network.store(total, gradient);
    loss / batch.len() as f64
}

/// Floats of scratch for [`gradient`]; `evaluation` are those of a forward pass alone.
pub(super) fn scratch_len<N: Network>(network: &N, batch: usize, evaluation: usize) -> usize {
    let step = network.step_scratch_len(batch.min(N::PART)).max(evaluation);
    2 * section(network.working_len()) + step
}

/// The parts of a batch.
pub(super) fn parts<'a, N: Network>(_: &N, batch: Batch<'a>) -> impl Iterator<Item = Batch<'a>> + use<'a, N> {
    (0..batch.len()).step_by(N::PART).map(move |start| batch.part(start..(start + N::PART).min(batch.len())))
}
