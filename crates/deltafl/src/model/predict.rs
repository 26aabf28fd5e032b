//! Predictions of any model, computed from its losses.
//!
//! The loss of an example with label c is −log p_c, so the losses for all labels give all
//! probabilities. A regression reports |ŷ − y|, which gives ŷ up to its sign for y = 0, and the
//! sign for y = |ŷ|.

use std::ops::Range;

use rayon::prelude::*;

use super::{Batch, Inputs, Model};
use crate::data::{BatchBuffer, Examples, Federation, FederationIndex};
use crate::kernel::Aligned;
use crate::task::{Targets, Task};

/// The number of examples that a thread computes in sequence.
const PART: usize = 16;

/// Computes predictions with one set of parameters, on the threads of the current pool.
pub struct Predictor<'m> {
    model: &'m dyn Model,
    classes: usize,
    working: Aligned,
}

impl<'m> Predictor<'m> {
    /// Creates a predictor of `classes` classes, or of real numbers if the model is a regression.
    pub fn new(model: &'m dyn Model, classes: usize, params: &[f32]) -> Self {
        let mut working = Aligned::default();
        working.resize(model.working_len());
        model.load(params, &mut working);
        let classes = if matches!(model.task(), Task::Regression(_)) { 0 } else { classes };
        Self { model, classes, working }
    }

    /// Returns the number of outputs of an example: a probability per class, or one value.
    pub fn outputs(&self) -> usize {
        self.classes.max(1)
    }

    /// Returns the outputs of every example of a device.
    pub fn predict(&self, federation: &Federation, device: FederationIndex) -> Vec<f64> {
        let examples = federation.examples(device);
        let starts = (0..examples.len()).into_par_iter().step_by(PART);
        let parts = starts.map(|start| self.part(&examples, start..(start + PART).min(examples.len())));
        parts.collect::<Vec<_>>().concat()
    }

    fn part(&self, examples: &Examples<'_>, part: Range<usize>) -> Vec<f64> {
        let mut scratch = Aligned::default();
        scratch.resize(self.model.scratch_len(1));
        let mut buffer = BatchBuffer::default();
        let mut out = Vec::with_capacity(part.len() * self.outputs());
        for i in part {
            let inputs = buffer.gather(examples, i..i + 1).inputs;
            self.predict_example(inputs, &mut scratch, &mut out);
        }
        out
    }

    fn predict_example(&self, inputs: Inputs<'_>, scratch: &mut [f32], out: &mut Vec<f64>) {
        let mut score =
            |targets: Targets<'_>| self.model.evaluate(&self.working, Batch { inputs, targets }, scratch);
        if self.classes == 0 {
            let magnitude = score(Targets::Values(&[0.0])).sums[1];
            let distance = score(Targets::Values(&[magnitude as f32])).sums[1];
            out.push(if distance > magnitude { -magnitude } else { magnitude });
            return;
        }
        out.extend((0..self.classes as u32).map(|class| (-score(Targets::Classes(&[class])).loss).exp()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::{DeviceExamples, FederationBuilder, InputKind, Split};
    use crate::kernel::Isa;
    use crate::model::{Linear, Regression};
    use crate::task::RegressionLoss;

    #[test]
    fn probabilities_are_those_of_softmax() {
        let mut builder = FederationBuilder::new("t", InputKind::Dense { dim: 1 }, 3);
        builder.push("a", Split::Train, DeviceExamples::Dense(&[1.0, 0.0]), &[0, 0]).unwrap();
        let federation = builder.build();
        let model = Linear::new(1, 3, Isa::detect());
        let predictor = Predictor::new(&model, 3, &[0.0, 2f32.ln(), 5f32.ln()]);
        let out = predictor.predict(&federation, FederationIndex(0));
        let expected = [0.125, 0.25, 0.625, 1.0 / 3.0, 1.0 / 3.0, 1.0 / 3.0];
        assert!(out.iter().zip(expected).all(|(p, e): (&f64, f64)| (p - e).abs() < 1e-6), "{out:?}");
    }

    #[test]
    fn predicted_values_have_a_sign() {
        let mut builder = FederationBuilder::of_values("t", InputKind::Dense { dim: 1 });
        builder.push("a", Split::Train, DeviceExamples::Dense(&[3.0, -4.0, 0.0]), &[0.0f32; 3]).unwrap();
        let model = Regression::new(1, RegressionLoss::Squared, false, Isa::detect());
        let out = Predictor::new(&model, 0, &[-2.5]).predict(&builder.build(), FederationIndex(0));
        assert_eq!(out, [-7.5, 10.0, 0.0]);
    }

    #[test]
    fn the_outputs_keep_the_order_of_the_examples() {
        let mut builder = FederationBuilder::of_values("t", InputKind::Dense { dim: 1 });
        let inputs: Vec<f32> = (0..5 * PART + 3).map(|i| i as f32).collect();
        let targets = vec![0.0f32; inputs.len()];
        builder.push("a", Split::Train, DeviceExamples::Dense(&inputs), &targets).unwrap();
        let model = Regression::new(1, RegressionLoss::Squared, false, Isa::detect());
        let out = Predictor::new(&model, 0, &[1.0]).predict(&builder.build(), FederationIndex(0));
        assert_eq!(out, inputs.iter().map(|&x| f64::from(x)).collect::<Vec<_>>());
    }
}
