//! Softmax regression: softmax(xW), no bias, cross-entropy (spec §4, EMNIST linear).
//!
//! W is `inputs × classes`, row by row. For one example, with p = softmax(xW) and label y,
//!
//! ```text
//! f = log Σ_c exp(z_c) − z_y,     ∂f/∂W_jc = x_j (p_c − 1[c = y])
//! ```
//!
//! The gradient of a batch of b is a matrix of rank b: it is never formed, but added to W as the
//! product of the inputs with the residuals.

use super::{Batch, Model, Pull, Score, Step};
use crate::kernel::product::{Entries, Layout, Shape, padded, panels_len, product, product_towards};
use crate::kernel::softmax::{self, Rows};
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
    ///
    /// # Panics
    /// When this CPU lacks the instruction set.
    pub fn new(inputs: usize, classes: usize, isa: Isa) -> Self {
        Self { inputs, classes, kernel: Granted::new(isa) }
    }

    fn rows(&self) -> Rows {
        Rows { classes: self.classes, stride: padded(self.classes) }
    }

    /// Z = XW.
    fn logits(&self, working: &[f32], x: &[f32], logits: &mut [f32]) {
        let stride = self.rows().stride;
        let shape = Shape { m: logits.len() / stride, n: stride, k: self.inputs };
        let x = Entries { values: x, row: self.inputs, column: 1 };
        let layouts = [Layout::panels(self.inputs), Layout::rows(stride)];
        product(self.kernel, shape, x, working, layouts[0], logits, layouts[1], 0.0);
    }

    /// W ← decay·W + Xᵀ R for residuals R, and towards a centre where there is one.
    fn descend(&self, working: &mut [f32], x: &[f32], residuals: &[f32], decay: f32, pull: Option<Pull<'_>>) {
        let stride = self.rows().stride;
        let shape = Shape { m: self.inputs, n: stride, k: residuals.len() / stride };
        let x = Entries { values: x, row: 1, column: self.inputs };
        let layouts = [Layout::rows(stride), Layout::panels(self.inputs)];
        match pull {
            None => product(self.kernel, shape, x, residuals, layouts[0], working, layouts[1], decay),
            // In the same pass over W: another would cost a fifth of the step.
            Some(Pull { centre, by }) => {
                let kernel = self.kernel;
                product_towards(
                    kernel, shape, x, residuals, layouts[0], working, layouts[1], decay, centre, by,
                );
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

    fn scratch_len(&self, batch: usize) -> usize {
        2 * self.working_len() + self.step_scratch_len(batch)
    }

    fn gradient(&self, params: &[f32], batch: Batch<'_>, gradient: &mut [f32], scratch: &mut [f32]) -> f64 {
        let (working, scratch) = scratch.split_at_mut(self.working_len());
        let (total, scratch) = scratch.split_at_mut(self.working_len());
        self.load(params, working);
        let x = batch.inputs.dense();
        let residuals = &mut scratch[..batch.len() * self.rows().stride];
        self.logits(working, x, residuals);
        let score = softmax::score(self.kernel, self.rows(), residuals, batch.labels);
        softmax::residuals(self.kernel, self.rows(), residuals, batch.labels, 1.0 / batch.len() as f32);
        self.descend(total, x, residuals, 0.0, None);
        self.store(total, gradient);
        score.loss / batch.len() as f64
    }

    fn evaluate(&self, working: &[f32], batch: Batch<'_>, scratch: &mut [f32]) -> Score {
        let logits = &mut scratch[..batch.len() * self.rows().stride];
        self.logits(working, batch.inputs.dense(), logits);
        softmax::score(self.kernel, self.rows(), logits, batch.labels)
    }

    fn working_len(&self) -> usize {
        panels_len(self.inputs, padded(self.classes))
    }

    fn load(&self, params: &[f32], working: &mut [f32]) {
        super::layout::to_panels(params, self.inputs, self.classes, working);
    }

    fn store(&self, working: &[f32], params: &mut [f32]) {
        super::layout::from_panels(working, self.inputs, self.classes, params);
    }

    fn step_scratch_len(&self, batch: usize) -> usize {
        batch * self.rows().stride
    }

    fn step(&self, working: &mut [f32], batch: Batch<'_>, step: Step<'_>, scratch: &mut [f32]) {
        let x = batch.inputs.dense();
        let residuals = &mut scratch[..batch.len() * self.rows().stride];
        self.logits(working, x, residuals);
        let scale = -step.learning_rate / batch.len() as f32;
        softmax::residuals(self.kernel, self.rows(), residuals, batch.labels, scale);
        self.descend(working, x, residuals, step.decay(), step.pull());
    }
}
