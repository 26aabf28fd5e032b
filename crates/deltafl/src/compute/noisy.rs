//! Noisy updates for compute backends that clip, rotate, round and add noise themselves.
//!
//! The integers of a backend must equal those of [`add_task`](super::add_task) for the same w_k.
//! `privacy/update.rs` describes the encoding. The random words are those of ChaCha8 keys: the
//! private stream of a device starts with the key of the rounding, if there is an update, and
//! continues with the key of the noise. Further words of the stream decide the few samples that a
//! word leaves undecided.

use deltafl_secagg::noise::{DiscreteGaussian, ShortThresholds};

use super::{TaskNoise, UpdateTask};
use crate::data::Federation;
use crate::device::{UpdateRandomness, stream_key};
use crate::privacy::{Noise, excess, update};
use crate::question::RoundKey;
use crate::stream::Stream;

/// The number of entries after the rotated update in a noisy sum.
pub const NOISY_FOOTER: usize = update::FOOTER;
/// The number of roundings that a device draws before it rounds towards zero.
pub const ROUNDINGS: usize = update::ATTEMPTS;

/// The encoding of a noisy update of one device.
#[derive(Clone, Debug)]
pub struct NoisyEncoding {
    /// C: the maximum norm of an update.
    pub clip: f64,
    /// K: the units of an update of norm C.
    pub units: u32,
    /// The largest sum of squares of the rounded entries.
    pub most_squares: f64,
    /// The weight of the device in units of the footer.
    pub counted: u64,
    /// The private stream of the device, with its noise that cannot be removed.
    pub private: NoiseStream,
    /// The removable parts of the noise that stay in the sum.
    pub kept: Vec<NoiseStream>,
}

/// A stream of random numbers and the discrete Gaussian that is drawn from it.
#[derive(Clone, Debug)]
pub struct NoiseStream {
    stream: Stream,
    gaussian: Option<DiscreteGaussian>,
}

impl NoisyEncoding {
    /// Returns the encoding of a task, or `None` if the task has no noise or no clipping bound.
    pub fn new(key: &RoundKey, federation: &Federation, task: &UpdateTask<'_>) -> Option<Self> {
        let TaskNoise { noise, query, kept } = task.noise?;
        let (clip, device) = (noise.clip?, stream_key(federation.id(task.device)));
        let longest = update::rounded_norm(noise.units, update::padded(task.params.len()));
        let levels = excess::NoiseLevels::new(&noise);
        let stream = UpdateRandomness::Reproducible.noise_stream(key, device, query);
        let kept = kept.map_or_else(Vec::new, |kept| {
            let first = UpdateRandomness::Reproducible.excess_key(key, device, kept.question);
            let parts = noise.parts(first, 1..=kept.parts.min(levels.removable()), query);
            parts.map(|(gaussian, stream)| NoiseStream { stream, gaussian }).collect()
        });
        Some(Self {
            clip: clip.get(),
            units: noise.units,
            most_squares: longest * longest,
            counted: update::counted(&noise, task.weight),
            private: NoiseStream { stream, gaussian: DiscreteGaussian::new(levels.variance(0)).ok() },
            kept,
        })
    }

    /// Returns the number of entries of a rotated update: powers of two from the largest to the
    /// smallest are the blocks of the rotation.
    pub fn rotated_len(params: usize) -> usize {
        update::padded(params)
    }

    /// Returns the public signs of the rotation for a query of a round. Entry i has bit i % 32 of
    /// word i / 32.
    pub fn signs(key: &RoundKey, query: u32, params: usize) -> Vec<u32> {
        update::sign_words(&mut key.rotation(query), params)
    }

    /// Returns `true` if the leading bits of a number decide almost all samples of this noise.
    pub fn has_short_tables(noise: &Noise) -> bool {
        let levels = excess::NoiseLevels::new(noise);
        // The parts have a smaller variance than the whole.
        let largest = DiscreteGaussian::new(levels.variance(levels.removable()));
        largest.map_or(true, |gaussian| gaussian.short_thresholds().is_some())
    }
}

impl NoiseStream {
    /// Returns the first sixteen words of the stream: two keys.
    pub fn keys(&self) -> [u32; 16] {
        let (mut stream, mut keys) = (self.stream.clone(), [0; 16]);
        for pair in keys.chunks_exact_mut(2) {
            let word = stream.next_u64();
            pair.copy_from_slice(&[word as u32, (word >> 32) as u32]);
        }
        keys
    }

    /// Returns σ², or 0 without noise.
    pub fn variance(&self) -> u32 {
        self.gaussian.as_ref().map_or(0, DiscreteGaussian::variance)
    }

    /// Returns the thresholds of the distribution.
    pub fn thresholds(&self) -> Option<ShortThresholds<'_>> {
        self.gaussian.as_ref()?.short_thresholds()
    }

    /// Adds the samples of words that are undecided, in the order of their entries, to a sum. The
    /// stream has been used for this many keys. Each item is an entry and its word.
    pub fn add_undecided(
        &self,
        keys: usize,
        undecided: impl IntoIterator<Item = (usize, u32)>,
        sum: &mut [u64],
    ) {
        let Some(gaussian) = &self.gaussian else { return };
        let mut stream = self.stream.clone();
        (0..4 * keys).for_each(|_| _ = stream.next_u64());
        for (entry, word) in undecided {
            gaussian.add_words(&mut sum[entry..=entry], &[word], &mut || stream.next_u64());
        }
    }
}
