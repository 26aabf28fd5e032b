//! Masks: streams of ring elements expanded from keys, added to a vector and later subtracted.
//!
//! The key stream of AEGIS-128X4, AES-128-CTR or ChaCha20 is read as little-endian ring elements. A
//! key masks one vector of one slot, so AES-128 and ChaCha20 use a zero nonce. AEGIS-128X4 takes
//! its key and its nonce from the two halves of a mask key.
//!
//! A vector of a million coordinates does not fit in the L1 cache, and the streams of a hundred
//! keys do not fit in memory. Therefore the vector is processed in tiles of 8 KiB. All keys of a
//! batch are applied to a tile before the next tile is loaded, and each stream is expanded one tile
//! at a time.

mod aegis;
#[cfg(all(target_arch = "x86_64", not(miri)))]
mod vaes;

use aes::Aes128;
use chacha20::ChaCha20;
use ctr::Ctr64BE;
use ctr::cipher::{KeyIvInit, StreamCipher};
use zeroize::{Zeroize, ZeroizeOnDrop, Zeroizing};

#[cfg(all(target_arch = "x86_64", not(miri)))]
use self::vaes::RegisterStream as _;
use crate::ring::RingVector;

/// Bytes of a tile. A tile and its key stream fit in an L1 cache of 32 KiB.
const TILE: usize = 8 << 10;
/// The number of keys whose expanded ciphers are in memory at once.
const BATCH: usize = 64;

/// The cryptography of a round.
///
/// All suites use X25519 with ML-KEM-768, HKDF-SHA-256, ChaCha20-Poly1305 and Ed25519. They differ
/// in the cipher that expands masks. The codes 1 and 2 belonged to suites without ML-KEM and are
/// rejected.
///
/// AEGIS-128X4 takes four AES rounds per 16 bytes, AES-128 takes ten. ChaCha20 is for devices
/// without AES instructions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum MaskSuite {
    /// AEGIS-128X4 as a stream cipher (RFC 10032).
    #[default]
    Aegis128X4,
    /// AES-128 in counter mode (SP 800-38A), for deployments that require NIST-approved ciphers.
    Aes128Ctr,
    /// ChaCha20 (RFC 8439).
    ChaCha20,
}

impl MaskSuite {
    /// All suites.
    pub const ALL: [Self; 3] = [Self::Aegis128X4, Self::Aes128Ctr, Self::ChaCha20];

    /// Returns the wire code of the suite.
    pub fn code(self) -> u32 {
        match self {
            Self::Aes128Ctr => 3,
            Self::ChaCha20 => 4,
            Self::Aegis128X4 => 5,
        }
    }

    /// Returns the suite of a wire code, or `None` for an unknown code.
    pub fn from_code(code: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|suite| suite.code() == code)
    }

    /// Returns the fastest stream of the key on this machine.
    fn stream(self, key: &MaskKey) -> MaskStream {
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        {
            let vaes = match self {
                Self::Aegis128X4 => vaes::VaesAegis::new(key.halves()).map(MaskStream::VaesAegis),
                Self::Aes128Ctr => vaes::VaesCtr::new(&key.halves()[0]).map(MaskStream::VaesCtr),
                Self::ChaCha20 => None,
            };
            if let Some(stream) = vaes {
                return stream;
            }
        }
        self.portable_stream(key)
    }

    /// Returns the stream as implemented by the cipher crates.
    fn portable_stream(self, key: &MaskKey) -> MaskStream {
        match self {
            Self::Aegis128X4 => MaskStream::Aegis128X4(aegis::AegisStream::new(key.halves())),
            Self::Aes128Ctr => {
                MaskStream::Aes128Ctr(Box::new(Ctr64BE::new((&key.halves()[0]).into(), &[0; 16].into())))
            }
            Self::ChaCha20 => MaskStream::ChaCha20(ChaCha20::new(&key.0.into(), &[0; 12].into())),
        }
    }
}

/// The key of one mask.
#[derive(Clone, Zeroize, ZeroizeOnDrop)]
pub struct MaskKey(pub(crate) [u8; 32]);

impl MaskKey {
    /// Creates a key from bytes. AES-128 uses the first sixteen.
    pub fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    fn halves(&self) -> &[[u8; 16]; 2] {
        self.0.as_chunks().0.first_chunk().expect("32 bytes are two halves of 16")
    }
}

impl std::fmt::Debug for MaskKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("MaskKey(..)")
    }
}

/// The direction in which a mask is applied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MaskSign {
    /// Adds the stream.
    Plus,
    /// Subtracts the stream.
    Minus,
}

impl std::ops::Neg for MaskSign {
    type Output = Self;

    fn neg(self) -> Self {
        match self {
            Self::Plus => Self::Minus,
            Self::Minus => Self::Plus,
        }
    }
}

/// Adds the stream of every key to `vector`, or subtracts it.
pub fn apply(vector: &mut RingVector, suite: MaskSuite, masks: &[(MaskSign, MaskKey)]) {
    match vector {
        RingVector::Z32(words) => apply_words(words, suite, masks),
        RingVector::Z64(words) => apply_words(words, suite, masks),
    }
}

fn apply_words<W: Word>(words: &mut [W], suite: MaskSuite, masks: &[(MaskSign, MaskKey)]) {
    let mut keystream = Zeroizing::new([0; TILE]);
    for batch in masks.chunks(BATCH) {
        let mut streams: Vec<(MaskSign, MaskStream)> =
            batch.iter().map(|(sign, key)| (*sign, suite.stream(key))).collect();
        for tile in words.chunks_mut(TILE / W::BYTES) {
            for (sign, stream) in &mut streams {
                stream.apply(tile, *sign, &mut keystream);
            }
        }
    }
}

/// A key stream at its current position. The expanded keys are wiped on drop.
enum MaskStream {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    VaesAegis(vaes::VaesAegis),
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    VaesCtr(vaes::VaesCtr),
    Aegis128X4(aegis::AegisStream),
    Aes128Ctr(Box<Ctr64BE<Aes128>>),
    ChaCha20(ChaCha20),
}

impl MaskStream {
    /// Adds the next bytes of the stream to a tile, or subtracts them. `keystream` is a scratch
    /// buffer.
    fn apply<W: Word>(&mut self, tile: &mut [W], sign: MaskSign, keystream: &mut [u8; TILE]) {
        let keystream = &mut keystream[..tile.len() * W::BYTES];
        match self {
            #[cfg(all(target_arch = "x86_64", not(miri)))]
            Self::VaesAegis(stream) => return stream.apply(tile, sign),
            #[cfg(all(target_arch = "x86_64", not(miri)))]
            Self::VaesCtr(stream) => return stream.apply(tile, sign),
            Self::Aegis128X4(stream) => stream.write(keystream),
            Self::Aes128Ctr(cipher) => cipher.write_keystream(keystream),
            Self::ChaCha20(cipher) => cipher.write_keystream(keystream),
        }
        match sign {
            MaskSign::Plus => W::add_le_bytes(tile, keystream),
            MaskSign::Minus => W::sub_le_bytes(tile, keystream),
        }
    }
}

/// A ring element of the mask kernels.
pub(crate) trait Word: Copy {
    /// Bytes per word.
    const BYTES: usize;
    /// Computes `words[i] += bytes[i]`, wrapping. The bytes are little-endian words.
    fn add_le_bytes(words: &mut [Self], bytes: &[u8]);
    /// Computes `words[i] −= bytes[i]`, wrapping. The bytes are little-endian words.
    fn sub_le_bytes(words: &mut [Self], bytes: &[u8]);
}

macro_rules! word {
    ($word:ty) => {
        impl Word for $word {
            const BYTES: usize = size_of::<$word>();

            #[inline]
            fn add_le_bytes(words: &mut [Self], bytes: &[u8]) {
                let (chunks, _) = bytes.as_chunks::<{ size_of::<$word>() }>();
                for (word, &chunk) in words.iter_mut().zip(chunks) {
                    *word = word.wrapping_add(Self::from_le_bytes(chunk));
                }
            }

            #[inline]
            fn sub_le_bytes(words: &mut [Self], bytes: &[u8]) {
                let (chunks, _) = bytes.as_chunks::<{ size_of::<$word>() }>();
                for (word, &chunk) in words.iter_mut().zip(chunks) {
                    *word = word.wrapping_sub(Self::from_le_bytes(chunk));
                }
            }
        }
    };
}

word!(u32);
word!(u64);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ring::Ring;
    use proptest::prelude::*;

    /// The readable reference: expands each stream completely, then adds it.
    fn reference<W: Word + Default>(len: usize, suite: MaskSuite, masks: &[(MaskSign, MaskKey)]) -> Vec<W> {
        let mut words = vec![W::default(); len];
        for (sign, key) in masks {
            let mut keystream = vec![0; len * W::BYTES];
            match suite.portable_stream(key) {
                MaskStream::Aegis128X4(mut stream) => stream.write(&mut keystream),
                MaskStream::Aes128Ctr(mut cipher) => cipher.write_keystream(&mut keystream),
                MaskStream::ChaCha20(mut cipher) => cipher.write_keystream(&mut keystream),
                #[cfg(all(target_arch = "x86_64", not(miri)))]
                MaskStream::VaesAegis(_) | MaskStream::VaesCtr(_) => unreachable!("not a portable stream"),
            }
            match sign {
                MaskSign::Plus => W::add_le_bytes(&mut words, &keystream),
                MaskSign::Minus => W::sub_le_bytes(&mut words, &keystream),
            }
        }
        words
    }

    fn masks(count: usize) -> Vec<(MaskSign, MaskKey)> {
        let sign = |i| if i % 3 == 0 { MaskSign::Minus } else { MaskSign::Plus };
        (0..count).map(|i| (sign(i), MaskKey([i as u8; 32]))).collect()
    }

    fn suites() -> impl Strategy<Value = MaskSuite> {
        prop::sample::select(&MaskSuite::ALL)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]

        #[test]
        fn tiled_and_batched_streams_match_the_reference(
            suite in suites(), len in 0usize..6000, count in 0usize..70,
        ) {
            let masks = masks(count);
            let mut vector = RingVector::zeros(Ring::Z32, len);
            apply(&mut vector, suite, &masks);
            prop_assert_eq!(vector, RingVector::Z32(reference(len, suite, &masks)));
            let mut vector = RingVector::zeros(Ring::Z64, len);
            apply(&mut vector, suite, &masks);
            prop_assert_eq!(vector, RingVector::Z64(reference(len, suite, &masks)));
        }

        #[test]
        fn masks_of_opposite_sign_cancel(suite in suites(), words: Vec<u64>, count in 0usize..5) {
            let masks = masks(count);
            let opposite: Vec<_> = masks.iter().map(|(sign, key)| (-*sign, key.clone())).collect();
            let mut vector = RingVector::Z64(words.clone());
            apply(&mut vector, suite, &masks);
            apply(&mut vector, suite, &opposite);
            prop_assert_eq!(vector, RingVector::Z64(words));
        }
    }

    #[test]
    fn streams_of_every_short_length_match_the_reference() {
        for len in 0..300 {
            for suite in MaskSuite::ALL {
                let masks = masks(3);
                let mut vector = RingVector::zeros(Ring::Z32, len);
                apply(&mut vector, suite, &masks);
                assert_eq!(vector, RingVector::Z32(reference(len, suite, &masks)), "{suite:?}, {len}");
            }
        }
    }

    #[test]
    fn suite_codes_read_back() {
        for suite in MaskSuite::ALL {
            assert_eq!(MaskSuite::from_code(suite.code()), Some(suite));
        }
        assert_eq!(MaskSuite::from_code(0), None);
    }
}
