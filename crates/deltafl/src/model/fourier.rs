//! Softmax regression on random Fourier features: a convex model of a nonlinear boundary.
//!
//! A. Rahimi and B. Recht, "Random features for large-scale kernel machines", NIPS 2007. The D
//! features
//!
//! ```text
//! φ_j(x) = √(2/D) cos(ω_j·x + b_j),     ω_j ~ N(0, I/σ²),     b_j ~ U(0, 2π)
//! ```
//!
//! approximate a Gaussian kernel: φ(x)·φ(y) ≈ exp(−‖x − y‖²/2σ²). Frequencies and phases are drawn
//! once from a public seed and are the same on every device, so only the weights W of
//! softmax(φ(x)W) are trained. The loss is convex in W.

use std::f64::consts::TAU;

use super::layout::to_panels;
use super::{Batch, Inputs, Linear, Model, ModelDefinition, Score, Step, Tensor};
use crate::kernel::product::{Entries, Layout, Shape, padded, panels_len, product};
use crate::kernel::{Granted, Isa};
use crate::options::{Interval, OptionDefault, OptionKind, OptionSpec, OptionValue};
use crate::stream::{Purpose, Stream};

/// The entry of the table.
pub static FOURIER: ModelDefinition = ModelDefinition {
    kind: "fourier",
    about: "softmax regression on random Fourier features",
    tasks: &["classes"],
    options: &[
        OptionSpec::new(
            "features",
            OptionKind::Whole(1),
            OptionDefault::Value(OptionValue::Whole(500)),
            "the number of random features",
            OptionValue::Whole(200),
        )
        .with_symbol("D"),
        OptionSpec::new(
            "width",
            OptionKind::Real(Interval::POSITIVE),
            OptionDefault::Value(OptionValue::Real(5.0)),
            "the width of the approximated Gaussian kernel, in units of the inputs",
            OptionValue::Real(2.0),
        )
        .with_symbol("σ"),
        OptionSpec::new(
            "features_seed",
            OptionKind::Whole(0),
            OptionDefault::Value(OptionValue::Whole(0)),
            "the seed of the features, the same for all seeds of a run",
            OptionValue::Whole(7),
        ),
    ],
    build: |request| {
        let width = request.options.real("width")?;
        let seed = request.options.whole("features_seed")?;
        let (inputs, classes) = (request.features()?, request.classes()?);
        let features = FourierFeatures::draw(inputs, request.size("features")?, width, seed, request.isa);
        Ok(Box::new(Fourier::new(features, classes, request.isa)))
    },
};

/// The fixed random features.
#[derive(Clone, Debug)]
pub struct FourierFeatures {
    inputs: usize,
    /// ω, `inputs × features` in panels.
    frequencies: Vec<f32>,
    /// b, one per feature.
    phases: Vec<f32>,
    kernel: Granted,
}

impl FourierFeatures {
    /// Draws `features` features of `inputs` numbers for a kernel of this width.
    ///
    /// # Panics
    /// If this CPU does not support the instruction set.
    pub fn draw(inputs: usize, features: usize, width: f64, seed: u64, isa: Isa) -> Self {
        // The initial iterate of a run has device 0.
        let mut stream = Stream::new(seed, Purpose::Init, 0, u64::MAX);
        let drawn: Vec<f32> = (0..inputs * features).map(|_| (stream.normal() / width) as f32).collect();
        let phases = (0..features).map(|_| stream.uniform(0.0, TAU) as f32).collect();
        let mut frequencies = vec![0.0; panels_len(inputs, padded(features))];
        to_panels(&drawn, inputs, features, &mut frequencies);
        Self { inputs, frequencies, phases, kernel: Granted::new(isa) }
    }

    /// Returns the floats of the angles of a batch.
    fn angles_len(&self, batch: usize) -> usize {
        batch * padded(self.phases.len())
    }

    /// Writes φ(x) of each example to `out`, and the angles ω·x + b to `angles`.
    fn transform(&self, x: &[f32], angles: &mut [f32], out: &mut [f32]) {
        let (count, stride) = (self.phases.len(), padded(self.phases.len()));
        for row in angles.chunks_exact_mut(stride) {
            row[..count].copy_from_slice(&self.phases);
            row[count..].fill(0.0);
        }
        let shape = Shape { m: angles.len() / stride, n: stride, k: self.inputs };
        let x = Entries { values: x, row: self.inputs, column: 1 };
        let layouts = [Layout::panels(self.inputs), Layout::rows(stride)];
        product(self.kernel, shape, x, &self.frequencies, layouts[0], angles, layouts[1], 1.0);
        let scale = (2.0 / count as f32).sqrt();
        for (out, row) in out.chunks_exact_mut(count).zip(angles.chunks_exact(stride)) {
            out.iter_mut().zip(row).for_each(|(out, angle)| *out = scale * angle.cos());
        }
    }
}

/// Softmax regression on random Fourier features.
#[derive(Clone, Debug)]
pub struct Fourier {
    features: FourierFeatures,
    linear: Linear,
}

impl Fourier {
    /// Creates a model of `classes` classes.
    ///
    /// # Panics
    /// If this CPU does not support the instruction set.
    pub fn new(features: FourierFeatures, classes: usize, isa: Isa) -> Self {
        let linear = Linear::new(features.phases.len(), classes, isa).with_intercept();
        Self { features, linear }
    }

    /// Returns the floats of the features and angles of a batch.
    fn features_len(&self, batch: usize) -> usize {
        batch * self.features.phases.len() + self.features.angles_len(batch)
    }

    /// Computes the features of a batch. Returns the batch of features and the rest of the scratch.
    fn transformed<'a>(&self, batch: Batch<'a>, scratch: &'a mut [f32]) -> (Batch<'a>, &'a mut [f32]) {
        let (angles, rest) = scratch.split_at_mut(self.features.angles_len(batch.len()));
        let (features, rest) = rest.split_at_mut(batch.len() * self.features.phases.len());
        self.features.transform(batch.inputs.dense(), angles, features);
        (Batch { inputs: Inputs::Dense(features), targets: batch.targets }, rest)
    }
}

impl Model for Fourier {
    fn num_params(&self) -> usize {
        self.linear.num_params()
    }

    fn tensors(&self) -> Vec<Tensor> {
        self.linear.tensors()
    }

    fn init(&self, stream: &mut Stream, params: &mut [f32]) {
        self.linear.init(stream, params);
    }

    fn scratch_len(&self, batch: usize) -> usize {
        self.features_len(batch) + self.linear.scratch_len(batch)
    }

    fn gradient(&self, params: &[f32], batch: Batch<'_>, gradient: &mut [f32], scratch: &mut [f32]) -> f64 {
        let (batch, scratch) = self.transformed(batch, scratch);
        self.linear.gradient(params, batch, gradient, scratch)
    }

    fn evaluate(&self, working: &[f32], batch: Batch<'_>, scratch: &mut [f32]) -> Score {
        let (batch, scratch) = self.transformed(batch, scratch);
        self.linear.evaluate(working, batch, scratch)
    }

    fn working_len(&self) -> usize {
        self.linear.working_len()
    }

    fn load(&self, params: &[f32], working: &mut [f32]) {
        self.linear.load(params, working);
    }

    fn store(&self, working: &[f32], params: &mut [f32]) {
        self.linear.store(working, params);
    }

    fn step_scratch_len(&self, batch: usize) -> usize {
        self.features_len(batch) + self.linear.step_scratch_len(batch)
    }

    fn step(&self, working: &mut [f32], batch: Batch<'_>, step: Step<'_>, scratch: &mut [f32]) {
        let (batch, scratch) = self.transformed(batch, scratch);
        self.linear.step(working, batch, step, scratch);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::task::{ERRORS, Targets};

    #[test]
    fn products_of_features_approximate_the_gaussian_kernel() {
        let features = FourierFeatures::draw(3, 20_000, 1.5, 4, Isa::detect());
        let (x, y) = ([0.3, -1.0, 0.5], [1.0, 0.2, -0.4]);
        let mut phi = vec![0.0; 2 * 20_000];
        let mut angles = vec![0.0; features.angles_len(2)];
        features.transform(&[x, y].concat(), &mut angles, &mut phi);
        let (of_x, of_y) = phi.split_at(20_000);
        let product: f32 = of_x.iter().zip(of_y).map(|(a, b)| a * b).sum();
        let distance: f32 = x.iter().zip(&y).map(|(a, b)| (a - b) * (a - b)).sum();
        let kernel = (-distance / (2.0 * 1.5 * 1.5)).exp();
        assert!((product - kernel).abs() < 0.02, "{product} {kernel}");
    }

    #[test]
    fn it_learns_exclusive_or_which_no_linear_model_does() {
        let model = Fourier::new(FourierFeatures::draw(2, 200, 0.7, 1, Isa::detect()), 2, Isa::detect());
        let x = [0.0, 0.0, 0.0, 1.0, 1.0, 0.0, 1.0, 1.0];
        let batch = Batch { inputs: Inputs::Dense(&x), targets: Targets::Classes(&[0, 1, 1, 0]) };
        let mut working = vec![0.0; model.working_len()];
        model.load(&vec![0.0; model.num_params()], &mut working);
        let mut scratch = vec![0.0; model.scratch_len(4).max(model.step_scratch_len(4))];
        let step = Step { learning_rate: 1.0, l2: 0.0, pull: None, key: 0 };
        for _ in 0..200 {
            model.step(&mut working, batch, step, &mut scratch);
        }
        let score = model.evaluate(&working, batch, &mut scratch);
        assert_eq!(score.sums[ERRORS], 0.0);
        assert!(score.loss / 4.0 < 0.3, "{}", score.loss);
    }
}
