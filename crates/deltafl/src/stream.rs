//! Random numbers that depend only on their purpose.
//!
//! Every number comes from a ChaCha8 stream whose 256-bit key *is* the tuple (seed, purpose, round,
//! device). Therefore a device's shuffle in round 7 is the same on one thread or sixty-four,
//! simulated or deployed, resumed or not. No generator is passed around.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

use crate::kernel::Granted;
use crate::kernel::words::{GROUP, write_words};

/// The purpose of a stream. The discriminants are part of every result: never renumber them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum Purpose {
    /// The initial iterate w₀.
    Init = 1,
    /// The cohort S_t (Algorithm 2, line 2).
    Cohort = 2,
    /// The order of a device's examples in its local update.
    LocalUpdate = 3,
    /// Whether a device drops out in a round.
    DropOut = 4,
    /// Whether a device is available in a round.
    Availability = 5,
    /// Synthetic federations.
    Synthesis = 6,
    /// The split of devices into train and test.
    Split = 7,
    /// Keys and masks of secure aggregation in a simulation.
    SecureAggregation = 8,
    /// Resamples of the devices, for the interval of a difference.
    Bootstrap = 9,
    /// The faults of a device that misbehaves on purpose.
    Faults = 10,
    /// The track for which a device answers, if the tracks divide the cohort.
    Apart = 11,
    /// Devices of a cohort that an algorithm draws by their weights.
    Selection = 12,
    /// The devices that lie.
    Adversary = 13,
    /// The noise of a simulated device, and the rounding of its update.
    Noise = 14,
    /// The public signs of the rotation of updates.
    Rotation = 15,
    /// The noise of a central server.
    CentralNoise = 16,
    /// The rounds in which a device may be drawn, if it waits between two of them.
    Turn = 17,
    /// The noise of a simulated device that can be removed after the survivors are known.
    ExcessNoise = 18,
    /// The entries that dropout sets to zero in a step.
    Dropout = 20,
}

/// A stream of random numbers for one purpose.
///
/// ```
/// use deltafl::stream::{Purpose, Stream};
/// let mut a = Stream::new(1, Purpose::Cohort, 0, 0);
/// let mut b = Stream::new(1, Purpose::Cohort, 0, 0);
/// let mut c = Stream::new(1, Purpose::Cohort, 1, 0);
/// let first = a.next_u64();
/// assert_eq!(first, b.next_u64());
/// assert_ne!(first, c.next_u64());
/// ```
#[derive(Clone, Debug)]
pub struct Stream(ChaCha8Rng);

impl Stream {
    /// Returns the stream of (seed, purpose, round, device).
    pub fn new(seed: u64, purpose: Purpose, round: u64, device: u64) -> Self {
        Self::for_query(seed, purpose, round, device, 0)
    }

    /// Returns the stream of (seed, purpose, round, device) for one query of a round. Query 0 has
    /// the stream of [`new`](Self::new).
    pub(crate) fn for_query(seed: u64, purpose: Purpose, round: u64, device: u64, query: u32) -> Self {
        let mut key = [0; 32];
        let purpose = purpose as u64 | u64::from(query) << 32;
        for (bytes, part) in key.chunks_exact_mut(8).zip([seed, purpose, round, device]) {
            bytes.copy_from_slice(&part.to_le_bytes());
        }
        Self(ChaCha8Rng::from_seed(key))
    }

    /// Returns the stream of a secret key.
    pub fn from_key(key: [u8; 32]) -> Self {
        Self(ChaCha8Rng::from_seed(key))
    }

    /// Returns 64 uniform bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// Returns a uniform integer in `0..n` without bias (Lemire's method). `n` must be positive.
    pub fn below(&mut self, n: u64) -> u64 {
        debug_assert!(n > 0, "no integer lies below 0");
        loop {
            let product = u128::from(self.next_u64()) * u128::from(n);
            let low = product as u64;
            // Rejected values are below 2^64 mod n < n. The division is rarely needed and costs
            // more than a draw.
            if low >= n || low >= n.wrapping_neg() % n {
                return (product >> 64) as u64;
            }
        }
    }

    /// Returns a uniform real number in [0, 1) with 53 bits.
    pub fn unit(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 * (1.0 / (1u64 << 53) as f64)
    }

    /// Returns a uniform real number in [low, high).
    pub fn uniform(&mut self, low: f64, high: f64) -> f64 {
        low + (high - low) * self.unit()
    }

    /// Returns a standard normal variable (Marsaglia's polar method).
    pub fn normal(&mut self) -> f64 {
        loop {
            let (u, v) = (self.uniform(-1.0, 1.0), self.uniform(-1.0, 1.0));
            let s = u * u + v * v;
            if s > 0.0 && s < 1.0 {
                return u * (-2.0 * s.ln() / s).sqrt();
            }
        }
    }

    /// Shuffles a slice in place (Fisher–Yates).
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for i in (1..items.len()).rev() {
            items.swap(i, self.below(i as u64 + 1) as usize);
        }
    }
}

/// Many uniform words at once: the words of a ChaCha8 key that a stream draws, in the order of
/// [`write_words`].
#[derive(Clone)]
pub(crate) struct BulkWords {
    key: [u32; 8],
    group: u64,
}

impl BulkWords {
    /// The words of one call of [`next`](Self::next) at most.
    pub(crate) const BATCH: usize = 16 * GROUP;

    /// Draws the key from a stream.
    pub(crate) fn new(stream: &mut Stream) -> Self {
        let mut key = [0; 8];
        for pair in key.chunks_exact_mut(2) {
            let word = stream.next_u64();
            pair.copy_from_slice(&[word as u32, (word >> 32) as u32]);
        }
        Self { key, group: 0 }
    }

    /// Returns the next `count` words in the buffer. A later call continues with a new group.
    ///
    /// # Panics
    ///
    /// Panics if the buffer is too short for whole groups.
    pub(crate) fn next<'b>(&mut self, count: usize, buffer: &'b mut [u32]) -> &'b [u32] {
        let groups = count.div_ceil(GROUP);
        let words = &mut buffer[..groups * GROUP];
        write_words(Granted::best(), &self.key, self.group, words);
        self.group += groups as u64;
        &words[..count]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bulk_words_are_those_of_the_key_and_never_repeat() {
        let mut stream = Stream::new(1, Purpose::Noise, 0, 0);
        let mut bulk = BulkWords::new(&mut stream.clone());
        let (mut first, mut second) = (vec![0; BulkWords::BATCH], vec![0; BulkWords::BATCH]);
        let words: Vec<u32> = bulk.next(300, &mut first).to_vec();
        let later: Vec<u32> = bulk.next(300, &mut second).to_vec();
        assert!(words.iter().all(|word| !later.contains(word)), "words of 32 bits rarely occur twice");
        // Word 0 of block 1 is the second word of the group.
        let mut key = [0; 32];
        key.chunks_exact_mut(8).for_each(|part| part.copy_from_slice(&stream.next_u64().to_le_bytes()));
        let mut cipher = ChaCha8Rng::from_seed(key);
        let blocks: Vec<u32> = (0..GROUP).map(|_| cipher.next_u32()).collect();
        assert_eq!((words[0], words[1], words[16]), (blocks[0], blocks[16], blocks[1]));
    }

    #[test]
    fn every_part_of_the_key_changes_the_stream() {
        let first = |seed, purpose, round, device| Stream::new(seed, purpose, round, device).next_u64();
        let base = first(1, Purpose::Init, 2, 3);
        assert_ne!(base, first(2, Purpose::Init, 2, 3));
        assert_ne!(base, first(1, Purpose::Cohort, 2, 3));
        assert_ne!(base, first(1, Purpose::Init, 3, 3));
        assert_ne!(base, first(1, Purpose::Init, 2, 4));
    }

    #[test]
    fn below_is_uniform() {
        let mut stream = Stream::new(1, Purpose::Synthesis, 0, 0);
        let mut counts = [0u32; 7];
        for _ in 0..70_000 {
            counts[stream.below(7) as usize] += 1;
        }
        assert!(counts.iter().all(|&c| (9_500..10_500).contains(&c)), "{counts:?}");
    }

    #[test]
    fn the_short_way_draws_what_the_division_says() {
        // The first of these rejects a third of the draws.
        for n in [3 << 62, u64::MAX, (1 << 40) + 1, 179, 1] {
            let (mut short, mut long) =
                (Stream::new(1, Purpose::Synthesis, 0, n), Stream::new(1, Purpose::Synthesis, 0, n));
            let threshold = n.wrapping_neg() % n;
            for _ in 0..1000 {
                let mut products = std::iter::repeat_with(|| u128::from(long.next_u64()) * u128::from(n));
                let taken = products.find(|&product| product as u64 >= threshold).unwrap();
                assert_eq!(short.below(n), (taken >> 64) as u64, "{n}");
            }
        }
    }

    #[test]
    fn normal_has_mean_zero_and_variance_one() {
        let mut stream = Stream::new(1, Purpose::Synthesis, 0, 0);
        let draws: Vec<f64> = (0..100_000).map(|_| stream.normal()).collect();
        let mean = draws.iter().sum::<f64>() / 1e5;
        let variance = draws.iter().map(|x| x * x).sum::<f64>() / 1e5;
        assert!(mean.abs() < 0.02 && (variance - 1.0).abs() < 0.02, "{mean} {variance}");
    }
}
