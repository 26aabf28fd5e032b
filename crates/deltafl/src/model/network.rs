//! The shared structure of networks: forward pass, backward pass and descent, in borrowed memory.

use super::layout::{section, take};
use super::{Batch, Model, Step};

/// A model that is trained by a forward and a backward pass.
pub(super) trait LayeredModel: Model {
    /// The examples of one pass. Larger batches are split.
    const PART: usize;
    /// The results of the backward pass for the descent.
    type Slopes<'a>;

    /// Runs forward and backward, with the slope of every loss multiplied by `scale`.
    fn differentiate<'a>(
        &self,
        working: &[f32],
        batch: Batch<'_>,
        scale: f32,
        memory: &'a mut [f32],
    ) -> Self::Slopes<'a>;

    /// Computes working ← decay·working + gradient. The gradient is added to the parameters, not
    /// stored.
    fn descend(&self, working: &mut [f32], decay: f32, slopes: Self::Slopes<'_>);
}

/// [`Model::step`] of a network.
pub(super) fn step(
    network: &impl LayeredModel,
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
    network: &impl LayeredModel,
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

/// Returns the floats of scratch for [`gradient`]. `evaluation` is the scratch of a forward pass.
pub(super) fn scratch_len<N: LayeredModel>(network: &N, batch: usize, evaluation: usize) -> usize {
    let step = network.step_scratch_len(batch.min(N::PART)).max(evaluation);
    2 * section(network.working_len()) + step
}

/// Returns the parts of a batch.
pub(super) fn parts<'a, N: LayeredModel>(
    _: &N,
    batch: Batch<'a>,
) -> impl Iterator<Item = Batch<'a>> + use<'a, N> {
    (0..batch.len()).step_by(N::PART).map(move |start| batch.part(start..(start + N::PART).min(batch.len())))
}
