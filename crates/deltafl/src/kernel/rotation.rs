//! The Walsh–Hadamard transform, and integers by random rounding.
//!
//! The transform combines entries whose indices differ in one bit, for each bit in increasing
//! order. Every instruction set adds the same pairs in the same order, so that all give the same
//! bits.

#![allow(unsafe_code, unsafe_op_in_unsafe_fn)]

use super::dispatch::{entry, plain_entry};
use super::simd::Simd;

/// The levels of one pass over entries that are far apart.
const LEVELS: u32 = 4;
/// The number of independent sums of squares.
const LANES: usize = 16;

entry! {
    /// Transforms the entries in place, without normalisation. Their number is a power of two.
    pub(crate) fn hadamard(entries: &mut [f32]) = hadamard_simd, hadamard_reference
}

plain_entry! {
    /// Writes scale·(new − old), with the sign changed where the bit of `signs` is one. Entry i has
    /// bit i % 32 of word i / 32. `to` may be longer.
    pub(crate) fn write_signed(new: &[f32], old: &[f32], scale: f64, signs: &[u32], to: &mut [f32]) = each_signed
}

plain_entry! {
    /// Rounds each entry down or up at random, with one word per entry. Adds the squares of the
    /// integers to `squares`.
    pub(crate) fn round_at_random(entries: &[f32], words: &[u32], rounded: &mut [i32], squares: &mut u64) = each_rounded
}

plain_entry! {
    /// Adds integers to a sum modulo 2^64.
    pub(crate) fn add_integers(integers: &[i32], sum: &mut [u64]) = each_added
}

/// Transforms the entries level by level.
pub(crate) fn hadamard_reference(entries: &mut [f32]) {
    let mut half = 1;
    while half < entries.len() {
        for block in entries.chunks_exact_mut(2 * half) {
            let (left, right) = block.split_at_mut(half);
            for (left, right) in left.iter_mut().zip(right) {
                (*left, *right) = (*left + *right, *left - *right);
            }
        }
        half *= 2;
    }
}

#[inline(always)]
unsafe fn hadamard_simd<S: Simd>(_: S, entries: &mut [f32]) {
    let tile = S::LANES * S::LANES;
    assert!(entries.len().is_power_of_two(), "the number of entries is a power of two");
    if entries.len() < tile {
        return hadamard_reference(entries);
    }
    let mut columns = [0.0_f32; 256];
    let per_tile = S::LANES.trailing_zeros();
    for block in entries.chunks_exact_mut(tile) {
        let (rows, columns) = (block.as_mut_ptr(), columns.as_mut_ptr());
        // The bits within a vector: those of the rows of the transposed tile.
        S::transpose(rows, S::LANES, columns, S::LANES);
        rows_of::<S>(columns, S::LANES, per_tile);
        S::transpose(columns, S::LANES, rows, S::LANES);
        rows_of::<S>(rows, S::LANES, per_tile);
    }
    let (len, mut stride) = (entries.len(), tile);
    while stride < len {
        let levels = (len / stride).trailing_zeros().min(LEVELS);
        for block in entries.chunks_exact_mut(stride << levels) {
            for column in (0..stride).step_by(S::LANES) {
                rows_of::<S>(block.as_mut_ptr().add(column), stride, levels);
            }
        }
        stride <<= levels;
    }
}

/// Transforms 2^levels vectors at this distance, at most sixteen.
#[inline(always)]
unsafe fn rows_of<S: Simd>(first: *mut f32, stride: usize, levels: u32) {
    match levels {
        1 => butterflies::<S, 2>(first, stride),
        2 => butterflies::<S, 4>(first, stride),
        3 => butterflies::<S, 8>(first, stride),
        _ => butterflies::<S, 16>(first, stride),
    }
}

#[inline(always)]
unsafe fn butterflies<S: Simd, const ROWS: usize>(first: *mut f32, stride: usize) {
    let mut rows = [S::zero(); ROWS];
    for (i, row) in rows.iter_mut().enumerate() {
        *row = S::load(first.add(i * stride));
    }
    let mut half = 1;
    while half < ROWS {
        for i in (0..ROWS).filter(|i| i & half == 0) {
            let (left, right) = (rows[i], rows[i + half]);
            rows[i] = S::add(left, right);
            rows[i + half] = S::sub(left, right);
        }
        half *= 2;
    }
    for (i, row) in rows.into_iter().enumerate() {
        S::store(first.add(i * stride), row);
    }
}

#[inline(always)]
fn each_signed(new: &[f32], old: &[f32], scale: f64, signs: &[u32], to: &mut [f32]) {
    let (new_rows, new_rest) = new.as_chunks::<32>();
    let (old_rows, old_rest) = old.as_chunks::<32>();
    let (to_rows, to_rest) = to[..new.len()].as_chunks_mut::<32>();
    let flipped = |new: f32, old: f32, bits: u32, i: usize| {
        let value = ((f64::from(new) - f64::from(old)) * scale) as f32;
        f32::from_bits(value.to_bits() ^ (bits >> i) << 31)
    };
    for (((new, old), to), &bits) in new_rows.iter().zip(old_rows).zip(to_rows).zip(signs) {
        for i in 0..32 {
            to[i] = flipped(new[i], old[i], bits, i);
        }
    }
    let bits = signs.get(new_rows.len()).copied().unwrap_or(0);
    for (i, ((new, old), to)) in new_rest.iter().zip(old_rest).zip(to_rest).enumerate() {
        *to = flipped(*new, *old, bits, i);
    }
}

#[inline(always)]
fn each_rounded(entries: &[f32], words: &[u32], rounded: &mut [i32], squares: &mut u64) {
    let round = |entry: f32, word: u32| {
        let floor = entry.floor();
        // 24 bits, as many as the fraction of an `f32` has.
        let up = (word >> 8) as i32 as f32 * (1.0 / (1 << 24) as f32) < entry - floor;
        floor as i32 + i32::from(up)
    };
    let square = |integer: i32| (i64::from(integer) * i64::from(integer)) as u64;
    let mut sums = [0_u64; LANES];
    let (entry_rows, entry_rest) = entries.as_chunks::<LANES>();
    let (word_rows, word_rest) = words.as_chunks::<LANES>();
    let (rounded_rows, rounded_rest) = rounded.as_chunks_mut::<LANES>();
    for ((entries, words), rounded) in entry_rows.iter().zip(word_rows).zip(rounded_rows) {
        for i in 0..LANES {
            rounded[i] = round(entries[i], words[i]);
            sums[i] = sums[i].wrapping_add(square(rounded[i]));
        }
    }
    for ((entry, word), rounded) in entry_rest.iter().zip(word_rest).zip(rounded_rest) {
        *rounded = round(*entry, *word);
        sums[0] = sums[0].wrapping_add(square(*rounded));
    }
    *squares = sums.into_iter().fold(*squares, u64::wrapping_add);
}

#[inline(always)]
fn each_added(integers: &[i32], sum: &mut [u64]) {
    for (sum, &integer) in sum.iter_mut().zip(integers) {
        *sum = sum.wrapping_add(i64::from(integer) as u64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::{Granted, Isa};

    fn entries(len: usize) -> Vec<f32> {
        (0..len).map(|i| (i as f32 * 0.37).sin() * 10_f32.powi(i as i32 % 7 - 4)).collect()
    }

    #[test]
    fn every_instruction_set_transforms_like_the_reference_to_the_bit() {
        for power in 0..=13 {
            let mut expected = entries(1 << power);
            hadamard_reference(&mut expected);
            for isa in Isa::available() {
                let mut found = entries(1 << power);
                hadamard(Granted::new(isa), &mut found);
                let is_same = found.iter().zip(&expected).all(|(a, b)| a.to_bits() == b.to_bits());
                assert!(is_same, "{isa}, 2^{power} entries");
            }
        }
    }

    #[test]
    fn the_transform_has_the_entries_of_a_hadamard_matrix() {
        let len: usize = 1 << 9;
        for column in [0, 1, 37, 511] {
            let mut found = vec![0.0; len];
            found[column] = 1.0;
            hadamard(Granted::best(), &mut found);
            for (row, &entry) in found.iter().enumerate() {
                let sign = if (row & column).count_ones() % 2 == 0 { 1.0 } else { -1.0 };
                assert_eq!(entry.to_bits(), f32::to_bits(sign), "{row} {column}");
            }
        }
    }

    #[test]
    fn every_instruction_set_rounds_the_same_integers() {
        let (new, old) = (entries(1003), entries(1100).split_off(97));
        let words: Vec<u32> = (0..1003_u32).map(|i| i.wrapping_mul(0x9e37_79b9)).collect();
        let signs: Vec<u32> = words.iter().map(|word| word.rotate_left(7)).collect();
        for isa in Isa::available() {
            let kernel = Granted::new(isa);
            let (mut to, mut rounded, mut squares) = (vec![0.0; 1024], vec![0; 1003], 5);
            write_signed(kernel, &new, &old, 30.0, &signs, &mut to);
            assert!(to.drain(1003..).all(|entry| entry.to_bits() == 0), "{isa}");
            round_at_random(kernel, &to, &words, &mut rounded, &mut squares);
            let mut total = 5;
            for i in 0..1003 {
                let sign = if signs[i / 32] >> (i % 32) & 1 == 1 { -1.0 } else { 1.0 };
                let value = ((f64::from(new[i]) - f64::from(old[i])) * 30.0) as f32;
                assert_eq!(to[i].to_bits(), (sign * value).to_bits(), "{isa}, entry {i}");
                let floor = to[i].floor();
                let up = ((words[i] >> 8) as f32 / (1 << 24) as f32) < to[i] - floor;
                assert_eq!(rounded[i], floor as i32 + i32::from(up), "{isa}, entry {i}");
                total += (rounded[i] * rounded[i]) as u64;
            }
            assert_eq!(squares, total, "{isa}");
            let mut sum = vec![7; 1003];
            add_integers(kernel, &rounded, &mut sum);
            let added = |(&sum, &integer): (&u64, &i32)| sum as i64 == 7 + i64::from(integer);
            assert!(sum.iter().zip(&rounded).all(added), "{isa}");
        }
    }
}
