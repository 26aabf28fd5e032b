//! A model of the caller: a two-layer perceptron, trained by FedAvg and Δ-FL.
//!
//! ```text
//! a = tanh(x U + p),   z = a V + q,   f = −log softmax(z)_y
//! ```
//!
//! A model has five methods: the number of its params, their start, the memory for a batch, the
//! loss with its gradient, and the loss with the number of errors. It reads and writes plain slices
//! and allocates nothing. The trainer does the rest.
//!
//! ```console
//! cargo run --release --example own_model
//! ```

use std::error::Error;
use std::ops::ControlFlow;

use deltafl::{data::Normalise, metrics::Figures, prelude::*, stream::Stream, task::ERRORS};

/// A perceptron with one hidden layer. Parameters in flat order: U, p, V, q.
struct Perceptron {
    inputs: usize,
    hidden: usize,
    classes: usize,
}

impl Perceptron {
    /// U, p, V and q.
    fn split<'a>(&self, params: &'a [f32]) -> [&'a [f32]; 4] {
        let (u, rest) = params.split_at(self.inputs * self.hidden);
        let (p, rest) = rest.split_at(self.hidden);
        let (v, q) = rest.split_at(self.hidden * self.classes);
        [u, p, v, q]
    }

    /// Writes a and z of one example.
    fn forward(&self, params: &[f32], x: &[f32], a: &mut [f32], z: &mut [f32]) {
        let [u, p, v, q] = self.split(params);
        affine(x, u, p, a);
        a.iter_mut().for_each(|a| *a = a.tanh());
        affine(a, v, q, z);
    }
}

/// out = x W + b, W row by row.
fn affine(x: &[f32], w: &[f32], b: &[f32], out: &mut [f32]) {
    out.copy_from_slice(b);
    for (x, row) in x.iter().zip(w.chunks_exact(b.len())) {
        out.iter_mut().zip(row).for_each(|(out, w)| *out += x * w);
    }
}

/// −log softmax(z)_y; leaves softmax(z) in z.
fn cross_entropy(z: &mut [f32], label: usize) -> f64 {
    let max = z.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let shifted = f64::from(z[label] - max);
    z.iter_mut().for_each(|z| *z = (*z - max).exp());
    let total: f32 = z.iter().sum();
    z.iter_mut().for_each(|z| *z /= total);
    f64::from(total).ln() - shifted
}

/// gradient of x W + b: W += scale·x dᵀ, b += scale·d.
fn add_outer(x: &[f32], d: &[f32], w: &mut [f32], b: &mut [f32]) {
    for (x, row) in x.iter().zip(w.chunks_exact_mut(d.len())) {
        row.iter_mut().zip(d).for_each(|(w, d)| *w += x * d);
    }
    b.iter_mut().zip(d).for_each(|(b, d)| *b += d);
}

impl Model for Perceptron {
    fn num_params(&self) -> usize {
        (self.inputs + 1) * self.hidden + (self.hidden + 1) * self.classes
    }

    fn init(&self, stream: &mut Stream, params: &mut [f32]) {
        let bound = 1.0 / (self.inputs as f64).sqrt();
        params.iter_mut().for_each(|w| *w = stream.uniform(-bound, bound) as f32);
    }

    fn scratch_len(&self, _batch: usize) -> usize {
        2 * self.hidden + self.classes
    }

    fn gradient(&self, params: &[f32], batch: Batch<'_>, gradient: &mut [f32], scratch: &mut [f32]) -> f64 {
        let (a, scratch) = scratch.split_at_mut(self.hidden);
        let (da, scratch) = scratch.split_at_mut(self.hidden);
        let z = &mut scratch[..self.classes];
        let scale = 1.0 / batch.len() as f32;
        gradient.fill(0.0);
        let mut loss = 0.0;
        for (x, &label) in batch.inputs.dense().chunks_exact(self.inputs).zip(batch.targets.classes()) {
            self.forward(params, x, a, z);
            loss += cross_entropy(z, label as usize);
            z[label as usize] -= 1.0; // ∂f/∂z = softmax(z) − 1_y
            z.iter_mut().for_each(|z| *z *= scale);
            let v = self.split(params)[2];
            for ((da, a), row) in da.iter_mut().zip(&*a).zip(v.chunks_exact(self.classes)) {
                let slope: f32 = row.iter().zip(&*z).map(|(v, z)| v * z).sum();
                *da = slope * (1.0 - a * a); // tanh' = 1 − tanh²
            }
            let (first, second) = gradient.split_at_mut((self.inputs + 1) * self.hidden);
            let (u, p) = first.split_at_mut(self.inputs * self.hidden);
            let (v, q) = second.split_at_mut(self.hidden * self.classes);
            add_outer(x, da, u, p);
            add_outer(a, z, v, q);
        }
        loss / batch.len() as f64
    }

    fn evaluate(&self, params: &[f32], batch: Batch<'_>, scratch: &mut [f32]) -> Score {
        let (a, scratch) = scratch.split_at_mut(self.hidden);
        let z = &mut scratch[..self.classes];
        let mut score = Score::default();
        for (x, &label) in batch.inputs.dense().chunks_exact(self.inputs).zip(batch.targets.classes()) {
            self.forward(params, x, a, z);
            let first_best = (1..z.len()).fold(0, |best, i| if z[i] > z[best] { i } else { best });
            score.sums[ERRORS] += f64::from(u8::from(first_best != label as usize));
            score.loss += cross_entropy(z, label as usize);
        }
        score
    }
}

/// Prints the error of the test devices at each evaluation.
fn print_errors(event: Event<'_>) -> ObserverResult {
    let Event::Evaluated { round, splits } = event else { return Ok(ControlFlow::Continue(())) };
    for split in splits.iter().filter(|split| split.split == Split::Test) {
        print!("{round:>5}");
        for devices in &split.tracks {
            let errors: Vec<f64> = devices.iter().map(|device| 100.0 * device.primary()).collect();
            let figures = Figures::unweighted(&errors).ok_or("there is no test device")?;
            print!("{:>12.1} % {:>12.1} %", figures.mean, figures.percentile(90).unwrap_or(f64::NAN));
        }
        println!();
    }
    Ok(ControlFlow::Continue(()))
}

fn main() -> Result<(), Box<dyn Error>> {
    let glyphs = Glyphs { devices: 100.try_into()?, ..Glyphs::default() };
    let federation = glyphs.build().normalised(Normalise::MeanRatio);
    let model = Perceptron { inputs: 784, hidden: 32, classes: federation.classes() };
    let trainer = Sgd::new(&model);

    let half = Tail::new(Conformity::try_from(0.5)?);
    let plan = Plan::builder().rounds(20).cohort(20).evaluate_every(5);
    let plan = plan.track(Track::fed_avg()).track(half).build()?;

    println!("test error over the devices, mean and 90th percentile");
    println!("round{:>29}{:>28}", "FedAvg", "Δ-FL, θ = 0.5");
    let mut simulation = Simulation::new(&trainer, &federation)?;
    let mut state = plan.start(1, &trainer);
    train(&mut simulation, &plan, &mut state, &mut print_errors)?;
    Ok(())
}
