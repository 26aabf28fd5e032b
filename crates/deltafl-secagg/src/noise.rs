//! Noise for differential privacy: exact samples of the discrete Gaussian distribution.
//!
//! N_Z(0, σ²) has P(X = x) ∝ exp(−x²/2σ²) on the integers. Devices add it to their answers before
//! they are masked, so that the server sees only a sum with the noise of all devices. The variance is
//! an integer, because the caller selects the unit of its answers.
//!
//! # Why the discrete Gaussian
//!
//! The Rényi divergence of a sum of discrete Gaussians is that of a Gaussian, up to a term
//! τ = 10·Σ exp(−2π²σ²k/(k+1)) (Kairouz, Liu, Steinke 2021). At σ² ≥ [`MIN_VARIANCE`] the exponent
//! is below −157, so that the term vanishes. Skellam noise is closed under addition, but its
//! divergence has a term in 1/μ², a sample needs two Poisson variables, and its tail is heavier.
//!
//! # Method
//!
//! A sample inverts the distribution of |X| by one 64-bit word and a table, which takes a few
//! nanoseconds. The table contains the thresholds ⌊2⁶⁴·P(|X| ≤ m)⌋, computed in integer arithmetic
//! with 256 bits and a proven bound on their error. A word that equals a threshold or exceeds the last
//! one is undecided. Further words are then drawn, and the thresholds are computed with more bits,
//! until the sample is decided (`exact`). The distribution is therefore exact, given uniform words.
//! About one sample in 2⁵⁰ is undecided.
//!
//! # Timing
//!
//! The number of comparisons and the cache lines of a sample depend on its magnitude. A process on
//! the same machine may measure them. A server sees at most the time of a whole answer, which also
//! contains the training.

mod exact;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use self::exact::Thresholds;

/// The smallest variance for which the sum of discrete Gaussians is as good as a Gaussian.
pub const MIN_VARIANCE: u32 = 16;
/// The largest variance. It limits the memory of a table to about 400 KB.
pub const MAX_VARIANCE: u32 = 1 << 24;
/// The number of leading bits of a word that index the guide of a table.
const GUIDE_BITS: u32 = 12;

/// The variance of a discrete Gaussian is zero or too large.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the variance of the noise must be between 1 and {MAX_VARIANCE}, got {got}")]
pub struct InvalidVariance {
    /// The rejected variance.
    pub got: u32,
}

/// The discrete Gaussian distribution N_Z(0, σ²) with an integer σ².
///
/// # Examples
///
/// ```
/// use chacha20::ChaCha20Rng;
/// use deltafl_secagg::noise::DiscreteGaussian;
/// use rand_core::{Rng, SeedableRng};
///
/// let mut rng = ChaCha20Rng::seed_from_u64(1);
/// let noise = DiscreteGaussian::new(100)?;
/// let mut answer = [1_000_u64; 4];
/// noise.add_to(&mut answer, &mut || rng.next_u64());
/// assert!(answer.iter().all(|&entry| (900..1100).contains(&entry)));
/// # Ok::<(), deltafl_secagg::noise::InvalidVariance>(())
/// ```
#[derive(Clone)]
pub struct DiscreteGaussian(Arc<Table>);

/// The table of one variance.
struct Table {
    variance: u32,
    /// ⌊2⁶⁴·P(|X| ≤ m)⌋.
    thresholds: Vec<u64>,
    /// For each value of the leading bits, the smallest magnitude that a word with these bits can
    /// have.
    guide: Vec<u16>,
}

/// The tables of this process.
static TABLES: OnceLock<Mutex<HashMap<u32, Arc<Table>>>> = OnceLock::new();
/// The number of tables that are kept.
const KEPT_TABLES: usize = 32;

impl DiscreteGaussian {
    /// Returns the distribution of this variance. The first call for a variance computes its table,
    /// which takes 15 ms at variance 2²⁰.
    ///
    /// # Errors
    ///
    /// The variance is zero or above [`MAX_VARIANCE`].
    pub fn new(variance: u32) -> Result<Self, InvalidVariance> {
        if !(1..=MAX_VARIANCE).contains(&variance) {
            return Err(InvalidVariance { got: variance });
        }
        let mut tables = TABLES.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(table) = tables.get(&variance) {
            return Ok(Self(Arc::clone(table)));
        }
        // A server that names many variances must not fill the memory of a device.
        if tables.len() >= KEPT_TABLES {
            tables.clear();
        }
        let table = Arc::new(Table::new(variance));
        tables.insert(variance, Arc::clone(&table));
        Ok(Self(table))
    }

    /// Returns σ².
    pub fn variance(&self) -> u32 {
        self.0.variance
    }

    /// Draws one sample from uniform words.
    pub fn sample(&self, words: &mut impl FnMut() -> u64) -> i64 {
        let magnitude = self.0.magnitude(words) as i64;
        if words() & 1 == 1 { -magnitude } else { magnitude }
    }

    /// Adds an independent sample to each entry, modulo 2⁶⁴.
    pub fn add_to(&self, entries: &mut [u64], words: &mut impl FnMut() -> u64) {
        for entries in entries.chunks_mut(64) {
            let mut signs = words();
            for entry in entries {
                let magnitude = self.0.magnitude(words);
                // Negation by arithmetic: a branch would be mispredicted half of the time.
                let negative = (signs & 1).wrapping_neg();
                *entry = entry.wrapping_add((magnitude ^ negative).wrapping_sub(negative));
                signs >>= 1;
            }
        }
    }
}

impl std::fmt::Debug for DiscreteGaussian {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "DiscreteGaussian(variance {})", self.0.variance)
    }
}

impl Table {
    fn new(variance: u32) -> Self {
        let thresholds = Thresholds::new(variance, 4).leading_words();
        let mut guide = Vec::with_capacity(1 << GUIDE_BITS);
        let mut magnitude = 0;
        for bits in 0..1_u64 << GUIDE_BITS {
            let word = bits << (64 - GUIDE_BITS);
            while magnitude + 1 < thresholds.len() && thresholds[magnitude] < word {
                magnitude += 1;
            }
            guide.push(magnitude as u16);
        }
        Self { variance, thresholds, guide }
    }

    /// Draws |X|.
    fn magnitude(&self, words: &mut impl FnMut() -> u64) -> u64 {
        let word = words();
        let mut magnitude = usize::from(self.guide[(word >> (64 - GUIDE_BITS)) as usize]);
        while let Some(&threshold) = self.thresholds.get(magnitude) {
            if word < threshold {
                return magnitude as u64;
            }
            if word == threshold {
                break;
            }
            magnitude += 1;
        }
        exact::resolve(self.variance, word, words)
    }
}

#[cfg(test)]
mod tests {
    use chacha20::ChaCha20Rng;
    use rand_core::{Rng, SeedableRng};

    use super::*;

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
                    assert_eq!(
                        exact::resolve(variance, word, &mut || 1 << 63),
                        expected,
                        "{variance} {word}"
                    );
                    assert_eq!(table.magnitude(&mut || word), expected, "{variance} {word}");
                }
                // The words after a tie decide.
                assert_eq!(exact::resolve(variance, threshold, &mut || 0), magnitude);
                assert_eq!(exact::resolve(variance, threshold, &mut || u64::MAX), magnitude + 1);
            }
        }
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
}
