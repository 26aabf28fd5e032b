//! exp, the logistic function and tanh, on vectors.
//!
//! With x = n·ln 2 + r and |r| ≤ ln 2 / 2, eˣ = 2ⁿ·eʳ, and eʳ is a Taylor polynomial of degree 6.
//! ln 2 is represented in two parts, so that r is exact to the last bits.
//!
//! σ and tanh are flat for large x and tolerate an error of the exponent. There e^−x = 2ᵗ with the
//! rounded t = −x·log₂ e. 2ᵗ = 2ⁿ·2ʳ with |r| ≤ ½, and 2ʳ is the best polynomial of degree 5
//! (relative error 9e-8) among those that are exact at 0.
//!
//! ```text
//! e^x      relative error ≤ 3e-7 for −87 ≤ x ≤ 88, to which the argument is clamped
//! σ(x)     = 1/(1 + e^−x)            absolute error ≤ 2e-7
//! tanh(x)  = 2σ(2x) − 1              absolute error ≤ 4e-7
//! ```

#![allow(unsafe_code, unsafe_op_in_unsafe_fn)]

use super::simd::Simd;

const LN_2_HIGH: f32 = 0.693_359_4;
const LN_2_LOW: f32 = -2.121_944_4e-4;

/// eˣ.
#[inline(always)]
pub(crate) unsafe fn exp<S: Simd>(x: S::V) -> S::V {
    // In this order both operations propagate NaN.
    let x = S::max(S::splat(-87.0), S::min(S::splat(88.0), x));
    let n = S::round(S::mul(x, S::splat(std::f32::consts::LOG2_E)));
    let r = S::fnma(n, S::splat(LN_2_LOW), S::fnma(n, S::splat(LN_2_HIGH), x));
    let mut p = S::splat(1.0 / 720.0);
    for coefficient in [1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0] {
        p = S::fma(p, r, S::splat(coefficient));
    }
    S::scale(p, n)
}

/// The best approximation of (2ʳ − 1)/r for |r| ≤ ½, highest power first.
#[expect(clippy::approx_constant, reason = "the first coefficient comes near ln 2 but is not it")]
const POWER_OF_TWO: [f32; 5] = [0.001_326_472_7, 0.009_671_513, 0.055_507_336, 0.240_222_42, 0.693_147];

/// 1/(1 + 2ᵗ).
#[inline(always)]
unsafe fn reciprocal_of_power<S: Simd>(t: S::V) -> S::V {
    // Below 2¹²⁶, so that the sum has a normal reciprocal.
    let (n, r) = S::split(S::min(S::splat(126.0), t));
    let mut p = S::splat(POWER_OF_TWO[0]);
    for coefficient in &POWER_OF_TWO[1..] {
        p = S::fma(p, r, S::splat(*coefficient));
    }
    p = S::fma(p, r, S::splat(1.0));
    S::reciprocal(S::add(S::splat(1.0), S::scale(p, n)))
}

/// σ(x) = 1/(1 + e^−x).
#[inline(always)]
pub(crate) unsafe fn sigmoid<S: Simd>(x: S::V) -> S::V {
    reciprocal_of_power::<S>(S::mul(x, S::splat(-std::f32::consts::LOG2_E)))
}

/// tanh(x) = 2σ(2x) − 1.
#[inline(always)]
pub(crate) unsafe fn tanh<S: Simd>(x: S::V) -> S::V {
    let half = reciprocal_of_power::<S>(S::mul(x, S::splat(-2.0 * std::f32::consts::LOG2_E)));
    S::fma(S::splat(2.0), half, S::splat(-1.0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::dispatch::entry;
    use crate::kernel::{Granted, Isa};

    entry! {
        /// exp, σ and tanh of x in sequence.
        fn all_three(x: &[f32], results: &mut [[f32; 16]; 3]) = in_vectors, by_the_library
    }

    #[inline(always)]
    unsafe fn in_vectors<S: Simd>(_: S, x: &[f32], results: &mut [[f32; 16]; 3]) {
        for i in (0..16).step_by(S::LANES) {
            let v = S::load(x[i..i + S::LANES].as_ptr());
            S::store(results[0][i..].as_mut_ptr(), exp::<S>(v));
            S::store(results[1][i..].as_mut_ptr(), sigmoid::<S>(v));
            S::store(results[2][i..].as_mut_ptr(), tanh::<S>(v));
        }
    }

    fn by_the_library(x: &[f32], results: &mut [[f32; 16]; 3]) {
        for (i, &x) in x.iter().enumerate().take(16) {
            (results[0][i], results[1][i], results[2][i]) = (x.exp(), 1.0 / (1.0 + (-x).exp()), x.tanh());
        }
    }

    #[test]
    fn the_stated_error_bounds_hold() {
        for isa in Isa::available() {
            let mut worst = [0.0f64; 3];
            for i in 0..20_000 {
                let x: [f32; 16] = std::array::from_fn(|j| (i * 16 + j) as f32 * (170.0 / 320_000.0) - 85.0);
                let mut got = [[0.0; 16]; 3];
                all_three(Granted::new(isa), &x, &mut got);
                for (j, x) in x.iter().map(|&x| f64::from(x)).enumerate() {
                    let [e, s, t] = [got[0][j], got[1][j], got[2][j]].map(f64::from);
                    worst[0] = worst[0].max((e / x.exp() - 1.0).abs());
                    worst[1] = worst[1].max((s - 1.0 / (1.0 + (-x).exp())).abs());
                    worst[2] = worst[2].max((t - x.tanh()).abs());
                }
            }
            assert!(worst[0] < 3e-7 && worst[1] < 2e-7 && worst[2] < 4e-7, "{isa}: {worst:?}");
        }
    }

    #[test]
    fn extreme_arguments_saturate_and_nan_stays() {
        for isa in Isa::available() {
            let mut x = [0.0; 16];
            x[..5].copy_from_slice(&[f32::INFINITY, f32::NEG_INFINITY, 1e30, -1e30, f32::NAN]);
            let mut got = [[0.0; 16]; 3];
            all_three(Granted::new(isa), &x, &mut got);
            for (j, expected) in [(0, 1.0), (1, 0.0), (2, 1.0), (3, 0.0)] {
                assert!((got[1][j] - expected).abs() < 1e-6, "{isa}: σ({}) = {}", x[j], got[1][j]);
                assert!(
                    (got[2][j] - (2.0 * expected - 1.0)).abs() < 1e-6,
                    "{isa}: tanh({}) = {}",
                    x[j],
                    got[2][j]
                );
            }
            assert!(got.iter().all(|row| row[4].is_nan()), "{isa}");
        }
    }
}
