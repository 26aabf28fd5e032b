//! Logits of a single output, their logistic residuals, and the step in the direction of the
//! inputs.

#![allow(unsafe_code, unsafe_op_in_unsafe_fn)]

use super::activation;
use super::dispatch::entry;
use super::simd::Simd;

entry! {
    /// Computes z = x·w of each row of inputs.
    pub(crate) fn logits(inputs: &[f32], params: &[f32], logits: &mut [f32]) = dots, logits_reference
}

entry! {
    /// Replaces each logit z by scale·(σ(z) − y).
    pub(crate) fn residuals(logits: &mut [f32], labels: &[u32], scale: f32) = residuals_in_vectors, residuals_reference
}

entry! {
    /// Computes params ← decay·params + Σ residual · input.
    pub(crate) fn descend(inputs: &[f32], residuals: &[f32], decay: f32, params: &mut [f32])
        = descend_in_vectors, descend_reference
}

fn logits_reference(inputs: &[f32], params: &[f32], logits: &mut [f32]) {
    for (z, x) in logits.iter_mut().zip(inputs.chunks_exact(params.len())) {
        *z = x.iter().zip(params).map(|(x, w)| x * w).sum();
    }
}

fn residuals_reference(logits: &mut [f32], labels: &[u32], scale: f32) {
    for (z, &label) in logits.iter_mut().zip(labels) {
        *z = scale * (1.0 / (1.0 + (-*z).exp()) - label as f32);
    }
}

fn descend_reference(inputs: &[f32], residuals: &[f32], decay: f32, params: &mut [f32]) {
    params.iter_mut().for_each(|w| *w *= decay);
    for (residual, x) in residuals.iter().zip(inputs.chunks_exact(params.len())) {
        params.iter_mut().zip(x).for_each(|(w, x)| *w += residual * x);
    }
}

#[inline(always)]
unsafe fn dots<S: Simd>(_: S, inputs: &[f32], params: &[f32], logits: &mut [f32]) {
    for (z, x) in logits.iter_mut().zip(inputs.chunks_exact(params.len())) {
        let mut sums = S::zero();
        for j in (0..params.len()).step_by(S::LANES) {
            let lanes = params.len() - j;
            let (x, w) =
                (S::load_first(x.as_ptr().add(j), lanes), S::load_first(params.as_ptr().add(j), lanes));
            sums = S::fma(x, w, sums);
        }
        *z = S::sum(sums);
    }
}

#[inline(always)]
unsafe fn residuals_in_vectors<S: Simd>(_: S, logits: &mut [f32], labels: &[u32], scale: f32) {
    for part in logits.chunks_mut(S::LANES) {
        let z = S::load_first(part.as_ptr(), part.len());
        let p = S::mul(activation::sigmoid::<S>(z), S::splat(scale));
        S::store_first(part.as_mut_ptr(), p, part.len());
    }
    for (residual, &label) in logits.iter_mut().zip(labels) {
        *residual -= scale * label as f32;
    }
}

/// Processes one vector of parameters at a time over all examples.
#[inline(always)]
unsafe fn descend_in_vectors<S: Simd>(
    _: S,
    inputs: &[f32],
    residuals: &[f32],
    decay: f32,
    params: &mut [f32],
) {
    let dim = params.len();
    assert!(inputs.len() >= residuals.len() * dim, "a row of inputs per residual");
    for j in (0..dim).step_by(S::LANES) {
        let (at, lanes) = (params.as_mut_ptr().add(j), dim - j);
        let mut sum = S::mul(S::splat(decay), S::load_first(at, lanes));
        for (i, &residual) in residuals.iter().enumerate() {
            sum = S::fma(S::splat(residual), S::load_first(inputs.as_ptr().add(i * dim + j), lanes), sum);
        }
        S::store_first(at, sum, lanes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::{Granted, Isa};
    use crate::stream::{Purpose, Stream};

    #[test]
    fn every_instruction_set_agrees_with_the_reference_at_odd_sizes() {
        let stream = &mut Stream::new(1, Purpose::Synthesis, 0, 0);
        for (dim, batch) in [(1, 1), (7, 3), (16, 17), (50, 10), (65, 9)] {
            let inputs: Vec<f32> = (0..dim * batch).map(|_| stream.normal() as f32).collect();
            let params: Vec<f32> = (0..dim).map(|_| stream.normal() as f32).collect();
            let labels: Vec<u32> = (0..batch).map(|_| stream.below(2) as u32).collect();
            let run = |isa| {
                let kernel = Granted::new(isa);
                let (mut z, mut w) = (vec![0.0; batch], params.clone());
                logits(kernel, &inputs, &params, &mut z);
                residuals(kernel, &mut z, &labels, -0.3);
                descend(kernel, &inputs, &z, 0.9, &mut w);
                w
            };
            let expected = run(Isa::Reference);
            for isa in Isa::available() {
                let worst = expected.iter().zip(run(isa)).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
                assert!(worst < 1e-5, "{isa}, {dim} × {batch}: off by {worst}");
            }
        }
    }
}
