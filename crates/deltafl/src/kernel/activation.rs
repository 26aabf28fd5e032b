//! exp, the logistic function and tanh, on vectors.
//!
//! With x = n·ln 2 + r, |r| ≤ ln 2 / 2, eˣ = 2ⁿ·eʳ and eʳ is a polynomial of degree 6 (Taylor's, economised by
//! the small interval). ln 2 is taken in two parts, so that r is exact to the last bits.
//!
//! ```text
//! e^x      relative error ≤ 3e-7 for −87 ≤ x ≤ 88, which the argument is confined to
//! σ(x)     = 1/(1 + e^−x)            absolute error ≤ 2e-7
//! tanh(x)  = 2σ(2x) − 1              absolute error ≤ 4e-7
//! ```

#![allow(unsafe_code, unsafe_op_in_unsafe_fn)]

use super::simd::Simd;

const LN_2_HIGH: f32 = 0.693_359_375;
const LN_2_LOW: f32 = -2.121_944_4e-4;

/// eˣ.
#[inline(always)]
pub(crate) unsafe fn exp<S: Simd>(x: S::V) -> S::V {
    // In this order a NaN passes through both.
    let x = S::max(S::splat(-87.0), S::min(S::splat(88.0), x));
    let n = S::round(S::mul(x, S::splat(std::f32::consts::LOG2_E)));
    let r = S::fnma(n, S::splat(LN_2_LOW), S::fnma(n, S::splat(LN_2_HIGH), x));
    let mut p = S::splat(1.0 / 720.0);
    for coefficient in [1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0] {
        p = S::fma(p, r, S::splat(coefficient));
    }
    S::scale(p, n)
}

/// σ(x) = 1/(1 + e^−x).
#[inline(always)]
pub(crate) unsafe fn sigmoid<S: Simd>(x: S::V) -> S::V {
    let e = exp::<S>(S::sub(S::zero(), x));
    S::reciprocal(S::add(S::splat(1.0), e))
}

/// tanh(x).
#[inline(always)]
pub(crate) unsafe fn tanh<S: Simd>(x: S::V) -> S::V {
    let e = exp::<S>(S::mul(x, S::splat(-2.0)));
    S::fma(S::splat(2.0), S::reciprocal(S::add(S::splat(1.0), e)), S::splat(-1.0))
}
