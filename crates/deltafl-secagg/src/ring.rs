//! The rings in which vectors are added: Z_2³² and Z_2⁶⁴.
//!
//! Sums wrap. Z_2⁶⁴ holds the integer sums of the simulator bit for bit; Z_2³² halves the upload; the
//! caller sees to it that a sum fits.

use crate::mask::Word;

/// Which ring a sum lives in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Ring {
    /// Integers modulo 2³²: four bytes a coordinate on the wire.
    Z32,
    /// Integers modulo 2⁶⁴: eight bytes a coordinate on the wire.
    Z64,
}

impl Ring {
    /// Bytes of one coordinate.
    pub fn width(self) -> usize {
        match self {
            Self::Z32 => 4,
            Self::Z64 => 8,
        }
    }

    /// The number that stands for the ring on the wire: its bits.
    pub fn code(self) -> u32 {
        match self {
            Self::Z32 => 32,
            Self::Z64 => 64,
        }
    }

    /// The ring of a wire number.
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
    /// Over Z_2³².
    Z32(Vec<u32>),
    /// Over Z_2⁶⁴.
    Z64(Vec<u64>),
}

impl RingVector {
    /// `len` zeros.
    pub fn zeros(ring: Ring, len: usize) -> Self {
        match ring {
            Ring::Z32 => Self::Z32(vec![0; len]),
            Ring::Z64 => Self::Z64(vec![0; len]),
        }
    }

    /// The ring of the coordinates.
    pub fn ring(&self) -> Ring {
        match self {
            Self::Z32(_) => Ring::Z32,
            Self::Z64(_) => Ring::Z64,
        }
    }

    /// The number of coordinates.
    pub fn len(&self) -> usize {
        match self {
            Self::Z32(words) => words.len(),
            Self::Z64(words) => words.len(),
        }
    }

    /// Whether there are no coordinates.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The coordinates as little-endian bytes.
    pub fn to_le_bytes(&self) -> Vec<u8> {
        match self {
            Self::Z32(words) => words.iter().flat_map(|word| word.to_le_bytes()).collect(),
            Self::Z64(words) => words.iter().flat_map(|word| word.to_le_bytes()).collect(),
        }
    }

    /// Adds a vector of as many little-endian coordinates; `false`, and nothing added, when it is not as
    /// long.
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

/// A device's vector is a secret: only its shape is printed.
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
    fn a_vector_of_another_length_is_not_added() {
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
