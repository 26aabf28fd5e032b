//! Binary logistic regression: σ(x·w), no bias (spec §4, Sent140 linear).
//!
//! With the label y ∈ {0, 1} and z = x·w,
//!
//! ```text
//! f = log(1 + exp(z)) − y z,      ∇f = (σ(z) − y) x
//! ```

use super::{Batch, Model, Score, Step};
use crate::kernel::{Granted, Isa, logistic};
use crate::stream::Stream;

/// Binary logistic regression.
#[derive(Clone, Debug)]
pub struct Logistic {
    inputs: usize,
    kernel: Granted,
}

impl Logistic {
    /// A model of `inputs` features.
    ///
    /// # Panics
    /// When this CPU lacks the instruction set.
    pub fn new(inputs: usize, isa: Isa) -> Self {
        Self { inputs, kernel: Granted::new(isa) }
    }
}

impl Model for Logistic {
    fn num_params(&self) -> usize {
        self.inputs
    }

    fn init(&self, _stream: &mut Stream, params: &mut [f32]) {
        params.fill(0.0);
    }

    fn scratch_len(&self, batch: usize) -> usize {
        batch
    }

    fn gradient(&self, params: &[f32], batch: Batch<'_>, gradient: &mut [f32], scratch: &mut [f32]) -> f64 {
        let x = batch.inputs.dense();
        let loss = self.evaluate(params, batch, scratch).loss / batch.len() as f64;
        let residuals = &mut scratch[..batch.len()];
        logistic::residuals(self.kernel, residuals, batch.labels, 1.0 / batch.len() as f32);
        gradient.fill(0.0);
        logistic::descend(self.kernel, x, residuals, 1.0, gradient);
        loss
    }

    /// Leaves the logits in `scratch`.
    fn evaluate(&self, working: &[f32], batch: Batch<'_>, scratch: &mut [f32]) -> Score {
        let logits = &mut scratch[..batch.len()];
        logistic::logits(self.kernel, batch.inputs.dense(), working, logits);
        score(logits, batch.labels)
    }

    fn step_scratch_len(&self, batch: usize) -> usize {
        batch
    }

    fn step(&self, working: &mut [f32], batch: Batch<'_>, step: Step<'_>, scratch: &mut [f32]) {
        let (x, residuals) = (batch.inputs.dense(), &mut scratch[..batch.len()]);
        logistic::logits(self.kernel, x, working, residuals);
        let scale = -step.learning_rate / batch.len() as f32;
        logistic::residuals(self.kernel, residuals, batch.labels, scale);
        logistic::descend(self.kernel, x, residuals, step.decay(), working);
        if let Some(pull) = step.pull() {
            pull.add_to(working);
        }
    }
}

/// Loss and errors of logits; a logit of 0 is class 0, the first of the two.
pub(super) fn score(logits: &[f32], labels: &[u32]) -> Score {
    let mut score = Score::default();
    for (&z, &label) in logits.iter().zip(labels) {
        score.loss += logistic_loss(z, label as f32);
        score.errors += u64::from((z > 0.0) != (label == 1));
    }
    score
}

/// log(1 + exp(z)) − y z, stable for any z.
fn logistic_loss(z: f32, y: f32) -> f64 {
    let z = f64::from(z);
    z.max(0.0) + (-z.abs()).exp().ln_1p() - f64::from(y) * z
}
