//! Softmax regression: softmax(xW), no bias, cross-entropy (spec §4, EMNIST linear).
//!
//! W is `inputs × classes`, row by row. For one example, with p = softmax(xW) and label y,
//!
//! ```text
//! f = log Σ_c exp(z_c) − z_y,     ∂f/∂W_jc = x_j (p_c − 1[c = y])
//! ```

use super::{Batch, Model, Score};
use crate::kernel::{Granted, Isa};
use crate::stream::Stream;

/// Softmax regression.
#[derive(Clone, Debug)]
pub struct Linear {
    inputs: usize,
    classes: usize,
    kernel: Granted,
}

impl Linear {
    /// A model of `inputs` features and `classes` classes.
    pub fn new(inputs: usize, classes: usize, isa: Isa) -> Self {
        Self { inputs, classes, kernel: Granted::new(isa) }
    }

    /// z = xW of one example.
    fn logits(&self, params: &[f32], x: &[f32], z: &mut [f32]) {
        z.fill(0.0);
        for (&x, row) in x.iter().zip(params.chunks_exact(self.classes)) {
            for (z, w) in z.iter_mut().zip(row) {
                *z += x * w;
            }
        }
    }
}

impl Model for Linear {
    fn num_params(&self) -> usize {
        self.inputs * self.classes
    }

    fn init(&self, _stream: &mut Stream, params: &mut [f32]) {
        params.fill(0.0);
    }

    fn scratch_len(&self, _batch: usize) -> usize {
        self.classes
    }

    fn gradient(&self, params: &[f32], batch: Batch<'_>, gradient: &mut [f32], scratch: &mut [f32]) -> f64 {
        gradient.fill(0.0);
        let z = &mut scratch[..self.classes];
        let scale = 1.0 / batch.len() as f32;
        let mut loss = 0.0;
        for (x, &label) in batch.inputs.dense().chunks_exact(self.inputs).zip(batch.labels) {
            self.logits(params, x, z);
            loss += softmax_loss(z, label as usize);
            z[label as usize] -= 1.0;
            for (&x, row) in x.iter().zip(gradient.chunks_exact_mut(self.classes)) {
                for (g, p) in row.iter_mut().zip(&*z) {
                    *g += scale * x * p;
                }
            }
        }
        loss / batch.len() as f64
    }

    fn evaluate(&self, working: &[f32], batch: Batch<'_>, scratch: &mut [f32]) -> Score {
        let z = &mut scratch[..self.classes];
        let mut score = Score::default();
        for (x, &label) in batch.inputs.dense().chunks_exact(self.inputs).zip(batch.labels) {
            self.logits(working, x, z);
            score.errors += u64::from(argmax(z) != label as usize);
            score.loss += softmax_loss(z, label as usize);
        }
        score
    }
}

/// The first index of the largest entry.
fn argmax(z: &[f32]) -> usize {
    let mut best = 0;
    for (i, &value) in z.iter().enumerate() {
        if value > z[best] {
            best = i;
        }
    }
    best
}

/// log Σ exp(z) − z_y, stable for any logits; replaces z by softmax(z).
fn softmax_loss(z: &mut [f32], label: usize) -> f64 {
    let max = z.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let shifted = f64::from(z[label] - max);
    let mut total = 0.0;
    for z in z.iter_mut() {
        *z = (*z - max).exp();
        total += *z;
    }
    z.iter_mut().for_each(|z| *z /= total);
    f64::from(total).ln() - shifted
}
