//! Tests of the discrete Gaussian.

use chacha20::ChaCha20Rng;
use rand_core::{Rng, SeedableRng};

use super::*;

/// The samples of variance 100 for sixteen words.
const KNOWN: [i64; 16] = [7, -8, 9, -11, 12, -15, 18, -31, 1, -2, 3, -4, 5, -6, 7, -8];

fn words(seed: u64) -> impl FnMut() -> u64 {
    let mut rng = ChaCha20Rng::seed_from_u64(seed);
    move || rng.next_u64()
}

/// Returns P(X = x) for |x| ≤ `most` in floating point.
fn probabilities(variance: u32, most: i64) -> Vec<f64> {
    let weight = |x: i64| (-((x * x) as f64) / (2.0 * f64::from(variance))).exp();
    let total: f64 = (-most..=most).map(weight).sum();
    (-most..=most).map(|x| weight(x) / total).collect()
}

/// Returns χ² of samples against the exact distribution and the degrees of freedom. Values with
/// fewer than 10 expected samples are merged.
fn chi_squared(variance: u32, samples: &[i64]) -> (f64, f64) {
    let most = (12.0 * f64::from(variance).sqrt()) as i64 + 12;
    let mut counts = vec![0_u64; (2 * most + 1) as usize];
    samples.iter().for_each(|x| counts[(x + most) as usize] += 1);
    let (mut chi, mut cells, mut expected, mut observed) = (0.0, 0.0, 0.0, 0.0);
    for (count, probability) in counts.into_iter().zip(probabilities(variance, most)) {
        expected += probability * samples.len() as f64;
        observed += count as f64;
        if expected >= 10.0 {
            chi += (observed - expected) * (observed - expected) / expected;
            cells += 1.0;
            (expected, observed) = (0.0, 0.0);
        }
    }
    (chi, cells - 1.0)
}

/// The algorithm of Canonne, Kamath and Steinke (2020): exact, without tables, and slow.
fn reference(variance: u32, words: &mut impl FnMut() -> u64) -> i64 {
    fn below(n: u64, words: &mut impl FnMut() -> u64) -> u64 {
        loop {
            let word = words();
            if word < u64::MAX - u64::MAX % n {
                return word % n;
            }
        }
    }
    /// Bernoulli(exp(−a/b)).
    fn exponential(mut a: u64, b: u64, words: &mut impl FnMut() -> u64) -> bool {
        while a > b {
            if !exponential(b, b, words) {
                return false;
            }
            a -= b;
        }
        let mut k = 1;
        while below(b * k, words) < a {
            k += 1;
        }
        k % 2 == 1
    }
    let variance = u64::from(variance);
    let t = variance.isqrt() + 1;
    loop {
        let u = below(t, words);
        if !exponential(u, t, words) {
            continue;
        }
        let mut v = 0;
        while exponential(1, 1, words) {
            v += 1;
        }
        let (magnitude, negative) = (u + t * v, words() & 1 == 1);
        if magnitude == 0 && negative {
            continue;
        }
        let distance = (magnitude * t).abs_diff(variance);
        if exponential(distance * distance, 2 * variance * t * t, words) {
            return if negative { -(magnitude as i64) } else { magnitude as i64 };
        }
    }
}

#[test]
fn samples_have_the_exact_distribution() {
    for variance in [1, 2, 16, 100, 2025, 1 << 20] {
        let noise = DiscreteGaussian::new(variance).unwrap();
        let mut words = words(u64::from(variance));
        let mut entries = vec![0; 100_000];
        noise.add_to(&mut entries, &mut words);
        let samples: Vec<i64> = entries.iter().map(|&entry| entry as i64).collect();
        let (chi, freedom) = chi_squared(variance, &samples);
        // χ² has the mean `freedom` and the variance 2·freedom.
        assert!((chi - freedom).abs() < 4.5 * (2.0 * freedom).sqrt(), "{variance}: {chi} of {freedom}");
        let bulk: Vec<u32> = (0..100_000).map(|_| words() as u32).collect();
        let mut entries = vec![0; bulk.len()];
        noise.add_words(&mut entries, &bulk, &mut words);
        let samples: Vec<i64> = entries.iter().map(|&entry| entry as i64).collect();
        let (chi, freedom) = chi_squared(variance, &samples);
        assert!((chi - freedom).abs() < 4.5 * (2.0 * freedom).sqrt(), "{variance}: {chi} of {freedom}");
        let single: Vec<i64> = (0..20_000).map(|_| noise.sample(&mut words)).collect();
        let (chi, freedom) = chi_squared(variance, &single);
        assert!((chi - freedom).abs() < 4.5 * (2.0 * freedom).sqrt(), "{variance}: {chi} of {freedom}");
    }
}

#[test]
fn another_exact_algorithm_has_the_same_distribution() {
    for variance in [2, 37, 900] {
        let mut words = words(7);
        let samples: Vec<i64> = (0..30_000).map(|_| reference(variance, &mut words)).collect();
        let (chi, freedom) = chi_squared(variance, &samples);
        assert!((chi - freedom).abs() < 4.5 * (2.0 * freedom).sqrt(), "{variance}: {chi} of {freedom}");
    }
}

#[test]
fn a_wrong_distribution_is_noticed() {
    // Variance 100 against samples of variance 104.
    let mut words = words(3);
    let noise = DiscreteGaussian::new(104).unwrap();
    let samples: Vec<i64> = (0..100_000).map(|_| noise.sample(&mut words)).collect();
    let (chi, freedom) = chi_squared(100, &samples);
    assert!(chi - freedom > 4.5 * (2.0 * freedom).sqrt(), "{chi} of {freedom}");
}

#[test]
fn the_table_and_the_exact_search_agree_on_every_threshold() {
    for variance in [1, 16, 1000] {
        let table = Table::new(variance);
        for (magnitude, pair) in table.thresholds.windows(3).enumerate().step_by(7) {
            let [below, threshold, above] = *pair else { continue };
            // Far out the thresholds are so close that a word is a tie of several.
            if threshold - below < 4 || above - threshold < 4 {
                break;
            }
            let magnitude = magnitude as u64 + 1;
            for (word, expected) in [(threshold - 1, magnitude), (threshold + 1, magnitude + 1)] {
                assert_eq!(exact::resolve(variance, word, &mut || 1 << 63), expected, "{variance} {word}");
                assert_eq!(table.magnitude(&mut || word), expected, "{variance} {word}");
            }
            // The words after a tie decide.
            assert_eq!(exact::resolve(variance, threshold, &mut || 0), magnitude);
            assert_eq!(exact::resolve(variance, threshold, &mut || u64::MAX), magnitude + 1);
        }
    }
}

#[test]
fn short_and_long_numbers_have_the_same_magnitude_on_every_threshold() {
    for variance in [1, 16, 1000, 1 << 18] {
        let table = Table::new(variance);
        let short = table.short.as_ref().unwrap();
        let near = short
            .thresholds
            .iter()
            .flat_map(|&threshold| [threshold.saturating_sub(1), threshold, threshold.saturating_add(1)]);
        let spread = (0..5000_u32).map(|i| i.wrapping_mul(0x9e37_79b9));
        for number in near.chain(spread).map(|number| number & (u32::MAX >> 1)) {
            let Some(magnitude) = short.magnitude(number) else {
                assert!(short.thresholds.contains(&number), "{variance}: {number} is not a tie");
                continue;
            };
            // The bits that follow change nothing.
            for rest in [0, u64::MAX >> 31] {
                let more = &mut || unreachable!("31 bits decide {number}");
                let expected = table.inverse(u64::from(number) << 33 | rest, more);
                assert_eq!(magnitude, expected, "{variance} {number}");
            }
        }
    }
    // The magnitudes of the largest variance do not fit into the short table.
    assert!(Table::new(MAX_VARIANCE).short.is_none());
}

#[test]
fn the_words_after_a_tie_of_31_bits_decide_it() {
    let noise = DiscreteGaussian::new(16).unwrap();
    let short = noise.0.short.as_ref().unwrap();
    for (magnitude, &threshold) in short.thresholds.iter().enumerate().take(12) {
        for (rest, expected) in [(0, magnitude), (u64::MAX, magnitude + 1)] {
            let mut entries = [0; 2];
            // Both signs.
            noise.add_words(&mut entries, &[2 * threshold, 2 * threshold + 1], &mut || rest);
            let expected = expected as i64;
            assert_eq!(entries.map(|entry| entry as i64), [expected, -expected], "{magnitude} {rest}");
        }
    }
}

#[test]
fn the_samples_of_known_words_are_known() {
    let noise = DiscreteGaussian::new(100).unwrap();
    let words: Vec<u32> = (0..16_u32).map(|i| i.wrapping_mul(0x1234_5679) ^ 0x8000_0000).collect();
    let mut entries = [0; 16];
    noise.add_words(&mut entries, &words, &mut || unreachable!("31 bits decide these samples"));
    // |X| = min{m : P(|X| ≤ m) > ⌊word/2⌋/2³¹}, computed with Python's `decimal`.
    assert_eq!(entries.map(|entry| entry as i64), KNOWN);
}

#[test]
fn the_largest_word_is_far_out_and_still_decided() {
    let noise = DiscreteGaussian::new(16).unwrap();
    let mut calls = 0;
    let mut words = || {
        calls += 1;
        if calls <= 2 { u64::MAX } else { 0 }
    };
    // 2⁻¹²⁸ is about the probability of 13 σ.
    let magnitude = noise.0.magnitude(&mut words);
    assert!((48..60).contains(&magnitude), "{magnitude}");
}

#[test]
fn a_variance_that_no_table_has_is_refused() {
    for got in [0, MAX_VARIANCE + 1, u32::MAX] {
        assert_eq!(DiscreteGaussian::new(got).unwrap_err(), InvalidVariance { got });
    }
}
