//! Activations entry by entry, forward and backward.
//!
//! ```text
//! relu(x) = max(0, x)      gelu(x) = x Φ(x)      gelu'(x) = Φ(x) + x φ(x)      tanh' = 1 − tanh²
//! ```
//!
//! Φ is the normal distribution function. With t = 1/(1 + p|x|/√2), 1 − Φ(|x|) = ½ e^(−x²/2) P(t)
//! for a polynomial P of degree 5 (Abramowitz and Stegun 7.1.26), with an absolute error of Φ below
//! 2e-7.

#![allow(unsafe_code, unsafe_op_in_unsafe_fn)]

use super::activation;
use super::dispatch::{entry, plain_entry};
use super::simd::Simd;

plain_entry! {
    /// Replaces negative entries by zero. NaN remains.
    pub(crate) fn relu(values: &mut [f32]) = each_relu
}

plain_entry! {
    /// Sets the slopes to zero where the output of ReLU is not positive.
    pub(crate) fn relu_backward(outputs: &[f32], slopes: &mut [f32]) = each_relu_slope
}

entry! {
    /// Replaces each entry by its hyperbolic tangent.
    pub(crate) fn tanh(values: &mut [f32]) = tanh_in_vectors, tanh_reference
}

plain_entry! {
    /// Multiplies each slope by 1 − y², for the output y of the hyperbolic tangent.
    pub(crate) fn tanh_backward(outputs: &[f32], slopes: &mut [f32]) = each_tanh_slope
}

entry! {
    /// Replaces each entry x by gelu(x), and writes gelu'(x).
    pub(crate) fn gelu(values: &mut [f32], derivatives: &mut [f32]) = gelu_in_vectors, gelu_reference
}

plain_entry! {
    /// Multiplies entry by entry.
    pub(crate) fn multiply(factors: &[f32], values: &mut [f32]) = each_product
}

#[inline(always)]
fn each_relu(values: &mut [f32]) {
    values.iter_mut().for_each(|x| *x = if *x < 0.0 { 0.0 } else { *x });
}

#[inline(always)]
fn each_relu_slope(outputs: &[f32], slopes: &mut [f32]) {
    slopes.iter_mut().zip(outputs).for_each(|(slope, y)| *slope = if *y > 0.0 { *slope } else { 0.0 });
}

#[inline(always)]
fn each_tanh_slope(outputs: &[f32], slopes: &mut [f32]) {
    slopes.iter_mut().zip(outputs).for_each(|(slope, y)| *slope *= 1.0 - y * y);
}

#[inline(always)]
fn each_product(factors: &[f32], values: &mut [f32]) {
    values.iter_mut().zip(factors).for_each(|(x, factor)| *x *= factor);
}

fn tanh_reference(values: &mut [f32]) {
    values.iter_mut().for_each(|x| *x = x.tanh());
}

#[inline(always)]
unsafe fn tanh_in_vectors<S: Simd>(_: S, values: &mut [f32]) {
    for part in values.chunks_mut(S::LANES) {
        let x = S::load_first(part.as_ptr(), part.len());
        S::store_first(part.as_mut_ptr(), activation::tanh::<S>(x), part.len());
    }
}

/// p and the coefficients of P, highest power first.
const P: f32 = 0.327_591_1;
const TAIL: [f32; 5] = [1.061_405_4, -1.453_152, 1.421_413_7, -0.284_496_74, 0.254_829_6];

fn gelu_reference(values: &mut [f32], derivatives: &mut [f32]) {
    let density = 1.0 / (2.0 * std::f64::consts::PI).sqrt();
    for (value, derivative) in values.iter_mut().zip(derivatives) {
        let x = f64::from(*value);
        let e = (-0.5 * x * x).exp();
        let t = 1.0 / (1.0 + f64::from(P) * x.abs() * std::f64::consts::FRAC_1_SQRT_2);
        let tail = 0.5 * e * t * TAIL.iter().fold(0.0, |sum, &a| sum * t + f64::from(a));
        let phi = if x > 0.0 { 1.0 - tail } else { tail };
        *value = (x * phi) as f32;
        *derivative = (phi + x * density * e) as f32;
    }
}

#[inline(always)]
unsafe fn gelu_in_vectors<S: Simd>(_: S, values: &mut [f32], derivatives: &mut [f32]) {
    assert!(derivatives.len() >= values.len(), "a derivative per value");
    let density = S::splat((1.0 / (2.0 * std::f64::consts::PI).sqrt()) as f32);
    for (part, derivatives) in values.chunks_mut(S::LANES).zip(derivatives.chunks_mut(S::LANES)) {
        let x = S::load_first(part.as_ptr(), part.len());
        let magnitude = S::max(S::sub(S::zero(), x), x);
        let e = activation::exp::<S>(S::mul(S::mul(x, x), S::splat(-0.5)));
        let scaled = S::splat(P * std::f32::consts::FRAC_1_SQRT_2);
        let t = S::reciprocal(S::fma(magnitude, scaled, S::splat(1.0)));
        let mut sum = S::splat(TAIL[0]);
        for coefficient in &TAIL[1..] {
            sum = S::fma(sum, t, S::splat(*coefficient));
        }
        let tail = S::mul(S::mul(S::mul(sum, t), e), S::splat(0.5));
        let phi = S::where_greater(x, S::zero(), S::sub(S::splat(1.0), tail), tail);
        S::store_first(part.as_mut_ptr(), S::mul(x, phi), part.len());
        let derivative = S::fma(S::mul(x, density), e, phi);
        S::store_first(derivatives.as_mut_ptr(), derivative, part.len());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::{Granted, Isa};

    fn numbers() -> Vec<f32> {
        (0..401).map(|i| (i as f32 - 200.0) * 0.05).collect()
    }

    /// Φ by numerical integration of its density.
    fn normal_distribution(x: f64) -> f64 {
        let (steps, lower) = (20_000, -12.0);
        let width = (x - lower) / f64::from(steps);
        let density = |x: f64| (-0.5 * x * x).exp() / (2.0 * std::f64::consts::PI).sqrt();
        (0..steps).map(|i| density(lower + (f64::from(i) + 0.5) * width) * width).sum()
    }

    #[test]
    fn gelu_has_its_values_and_its_derivative_on_every_instruction_set() {
        for isa in Isa::available() {
            let (mut values, mut derivatives) = (numbers(), vec![0.0; 401]);
            gelu(Granted::new(isa), &mut values, &mut derivatives);
            for (i, x) in numbers().into_iter().map(f64::from).enumerate().step_by(10) {
                let phi = normal_distribution(x);
                let slope = phi + x * (-0.5 * x * x).exp() / (2.0 * std::f64::consts::PI).sqrt();
                assert!((f64::from(values[i]) - x * phi).abs() < 3e-6, "{isa}: gelu({x}) = {}", values[i]);
                assert!((f64::from(derivatives[i]) - slope).abs() < 3e-6, "{isa}: gelu'({x})");
            }
        }
    }

    #[test]
    fn relu_and_tanh_and_their_slopes() {
        for isa in Isa::available() {
            let kernel = Granted::new(isa);
            let (mut rectified, mut squashed) = (numbers(), numbers());
            relu(kernel, &mut rectified);
            tanh(kernel, &mut squashed);
            let (mut ones, mut slopes) = (vec![1.0; 401], vec![1.0; 401]);
            relu_backward(kernel, &rectified, &mut ones);
            tanh_backward(kernel, &squashed, &mut slopes);
            for (i, x) in numbers().into_iter().enumerate() {
                assert!(rectified[i] == x.max(0.0) && ones[i] == f32::from(x > 0.0), "{isa}: {x}");
                assert!((squashed[i] - x.tanh()).abs() < 4e-7, "{isa}: {x}");
                assert!((slopes[i] - (1.0 - x.tanh().powi(2))).abs() < 2e-6, "{isa}: {x}");
            }
        }
    }
}
