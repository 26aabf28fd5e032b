//! Means of the vectors of words, and the addition of slopes to them: plain loops, compiled for
//! each instruction set.

#![allow(unsafe_code)]

use super::dispatch::plain_entry;

plain_entry! {
    /// Writes the mean of the vectors of each text, a row of `stride` floats per `len` words. Word
    /// 0 is padding. A text without words has the mean 0.
    pub(crate) fn means(vectors: &[f32], stride: usize, words: &[u32], len: usize, out: &mut [f32]) = each_mean
}

plain_entry! {
    /// Adds the slope of each mean, divided by the number of words, to the vectors of the words.
    pub(crate) fn add_slopes(slopes: &mut [f32], stride: usize, words: &[u32], len: usize, vectors: &mut [f32])
        = each_slope
}

#[inline(always)]
fn each_mean(vectors: &[f32], stride: usize, words: &[u32], len: usize, out: &mut [f32]) {
    for (text, out) in words.chunks_exact(len).zip(out.chunks_exact_mut(stride)) {
        out.fill(0.0);
        let mut count = 0u32;
        for &word in text.iter().filter(|&&word| word > 0) {
            let vector = &vectors[word as usize * stride..][..stride];
            out.iter_mut().zip(vector).for_each(|(sum, x)| *sum += x);
            count += 1;
        }
        if count > 1 {
            let share = 1.0 / count as f32;
            out.iter_mut().for_each(|sum| *sum *= share);
        }
    }
}

#[inline(always)]
fn each_slope(slopes: &mut [f32], stride: usize, words: &[u32], len: usize, vectors: &mut [f32]) {
    for (text, slope) in words.chunks_exact(len).zip(slopes.chunks_exact_mut(stride)) {
        let count = text.iter().filter(|&&word| word > 0).count();
        if count > 1 {
            let share = 1.0 / count as f32;
            slope.iter_mut().for_each(|x| *x *= share);
        }
        for &word in text.iter().filter(|&&word| word > 0) {
            let vector = &mut vectors[word as usize * stride..][..stride];
            vector.iter_mut().zip(&*slope).for_each(|(x, slope)| *x += slope);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::{Granted, Isa};

    #[test]
    fn every_instruction_set_gives_the_same_bits() {
        let vectors: Vec<f32> = (0..5 * 32).map(|i| (i as f32 * 0.7).sin()).collect();
        let words = [1, 2, 0, 4, 4, 4, 0, 0, 0];
        let run = |isa| {
            let kernel = Granted::new(isa);
            let (mut out, mut changed) = (vec![0.0; 3 * 32], vectors.clone());
            means(kernel, &vectors, 32, &words, 3, &mut out);
            add_slopes(kernel, &mut out, 32, &words, 3, &mut changed);
            (out, changed)
        };
        for isa in Isa::available() {
            assert_eq!(run(isa), run(Isa::Reference), "{isa}");
        }
    }

    #[test]
    fn padding_counts_neither_in_the_mean_nor_in_the_slopes() {
        let kernel = Granted::new(Isa::detect());
        let mut vectors = [9.0, 1.0, 3.0];
        let mut out = [0.0; 2];
        means(kernel, &vectors, 1, &[1, 2, 0, 0], 2, &mut out);
        assert_eq!(out, [2.0, 0.0]);
        add_slopes(kernel, &mut [4.0, 5.0], 1, &[1, 2, 2, 0], 2, &mut vectors);
        assert_eq!(vectors, [9.0, 3.0, 10.0]);
    }
}
