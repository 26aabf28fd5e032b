//! AVX2 with FMA: 8 floats in a vector, 16 registers.

#![allow(unsafe_code, unsafe_op_in_unsafe_fn)]

use std::arch::x86_64::*;

use super::simd::Simd;

/// The instruction set AVX2 with FMA.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Avx2;

// SAFETY: each method is the intrinsic of its name. The caller guarantees the CPU and the pointers.
unsafe impl Simd for Avx2 {
    type V = __m256;
    const LANES: usize = 8;
    const ROWS: usize = 6;
    const ROWS_OF_THREE: usize = 3;
    const TAP_ROWS: usize = 2;

    #[inline(always)]
    unsafe fn zero() -> __m256 {
        _mm256_setzero_ps()
    }
    #[inline(always)]
    unsafe fn splat(x: f32) -> __m256 {
        _mm256_set1_ps(x)
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> __m256 {
        _mm256_loadu_ps(p)
    }
    #[inline(always)]
    unsafe fn store(p: *mut f32, v: __m256) {
        _mm256_storeu_ps(p, v);
    }
    #[inline(always)]
    unsafe fn load_first(p: *const f32, n: usize) -> __m256 {
        if n >= 8 { _mm256_loadu_ps(p) } else { _mm256_maskload_ps(p, first(n)) }
    }
    #[inline(always)]
    unsafe fn store_first(p: *mut f32, v: __m256, n: usize) {
        // A masked store is slow on some CPUs, even with a full mask.
        if n >= 8 { _mm256_storeu_ps(p, v) } else { _mm256_maskstore_ps(p, first(n), v) }
    }
    #[inline(always)]
    unsafe fn add(a: __m256, b: __m256) -> __m256 {
        _mm256_add_ps(a, b)
    }
    #[inline(always)]
    unsafe fn sub(a: __m256, b: __m256) -> __m256 {
        _mm256_sub_ps(a, b)
    }
    #[inline(always)]
    unsafe fn mul(a: __m256, b: __m256) -> __m256 {
        _mm256_mul_ps(a, b)
    }
    #[inline(always)]
    unsafe fn fma(a: __m256, b: __m256, c: __m256) -> __m256 {
        _mm256_fmadd_ps(a, b, c)
    }
    #[inline(always)]
    unsafe fn fnma(a: __m256, b: __m256, c: __m256) -> __m256 {
        _mm256_fnmadd_ps(a, b, c)
    }
    #[inline(always)]
    unsafe fn min(a: __m256, b: __m256) -> __m256 {
        _mm256_min_ps(a, b)
    }
    #[inline(always)]
    unsafe fn max(a: __m256, b: __m256) -> __m256 {
        _mm256_max_ps(a, b)
    }
    #[inline(always)]
    unsafe fn where_greater(a: __m256, b: __m256, x: __m256, y: __m256) -> __m256 {
        _mm256_blendv_ps(y, x, _mm256_cmp_ps::<_CMP_GT_OQ>(a, b))
    }
    #[inline(always)]
    unsafe fn round(a: __m256) -> __m256 {
        _mm256_round_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(a)
    }
    #[inline(always)]
    unsafe fn split(t: __m256) -> (__m256, __m256) {
        let t = _mm256_max_ps(_mm256_set1_ps(-126.0), t);
        let n = Self::round(t);
        (n, _mm256_sub_ps(t, n))
    }
    #[inline(always)]
    unsafe fn scale(a: __m256, n: __m256) -> __m256 {
        let exponent = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
        _mm256_mul_ps(a, _mm256_castsi256_ps(_mm256_slli_epi32::<23>(exponent)))
    }
    #[inline(always)]
    unsafe fn reciprocal(a: __m256) -> __m256 {
        _mm256_div_ps(_mm256_set1_ps(1.0), a)
    }
    #[inline(always)]
    unsafe fn sum(a: __m256) -> f32 {
        let a = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps::<1>(a));
        let a = _mm_add_ps(a, _mm_movehl_ps(a, a));
        _mm_cvtss_f32(_mm_add_ss(a, _mm_movehdup_ps(a)))
    }
    #[inline(always)]
    unsafe fn largest(a: __m256) -> f32 {
        let a = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps::<1>(a));
        let a = _mm_max_ps(a, _mm_movehl_ps(a, a));
        _mm_cvtss_f32(_mm_max_ss(a, _mm_movehdup_ps(a)))
    }

    #[inline(always)]
    unsafe fn transpose(from: *const f32, from_stride: usize, to: *mut f32, to_stride: usize) {
        let mut r = [_mm256_setzero_ps(); 8];
        for (i, r) in r.iter_mut().enumerate() {
            *r = _mm256_loadu_ps(from.add(i * from_stride));
        }
        // Pairs, then quads, within 128-bit halves. Then the halves are swapped.
        let mut s = r;
        for i in 0..4 {
            s[2 * i] = _mm256_unpacklo_ps(r[2 * i], r[2 * i + 1]);
            s[2 * i + 1] = _mm256_unpackhi_ps(r[2 * i], r[2 * i + 1]);
        }
        for i in 0..2 {
            r[4 * i] = _mm256_shuffle_ps::<0x44>(s[4 * i], s[4 * i + 2]);
            r[4 * i + 1] = _mm256_shuffle_ps::<0xee>(s[4 * i], s[4 * i + 2]);
            r[4 * i + 2] = _mm256_shuffle_ps::<0x44>(s[4 * i + 1], s[4 * i + 3]);
            r[4 * i + 3] = _mm256_shuffle_ps::<0xee>(s[4 * i + 1], s[4 * i + 3]);
        }
        for i in 0..4 {
            _mm256_storeu_ps(to.add(i * to_stride), _mm256_permute2f128_ps::<0x20>(r[i], r[i + 4]));
            _mm256_storeu_ps(to.add((i + 4) * to_stride), _mm256_permute2f128_ps::<0x31>(r[i], r[i + 4]));
        }
    }
}

/// The mask of the first `n` lanes.
#[inline(always)]
unsafe fn first(n: usize) -> __m256i {
    _mm256_cmpgt_epi32(_mm256_set1_epi32(n.min(8) as i32), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7))
}
