//! Vectors of `f32`: what a kernel needs of an instruction set.
//!
//! A kernel is written once, generic over [`Simd`], and `#[inline(always)]`; an entry point per instruction
//! set (see `entry!` in `dispatch.rs`) carries the `target_feature` attribute into which all of it is inlined.

#![allow(unsafe_code, unsafe_op_in_unsafe_fn)]

use std::fmt::Debug;

/// Vectors of one instruction set.
///
/// # Safety
/// Every method may be called only where the CPU has the instruction set. Loads and stores touch
/// [`Simd::LANES`] floats (or as many as they say) at the pointer, of any alignment.
pub(crate) unsafe trait Simd: Copy + Debug {
    /// A vector.
    type V: Copy + Debug;
    /// Floats in a vector.
    const LANES: usize;
    /// Rows of a product that are held in registers at once, two vectors wide.
    const ROWS: usize;
    /// The same, three vectors wide.
    const ROWS_OF_THREE: usize;
    /// Rows of a 5 × 5 filter that are held in registers at once.
    const TAP_ROWS: usize;

    unsafe fn zero() -> Self::V;
    unsafe fn splat(x: f32) -> Self::V;
    unsafe fn load(p: *const f32) -> Self::V;
    unsafe fn store(p: *mut f32, v: Self::V);
    /// The first `n` floats, the rest of the lanes zero.
    unsafe fn load_first(p: *const f32, n: usize) -> Self::V;
    /// Stores the first `n` lanes.
    unsafe fn store_first(p: *mut f32, v: Self::V, n: usize);
    unsafe fn add(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn sub(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn mul(a: Self::V, b: Self::V) -> Self::V;
    /// a·b + c.
    unsafe fn fma(a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    /// c − a·b.
    unsafe fn fnma(a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    /// The smaller; b when one of them is NaN.
    unsafe fn min(a: Self::V, b: Self::V) -> Self::V;
    /// The larger; b when one of them is NaN.
    unsafe fn max(a: Self::V, b: Self::V) -> Self::V;
    /// x where a > b, otherwise y, lane by lane.
    unsafe fn where_greater(a: Self::V, b: Self::V, x: Self::V, y: Self::V) -> Self::V;
    /// The nearest integer.
    unsafe fn round(a: Self::V) -> Self::V;
    /// An integer n that [`Simd::scale`] takes and r = t − n, |r| ≤ ½, for any t ≤ 126; far below, where 2ᵗ is not a normal
    /// number, n may stop and r be 0.
    unsafe fn split(t: Self::V) -> (Self::V, Self::V);
    /// a·2ⁿ for integral n with 2ⁿ a normal number, or what [`Simd::split`] gives.
    unsafe fn scale(a: Self::V, n: Self::V) -> Self::V;
    /// 1/a within 1 ulp or so, for a ∈ [1, 2¹²⁷].
    unsafe fn reciprocal(a: Self::V) -> Self::V;
    unsafe fn sum(a: Self::V) -> f32;
    unsafe fn largest(a: Self::V) -> f32;
    /// Transposes a `LANES × LANES` block.
    unsafe fn transpose(from: *const f32, from_stride: usize, to: *mut f32, to_stride: usize);
}
