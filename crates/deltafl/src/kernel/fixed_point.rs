//! Updates in fixed point: α·(w_k − w)·2^24, rounded to integers modulo 2^64.

#![allow(unsafe_code)]

use super::dispatch::plain_entry;

/// Below this magnitude [`add_rounded`] is exact.
pub(crate) const LARGEST: f64 = (1u64 << 51) as f64;

/// The number of independent maxima and sums.
const LANES: usize = 16;

/// 1.5·2^52. Added to a number below 2^51, it leaves the nearest integer, ties to even, in the low
/// bits.
const ROUNDER: f64 = 6_755_399_441_055_744.0;

plain_entry! {
    /// Raises `largest` to the largest |scale·(new − old)|, or to ∞ if one is not a number.
    pub(crate) fn raise_to_largest(new: &[f32], old: &[f32], scale: f64, largest: &mut f64) = each_magnitude
}

plain_entry! {
    /// Adds scale·(new − old), rounded to integers, ties to even. Every magnitude must be below
    /// [`LARGEST`].
    pub(crate) fn add_rounded(new: &[f32], old: &[f32], scale: f64, sum: &mut [u64]) = each_rounded
}

plain_entry! {
    /// Adds the squares of new − old with sixteen parallel sums, in the same order on every
    /// instruction set.
    pub(crate) fn add_squares(new: &[f32], old: &[f32], squares: &mut f64) = each_square
}

/// Returns scale·(new − old).
#[inline(always)]
pub(crate) fn scaled(new: f32, old: f32, scale: f64) -> f64 {
    (f64::from(new) - f64::from(old)) * scale
}

#[inline(always)]
fn each_magnitude(new: &[f32], old: &[f32], scale: f64, largest: &mut f64) {
    let magnitude = |(new, old): (&f32, &f32)| {
        let size = scaled(*new, *old, scale).abs();
        if size.is_nan() { f64::INFINITY } else { size }
    };
    let mut maxima = [*largest; LANES];
    let (new_rows, new_rest) = new.as_chunks::<LANES>();
    let (old_rows, old_rest) = old.as_chunks::<LANES>();
    for (new, old) in new_rows.iter().zip(old_rows) {
        for (max, pair) in maxima.iter_mut().zip(new.iter().zip(old)) {
            let size = magnitude(pair);
            *max = if size > *max { size } else { *max };
        }
    }
    let rest = new_rest.iter().zip(old_rest).map(magnitude);
    *largest = maxima.into_iter().chain(rest).fold(*largest, f64::max);
}

#[inline(always)]
fn each_square(new: &[f32], old: &[f32], squares: &mut f64) {
    let square = |(new, old): (&f32, &f32)| {
        let change = scaled(*new, *old, 1.0);
        change * change
    };
    let mut sums = [0.0; LANES];
    let (new_rows, new_rest) = new.as_chunks::<LANES>();
    let (old_rows, old_rest) = old.as_chunks::<LANES>();
    for (new, old) in new_rows.iter().zip(old_rows) {
        for (sum, pair) in sums.iter_mut().zip(new.iter().zip(old)) {
            *sum += square(pair);
        }
    }
    *squares += sums.into_iter().chain(new_rest.iter().zip(old_rest).map(square)).sum::<f64>();
}

#[inline(always)]
fn each_rounded(new: &[f32], old: &[f32], scale: f64, sum: &mut [u64]) {
    for (sum, (new, old)) in sum.iter_mut().zip(new.iter().zip(old)) {
        let bits = (scaled(*new, *old, scale) + ROUNDER).to_bits();
        *sum = sum.wrapping_add(bits.wrapping_sub(ROUNDER.to_bits()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::{Granted, Isa};

    const SCALE: f64 = 16_777_216.0 * 179.0;

    #[test]
    fn every_instruction_set_rounds_as_the_library_does() {
        let new: Vec<f32> = (0..1001).map(|i| (i as f32 * 0.37).sin() * 10f32.powi(i % 7 - 4)).collect();
        let old: Vec<f32> = (0..1001).map(|i| (i as f32 * 0.11).cos()).collect();
        let code = |i: usize| scaled(new[i], old[i], SCALE);
        for isa in Isa::available() {
            let (mut sum, mut largest) = (vec![5; new.len()], 0.0);
            add_rounded(Granted::new(isa), &new, &old, SCALE, &mut sum);
            raise_to_largest(Granted::new(isa), &new, &old, SCALE, &mut largest);
            for (i, &sum) in sum.iter().enumerate() {
                assert_eq!(sum as i64, 5 + code(i).round_ties_even() as i64, "{isa}, entry {i}");
            }
            let expected = (0..new.len()).map(|i| code(i).abs()).fold(0.0, f64::max);
            assert!(largest.to_bits() == f64::to_bits(expected) && largest < LARGEST, "{isa}");
        }
    }

    #[test]
    fn ties_go_to_even_and_the_limit_is_exact() {
        let mut sum = [0; 5];
        let new = [0.5, 1.5, -0.5, -2.5, (1u64 << 50) as f32];
        add_rounded(Granted::new(Isa::detect()), &new, &[0.0; 5], 1.0, &mut sum);
        assert_eq!(sum.map(|s| s as i64), [0, 2, 0, -2, 1 << 50]);
    }

    #[test]
    fn every_instruction_set_has_the_same_norm_to_the_bit() {
        let new: Vec<f32> = (0..1003).map(|i| (i as f32 * 0.37).sin() * 10f32.powi(i % 7 - 4)).collect();
        let old: Vec<f32> = (0..1003).map(|i| (i as f32 * 0.11).cos()).collect();
        let squares = |isa| {
            let mut squares = 0.25;
            add_squares(Granted::new(isa), &new, &old, &mut squares);
            squares
        };
        let exact = 0.25 + new.iter().zip(&old).map(|(a, b)| scaled(*a, *b, 1.0).powi(2)).sum::<f64>();
        for isa in Isa::available() {
            assert_eq!(squares(isa).to_bits(), squares(Isa::Portable).to_bits(), "{isa}");
            assert!((squares(isa) / exact - 1.0).abs() < 1e-13, "{isa}");
        }
    }

    #[test]
    fn what_is_not_a_number_is_infinitely_large() {
        for isa in Isa::available() {
            for at in [0, 15, 16, 39] {
                for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                    let mut new = vec![1.0; 40];
                    new[at] = bad;
                    let mut largest = 0.0;
                    raise_to_largest(Granted::new(isa), &new, &[0.5; 40], SCALE, &mut largest);
                    assert!(largest.is_infinite(), "{isa}, {bad} at {at}");
                }
            }
        }
    }
}
