//! Predictions of any model, computed from its losses.
//!
//! The loss of an example with label c is −log p_c, so the losses for all labels give all
//! probabilities. A regression reports |ŷ − y|, which gives ŷ up to its sign for y = 0, and the sign
//! for y = |ŷ|.

use super::{Batch, Inputs, Model};
use crate::data::{BatchBuffer, Examples, Federation, FederationIndex};
use crate::kernel::Aligned;
use crate::task::{Targets, Task};

/// Computes predictions with one set of parameters.
pub struct Predictor<'m> {
    model: &'m dyn Model,
    classes: usize,
    working: Aligned,
    scratch: Aligned,
    buffer: BatchBuffer,
}

impl<'m> Predictor<'m> {
    /// Creates a predictor of `classes` classes, or of real numbers if the model is a regression.
    pub fn new(model: &'m dyn Model, classes: usize, params: &[f32]) -> Self {
        let (mut working, mut scratch) = (Aligned::default(), Aligned::default());
        working.resize(model.working_len());
        scratch.resize(model.scratch_len(1));
        model.load(params, &mut working);
        let classes = if matches!(model.task(), Task::Regression(_)) { 0 } else { classes };
        Self { model, classes, working, scratch, buffer: BatchBuffer::default() }
    }

    /// Returns the number of outputs of an example: a probability per class, or one value.
    pub fn outputs(&self) -> usize {
        self.classes.max(1)
    }

    /// Appends the outputs of every example of a device.
    pub fn predict(&mut self, federation: &Federation, device: FederationIndex, out: &mut Vec<f32>) {
        let examples = federation.examples(device);
        for i in 0..examples.len() {
            self.predict_example(&examples, i, out);
        }
    }

    fn predict_example(&mut self, examples: &Examples<'_>, i: usize, out: &mut Vec<f32>) {
        let Self { model, classes, working, scratch, buffer } = self;
        let inputs = buffer.gather(examples, i..i + 1).inputs;
        let mut score = |inputs: Inputs<'_>, targets: Targets<'_>| {
            model.evaluate(working, Batch { inputs, targets }, scratch)
        };
        if *classes == 0 {
            let magnitude = score(inputs, Targets::Values(&[0.0])).sums[1] as f32;
            let distance = score(inputs, Targets::Values(&[magnitude])).sums[1] as f32;
            out.push(if distance > magnitude { -magnitude } else { magnitude });
            return;
        }
        for class in 0..*classes as u32 {
            out.push((-score(inputs, Targets::Classes(&[class])).loss).exp() as f32);
        }
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
        let mut out = Vec::new();
        Predictor::new(&model, 3, &[0.0, 2f32.ln(), 5f32.ln()]).predict(
            &federation,
            FederationIndex(0),
            &mut out,
        );
        let expected = [0.125, 0.25, 0.625, 1.0 / 3.0, 1.0 / 3.0, 1.0 / 3.0];
        assert!(out.iter().zip(expected).all(|(p, e): (&f32, f32)| (p - e).abs() < 1e-6), "{out:?}");
    }

    #[test]
    fn predicted_values_have_a_sign() {
        let mut builder = FederationBuilder::of_values("t", InputKind::Dense { dim: 1 });
        builder.push("a", Split::Train, DeviceExamples::Dense(&[3.0, -4.0, 0.0]), &[0.0f32; 3]).unwrap();
        let model = Regression::new(1, RegressionLoss::Squared, false, Isa::detect());
        let mut out = Vec::new();
        Predictor::new(&model, 0, &[-2.5]).predict(&builder.build(), FederationIndex(0), &mut out);
        assert_eq!(out, [-7.5, 10.0, 0.0]);
    }
}
