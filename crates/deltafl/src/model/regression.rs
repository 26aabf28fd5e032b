//! Linear regression: ŷ = x·w, with the squared or the Huber loss.
//!
//! ```text
//! r = x·w − y,     f = r²/2  (or Huber's),     ∇f = f'(r) x
//! ```

use super::{Batch, Model, Score, Step, Tensor};
use crate::kernel::{Granted, Isa};
use crate::stream::Stream;
use crate::task::{RegressionLoss, Task};

/// Linear regression.
#[derive(Clone, Debug)]
pub struct Regression {
    inputs: usize,
    loss: RegressionLoss,
    /// Whether the last parameter is the intercept b of ŷ = x·w + b.
    intercept: bool,
    kernel: Granted,
}

impl Regression {
    /// Creates a model of `inputs` features.
    ///
    /// # Panics
    /// If this CPU does not support the instruction set.
    pub fn new(inputs: usize, loss: RegressionLoss, intercept: bool, isa: Isa) -> Self {
        Self { inputs, loss, intercept, kernel: Granted::new(isa) }
    }

    fn predictions(&self, params: &[f32], x: &[f32], predictions: &mut [f32]) {
        super::logistic::outputs(self.kernel, self.inputs, params, x, predictions);
    }

    /// Replaces each prediction by scale·f'(ŷ − y).
    fn slopes(&self, predictions: &mut [f32], targets: &[f32], scale: f32) {
        for (z, y) in predictions.iter_mut().zip(targets) {
            *z = scale * self.loss.slope(*z - y);
        }
    }
}

impl Model for Regression {
    fn num_params(&self) -> usize {
        self.inputs + usize::from(self.intercept)
    }

    fn tensors(&self) -> Vec<Tensor> {
        super::logistic::single_output(self.inputs, self.intercept)
    }

    fn init(&self, _stream: &mut Stream, params: &mut [f32]) {
        params.fill(0.0);
    }

    fn scratch_len(&self, batch: usize) -> usize {
        batch
    }

    fn task(&self) -> Task {
        Task::Regression(self.loss)
    }

    fn gradient(&self, params: &[f32], batch: Batch<'_>, gradient: &mut [f32], scratch: &mut [f32]) -> f64 {
        let loss = self.evaluate(params, batch, scratch).loss / batch.len() as f64;
        let slopes = &mut scratch[..batch.len()];
        self.slopes(slopes, batch.targets.values(), 1.0 / batch.len() as f32);
        gradient.fill(0.0);
        super::logistic::descend(self.kernel, self.inputs, batch.inputs.dense(), slopes, 1.0, gradient);
        loss
    }

    /// Writes the predictions to `scratch`.
    fn evaluate(&self, working: &[f32], batch: Batch<'_>, scratch: &mut [f32]) -> Score {
        let predictions = &mut scratch[..batch.len()];
        self.predictions(working, batch.inputs.dense(), predictions);
        let mut score = Score::default();
        for (&prediction, &y) in predictions.iter().zip(batch.targets.values()) {
            let loss = self.loss.loss(f64::from(prediction) - f64::from(y));
            score += Score { loss, sums: Task::regression_sums(prediction, y) };
        }
        score
    }

    fn step_scratch_len(&self, batch: usize) -> usize {
        batch
    }

    fn step(&self, working: &mut [f32], batch: Batch<'_>, step: Step<'_>, scratch: &mut [f32]) {
        let (x, slopes) = (batch.inputs.dense(), &mut scratch[..batch.len()]);
        self.predictions(working, x, slopes);
        self.slopes(slopes, batch.targets.values(), -step.learning_rate / batch.len() as f32);
        super::logistic::descend(self.kernel, self.inputs, x, slopes, step.decay(), working);
        step.add_pull(working);
    }
}
