//! Vectors as arrays, which the compiler lowers to the target.

#![allow(unsafe_code, unsafe_op_in_unsafe_fn)]

use super::simd::Simd;

/// Eight floats: two NEON or SSE registers.
#[derive(Clone, Copy, Debug)]
#[repr(align(32))]
pub(crate) struct Eight([f32; 8]);

/// No specific instruction set.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Portable;

#[inline(always)]
fn map(a: Eight, f: impl Fn(f32) -> f32) -> Eight {
    Eight(std::array::from_fn(|i| f(a.0[i])))
}

#[inline(always)]
fn zip(a: Eight, b: Eight, f: impl Fn(f32, f32) -> f32) -> Eight {
    Eight(std::array::from_fn(|i| f(a.0[i], b.0[i])))
}

/// Returns a·b + c, fused if the target has an instruction for it. Otherwise it would be a call.
#[inline(always)]
fn multiply_add(a: f32, b: f32, c: f32) -> f32 {
    if cfg!(any(target_arch = "aarch64", target_feature = "fma")) { a.mul_add(b, c) } else { a * b + c }
}

// SAFETY: arrays need no CPU feature. The caller guarantees the pointers.
unsafe impl Simd for Portable {
    type V = Eight;
    const LANES: usize = 8;
    const ROWS: usize = 4;
    const ROWS_OF_THREE: usize = 2;
    const TAP_ROWS: usize = 1;

    #[inline(always)]
    unsafe fn zero() -> Eight {
        Eight([0.0; 8])
    }
    #[inline(always)]
    unsafe fn splat(x: f32) -> Eight {
        Eight([x; 8])
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> Eight {
        Eight(p.cast::<[f32; 8]>().read_unaligned())
    }
    #[inline(always)]
    unsafe fn store(p: *mut f32, v: Eight) {
        p.cast::<[f32; 8]>().write_unaligned(v.0);
    }
    #[inline(always)]
    unsafe fn load_first(p: *const f32, n: usize) -> Eight {
        let mut v = [0.0; 8];
        v.as_mut_ptr().copy_from_nonoverlapping(p, n.min(8));
        Eight(v)
    }
    #[inline(always)]
    unsafe fn store_first(p: *mut f32, v: Eight, n: usize) {
        p.copy_from_nonoverlapping(v.0.as_ptr(), n.min(8));
    }
    #[inline(always)]
    unsafe fn add(a: Eight, b: Eight) -> Eight {
        zip(a, b, |a, b| a + b)
    }
    #[inline(always)]
    unsafe fn sub(a: Eight, b: Eight) -> Eight {
        zip(a, b, |a, b| a - b)
    }
    #[inline(always)]
    unsafe fn mul(a: Eight, b: Eight) -> Eight {
        zip(a, b, |a, b| a * b)
    }
    #[inline(always)]
    unsafe fn fma(a: Eight, b: Eight, c: Eight) -> Eight {
        Eight(std::array::from_fn(|i| multiply_add(a.0[i], b.0[i], c.0[i])))
    }
    #[inline(always)]
    unsafe fn fnma(a: Eight, b: Eight, c: Eight) -> Eight {
        Eight(std::array::from_fn(|i| multiply_add(-a.0[i], b.0[i], c.0[i])))
    }
    #[inline(always)]
    unsafe fn min(a: Eight, b: Eight) -> Eight {
        zip(a, b, |a, b| if a < b { a } else { b })
    }
    #[inline(always)]
    unsafe fn max(a: Eight, b: Eight) -> Eight {
        zip(a, b, |a, b| if a > b { a } else { b })
    }
    #[inline(always)]
    unsafe fn where_greater(a: Eight, b: Eight, x: Eight, y: Eight) -> Eight {
        Eight(std::array::from_fn(|i| if a.0[i] > b.0[i] { x.0[i] } else { y.0[i] }))
    }
    #[inline(always)]
    unsafe fn round(a: Eight) -> Eight {
        // Adding and subtracting 1.5·2²³ rounds to an integer, for |a| < 2²².
        const ROUNDER: f32 = 12_582_912.0;
        map(a, |a| (a + ROUNDER) - ROUNDER)
    }
    #[inline(always)]
    unsafe fn split(t: Eight) -> (Eight, Eight) {
        let t = Self::max(Self::splat(-126.0), t);
        let n = Self::round(t);
        (n, Self::sub(t, n))
    }
    #[inline(always)]
    unsafe fn scale(a: Eight, n: Eight) -> Eight {
        zip(a, n, |a, n| a * f32::from_bits(((n as i32 + 127) as u32) << 23))
    }
    #[inline(always)]
    unsafe fn reciprocal(a: Eight) -> Eight {
        map(a, |a| 1.0 / a)
    }
    #[inline(always)]
    unsafe fn sum(a: Eight) -> f32 {
        let [a, b, c, d, e, f, g, h] = a.0;
        ((a + e) + (c + g)) + ((b + f) + (d + h))
    }
    #[inline(always)]
    unsafe fn largest(a: Eight) -> f32 {
        a.0.into_iter().fold(f32::NEG_INFINITY, |a, b| if a > b { a } else { b })
    }

    #[inline(always)]
    unsafe fn transpose(from: *const f32, from_stride: usize, to: *mut f32, to_stride: usize) {
        for i in 0..8 {
            for j in 0..8 {
                *to.add(j * to_stride + i) = *from.add(i * from_stride + j);
            }
        }
    }
}
