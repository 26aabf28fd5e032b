//! A perceptron with one hidden layer: h = max(0, Vx + a), z = Uh + b, cross-entropy.
//!
//! Flat order, as in PyTorch: V `hidden × inputs`, a, U `classes × hidden`, b. With p = softmax(z)
//! and label y,
//!
//! ```text
//! ∂f/∂z = p − 1[y],   ∂f/∂U = ∂f/∂z hᵀ,   ∂f/∂h = Uᵀ ∂f/∂z where h > 0,   ∂f/∂V = ∂f/∂h xᵀ
//! ```
//!
//! The table builds it as a [stack](super::stack) with the same parameters. [`Perceptron`] computes
//! it example by example without vectors, as the plain reference of both.

use super::{Batch, Model, ModelDefinition, Score, Tensor};
use crate::options::{OptionDefault, OptionKind, OptionSpec, OptionValue};
use crate::stream::Stream;

/// The entry of the table.
pub static PERCEPTRON: ModelDefinition = ModelDefinition {
    kind: "perceptron",
    about: "a perceptron with one hidden layer",
    tasks: &["classes", "regression"],
    options: &[OptionSpec::new(
        "hidden",
        OptionKind::Whole(1),
        OptionDefault::Value(OptionValue::Whole(100)),
        "units of the hidden layer",
        OptionValue::Whole(64),
    )],
    build: super::stack::build_preset,
};

/// The plain perceptron.
#[derive(Clone, Copy, Debug)]
pub struct Perceptron {
    inputs: usize,
    hidden: usize,
    classes: usize,
}

/// The parameters in flat order.
struct Parts<'a> {
    first: &'a [f32],
    first_bias: &'a [f32],
    second: &'a [f32],
    second_bias: &'a [f32],
}

impl Perceptron {
    /// Creates a perceptron of `inputs` features, `hidden` units and `classes` classes.
    pub fn new(inputs: usize, hidden: usize, classes: usize) -> Self {
        Self { inputs, hidden, classes }
    }

    fn parts<'a>(&self, params: &'a [f32]) -> Parts<'a> {
        let (first, rest) = params.split_at(self.hidden * self.inputs);
        let (first_bias, rest) = rest.split_at(self.hidden);
        let (second, second_bias) = rest.split_at(self.classes * self.hidden);
        Parts { first, first_bias, second, second_bias }
    }

    /// Computes h and z of an example.
    fn forward(&self, parts: &Parts<'_>, x: &[f32], hidden: &mut [f32], logits: &mut [f32]) {
        affine(parts.first, parts.first_bias, x, hidden);
        hidden.iter_mut().for_each(|h| *h = h.max(0.0));
        affine(parts.second, parts.second_bias, hidden, logits);
    }
}

/// Computes y = Mx + b.
fn affine(matrix: &[f32], bias: &[f32], x: &[f32], y: &mut [f32]) {
    for ((y, row), b) in y.iter_mut().zip(matrix.chunks_exact(x.len())).zip(bias) {
        *y = b + row.iter().zip(x).map(|(w, x)| w * x).sum::<f32>();
    }
}

/// Returns log Σ exp z − z_y, and whether the first largest logit belongs to another class.
fn score(logits: &[f32], label: usize) -> Score {
    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let total: f64 = logits.iter().map(|z| f64::from(z - largest).exp()).sum();
    let first = logits.iter().position(|&z| z >= largest);
    Score::of_classes(total.ln() - f64::from(logits[label] - largest), u64::from(first != Some(label)))
}

/// Replaces logits by softmax(z) − 1[y].
fn residuals(logits: &mut [f32], label: usize) {
    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    logits.iter_mut().for_each(|z| *z = (*z - largest).exp());
    let total: f32 = logits.iter().sum();
    logits.iter_mut().for_each(|z| *z /= total);
    logits[label] -= 1.0;
}

impl Model for Perceptron {
    fn num_params(&self) -> usize {
        self.hidden * (self.inputs + 1) + self.classes * (self.hidden + 1)
    }

    fn tensors(&self) -> Vec<Tensor> {
        vec![
            Tensor::new("fc1.weight", &[self.hidden, self.inputs]),
            Tensor::new("fc1.bias", &[self.hidden]),
            Tensor::new("fc2.weight", &[self.classes, self.hidden]),
            Tensor::new("fc2.bias", &[self.classes]),
        ]
    }

    /// U(±1/√fan_in) for matrices and biases.
    fn init(&self, stream: &mut Stream, params: &mut [f32]) {
        let (first, second) = params.split_at_mut(self.hidden * (self.inputs + 1));
        for (layer, fan_in) in [(first, self.inputs), (second, self.hidden)] {
            let bound = 1.0 / (fan_in as f64).sqrt();
            layer.iter_mut().for_each(|w| *w = stream.uniform(-bound, bound) as f32);
        }
    }

    fn scratch_len(&self, _batch: usize) -> usize {
        2 * self.hidden + self.classes
    }

    fn gradient(&self, params: &[f32], batch: Batch<'_>, gradient: &mut [f32], scratch: &mut [f32]) -> f64 {
        let parts = self.parts(params);
        let (hidden, rest) = scratch.split_at_mut(self.hidden);
        let (slopes, rest) = rest.split_at_mut(self.hidden);
        let logits = &mut rest[..self.classes];
        gradient.fill(0.0);
        let (of_first, of_rest) = gradient.split_at_mut(self.hidden * self.inputs);
        let (of_first_bias, of_rest) = of_rest.split_at_mut(self.hidden);
        let (of_second, of_second_bias) = of_rest.split_at_mut(self.classes * self.hidden);
        let (mut loss, scale) = (0.0, 1.0 / batch.len() as f32);
        for (x, &label) in batch.inputs.dense().chunks_exact(self.inputs).zip(batch.targets.classes()) {
            self.forward(&parts, x, hidden, logits);
            loss += score(logits, label as usize).loss;
            residuals(logits, label as usize);
            slopes.fill(0.0);
            let rows = of_second.chunks_exact_mut(self.hidden).zip(parts.second.chunks_exact(self.hidden));
            for ((row, weights), (residual, bias)) in rows.zip(logits.iter().zip(&mut *of_second_bias)) {
                let residual = residual * scale;
                *bias += residual;
                row.iter_mut().zip(&*hidden).for_each(|(g, h)| *g += residual * h);
                slopes.iter_mut().zip(weights).for_each(|(s, w)| *s += residual * w);
            }
            let units = of_first.chunks_exact_mut(self.inputs).zip(&mut *of_first_bias);
            for ((row, bias), (slope, h)) in units.zip(slopes.iter().zip(&*hidden)) {
                if *h > 0.0 {
                    *bias += slope;
                    row.iter_mut().zip(x).for_each(|(g, x)| *g += slope * x);
                }
            }
        }
        loss / batch.len() as f64
    }

    fn evaluate(&self, working: &[f32], batch: Batch<'_>, scratch: &mut [f32]) -> Score {
        let parts = self.parts(working);
        let (hidden, rest) = scratch.split_at_mut(self.hidden);
        let logits = &mut rest[..self.classes];
        let mut total = Score::default();
        for (x, &label) in batch.inputs.dense().chunks_exact(self.inputs).zip(batch.targets.classes()) {
            self.forward(&parts, x, hidden, logits);
            total += score(logits, label as usize);
        }
        total
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Inputs;
    use crate::stream::Purpose;
    use crate::task::{ERRORS, Targets};

    #[test]
    fn the_gradient_is_the_slope_of_the_loss() {
        let model = Perceptron::new(3, 5, 4);
        let mut stream = Stream::new(1, Purpose::Init, 0, 0);
        let mut params = vec![0.0; model.num_params()];
        model.init(&mut stream, &mut params);
        let x: Vec<f32> = (0..6).map(|_| stream.normal() as f32).collect();
        let batch = Batch { inputs: Inputs::Dense(&x), targets: Targets::Classes(&[2, 0]) };
        let mut scratch = vec![0.0; model.scratch_len(2)];
        let mut gradient = vec![0.0; params.len()];
        let loss = model.gradient(&params, batch, &mut gradient, &mut scratch);
        let score = model.evaluate(&params, batch, &mut scratch);
        assert!((score.loss / 2.0 - loss).abs() < 1e-12);
        for i in 0..params.len() {
            let mut at = |by: f32| {
                let mut moved = params.clone();
                moved[i] += by;
                model.evaluate(&moved, batch, &mut scratch).loss / 2.0
            };
            let slope = (at(1e-2) - at(-1e-2)) / 2e-2;
            assert!((slope - f64::from(gradient[i])).abs() < 1e-3, "entry {i}: {slope} {}", gradient[i]);
        }
    }

    #[test]
    fn ties_go_to_the_first_class() {
        assert_eq!([0, 1].map(|label| score(&[1.0, 1.0], label).sums[ERRORS]), [0.0, 1.0]);
    }
}
