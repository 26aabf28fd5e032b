//! Features on their way into a batch: out_j = scale_j · x_j + shift_j, of floats or of grey levels.

#![allow(unsafe_code)]

use super::dispatch::plain_entry;

plain_entry! {
    /// The features of a row of floats.
    pub(crate) fn floats(row: &[f32], scale: &[f32], shift: &[f32], out: &mut [f32]) = each_float
}

plain_entry! {
    /// The features of a row of grey levels.
    pub(crate) fn bytes(row: &[u8], scale: &[f32], shift: &[f32], out: &mut [f32]) = each_byte
}

#[inline(always)]
fn each_float(row: &[f32], scale: &[f32], shift: &[f32], out: &mut [f32]) {
    for ((out, &x), (scale, shift)) in out.iter_mut().zip(row).zip(scale.iter().zip(shift)) {
        *out = x * scale + shift;
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
            let (row, scale, shift) = (numbers(0.3), numbers(0.7), numbers(1.1));
            let grey: Vec<u8> = (0..len).map(|i| (i * 37 % 256) as u8).collect();
            let run = |isa| {
                let (mut a, mut b) = (vec![0.0; len], vec![0.0; len]);
                floats(Granted::new(isa), &row, &scale, &shift, &mut a);
                bytes(Granted::new(isa), &grey, &scale, &shift, &mut b);
                [a, b]
            };
            for isa in Isa::available() {
                assert_eq!(run(isa), run(Isa::Reference), "{isa}, {len}");
            }
        }
    }
}
