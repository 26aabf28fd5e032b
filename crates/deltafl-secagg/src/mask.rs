//! Masks: streams of ring elements expanded from keys, added to a vector and later taken off.
//!
//! The stream of a key is that of AEGIS-128X4, of AES-128 in counter mode or of ChaCha20, from its first byte, read as
//! little-endian ring elements. A key masks one vector of one slot, so AES-128 and ChaCha20 have the nonce zero for good;
//! AEGIS-128X4 takes key and nonce from the two halves of a mask's key.
//!
//! A vector of a million coordinates does not fit in the first-level cache and the streams of a hundred keys
//! do not fit in memory. So the vector is walked in tiles of 8 KiB, and every key of a batch passes over a
//! tile before the next tile is touched; a stream exists one tile at a time.

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

/// Bytes of a vector that all keys of a batch pass over before the next ones are touched: the tile and the
/// stream beside it fit in a 32 KiB first-level cache.
const TILE: usize = 8 << 10;
/// Keys whose expanded ciphers are held at once.
const BATCH: usize = 64;

/// The cryptography of a round. Every suite agrees by X25519 with ML-KEM-768, derives by HKDF-SHA-256, seals by
/// ChaCha20-Poly1305 and signs by Ed25519; what it leaves open is the cipher that expands masks. Suites 1 and 2
/// agreed by X25519 alone, and are refused.
///
/// AEGIS-128X4 takes four AES rounds for 16 bytes and AES-128 ten; ChaCha20 is for devices without AES instructions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum MaskSuite {
    /// AEGIS-128X4 as a stream cipher (RFC 10032).
    #[default]
    Aegis128X4,
    /// AES-128 in counter mode (SP 800-38A), for whoever must use what NIST has approved.
    Aes128Ctr,
    /// ChaCha20 (RFC 8439).
    ChaCha20,
}

impl MaskSuite {
    /// Every suite.
    pub const ALL: [Self; 3] = [Self::Aegis128X4, Self::Aes128Ctr, Self::ChaCha20];

    /// The number that stands for the suite on the wire.
    pub fn code(self) -> u32 {
        match self {
            Self::Aes128Ctr => 3,
            Self::ChaCha20 => 4,
            Self::Aegis128X4 => 5,
        }
    }

    /// The suite of a wire number.
    pub fn from_code(code: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|suite| suite.code() == code)
    }

    /// The fastest stream of the key on this machine.
    fn stream(self, key: &MaskKey) -> Stream {
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        {
            let vaes = match self {
                Self::Aegis128X4 => vaes::VaesAegis::new(key.halves()).map(Stream::VaesAegis),
                Self::Aes128Ctr => vaes::VaesCtr::new(&key.halves()[0]).map(Stream::VaesCtr),
                Self::ChaCha20 => None,
            };
            if let Some(stream) = vaes {
                return stream;
            }
        }
        self.portable_stream(key)
    }

    /// The stream of the crates.
    fn portable_stream(self, key: &MaskKey) -> Stream {
        match self {
            Self::Aegis128X4 => Stream::Aegis128X4(aegis::AegisStream::new(key.halves())),
            Self::Aes128Ctr => {
                Stream::Aes128Ctr(Box::new(Ctr64BE::new((&key.halves()[0]).into(), &[0; 16].into())))
            }
            Self::ChaCha20 => Stream::ChaCha20(ChaCha20::new(&key.0.into(), &[0; 12].into())),
        }
    }
}

/// The key of one mask.
#[derive(Clone, Zeroize, ZeroizeOnDrop)]
pub struct MaskKey(pub(crate) [u8; 32]);

impl MaskKey {
    /// The key of these bytes; AES-128 uses the first sixteen.
    pub fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    fn halves(&self) -> &[[u8; 16]; 2] {
        self.0.as_chunks().0.first_chunk().expect("twice sixteen are thirty-two")
    }
}

impl std::fmt::Debug for MaskKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("MaskKey(..)")
    }
}

/// Whether a mask is put on or taken off.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MaskSign {
    /// Add the stream.
    Plus,
    /// Subtract the stream.
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

/// Adds (or subtracts) the stream of every key to `vector`.
pub fn apply(vector: &mut RingVector, suite: MaskSuite, masks: &[(MaskSign, MaskKey)]) {
    match vector {
        RingVector::Z32(words) => apply_words(words, suite, masks),
        RingVector::Z64(words) => apply_words(words, suite, masks),
    }
}

fn apply_words<W: Word>(words: &mut [W], suite: MaskSuite, masks: &[(MaskSign, MaskKey)]) {
    let mut keystream = Zeroizing::new([0; TILE]);
    for batch in masks.chunks(BATCH) {
        let mut streams: Vec<(MaskSign, Stream)> =
            batch.iter().map(|(sign, key)| (*sign, suite.stream(key))).collect();
        for tile in words.chunks_mut(TILE / W::BYTES) {
            for (sign, stream) in &mut streams {
                stream.apply(tile, *sign, &mut keystream);
            }
        }
    }
}

/// A key stream at its current position. The expanded keys are wiped when dropped.
enum Stream {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    VaesAegis(vaes::VaesAegis),
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    VaesCtr(vaes::VaesCtr),
    Aegis128X4(aegis::AegisStream),
    Aes128Ctr(Box<Ctr64BE<Aes128>>),
    ChaCha20(ChaCha20),
}

impl Stream {
    /// Adds the next bytes of the stream to a tile, or subtracts them; `keystream` is room to work in.
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

/// A ring element as the kernels see it.
pub(crate) trait Word: Copy {
    /// Bytes of a word.
    const BYTES: usize;
    /// `words[i] += bytes[i]`, wrapping, the bytes read as little-endian words.
    fn add_le_bytes(words: &mut [Self], bytes: &[u8]);
    /// `words[i] −= bytes[i]`, wrapping, the bytes read as little-endian words.
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

    /// The readable reference: each stream of the crates whole, then added.
    fn reference<W: Word + Default>(len: usize, suite: MaskSuite, masks: &[(MaskSign, MaskKey)]) -> Vec<W> {
        let mut words = vec![W::default(); len];
        for (sign, key) in masks {
            let mut keystream = vec![0; len * W::BYTES];
            match suite.portable_stream(key) {
                Stream::Aegis128X4(mut stream) => stream.write(&mut keystream),
                Stream::Aes128Ctr(mut cipher) => cipher.write_keystream(&mut keystream),
                Stream::ChaCha20(mut cipher) => cipher.write_keystream(&mut keystream),
                #[cfg(all(target_arch = "x86_64", not(miri)))]
                Stream::VaesAegis(_) | Stream::VaesCtr(_) => unreachable!("not of the crates"),
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
        fn tiles_and_batches_give_the_streams_of_the_reference(
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
    fn every_short_length_gives_the_stream_of_the_reference() {
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
