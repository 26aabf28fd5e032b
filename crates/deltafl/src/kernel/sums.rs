//! Sums of rows: plain loops, compiled for each instruction set.

#![allow(unsafe_code)]

use super::dispatch::plain_entry;

plain_entry! {
    /// Adds every row of `total.len()` floats to `total`.
    pub(crate) fn add_rows(rows: &[f32], total: &mut [f32]) = each_row
}

plain_entry! {
    /// Computes total ← decay·total + gradient.
    pub(crate) fn add_decayed(gradient: &[f32], decay: f32, total: &mut [f32]) = decayed
}

plain_entry! {
    /// Adds `bias` to each row.
    pub(crate) fn biased(rows: &[f32], bias: &[f32], to: &mut [f32]) = each_biased
}

#[inline(always)]
fn each_row(rows: &[f32], total: &mut [f32]) {
    for row in rows.chunks_exact(total.len()) {
        total.iter_mut().zip(row).for_each(|(total, x)| *total += x);
    }
}

#[inline(always)]
fn decayed(gradient: &[f32], decay: f32, total: &mut [f32]) {
    total.iter_mut().zip(gradient).for_each(|(w, g)| *w = decay * *w + g);
}

#[inline(always)]
fn each_biased(rows: &[f32], bias: &[f32], to: &mut [f32]) {
    for (to, row) in to.chunks_exact_mut(bias.len()).zip(rows.chunks_exact(bias.len())) {
        to.iter_mut().zip(row.iter().zip(bias)).for_each(|(to, (x, b))| *to = x + b);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::{Granted, Isa};

    #[test]
    fn every_instruction_set_gives_the_same_bits() {
        let numbers = |len: usize| -> Vec<f32> { (0..len).map(|i| (i as f32 * 0.7).sin()).collect() };
        for width in [1, 7, 16, 33] {
            let rows = numbers(5 * width);
            let run = |isa| {
                let kernel = Granted::new(isa);
                let (mut total, mut to) = (numbers(width), vec![0.0; rows.len()]);
                add_rows(kernel, &rows, &mut total);
                add_decayed(kernel, &rows[width..], 0.3, &mut total);
                biased(kernel, &rows, &total, &mut to);
                (total, to)
            };
            for isa in Isa::available() {
                assert_eq!(run(isa), run(Isa::Reference), "{isa}, {width}");
            }
        }
    }

    #[test]
    fn rows_are_added_and_biased() {
        let kernel = Granted::new(Isa::detect());
        let (mut total, mut to) = ([10.0, 20.0], [0.0; 4]);
        add_rows(kernel, &[1.0, 2.0, 3.0, 4.0], &mut total);
        biased(kernel, &[1.0, 2.0, 3.0, 4.0], &total, &mut to);
        assert_eq!((total, to), ([14.0, 26.0], [15.0, 28.0, 17.0, 30.0]));
        add_decayed(kernel, &[1.0, 1.0], 0.5, &mut total);
        assert_eq!(total, [8.0, 14.0]);
    }
}
