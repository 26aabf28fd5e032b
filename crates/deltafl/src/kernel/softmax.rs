//! Softmax and cross-entropy over rows of logits.
//!
//! ```text
//! p_c = exp(z_c − max z) / Σ exp(z − max z),     f = log Σ exp(z − max z) − (z_y − max z)
//! ```
//!
//! Subtracting the largest logit keeps both stable for any logits. Rows are padded, and entries
//! after the last class are ignored.

#![allow(unsafe_code, unsafe_op_in_unsafe_fn)]

use super::dispatch::entry;
use super::product::COLUMNS;
use super::simd::Simd;
use super::{Granted, activation};
use crate::model::Score;
use crate::task::ERRORS;

/// Rows of logits, `stride` floats each, of which the first `classes` are logits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rows {
    pub(crate) classes: usize,
    pub(crate) stride: usize,
}

entry! {
    /// Replaces each row by scale·(softmax(z) − 1[c = y]), and the padding by zeros.
    pub(crate) fn residuals(rows: Rows, logits: &mut [f32], labels: &[u32], scale: f32)
        = residuals_in_vectors, residuals_reference
}

entry! {
    /// Adds the losses of the rows and the errors. An error is a row whose first largest logit is
    /// not the label.
    fn add_score(rows: Rows, logits: &[f32], labels: &[u32], score: &mut Score)
        = score_in_vectors, score_reference
}

/// Returns the summed cross-entropy of the rows and the number of misclassified rows.
pub(crate) fn score(kernel: Granted, rows: Rows, logits: &[f32], labels: &[u32]) -> Score {
    let mut score = Score::default();
    add_score(kernel, rows, logits, labels, &mut score);
    score
}

fn residuals_reference(rows: Rows, logits: &mut [f32], labels: &[u32], scale: f32) {
    for (z, &label) in logits.chunks_exact_mut(rows.stride).zip(labels) {
        let (z, padding) = z.split_at_mut(rows.classes);
        padding.fill(0.0);
        let max = z.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        z.iter_mut().for_each(|z| *z = (*z - max).exp());
        let total: f32 = z.iter().sum();
        z.iter_mut().for_each(|z| *z *= scale / total);
        z[label as usize] -= scale;
    }
}

fn score_reference(rows: Rows, logits: &[f32], labels: &[u32], score: &mut Score) {
    for (z, &label) in logits.chunks_exact(rows.stride).zip(labels) {
        let z = &z[..rows.classes];
        let max = z.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let total: f32 = z.iter().map(|z| (z - max).exp()).sum();
        add(score, z, label as usize, max, total);
    }
}

/// Adds a row with known largest logit and Σ exp(z − max).
#[inline(always)]
fn add(score: &mut Score, z: &[f32], label: usize, max: f32, total: f32) {
    score.loss += f64::from(total).ln() - f64::from(z[label] - max);
    // Ties are resolved to the first index, as in NumPy and PyTorch.
    let hit = z[label] >= max && z[..label].iter().all(|&z| z < max);
    score.sums[ERRORS] += f64::from(u8::from(!hit));
}

/// Checks that the rows are long enough and that every label is a class.
#[inline(always)]
fn check(rows: Rows, logits: &[f32], labels: &[u32]) {
    let Rows { classes, stride } = rows;
    assert!(classes <= stride && stride.is_multiple_of(COLUMNS) && logits.len() >= labels.len() * stride);
    assert!(labels.iter().all(|&label| (label as usize) < classes), "a label is not a class");
}

#[inline(always)]
unsafe fn residuals_in_vectors<S: Simd>(_: S, rows: Rows, logits: &mut [f32], labels: &[u32], scale: f32) {
    check(rows, logits, labels);
    for (z, &label) in logits.chunks_exact_mut(rows.stride).zip(labels) {
        let max = largest::<S>(z.as_ptr(), rows.classes);
        let mut sums = S::zero();
        for j in (0..rows.classes).step_by(S::LANES) {
            let lanes = rows.classes - j;
            let e = activation::exp::<S>(S::sub(S::load(z.as_ptr().add(j)), S::splat(max)));
            let e = if lanes < S::LANES { S::mul(e, ones::<S>(lanes)) } else { e };
            S::store(z.as_mut_ptr().add(j), e);
            sums = S::add(sums, e);
        }
        let factor = S::splat(scale / S::sum(sums));
        for j in (0..rows.stride).step_by(S::LANES) {
            let at = z.as_mut_ptr().add(j);
            let p = if j < rows.classes { S::mul(S::load(at), factor) } else { S::zero() };
            S::store(at, p);
        }
        z[label as usize] -= scale;
    }
}

#[inline(always)]
unsafe fn score_in_vectors<S: Simd>(_: S, rows: Rows, logits: &[f32], labels: &[u32], score: &mut Score) {
    check(rows, logits, labels);
    for (z, &label) in logits.chunks_exact(rows.stride).zip(labels) {
        let max = largest::<S>(z.as_ptr(), rows.classes);
        let mut sums = S::zero();
        for j in (0..rows.classes).step_by(S::LANES) {
            let lanes = rows.classes - j;
            let e = activation::exp::<S>(S::sub(S::load(z.as_ptr().add(j)), S::splat(max)));
            sums = if lanes < S::LANES { S::fma(e, ones::<S>(lanes), sums) } else { S::add(sums, e) };
        }
        add(score, &z[..rows.classes], label as usize, max, S::sum(sums));
    }
}

/// Returns the largest of `classes` floats in a padded row.
#[inline(always)]
unsafe fn largest<S: Simd>(z: *const f32, classes: usize) -> f32 {
    let mut max = S::splat(f32::NEG_INFINITY);
    for j in (0..classes).step_by(S::LANES) {
        let (v, lanes) = (S::load(z.add(j)), classes - j);
        let v = if lanes < S::LANES {
            S::where_greater(ones::<S>(lanes), S::zero(), v, S::splat(f32::NEG_INFINITY))
        } else {
            v
        };
        max = S::max(max, v);
    }
    S::largest(max)
}

/// Returns one in the first lanes and zero in the others.
#[inline(always)]
unsafe fn ones<S: Simd>(lanes: usize) -> S::V {
    S::load_first([1.0f32; COLUMNS].as_ptr(), lanes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::Isa;
    use crate::stream::{Purpose, Stream};

    fn logits(classes: usize, rows: usize) -> (Rows, Vec<f32>, Vec<u32>) {
        let stream = &mut Stream::new(1, Purpose::Synthesis, 0, classes as u64);
        let stride = classes.next_multiple_of(COLUMNS);
        let z = (0..rows * stride).map(|_| stream.uniform(-20.0, 20.0) as f32).collect();
        let labels = (0..rows).map(|_| stream.below(classes as u64) as u32).collect();
        (Rows { classes, stride }, z, labels)
    }

    #[test]
    fn every_instruction_set_agrees_with_the_reference() {
        for classes in [1, 2, 7, 8, 15, 16, 17, 53, 62, 64] {
            let (rows, z, labels) = logits(classes, 5);
            let mut expected = z.clone();
            residuals_reference(rows, &mut expected, &labels, 0.5);
            let mut expected_score = Score::default();
            score_reference(rows, &z, &labels, &mut expected_score);
            for isa in Isa::available() {
                let mut got = z.clone();
                residuals(Granted::new(isa), rows, &mut got, &labels, 0.5);
                let worst = expected.iter().zip(&got).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
                assert!(worst < 1e-6, "{isa}, {classes} classes: off by {worst}");
                let got = score(Granted::new(isa), rows, &z, &labels);
                assert_eq!(got.sums, expected_score.sums, "{isa}");
                assert!((got.loss - expected_score.loss).abs() < 1e-5, "{isa}");
            }
        }
    }

    #[test]
    fn huge_logits_have_a_finite_loss_and_ties_go_to_the_first_class() {
        let mut z = vec![0.0; 16];
        z[..4].copy_from_slice(&[-3e4, 1e4, 1e4, -1e4]);
        let rows = Rows { classes: 4, stride: 16 };
        for isa in Isa::available() {
            let first = score(Granted::new(isa), rows, &z, &[1]);
            let second = score(Granted::new(isa), rows, &z, &[2]);
            assert_eq!((first.sums[ERRORS], second.sums[ERRORS]), (0.0, 1.0), "{isa}");
            assert!((first.loss - std::f64::consts::LN_2).abs() < 1e-6 && first.loss.is_finite());
            assert!((score(Granted::new(isa), rows, &z, &[0]).loss - 4e4).abs() < 1.0);
        }
    }

    #[test]
    fn a_logit_that_is_not_a_number_gives_such_a_loss() {
        for isa in Isa::available() {
            let z: Vec<f32> = (0..16).map(|j| if j == 3 { f32::NAN } else { 0.5 }).collect();
            let rows = Rows { classes: 7, stride: 16 };
            assert!(score(Granted::new(isa), rows, &z, &[1]).loss.is_nan(), "{isa}");
        }
    }
}
