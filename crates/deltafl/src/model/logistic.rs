//! Binary logistic regression: σ(x·w), no bias (spec §4, Sent140 linear).
//!
//! With the label y ∈ {0, 1} and z = x·w,
//!
//! ```text
//! f = log(1 + exp(z)) − y z,      ∇f = (σ(z) − y) x
//! ```

use super::{Batch, Model, Score};
use crate::kernel::{Granted, Isa};
use crate::stream::Stream;

/// Binary logistic regression.
#[derive(Clone, Debug)]
pub struct Logistic {
    inputs: usize,
    kernel: Granted,
}

impl Logistic {
    /// A model of `inputs` features.
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

    fn scratch_len(&self, _batch: usize) -> usize {
        0
    }

    fn gradient(&self, params: &[f32], batch: Batch<'_>, gradient: &mut [f32], _scratch: &mut [f32]) -> f64 {
        gradient.fill(0.0);
        let scale = 1.0 / batch.len() as f32;
        let mut loss = 0.0;
        for (x, &label) in batch.inputs.dense().chunks_exact(self.inputs).zip(batch.labels) {
            let (z, y) = (dot(x, params), label as f32);
            loss += logistic_loss(z, y);
            let residual = scale * (sigmoid(z) - y);
            for (g, x) in gradient.iter_mut().zip(x) {
                *g += residual * x;
            }
        }
        loss / batch.len() as f64
    }

    fn evaluate(&self, working: &[f32], batch: Batch<'_>, _scratch: &mut [f32]) -> Score {
        let mut score = Score::default();
        for (x, &label) in batch.inputs.dense().chunks_exact(self.inputs).zip(batch.labels) {
            let z = dot(x, working);
            score.loss += logistic_loss(z, label as f32);
            score.errors += u64::from((z > 0.0) != (label == 1));
        }
        score
    }
}

/// x·w.
fn dot(x: &[f32], w: &[f32]) -> f32 {
    x.iter().zip(w).map(|(x, w)| x * w).sum()
}

/// σ(z).
pub(super) fn sigmoid(z: f32) -> f32 {
    1.0 / (1.0 + (-z).exp())
}

/// log(1 + exp(z)) − y z, stable for any z.
pub(super) fn logistic_loss(z: f32, y: f32) -> f64 {
    let z = f64::from(z);
    z.max(0.0) + (-z.abs()).exp().ln_1p() - f64::from(y) * z
}
