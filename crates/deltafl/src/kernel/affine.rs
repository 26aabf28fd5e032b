//! Normalisation of features for a batch: out_j = scale_j · x_j + shift_j, for floats or grey
//! levels.

#![allow(unsafe_code, unsafe_op_in_unsafe_fn)]

use super::dispatch::{entry, plain_entry};
use super::simd::Simd;

entry! {
    /// Normalises some rows of floats. Nothing is fused, so every instruction set gives the same
    /// bits.
    pub(crate) fn floats(values: &[f32], rows: &[usize], scale: &[f32], shift: &[f32], out: &mut [f32])
        = floats_in_vectors, each_float
}

plain_entry! {
    /// Normalises a row of grey levels.
    pub(crate) fn bytes(row: &[u8], scale: &[f32], shift: &[f32], out: &mut [f32]) = each_byte
}

fn each_float(values: &[f32], rows: &[usize], scale: &[f32], shift: &[f32], out: &mut [f32]) {
    let dim = scale.len();
    for (&row, out) in rows.iter().zip(out.chunks_exact_mut(dim)) {
        for ((out, &x), (scale, shift)) in
            out.iter_mut().zip(&values[row * dim..]).zip(scale.iter().zip(shift))
        {
            *out = x * scale + shift;
        }
    }
}

/// Processes one vector of features over all rows, so that scale and shift stay in registers.
#[inline(always)]
unsafe fn floats_in_vectors<S: Simd>(
    _: S,
    values: &[f32],
    rows: &[usize],
    scale: &[f32],
    shift: &[f32],
    out: &mut [f32],
) {
    let dim = scale.len();
    assert!(shift.len() == dim && out.len() == rows.len() * dim, "a scale and a shift per feature");
    assert!(rows.iter().all(|row| (row + 1) * dim <= values.len()), "rows of the values");
    for j in (0..dim).step_by(S::LANES) {
        let lanes = dim - j;
        let scale = S::load_first(scale.as_ptr().add(j), lanes);
        let shift = S::load_first(shift.as_ptr().add(j), lanes);
        for (i, row) in rows.iter().enumerate() {
            let x = S::load_first(values.as_ptr().add(row * dim + j), lanes);
            S::store_first(out.as_mut_ptr().add(i * dim + j), S::add(S::mul(x, scale), shift), lanes);
        }
    }
}

#[inline(always)]
fn each_byte(row: &[u8], scale: &[f32], shift: &[f32], out: &mut [f32]) {
    for ((out, &x), (scale, shift)) in out.iter_mut().zip(row).zip(scale.iter().zip(shift)) {
        *out = f32::from(x) * scale + shift;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::{Granted, Isa};

    #[test]
    fn every_instruction_set_gives_the_same_bits() {
        for len in [1, 7, 16, 31, 784] {
            let numbers = |factor: f32| -> Vec<f32> { (0..len).map(|i| (i as f32 * factor).sin()).collect() };
            let (scale, shift) = (numbers(0.7), numbers(1.1));
            let values = [numbers(0.3), numbers(0.4), numbers(0.5)].concat();
            let grey: Vec<u8> = (0..len).map(|i| (i * 37 % 256) as u8).collect();
            let run = |isa| {
                let (mut a, mut b) = (vec![0.0; 3 * len], vec![0.0; len]);
                floats(Granted::new(isa), &values, &[2, 0, 1], &scale, &shift, &mut a);
                bytes(Granted::new(isa), &grey, &scale, &shift, &mut b);
                [a, b]
            };
            for isa in Isa::available() {
                assert_eq!(run(isa), run(Isa::Reference), "{isa}, {len}");
            }
        }
    }
}
