//! AES-128 in counter mode: eight registers of four blocks each are processed in parallel.

use std::arch::x86_64::{
    __m128i, __m512i, _mm_aeskeygenassist_si128, _mm_loadu_si128, _mm_setzero_si128, _mm_shuffle_epi32,
    _mm_slli_si128, _mm_xor_si128, _mm512_add_epi64, _mm512_aesenc_epi128, _mm512_aesenclast_epi128,
    _mm512_broadcast_i32x4, _mm512_set_epi64, _mm512_setzero_si512, _mm512_shuffle_epi8, _mm512_xor_si512,
};

use zeroize::Zeroize;

use super::super::Word;
use super::{REGISTER, RegisterStream, combine, supported};

/// Blocks in a register.
const BLOCKS: u64 = 4;
/// Registers processed in parallel. Together with eleven round keys they fit in 32 registers.
const WIDTH: usize = 8;

/// The stream of a key at its current block.
pub(in crate::mask) struct VaesCtr {
    round_keys: [__m128i; 11],
    block: u64,
}

impl VaesCtr {
    /// Creates the stream of this key from block zero. Returns `None` if the processor lacks the
    /// instructions.
    pub(in crate::mask) fn new(key: &[u8; 16]) -> Option<Self> {
        // SAFETY: `supported` has confirmed the instructions that `expand_key` is compiled for.
        supported().then(|| Self { round_keys: unsafe { expand_key(key) }, block: 0 })
    }
}

// SAFETY: `new` returns a stream only if `supported` returns true.
unsafe impl RegisterStream for VaesCtr {
    #[target_feature(enable = "aes,vaes,avx512f,avx512bw")]
    unsafe fn run<W: Word, const PLUS: bool>(&mut self, words: &mut [W]) {
        let keys = self.round_keys.map(|key| _mm512_broadcast_i32x4(key));
        let mut wide = words.chunks_exact_mut(WIDTH * REGISTER / W::BYTES);
        for chunk in &mut wide {
            let streams = encrypt::<WIDTH>(&keys, self.block);
            self.block += BLOCKS * WIDTH as u64;
            for (register, stream) in chunk.chunks_exact_mut(REGISTER / W::BYTES).zip(streams) {
                combine::<W, PLUS>(register, stream);
            }
        }
        for register in wide.into_remainder().chunks_mut(REGISTER / W::BYTES) {
            let [stream] = encrypt::<1>(&keys, self.block);
            self.block += (register.len() * W::BYTES).div_ceil(16) as u64;
            combine::<W, PLUS>(register, stream);
        }
    }
}

impl Drop for VaesCtr {
    fn drop(&mut self) {
        self.round_keys.zeroize();
    }
}

/// Encrypts the counters from `first` on, big-endian in the last eight bytes.
#[inline]
#[target_feature(enable = "vaes,avx512f,avx512bw")]
fn encrypt<const N: usize>(keys: &[__m512i; 11], first: u64) -> [__m512i; N] {
    let start = _mm512_add_epi64(_mm512_set_epi64(3, 0, 2, 0, 1, 0, 0, 0), counters(first));
    let mut blocks = [_mm512_setzero_si512(); N];
    for (i, block) in blocks.iter_mut().enumerate() {
        let counter = _mm512_add_epi64(start, counters(BLOCKS * i as u64));
        *block = _mm512_xor_si512(_mm512_shuffle_epi8(counter, byte_swap()), keys[0]);
    }
    for key in &keys[1..10] {
        for block in &mut blocks {
            *block = _mm512_aesenc_epi128(*block, *key);
        }
    }
    blocks.map(|block| _mm512_aesenclast_epi128(block, keys[10]))
}

/// Returns `value` in the counter half of each block.
#[inline]
#[target_feature(enable = "avx512f")]
fn counters(value: u64) -> __m512i {
    let value = value.cast_signed();
    _mm512_set_epi64(value, 0, value, 0, value, 0, value, 0)
}

/// Returns the byte order that reverses the counter half of each block. The other half is zero.
#[inline]
#[target_feature(enable = "avx512f")]
fn byte_swap() -> __m512i {
    counters(u64::from_le_bytes([15, 14, 13, 12, 11, 10, 9, 8]))
}

/// Returns the eleven round keys of AES-128 (FIPS 197, section 5.2).
#[target_feature(enable = "aes")]
fn expand_key(key: &[u8; 16]) -> [__m128i; 11] {
    let mut keys = [_mm_setzero_si128(); 11];
    // SAFETY: the key has the 16 bytes of a register. Unaligned loads need no alignment.
    keys[0] = unsafe { _mm_loadu_si128(key.as_ptr().cast()) };
    keys[1] = next_key::<0x01>(keys[0]);
    keys[2] = next_key::<0x02>(keys[1]);
    keys[3] = next_key::<0x04>(keys[2]);
    keys[4] = next_key::<0x08>(keys[3]);
    keys[5] = next_key::<0x10>(keys[4]);
    keys[6] = next_key::<0x20>(keys[5]);
    keys[7] = next_key::<0x40>(keys[6]);
    keys[8] = next_key::<0x80>(keys[7]);
    keys[9] = next_key::<0x1b>(keys[8]);
    keys[10] = next_key::<0x36>(keys[9]);
    keys
}

/// Computes one step of the key schedule: word i becomes the XOR of words 0 … i and of the
/// substituted last word.
#[inline]
#[target_feature(enable = "aes")]
fn next_key<const CONSTANT: i32>(key: __m128i) -> __m128i {
    let substituted = _mm_shuffle_epi32::<0xff>(_mm_aeskeygenassist_si128::<CONSTANT>(key));
    let pairs = _mm_xor_si128(key, _mm_slli_si128::<4>(key));
    let sums = _mm_xor_si128(pairs, _mm_slli_si128::<8>(pairs));
    _mm_xor_si128(sums, substituted)
}
