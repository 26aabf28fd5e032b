//! AVX-512: 16 floats in a vector, 32 registers.

#![allow(unsafe_code, unsafe_op_in_unsafe_fn)]

use std::arch::x86_64::*;

use super::simd::Simd;

/// The instruction set AVX-512 (F, BW, DQ, VL).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Avx512;

// SAFETY: each method is the intrinsic of its name. The caller guarantees the CPU and the pointers.
unsafe impl Simd for Avx512 {
    type V = __m512;
    const LANES: usize = 16;
    const ROWS: usize = 12;
    const ROWS_OF_THREE: usize = 8;
    const TAP_ROWS: usize = 5;

    #[inline(always)]
    unsafe fn zero() -> __m512 {
        _mm512_setzero_ps()
    }
    #[inline(always)]
    unsafe fn splat(x: f32) -> __m512 {
        _mm512_set1_ps(x)
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> __m512 {
        _mm512_loadu_ps(p)
    }
    #[inline(always)]
    unsafe fn store(p: *mut f32, v: __m512) {
        _mm512_storeu_ps(p, v);
    }
    #[inline(always)]
    unsafe fn load_first(p: *const f32, n: usize) -> __m512 {
        _mm512_maskz_loadu_ps(first(n), p)
    }
    #[inline(always)]
    unsafe fn store_first(p: *mut f32, v: __m512, n: usize) {
        _mm512_mask_storeu_ps(p, first(n), v);
    }
    #[inline(always)]
    unsafe fn add(a: __m512, b: __m512) -> __m512 {
        _mm512_add_ps(a, b)
    }
    #[inline(always)]
    unsafe fn sub(a: __m512, b: __m512) -> __m512 {
        _mm512_sub_ps(a, b)
    }
    #[inline(always)]
    unsafe fn mul(a: __m512, b: __m512) -> __m512 {
        _mm512_mul_ps(a, b)
    }
    #[inline(always)]
    unsafe fn fma(a: __m512, b: __m512, c: __m512) -> __m512 {
        _mm512_fmadd_ps(a, b, c)
    }
    #[inline(always)]
    unsafe fn fnma(a: __m512, b: __m512, c: __m512) -> __m512 {
        _mm512_fnmadd_ps(a, b, c)
    }
    #[inline(always)]
    unsafe fn min(a: __m512, b: __m512) -> __m512 {
        _mm512_min_ps(a, b)
    }
    #[inline(always)]
    unsafe fn max(a: __m512, b: __m512) -> __m512 {
        _mm512_max_ps(a, b)
    }
    #[inline(always)]
    unsafe fn where_greater(a: __m512, b: __m512, x: __m512, y: __m512) -> __m512 {
        _mm512_mask_blend_ps(_mm512_cmp_ps_mask::<_CMP_GT_OQ>(a, b), y, x)
    }
    #[inline(always)]
    unsafe fn round(a: __m512) -> __m512 {
        _mm512_roundscale_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(a)
    }
    #[inline(always)]
    unsafe fn split(t: __m512) -> (__m512, __m512) {
        // The remainder of −∞ is 0, and `scale` accepts any n.
        let r = _mm512_reduce_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(t);
        (_mm512_sub_ps(t, r), r)
    }
    #[inline(always)]
    unsafe fn scale(a: __m512, n: __m512) -> __m512 {
        _mm512_scalef_ps(a, n)
    }
    #[inline(always)]
    unsafe fn reciprocal(a: __m512) -> __m512 {
        // 14 bits, doubled by one Newton step.
        let y = _mm512_rcp14_ps(a);
        _mm512_fmadd_ps(y, _mm512_fnmadd_ps(a, y, _mm512_set1_ps(1.0)), y)
    }
    #[inline(always)]
    unsafe fn sum(a: __m512) -> f32 {
        _mm512_reduce_add_ps(a)
    }
    #[inline(always)]
    unsafe fn largest(a: __m512) -> f32 {
        _mm512_reduce_max_ps(a)
    }

    #[inline(always)]
    unsafe fn transpose(from: *const f32, from_stride: usize, to: *mut f32, to_stride: usize) {
        let mut r = [_mm512_setzero_ps(); 16];
        for (i, r) in r.iter_mut().enumerate() {
            *r = _mm512_loadu_ps(from.add(i * from_stride));
        }
        // Pairs, then quads, within 128-bit quarters. Then the quarters are permuted.
        let mut s = r;
        for i in 0..8 {
            s[2 * i] = _mm512_unpacklo_ps(r[2 * i], r[2 * i + 1]);
            s[2 * i + 1] = _mm512_unpackhi_ps(r[2 * i], r[2 * i + 1]);
        }
        for i in 0..4 {
            r[4 * i] = _mm512_shuffle_ps::<0x44>(s[4 * i], s[4 * i + 2]);
            r[4 * i + 1] = _mm512_shuffle_ps::<0xee>(s[4 * i], s[4 * i + 2]);
            r[4 * i + 2] = _mm512_shuffle_ps::<0x44>(s[4 * i + 1], s[4 * i + 3]);
            r[4 * i + 3] = _mm512_shuffle_ps::<0xee>(s[4 * i + 1], s[4 * i + 3]);
        }
        for i in 0..4 {
            let a = _mm512_shuffle_f32x4::<0x88>(r[i], r[i + 4]);
            let b = _mm512_shuffle_f32x4::<0xdd>(r[i], r[i + 4]);
            let c = _mm512_shuffle_f32x4::<0x88>(r[i + 8], r[i + 12]);
            let d = _mm512_shuffle_f32x4::<0xdd>(r[i + 8], r[i + 12]);
            _mm512_storeu_ps(to.add(i * to_stride), _mm512_shuffle_f32x4::<0x88>(a, c));
            _mm512_storeu_ps(to.add((i + 4) * to_stride), _mm512_shuffle_f32x4::<0x88>(b, d));
            _mm512_storeu_ps(to.add((i + 8) * to_stride), _mm512_shuffle_f32x4::<0xdd>(a, c));
            _mm512_storeu_ps(to.add((i + 12) * to_stride), _mm512_shuffle_f32x4::<0xdd>(b, d));
        }
    }
}

/// The mask of the first `n` lanes.
#[inline(always)]
fn first(n: usize) -> __mmask16 {
    if n >= 16 { !0 } else { (1 << n) - 1 }
}
