//! Updates as integers of bounded norm (Kairouz, Liu, Steinke 2021).
//!
//! ```text
//! x = ω_k·min(1, C/‖w_k − w‖)·(w_k − w)·K/C        clipped; K units are the norm C
//! y = H·diag(±1)·x                                 padded to D entries, rotated
//! z = ⌊y⌋ + Bernoulli(y − ⌊y⌋)                     drawn again until ‖z‖ is within its bound
//! answer: [ z …, ω_k·K/8, ω_k·K/8 if the update was not shortened ] + noise
//! ```
//!
//! D is a multiple of 1,024, or a power of two for fewer params. H is block diagonal: its blocks
//! are normalised Hadamard matrices with the sizes of the ones in the binary expansion of D,
//! largest first. The rotation has public signs. It spreads an update over all entries, so that
//! rounding costs each update about the same. The bound on ‖z‖ is that of the paper at β = e^−½,
//! and a device checks it on the integers. The last two entries are the weight of the tail and the
//! part of it that the clipping bound left unchanged.

use std::cell::RefCell;
use std::ops::Range;

use super::noise::signed;
use super::{Noise, Sensitivity};
use crate::kernel::{Granted, fixed_point, rotation};
use crate::params::UpdateSum;
use crate::stream::{BulkWords, Stream};
use crate::terms::Clip;

/// The entries after the update: the weight of the tail, and of its updates that were not
/// shortened.
pub(crate) const FOOTER: usize = 2;
/// K is this many times the unit of a weight.
const WEIGHT_SHARE: u32 = 8;
/// The number of roundings that a device draws. Each fails with a probability below 0.61.
pub(crate) const ATTEMPTS: usize = 40;

/// The granularity of D. Smaller blocks of the rotation would spread an update less.
const SMALLEST_BLOCK: usize = 1024;

/// Returns D: the number of entries of a rotated update.
pub(crate) fn padded(params: usize) -> usize {
    match params {
        0..SMALLEST_BLOCK => params.max(1).next_power_of_two(),
        _ => params.next_multiple_of(SMALLEST_BLOCK),
    }
}

/// Returns the blocks of the rotation: powers of two that add up to D, largest first.
fn blocks(entries: usize) -> impl Iterator<Item = Range<usize>> {
    let mut start = 0;
    std::iter::from_fn(move || {
        let size = 1 << (entries - start).checked_ilog2()?;
        start += size;
        Some(start - size..start)
    })
}

/// Returns the length of an answer.
pub(super) fn answer_len(params: usize) -> usize {
    padded(params) + FOOTER
}

/// Returns a K for which rounding raises the norm by about half a percent.
pub(super) fn fine_units(params: usize) -> u32 {
    ((5.0 * (padded(params) as f64).sqrt()) as u32).next_power_of_two().max(64)
}

/// Returns the largest norm of the rounded entries of an update of norm K.
pub(crate) fn rounded_norm(units: u32, entries: usize) -> f64 {
    let (k, d) = (f64::from(units), entries as f64);
    let spread = (k * k + d / 4.0 + k + d.sqrt() / 2.0).sqrt();
    spread.min(k + d.sqrt())
}

/// Returns the influence of one device.
pub(super) fn sensitivity(units: u32, params: usize) -> Sensitivity {
    let weight = f64::from(units / WEIGHT_SHARE);
    let squared = rounded_norm(units, padded(params)).powi(2) + FOOTER as f64 * weight * weight;
    let entries = answer_len(params);
    // Integers: the sum of magnitudes is at most the sum of squares.
    let l1 = squared.min((entries as f64 * squared).sqrt());
    Sensitivity { entries: entries as u64, l2: squared.sqrt(), l1 }
}

/// Adds the update of a device of weight ω_k ∈ [0, 1] to its answer, without noise. Returns `false`
/// and adds nothing if the update is not finite.
pub(crate) fn add(
    noise: &Noise,
    clip: Clip,
    (params, local): (&[f32], &[f32]),
    weight: f64,
    signs: &mut Stream,
    private: &mut Stream,
    answer: &mut [u64],
) -> bool {
    let (kernel, mut squares) = (Granted::best(), 0.0);
    fixed_point::add_squares(kernel, local, params, &mut squares);
    let norm = squares.sqrt();
    if !norm.is_finite() || !(0.0..=1.0).contains(&weight) {
        return false;
    }
    let units = f64::from(noise.units);
    let scale = weight * clip.factor(norm) * units / clip.get();
    let entries = padded(params.len());
    let (update, footer) = answer.split_at_mut(entries);
    SCRATCH.with_borrow_mut(|Scratch { rotated, rounded }| {
        rotated.clear();
        rotated.resize(entries, 0.0);
        let signs = sign_words(signs, params.len());
        for block in blocks(entries) {
            let present = block.start.min(params.len())..block.end.min(params.len());
            let scale = scale / (block.len() as f64).sqrt();
            let (new, old, rotated) =
                (&local[present.clone()], &params[present.clone()], &mut rotated[block]);
            rotation::write_signed(kernel, new, old, scale, &signs[present.start / 32..], rotated);
            rotation::hadamard(kernel, rotated);
        }
        round(rotated, rounded_norm(noise.units, entries), private, rounded);
        rotation::add_integers(kernel, rounded, update);
    });
    let counted = counted(noise, weight);
    footer[0] = footer[0].wrapping_add(counted);
    if norm <= clip.get() {
        footer[1] = footer[1].wrapping_add(counted);
    }
    true
}

/// Returns the weight ω_k in units of the footer.
pub(crate) fn counted(noise: &Noise, weight: f64) -> u64 {
    (weight * f64::from(noise.units / WEIGHT_SHARE)).floor() as u64
}

/// Returns the signs of the rotation, 32 in a word.
pub(crate) fn sign_words(signs: &mut Stream, params: usize) -> Vec<u32> {
    let words = (0..params.div_ceil(64)).map(|_| signs.next_u64());
    words.flat_map(|word| [word as u32, (word >> 32) as u32]).collect()
}

/// The vectors of one update. A thread keeps them, because an update takes little longer than the
/// allocation of its vectors.
#[derive(Default)]
struct Scratch {
    rotated: Vec<f32>,
    rounded: Vec<i32>,
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

/// Rounds rotated entries at random to integers whose norm is at most `most`.
fn round(rotated: &[f32], most: f64, stream: &mut Stream, rounded: &mut Vec<i32>) {
    let (kernel, limit) = (Granted::best(), most * most);
    rounded.resize(rotated.len(), 0);
    let mut words = BulkWords::new(stream);
    let mut buffer = [0; BulkWords::BATCH];
    for _ in 0..ATTEMPTS {
        let mut squares = 0;
        let rows = rotated.chunks(BulkWords::BATCH).zip(rounded.chunks_mut(BulkWords::BATCH));
        for (entries, rounded) in rows {
            let words = words.next(entries.len(), &mut buffer);
            rotation::round_at_random(kernel, entries, words, rounded, &mut squares);
        }
        if squares as f64 <= limit {
            return;
        }
    }
    // Rounding towards zero never lengthens an update.
    let mut squares = 0.0;
    for (rounded, entry) in rounded.iter_mut().zip(rotated) {
        *rounded = entry.trunc() as i32;
        squares += f64::from(*rounded).powi(2);
    }
    if squares > limit {
        rounded.fill(0);
    }
}

/// Changes the signs of entries at random.
fn flip(entries: &mut [f64], signs: &mut Stream) {
    for entries in entries.chunks_mut(64) {
        let mut bits = signs.next_u64();
        for entry in entries {
            if bits & 1 == 1 {
                *entry = -*entry;
            }
            bits >>= 1;
        }
    }
}

/// The Walsh–Hadamard transform, without normalisation. The number of entries is a power of two.
fn hadamard(entries: &mut [f64]) {
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

/// A decoded noisy sum of updates.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct DecodedUpdate {
    /// Σ ω_k·(clipped update) over the tail.
    pub(crate) sum: Vec<f64>,
    /// Σ ω_k over the tail.
    pub(crate) weight: f64,
    /// The part of the weight whose updates were not shortened.
    pub(crate) unclipped: f64,
}

impl DecodedUpdate {
    /// Decodes a sum. Returns `None` if its length does not match.
    pub(crate) fn new(
        noise: &Noise,
        clip: Clip,
        params: usize,
        sum: &[u64],
        signs: &mut Stream,
    ) -> Option<Self> {
        if sum.len() != answer_len(params) {
            return None;
        }
        let entries = padded(params);
        let scale = clip.get() / f64::from(noise.units);
        let mut decoded = Vec::with_capacity(entries);
        for block in blocks(entries) {
            let scale = scale / (block.len() as f64).sqrt();
            let start = block.start;
            decoded.extend(sum[block].iter().map(|&entry| signed(entry) * scale));
            hadamard(&mut decoded[start..]);
        }
        flip(&mut decoded, signs);
        decoded.truncate(params);
        let unit = f64::from(noise.units / WEIGHT_SHARE);
        Some(Self {
            sum: decoded,
            weight: signed(sum[entries]) / unit,
            unclipped: signed(sum[entries + 1]) / unit,
        })
    }

    /// Returns the standard deviation of the weight in a sum over this many devices.
    pub(crate) fn weight_deviation(noise: &Noise, devices: u64) -> f64 {
        noise.deviation(devices) * f64::from(WEIGHT_SHARE)
    }

    /// Returns the sum for the server step. A weight below `least` is raised to it, so that noise
    /// around an empty tail is not divided by a tiny weight.
    pub(crate) fn into_sum(self, least: f64) -> UpdateSum {
        let weight = self.weight.max(least);
        let mean: Vec<f64> = self.sum.iter().map(|entry| entry / weight).collect();
        UpdateSum::from_mean(&mean, weight)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::privacy::{ExcessKey, excess};
    use crate::question::{Ask, Query};
    use crate::stream::Purpose;

    fn stream(device: u64) -> Stream {
        Stream::new(1, Purpose::Synthesis, 0, device)
    }

    #[test]
    fn a_sum_without_noise_is_the_sum_of_the_clipped_updates() {
        let clip = Clip::try_from(2.0).unwrap();
        let noise = Noise { variance: 0, units: 1 << 16, honest: 1, clip: Some(clip), excess: None };
        let params = vec![0.5_f32; 5];
        let updates = [[1.5_f32, 0.5, 0.5, 0.5, 0.5], [0.5, 8.5, 0.5, 0.5, 6.5]];
        let mut sum = vec![0; answer_len(5)];
        for (k, local) in updates.iter().enumerate() {
            let mut answer = vec![0; answer_len(5)];
            assert!(add(
                &noise,
                clip,
                (&params, local),
                1.0,
                &mut stream(9),
                &mut stream(k as u64),
                &mut answer
            ));
            crate::params::add_wrapping(&mut sum, &answer);
        }
        assert!(!add(&noise, clip, (&params, &[f32::NAN; 5]), 1.0, &mut stream(9), &mut stream(7), &mut sum));
        let decoded = DecodedUpdate::new(&noise, clip, 5, &sum, &mut stream(9)).unwrap();
        // The second update has norm 10 and is shortened to 2.
        for (found, expected) in decoded.sum.iter().zip([1.0, 1.6, 0.0, 0.0, 1.2]) {
            assert!((found - expected).abs() < 1e-3, "{decoded:?}");
        }
        assert_eq!((decoded.weight, decoded.unclipped), (2.0, 1.0));
    }

    #[test]
    fn the_blocks_of_a_rotation_are_powers_of_two_and_cover_it_once() {
        for (params, expected) in [(1, 1), (5, 8), (1023, 1024), (48_608, 49_152), (115_646, 115_712)] {
            assert_eq!(padded(params), expected);
            let (mut end, mut last) = (0, usize::MAX);
            for block in blocks(expected) {
                assert!(block.start == end && block.len().is_power_of_two() && block.len() < last);
                (end, last) = (block.end, block.len());
            }
            assert_eq!(end, expected);
        }
    }

    #[test]
    fn no_answer_is_longer_than_its_sensitivity() {
        let clip = Clip::try_from(1.0).unwrap();
        for (params, units) in [(1000, 64), (1000, 1024), (7, 64), (3100, 256)] {
            let noise = Noise { variance: 0, units, honest: 1, clip: Some(clip), excess: None };
            let bound = sensitivity(units, params);
            for device in 0..20 {
                let mut random = stream(device);
                let local: Vec<f32> = (0..params).map(|_| 100.0 * random.normal() as f32).collect();
                let mut answer = vec![0; answer_len(params)];
                let zero = vec![0.0; params];
                assert!(add(&noise, clip, (&zero, &local), 1.0, &mut stream(99), &mut random, &mut answer));
                let entries = || answer.iter().map(|&entry| signed(entry));
                let l2 = entries().map(|entry| entry * entry).sum::<f64>().sqrt();
                let l1 = entries().map(f64::abs).sum::<f64>();
                assert!(l2 <= bound.l2 && l1 <= bound.l1, "{params} {units}: {l2} {l1} {bound:?}");
                assert!(l2 > 0.9 * f64::from(units));
            }
        }
    }

    /// A lying server chooses C, and w such that the updates of some devices are zero.
    #[test]
    fn no_clipping_bound_and_no_update_exceed_the_sensitivity() {
        for clip in [f64::from_bits(1), 1e-310, 1e-46, 1e-38, 1e-5, 1.0, 1e38, f64::MAX] {
            let clip = Clip::try_from(clip).unwrap();
            for units in [8, 1 << 24] {
                let noise = Noise { variance: 0, units, honest: 1, clip: Some(clip), excess: None };
                let bound = sensitivity(units, 20);
                for size in [0.0, f32::from_bits(1), 1e-40, 1e-10, 1.0, 1e38, f32::INFINITY, f32::NAN] {
                    let mut local = vec![size; 20];
                    (local[3], local[7]) = (0.0, -size);
                    let mut answer = vec![0; answer_len(20)];
                    add(&noise, clip, (&[0.0; 20], &local), 1.0, &mut stream(9), &mut stream(1), &mut answer);
                    let squares = answer.iter().map(|&entry| (entry as i64 as f64).powi(2));
                    let l2 = squares.sum::<f64>().sqrt();
                    assert!(l2 <= bound.l2, "{clip:?} {units} {size}: {l2} {bound:?}");
                }
            }
        }
    }

    #[test]
    fn rounding_is_unbiased_and_the_rotation_is_undone() {
        let clip = Clip::try_from(1.0).unwrap();
        let noise = Noise { variance: 0, units: 64, honest: 1, clip: Some(clip), excess: None };
        let local = [0.1_f32, -0.2, 0.05, 0.0, 0.3, -0.01];
        let mut sums = vec![0.0; 6];
        let draws = 4000;
        for k in 0..draws {
            let mut answer = vec![0; answer_len(6)];
            add(&noise, clip, (&[0.0; 6], &local), 1.0, &mut stream(9), &mut stream(k), &mut answer);
            let decoded = DecodedUpdate::new(&noise, clip, 6, &answer, &mut stream(9)).unwrap();
            sums.iter_mut().zip(&decoded.sum).for_each(|(sum, entry)| *sum += entry);
        }
        // A rounded entry has a variance of at most 1/4 unit², and so has a rotated one.
        let error = 4.0 * 0.5 / 64.0 / (draws as f64).sqrt();
        for (sum, expected) in sums.iter().zip(local) {
            assert!((sum / draws as f64 - f64::from(expected)).abs() < error, "{sums:?}");
        }
    }

    /// Twelve of sixteen devices survive, and two of these are outside the tail. Returns the
    /// decoded sum of ten updates of a ConvNet with noise, and the exact one.
    fn noisy_sum(noise: &Noise) -> (DecodedUpdate, Vec<f64>) {
        let (params, clip) = (115_646, noise.clip.unwrap());
        let (zero, mut sum) = (vec![0.0; params], vec![0; answer_len(params)]);
        let mut expected = vec![0.0; params];
        let query = Query { noise: Some(*noise), ..Query::new((), Ask::Evaluation(Vec::new())) };
        let mut revealed = Vec::new();
        for device in 0..SURVIVORS {
            let mut private = stream(device);
            let first = ExcessKey::first(stream(100 + device));
            if device >= 2 {
                let local: Vec<f32> = (0..params).map(|_| 0.001 * private.normal() as f32).collect();
                assert!(add(noise, clip, (&zero, &local), 1.0, &mut stream(99), &mut private, &mut sum));
                expected.iter_mut().zip(&local).for_each(|(sum, entry)| *sum += f64::from(*entry));
            }
            noise.add_to(&mut sum, &mut private);
            noise.add_all_parts(first, query.number(), &mut sum);
            let part = excess::last_kept(std::slice::from_ref(&query), SURVIVORS) + 1;
            revealed.push(first.later(part).bytes());
        }
        // The server.
        for key in revealed {
            let key = ExcessKey::revealed(std::slice::from_ref(&query), SURVIVORS, key);
            noise.subtract_parts(key, query.number(), &mut sum);
        }
        (DecodedUpdate::new(noise, clip, params, &sum, &mut stream(99)).unwrap(), expected)
    }

    const SURVIVORS: u64 = 12;

    /// Checks the errors of a sum in which each of the survivors has noise of this variance.
    fn check_errors(noise: &Noise, each: f64) {
        let (decoded, expected) = noisy_sum(noise);
        let unit = noise.clip.unwrap().get() / f64::from(noise.units);
        // Rounding at random adds between 0 and ¼ unit² per device in the tail, on average 1/6.
        let variance = unit * unit * (SURVIVORS as f64 * each + 10.0 / 6.0);
        let errors = || decoded.sum.iter().zip(&expected).map(|(found, exact)| found - exact);
        let params = expected.len() as f64;
        let mean = errors().sum::<f64>() / params;
        assert!(mean.abs() < 4.0 * (variance / params).sqrt(), "{mean}");
        let found = errors().map(|error| error * error).sum::<f64>() / params;
        // The variance of a sample variance of n normal numbers is 2/n.
        assert!((found / variance - 1.0).abs() < 4.0 * (2.0 / params).sqrt(), "{found} {variance}");
        let deviation = DecodedUpdate::weight_deviation(noise, SURVIVORS);
        assert!((decoded.weight - 10.0).abs() < 4.0 * deviation, "{} {deviation}", decoded.weight);
    }

    #[test]
    fn a_noisy_sum_of_a_conv_net_is_unbiased_and_has_the_stated_variance() {
        let clip = Clip::try_from(1.0).ok();
        check_errors(&Noise { variance: 400, units: 2048, honest: 10, clip, excess: None }, 400.0);
    }

    #[test]
    fn without_excess_noise_a_sum_of_a_conv_net_is_unbiased_and_has_nearly_the_least_variance() {
        let clip = Clip::try_from(1.0).ok();
        let excess = Some(excess::Excess { accomplices: 2, most: 16 });
        let noise = Noise { variance: 4000, units: 8192, honest: 8, clip, excess };
        // Ten of the twelve survivors are honest, and the noise of eight suffices.
        let (kept, least) = (f64::from(noise.kept_variance(SURVIVORS)), 4000.0 * 8.0 / 10.0);
        assert!(kept >= least && kept < 1.1 * least, "{kept} {least}");
        check_errors(&noise, kept);
    }
}
