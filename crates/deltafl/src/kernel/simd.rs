//! Vectors of `f32`: the operations that a kernel needs from an instruction set.
//!
//! A kernel is written once, generic over [`Simd`] and `#[inline(always)]`. An entry point per
//! instruction set (see `entry!` in `dispatch.rs`) has the `target_feature` attribute, and the
//! kernel is inlined into it.

#![allow(unsafe_code, unsafe_op_in_unsafe_fn)]

use std::fmt::Debug;

/// The vectors of one instruction set.
///
/// # Safety
/// Every method may be called only if the CPU supports the instruction set. Loads and stores access
/// [`Simd::LANES`] floats, or the stated number, at the pointer, with any alignment.
pub(crate) unsafe trait Simd: Copy + Debug {
    /// A vector.
    type V: Copy + Debug;
    /// Floats per vector.
    const LANES: usize;
    /// Rows of a product that fit in registers, two vectors wide.
    const ROWS: usize;
    /// Rows of a product that fit in registers, three vectors wide.
    const ROWS_OF_THREE: usize;
    /// Rows of a 5 × 5 filter that fit in registers.
    const TAP_ROWS: usize;

    unsafe fn zero() -> Self::V;
    unsafe fn splat(x: f32) -> Self::V;
    unsafe fn load(p: *const f32) -> Self::V;
    unsafe fn store(p: *mut f32, v: Self::V);
    /// Loads the first `n` floats and sets the other lanes to zero.
    unsafe fn load_first(p: *const f32, n: usize) -> Self::V;
    /// Stores the first `n` lanes.
    unsafe fn store_first(p: *mut f32, v: Self::V, n: usize);
    unsafe fn add(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn sub(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn mul(a: Self::V, b: Self::V) -> Self::V;
    /// Returns a·b + c.
    unsafe fn fma(a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    /// Returns c − a·b.
    unsafe fn fnma(a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    /// Returns the smaller, or b if one of them is NaN.
    unsafe fn min(a: Self::V, b: Self::V) -> Self::V;
    /// Returns the larger, or b if one of them is NaN.
    unsafe fn max(a: Self::V, b: Self::V) -> Self::V;
    /// Returns x if a > b, otherwise y, lane by lane.
    unsafe fn where_greater(a: Self::V, b: Self::V, x: Self::V, y: Self::V) -> Self::V;
    /// Returns the nearest integer.
    unsafe fn round(a: Self::V) -> Self::V;
    /// Returns an integer n for [`Simd::scale`] and r = t − n with |r| ≤ ½, for any t ≤ 126. If 2ᵗ
    /// is not a normal number, n may be clamped and r may be 0.
    unsafe fn split(t: Self::V) -> (Self::V, Self::V);
    /// Returns a·2ⁿ for an integral n if 2ⁿ is a normal number or n comes from [`Simd::split`].
    unsafe fn scale(a: Self::V, n: Self::V) -> Self::V;
    /// Returns 1/a within about 1 ulp, for a ∈ [1, 2¹²⁷].
    unsafe fn reciprocal(a: Self::V) -> Self::V;
    unsafe fn sum(a: Self::V) -> f32;
    unsafe fn largest(a: Self::V) -> f32;
    /// Transposes a `LANES × LANES` block.
    unsafe fn transpose(from: *const f32, from_stride: usize, to: *mut f32, to_stride: usize);
}
