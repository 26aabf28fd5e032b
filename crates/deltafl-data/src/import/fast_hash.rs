//! A fast hash of short strings for the tables of an import, with a random key per map.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hasher, RandomState};

/// A map from strings.
pub(crate) type FastMap<V> = HashMap<String, V, FastHash>;

/// Builds hashers with a random key, so that a file cannot be made to collide.
#[derive(Clone, Debug)]
pub(crate) struct FastHash(u64);

impl Default for FastHash {
    fn default() -> Self {
        Self(RandomState::new().hash_one(0u8) | 1)
    }
}

impl BuildHasher for FastHash {
    type Hasher = FoldHasher;

    fn build_hasher(&self) -> FoldHasher {
        FoldHasher { key: self.0, state: self.0 }
    }
}

/// Multiplies each word of eight bytes with the key, and folds the halves of the product.
pub(crate) struct FoldHasher {
    key: u64,
    state: u64,
}

impl FoldHasher {
    fn add(&mut self, word: u64) {
        let product = u128::from(self.state ^ word) * u128::from(self.key ^ 0x9e37_79b9_7f4a_7c15);
        self.state = (product as u64) ^ (product >> 64) as u64;
    }
}

impl Hasher for FoldHasher {
    fn write(&mut self, bytes: &[u8]) {
        let (words, rest) = bytes.as_chunks::<8>();
        words.iter().for_each(|word| self.add(u64::from_le_bytes(*word)));
        let mut last = [0; 8];
        last[..rest.len()].copy_from_slice(rest);
        self.add(u64::from_le_bytes(last) ^ ((bytes.len() as u64) << 56));
    }

    /// The end of a string.
    fn write_u8(&mut self, byte: u8) {
        self.state ^= u64::from(byte);
    }

    fn finish(&self) -> u64 {
        self.state
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn different_words_have_different_hashes_and_keys_differ() {
        let hash = FastHash::default();
        let mut seen = std::collections::HashSet::new();
        for i in 0..20_000 {
            for word in [format!("{i}"), format!("word {i}"), format!("a longer word, number {i}")] {
                assert!(seen.insert(hash.hash_one(word.as_str())), "{word}");
            }
        }
        assert_ne!(hash.hash_one(""), hash.hash_one("\0"));
        assert_ne!(FastHash::default().hash_one("a"), FastHash::default().hash_one("a"));
    }
}
