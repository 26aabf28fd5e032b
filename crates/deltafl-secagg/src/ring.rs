//! The rings of the sums: Z_2³² and Z_2⁶⁴.
//!
//! Sums wrap. Z_2⁶⁴ represents the simulator's integer sums exactly. Z_2³² halves the upload. The
//! caller must ensure that a sum fits.

use crate::mask::Word;

/// The ring of a sum.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Ring {
    /// Integers modulo 2³², four bytes per coordinate on the wire.
    Z32,
    /// Integers modulo 2⁶⁴, eight bytes per coordinate on the wire.
    Z64,
}

impl Ring {
    /// Returns the length of one coordinate in bytes.
    pub fn width(self) -> usize {
        match self {
            Self::Z32 => 4,
            Self::Z64 => 8,
        }
    }

    /// Returns the wire code of the ring: its number of bits.
    pub fn code(self) -> u32 {
        match self {
            Self::Z32 => 32,
            Self::Z64 => 64,
        }
    }

    /// Returns the ring of a wire code, or `None` for an unknown code.
    pub fn from_code(code: u32) -> Option<Self> {
        match code {
            32 => Some(Self::Z32),
            64 => Some(Self::Z64),
            _ => None,
        }
    }
}

/// A vector over one of the rings.
#[derive(Clone, PartialEq, Eq)]
pub enum RingVector {
    /// A vector over Z_2³².
    Z32(Vec<u32>),
    /// A vector over Z_2⁶⁴.
    Z64(Vec<u64>),
}

impl RingVector {
    /// Creates a vector of `len` zeros.
    pub fn zeros(ring: Ring, len: usize) -> Self {
        match ring {
            Ring::Z32 => Self::Z32(vec![0; len]),
            Ring::Z64 => Self::Z64(vec![0; len]),
        }
    }

    /// Returns the ring of the coordinates.
    pub fn ring(&self) -> Ring {
        match self {
            Self::Z32(_) => Ring::Z32,
            Self::Z64(_) => Ring::Z64,
        }
    }

    /// Returns the number of coordinates.
    pub fn len(&self) -> usize {
        match self {
            Self::Z32(words) => words.len(),
            Self::Z64(words) => words.len(),
        }
    }

    /// Returns true if there are no coordinates.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the coordinates as little-endian bytes.
    pub fn to_le_bytes(&self) -> Vec<u8> {
        match self {
            Self::Z32(words) => words.iter().flat_map(|word| word.to_le_bytes()).collect(),
            Self::Z64(words) => words.iter().flat_map(|word| word.to_le_bytes()).collect(),
        }
    }

    /// Adds a vector given as little-endian bytes. Returns `false` and adds nothing if the lengths
    /// differ.
    #[must_use]
    pub fn add_le_bytes(&mut self, bytes: &[u8]) -> bool {
        if bytes.len() != self.len() * self.ring().width() {
            return false;
        }
        match self {
            Self::Z32(words) => u32::add_le_bytes(words, bytes),
            Self::Z64(words) => u64::add_le_bytes(words, bytes),
        }
        true
    }
}

impl From<Vec<u32>> for RingVector {
    fn from(words: Vec<u32>) -> Self {
        Self::Z32(words)
    }
}

impl From<Vec<u64>> for RingVector {
    fn from(words: Vec<u64>) -> Self {
        Self::Z64(words)
    }
}

/// Prints only the ring and the length, because a device's vector is secret.
impl std::fmt::Debug for RingVector {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "RingVector({:?}, {} coordinates)", self.ring(), self.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_wrap_in_both_rings() {
        let mut small = RingVector::from(vec![u32::MAX, 1]);
        assert!(small.add_le_bytes(&RingVector::from(vec![2u32, 3]).to_le_bytes()));
        assert_eq!(small, RingVector::from(vec![1u32, 4]));
        let mut large = RingVector::from(vec![u64::MAX]);
        assert!(large.add_le_bytes(&RingVector::from(vec![2u64]).to_le_bytes()));
        assert_eq!(large, RingVector::from(vec![1u64]));
    }

    #[test]
    fn a_vector_of_different_length_is_not_added() {
        let mut sum = RingVector::zeros(Ring::Z32, 2);
        assert!(!sum.add_le_bytes(&[1; 7]));
        assert!(!sum.add_le_bytes(&[1; 12]));
        assert_eq!(sum, RingVector::zeros(Ring::Z32, 2));
    }

    #[test]
    fn ring_codes_read_back() {
        for ring in [Ring::Z32, Ring::Z64] {
            assert_eq!(Ring::from_code(ring.code()), Some(ring));
        }
        assert_eq!(Ring::from_code(16), None);
    }
}
