//! Noise for differential privacy: exact samples of the discrete Gaussian distribution.
//!
//! N_Z(0, σ²) has P(X = x) ∝ exp(−x²/2σ²) on the integers. Devices add it to their answers before
//! they are masked, so that the server sees only a sum with the noise of all devices. The variance
//! is an integer, because the caller selects the unit of its answers.
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
//! with 256 bits and a proven bound on their error. A word that equals a threshold or exceeds the
//! last one is undecided. Further words are then drawn, and the thresholds are computed with more
//! bits, until the sample is decided (`exact`). The distribution is therefore exact, given uniform
//! words. About one sample in 2⁵⁰ is undecided.
//!
//! [`DiscreteGaussian::add_words`] adds many samples from words of 32 bits: a sign, and the leading
//! 31 bits of the number that is inverted. It looks the magnitude up in the thresholds of 31 bits,
//! almost always without a search. Where 31 bits do not decide, the number is continued to 64 bits
//! and beyond. The distribution of these samples is exact, too.
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
/// The bits of a short number, which is inverted together with a sign.
const SHORT_BITS: u32 = 31;
/// The mark of a cell of the short guide that contains several thresholds.
const SEVERAL: u16 = 1 << 15;

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
    /// The thresholds of short numbers; `None` if the magnitudes are too large.
    short: Option<ShortTable>,
}

/// The thresholds of numbers with 31 bits, for samplers outside of this module.
///
/// A word of 32 bits is a number n of 31 bits and a sign, its last bit. |X| is the smallest m ≥
/// `guide[n >> shift]` mod 2¹⁵ with n ≤ `thresholds[m]`. If n equals that threshold, the sample is
/// undecided, and [`DiscreteGaussian::add_words`] draws it.
#[derive(Clone, Copy, Debug)]
pub struct ShortThresholds<'a> {
    /// ⌊2³¹·P(|X| ≤ m)⌋. The last one is 2³¹.
    pub thresholds: &'a [u32],
    /// The smallest magnitude of the numbers with the same leading bits, in the lower 15 bits.
    pub guide: &'a [u16],
    /// The number of bits after the leading ones.
    pub shift: u32,
}

/// The thresholds of numbers with [`SHORT_BITS`] bits.
struct ShortTable {
    /// ⌊2³¹·P(|X| ≤ m)⌋. The last one is 2³¹.
    thresholds: Vec<u32>,
    /// A cell contains the numbers with the same leading bits. For each cell, the smallest
    /// magnitude of its numbers, marked if the cell contains more than one threshold.
    guide: Vec<u16>,
    /// The number of bits after the leading ones.
    shift: u32,
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

    /// Returns the thresholds of short numbers, or `None` if the magnitudes are too large for them.
    pub fn short_thresholds(&self) -> Option<ShortThresholds<'_>> {
        let ShortTable { thresholds, guide, shift } = self.0.short.as_ref()?;
        Some(ShortThresholds { thresholds, guide, shift: *shift })
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

impl DiscreteGaussian {
    /// Adds an independent sample to each entry, modulo 2⁶⁴, from one uniform word per entry.
    /// Further words are drawn from `more` for the few samples that 31 bits do not decide.
    ///
    /// # Panics
    ///
    /// Panics if there are fewer words than entries.
    pub fn add_words(&self, entries: &mut [u64], words: &[u32], more: &mut impl FnMut() -> u64) {
        assert!(words.len() >= entries.len(), "there is one word per entry");
        let table = &*self.0;
        match &table.short {
            Some(short) => add_signed(entries, words, |number| match short.magnitude(number) {
                Some(magnitude) => magnitude,
                None => table.continued(number, more),
            }),
            None => add_signed(entries, words, |number| table.continued(number, more)),
        }
    }
}

/// Adds the magnitude of each word's leading bits, with the sign of its last bit.
#[inline(always)]
fn add_signed(entries: &mut [u64], words: &[u32], mut magnitude: impl FnMut(u32) -> u64) {
    for (entry, &word) in entries.iter_mut().zip(words) {
        // Negation by arithmetic: a branch would be mispredicted half of the time.
        let negative = u64::from(word & 1).wrapping_neg();
        *entry = entry.wrapping_add((magnitude(word >> 1) ^ negative).wrapping_sub(negative));
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
        let short = ShortTable::new(&thresholds);
        Self { variance, thresholds, guide, short }
    }

    /// Draws |X| from a number of 31 bits that is continued by further words.
    #[cold]
    fn continued(&self, number: u32, more: &mut impl FnMut() -> u64) -> u64 {
        let word = u64::from(number) << (64 - SHORT_BITS) | more() >> SHORT_BITS;
        self.inverse(word, more)
    }

    /// Draws |X|.
    fn magnitude(&self, words: &mut impl FnMut() -> u64) -> u64 {
        let word = words();
        self.inverse(word, words)
    }

    /// Returns |X| for a uniform number that starts with this word.
    fn inverse(&self, word: u64, words: &mut impl FnMut() -> u64) -> u64 {
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

impl ShortTable {
    fn new(thresholds: &[u64]) -> Option<Self> {
        if thresholds.len() >= usize::from(SEVERAL) {
            return None;
        }
        let mut short: Vec<u32> = thresholds.iter().map(|long| (long >> (64 - SHORT_BITS)) as u32).collect();
        short.push(1 << SHORT_BITS);
        // About 50 cells for the most frequent magnitude: few cells contain a threshold, and where
        // they contain several, samples are rare.
        let deviations = thresholds.partition_point(|&threshold| threshold < u64::MAX / 100 * 68);
        let bits = (deviations.max(1).ilog2() + 6).clamp(8, 15);
        let shift = SHORT_BITS - bits;
        let cell = |number: u32| {
            let (first, last) = (number << shift, (number << shift) + ((1 << shift) - 1));
            let smallest = short.partition_point(|&threshold| threshold < first);
            let largest = short.partition_point(|&threshold| threshold <= last);
            smallest as u16 | if largest - smallest > 1 { SEVERAL } else { 0 }
        };
        let guide = (0..1_u32 << bits).map(cell).collect();
        Some(Self { thresholds: short, guide, shift })
    }

    /// Returns |X| if the number determines it.
    #[inline]
    fn magnitude(&self, number: u32) -> Option<u64> {
        let smallest = *self.guide.get((number >> self.shift) as usize)?;
        if smallest >= SEVERAL {
            return self.searched(number);
        }
        let threshold = *self.thresholds.get(usize::from(smallest))?;
        let magnitude = u64::from(smallest) + u64::from(number > threshold);
        (number != threshold).then_some(magnitude)
    }

    /// Searches the thresholds of a cell with several of them.
    fn searched(&self, number: u32) -> Option<u64> {
        let cell = (number >> self.shift) as usize;
        let start = usize::from(self.guide.get(cell)? & !SEVERAL);
        let above = self.thresholds[start..].iter().position(|&threshold| number <= threshold)?;
        let magnitude = start + above;
        (self.thresholds[magnitude] != number).then_some(magnitude as u64)
    }
}

#[cfg(test)]
mod tests;
