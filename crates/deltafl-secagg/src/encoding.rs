//! Fixed point: how the update `[α·Δ, α]` of a device becomes a vector over a ring, and its sum an average.
//!
//! ```text
//! Z_2⁶⁴   x ↦ round(x·2^f)                         exact for the weights, which stay integers
//! Z_2³²   x ↦ ⌊clip(x, C)·2^f + u⌋, u ∈ [0, 1)     n·(⌈C·2^f⌉ + 1) ≤ 2³¹ − 1
//! ```
//!
//! Thirty-two bits hold a sum only under the range rule above: each of at most n devices adds a magnitude of at
//! most ⌈C·2^f⌉ + 1, so no sum passes the sign bit. [`Codec32`] cannot be built without it. Rounding there is
//! stochastic, hence unbiased, from a stream that is private to the device.

use rand_core::CryptoRng;
use thiserror::Error;

/// Why a codec or an encoding is refused.
#[derive(Debug, Clone, Copy, PartialEq, Error)]
#[non_exhaustive]
pub enum EncodingError {
    /// n·(⌈C·2^f⌉ + 1) > 2³¹ − 1: a sum of as many devices could wrap.
    #[error("{devices} devices clipped at {clip} with {fraction_bits} fraction bits can overflow 32 bits")]
    Range {
        /// n, the most devices in a sum.
        devices: u32,
        /// C, the largest magnitude of a coordinate.
        clip: f64,
        /// f, the bits after the point.
        fraction_bits: u32,
    },
    /// NaN or an infinity.
    #[error("coordinate {index} is not finite")]
    NotFinite {
        /// Where.
        index: usize,
    },
    /// A value outside what the fixed point holds.
    #[error("{value} at coordinate {index} is outside the fixed-point range")]
    TooLarge {
        /// Where.
        index: usize,
        /// The value.
        value: f64,
    },
    /// An update's sum without its weight.
    #[error("an update has at least the coordinate of its weight")]
    Empty,
}

/// A decoded sum of updates.
#[derive(Debug, Clone, PartialEq)]
pub struct UpdateSum {
    /// Σ α_k·Δ_k, coordinate by coordinate.
    pub weighted: Vec<f64>,
    /// Σ α_k.
    pub weight: f64,
}

impl UpdateSum {
    /// The weighted mean update Σ α_k·Δ_k / Σ α_k (Algorithm 2, line 9); `None` when no device was in the
    /// tail.
    pub fn mean(&self) -> Option<Vec<f64>> {
        (self.weight > 0.0).then(|| self.weighted.iter().map(|sum| sum / self.weight).collect())
    }
}

/// Fixed point in Z_2⁶⁴ with `fraction_bits` after the point; the weight is an exact integer.
///
/// ```
/// use deltafl_secagg::encoding::Codec64;
///
/// let codec = Codec64::new(32).unwrap();
/// let a = codec.encode_update(&[0.5, -1.0], 3).unwrap();
/// let b = codec.encode_update(&[0.25, 0.0], 1).unwrap();
/// let sum: Vec<u64> = a.iter().zip(&b).map(|(a, b)| a.wrapping_add(*b)).collect();
/// // (3·0.5 + 1·0.25) / 4 and (3·(−1) + 0) / 4
/// assert_eq!(codec.decode_update(&sum).unwrap().mean(), Some(vec![0.4375, -0.75]));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Codec64 {
    fraction_bits: u32,
}

impl Codec64 {
    /// The codec with this many bits after the point, at most 52; `None` above.
    pub fn new(fraction_bits: u32) -> Option<Self> {
        (fraction_bits <= 52).then_some(Self { fraction_bits })
    }

    /// `[α·Δ, α]`: each coordinate rounded to the nearest step, the weight as it is.
    pub fn encode_update(&self, delta: &[f32], weight: u64) -> Result<Vec<u64>, EncodingError> {
        let mut words = Vec::with_capacity(delta.len() + 1);
        for (index, &value) in delta.iter().enumerate() {
            words.push(self.encode(index, f64::from(value) * weight as f64)?);
        }
        words.push(weight);
        Ok(words)
    }

    fn encode(&self, index: usize, value: f64) -> Result<u64, EncodingError> {
        if !value.is_finite() {
            return Err(EncodingError::NotFinite { index });
        }
        let scaled = (value * scale(self.fraction_bits)).round_ties_even();
        // ±2⁶² leaves the sum of two such coordinates inside the ring's sign.
        if scaled.abs() >= scale(62) {
            return Err(EncodingError::TooLarge { index, value });
        }
        Ok((scaled as i64).cast_unsigned())
    }

    /// The sums of `[α·Δ, α]`.
    pub fn decode_update(&self, sum: &[u64]) -> Result<UpdateSum, EncodingError> {
        let (&weight, coordinates) = sum.split_last().ok_or(EncodingError::Empty)?;
        let step = scale(self.fraction_bits).recip();
        let weighted = coordinates.iter().map(|word| word.cast_signed() as f64 * step).collect();
        Ok(UpdateSum { weighted, weight: weight as f64 })
    }
}

/// Fixed point in Z_2³²: clipping, stochastic rounding, and a sum that cannot overflow.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Codec32 {
    clip: f64,
    fraction_bits: u32,
}

impl Codec32 {
    /// The codec for at most `devices` devices with coordinates of magnitude at most `clip`, if the range
    /// rule n·(⌈C·2^f⌉ + 1) ≤ 2³¹ − 1 allows it.
    pub fn new(devices: u32, clip: f64, fraction_bits: u32) -> Result<Self, EncodingError> {
        let refused = EncodingError::Range { devices, clip, fraction_bits };
        if !(clip.is_finite() && clip > 0.0) || fraction_bits > 30 {
            return Err(refused);
        }
        let most = (clip * scale(fraction_bits)).ceil() + 1.0;
        if f64::from(devices) * most > f64::from(i32::MAX) {
            return Err(refused);
        }
        Ok(Self { clip, fraction_bits })
    }

    /// `[α·Δ, α]`: coordinates clipped at C, then all rounded up or down at random with the right mean.
    ///
    /// `weight` is in the units that `clip` bounds too, for instance the share of the largest example count;
    /// one above C is refused, because clipping it would bias the average silently.
    pub fn encode_update(
        &self,
        delta: &[f32],
        weight: f64,
        rng: &mut impl CryptoRng,
    ) -> Result<Vec<u32>, EncodingError> {
        let mut words = Vec::with_capacity(delta.len() + 1);
        for (index, &value) in delta.iter().enumerate() {
            words.push(self.encode(index, f64::from(value) * weight, rng)?);
        }
        if !(0.0..=self.clip).contains(&weight) {
            return Err(EncodingError::TooLarge { index: delta.len(), value: weight });
        }
        words.push(self.encode(delta.len(), weight, rng)?);
        Ok(words)
    }

    fn encode(&self, index: usize, value: f64, rng: &mut impl CryptoRng) -> Result<u32, EncodingError> {
        if !value.is_finite() {
            return Err(EncodingError::NotFinite { index });
        }
        let scaled = value.clamp(-self.clip, self.clip) * scale(self.fraction_bits);
        let uniform = f64::from(rng.next_u32()) * scale(32).recip();
        Ok(((scaled + uniform).floor() as i32).cast_unsigned())
    }

    /// The sums of `[α·Δ, α]`.
    pub fn decode_update(&self, sum: &[u32]) -> Result<UpdateSum, EncodingError> {
        let step = scale(self.fraction_bits).recip();
        let mut weighted: Vec<f64> = sum.iter().map(|word| f64::from(word.cast_signed()) * step).collect();
        let weight = weighted.pop().ok_or(EncodingError::Empty)?;
        Ok(UpdateSum { weighted, weight })
    }
}

/// 2^bits, exactly.
fn scale(bits: u32) -> f64 {
    (1u64 << bits) as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use chacha20::ChaCha20Rng;
    use proptest::prelude::*;
    use rand_core::SeedableRng;

    #[test]
    fn the_range_rule_is_exact_at_its_edge() {
        // 2³¹ − 1 is prime, so take n = 1: ⌈C·2^f⌉ + 1 = 2³¹ − 1 is the largest allowed.
        let edge = f64::from(i32::MAX) - 1.0;
        assert!(Codec32::new(1, edge, 0).is_ok());
        assert!(matches!(Codec32::new(1, edge + 1.0, 0), Err(EncodingError::Range { .. })));
        // A thousand devices: 1000·(2^20·2 + 1) ≤ 2³¹ − 1 < 1000·(2^21·2 + 1).
        assert!(Codec32::new(1000, 2.0, 20).is_ok());
        assert!(Codec32::new(1000, 2.0, 21).is_err());
        assert!(Codec32::new(1, f64::NAN, 0).is_err());
    }

    #[test]
    fn the_largest_coordinates_of_the_most_devices_do_not_overflow() {
        let (devices, clip, fraction_bits) = (1000, 2.0, 20);
        let codec = Codec32::new(devices, clip, fraction_bits).unwrap();
        let mut rng = ChaCha20Rng::seed_from_u64(3);
        let mut sum = [0u32; 3];
        for _ in 0..devices {
            let words = codec.encode_update(&[1e9, -1e9], 2.0, &mut rng).unwrap();
            for (sum, word) in sum.iter_mut().zip(words) {
                *sum = sum.wrapping_add(word);
            }
        }
        let decoded = codec.decode_update(&sum).unwrap();
        let steps = |value: f64| (value * scale(fraction_bits)) as i64;
        assert_eq!(steps(decoded.weighted[0]), 2000 << fraction_bits);
        assert_eq!(steps(decoded.weighted[1]), -(2000 << fraction_bits));
        assert_eq!(steps(decoded.weight), 2000 << fraction_bits);
    }

    #[test]
    fn stochastic_rounding_has_the_right_mean() {
        let codec = Codec32::new(1, 1.0, 0).unwrap();
        let mut rng = ChaCha20Rng::seed_from_u64(5);
        let draws = 100_000;
        let ups: u32 = (0..draws).map(|_| codec.encode(0, 0.3, &mut rng).unwrap()).sum();
        // Five standard deviations of a binomial: √(0.3·0.7·n) ≈ 145.
        assert!((f64::from(ups) - 30_000.0).abs() < 725.0, "{ups} of {draws}");
    }

    #[test]
    fn values_that_fixed_point_cannot_hold_are_refused() {
        let codec = Codec64::new(32).unwrap();
        assert_eq!(codec.encode_update(&[0.0, f32::NAN], 1), Err(EncodingError::NotFinite { index: 1 }));
        assert!(matches!(codec.encode_update(&[1e20], 1), Err(EncodingError::TooLarge { index: 0, .. })));
        assert_eq!(codec.decode_update(&[]), Err(EncodingError::Empty));
        assert_eq!(Codec64::new(53), None);
        let codec = Codec32::new(10, 1.0, 16).unwrap();
        let mut rng = ChaCha20Rng::seed_from_u64(1);
        assert!(matches!(codec.encode_update(&[], 1.5, &mut rng), Err(EncodingError::TooLarge { .. })));
        assert!(matches!(codec.encode_update(&[], -0.5, &mut rng), Err(EncodingError::TooLarge { .. })));
    }

    proptest! {
        #[test]
        fn a_single_update_reads_back_to_the_step(delta in -100.0f32..100.0, weight in 1u64..1000) {
            let codec = Codec64::new(32).unwrap();
            let sum = codec.decode_update(&codec.encode_update(&[delta], weight).unwrap()).unwrap();
            let mean = sum.mean().unwrap()[0];
            prop_assert!((mean - f64::from(delta)).abs() <= scale(32).recip());
        }
    }
}
