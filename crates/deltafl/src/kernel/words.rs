//! Many uniform words of one key, by ChaCha8.
//!
//! Sixteen consecutive blocks of the cipher form a group of 256 words. Word w of block b is word
//! 16·w + b of the group. Sixteen blocks are computed at once, and no word is moved.

#![allow(unsafe_code, unsafe_op_in_unsafe_fn)]

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;

#[cfg(target_arch = "x86_64")]
use super::avx2::Avx2;
#[cfg(target_arch = "x86_64")]
use super::avx512::Avx512;
use super::dispatch::entry;
use super::portable::Portable;

/// The words of a group.
pub(crate) const GROUP: usize = 256;
/// The blocks of a group.
const BLOCKS: usize = 16;
/// Pairs of rounds: ChaCha8.
const DOUBLE_ROUNDS: usize = 4;
/// "expand 32-byte k".
const CONSTANTS: [u32; 4] = [0x6170_7865, 0x3320_646e, 0x7962_2d32, 0x6b20_6574];

entry! {
    /// Writes the words of consecutive groups, starting at group `first`. Their number is a
    /// multiple of [`GROUP`].
    pub(crate) fn write_words(key: &[u32; 8], first: u64, words: &mut [u32]) = words_simd, words_reference
}

/// Vectors of words.
///
/// # Safety
///
/// As for [`Simd`](super::simd::Simd): the CPU must support the instruction set, and `store`
/// accesses `LANES` words with any alignment.
unsafe trait WordLanes {
    type W: Copy;
    const LANES: usize;
    unsafe fn splat(word: u32) -> Self::W;
    /// Returns `first`, `first + 1`, …
    unsafe fn counting(first: u32) -> Self::W;
    unsafe fn add(a: Self::W, b: Self::W) -> Self::W;
    unsafe fn xor(a: Self::W, b: Self::W) -> Self::W;
    /// Rotates by `LEFT` bits to the left; `RIGHT` is 32 − `LEFT`.
    unsafe fn rotate<const LEFT: i32, const RIGHT: i32>(a: Self::W) -> Self::W;
    unsafe fn store(to: *mut u32, a: Self::W);
}

// SAFETY: each method is the intrinsic of its name. The caller guarantees the CPU and the pointer.
#[cfg(target_arch = "x86_64")]
unsafe impl WordLanes for Avx512 {
    type W = __m512i;
    const LANES: usize = 16;

    #[inline(always)]
    unsafe fn splat(word: u32) -> __m512i {
        _mm512_set1_epi32(word as i32)
    }
    #[inline(always)]
    unsafe fn counting(first: u32) -> __m512i {
        let steps = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
        _mm512_add_epi32(Self::splat(first), steps)
    }
    #[inline(always)]
    unsafe fn add(a: __m512i, b: __m512i) -> __m512i {
        _mm512_add_epi32(a, b)
    }
    #[inline(always)]
    unsafe fn xor(a: __m512i, b: __m512i) -> __m512i {
        _mm512_xor_si512(a, b)
    }
    #[inline(always)]
    unsafe fn rotate<const LEFT: i32, const RIGHT: i32>(a: __m512i) -> __m512i {
        _mm512_rol_epi32::<LEFT>(a)
    }
    #[inline(always)]
    unsafe fn store(to: *mut u32, a: __m512i) {
        _mm512_storeu_si512(to.cast(), a);
    }
}

// SAFETY: as above.
#[cfg(target_arch = "x86_64")]
unsafe impl WordLanes for Avx2 {
    type W = __m256i;
    const LANES: usize = 8;

    #[inline(always)]
    unsafe fn splat(word: u32) -> __m256i {
        _mm256_set1_epi32(word as i32)
    }
    #[inline(always)]
    unsafe fn counting(first: u32) -> __m256i {
        _mm256_add_epi32(Self::splat(first), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7))
    }
    #[inline(always)]
    unsafe fn add(a: __m256i, b: __m256i) -> __m256i {
        _mm256_add_epi32(a, b)
    }
    #[inline(always)]
    unsafe fn xor(a: __m256i, b: __m256i) -> __m256i {
        _mm256_xor_si256(a, b)
    }
    #[inline(always)]
    unsafe fn rotate<const LEFT: i32, const RIGHT: i32>(a: __m256i) -> __m256i {
        _mm256_or_si256(_mm256_slli_epi32::<LEFT>(a), _mm256_srli_epi32::<RIGHT>(a))
    }
    #[inline(always)]
    unsafe fn store(to: *mut u32, a: __m256i) {
        _mm256_storeu_si256(to.cast(), a);
    }
}

// SAFETY: arrays need no CPU feature. The caller guarantees the pointer.
unsafe impl WordLanes for Portable {
    type W = [u32; 4];
    const LANES: usize = 4;

    #[inline(always)]
    unsafe fn splat(word: u32) -> [u32; 4] {
        [word; 4]
    }
    #[inline(always)]
    unsafe fn counting(first: u32) -> [u32; 4] {
        std::array::from_fn(|i| first.wrapping_add(i as u32))
    }
    #[inline(always)]
    unsafe fn add(a: [u32; 4], b: [u32; 4]) -> [u32; 4] {
        std::array::from_fn(|i| a[i].wrapping_add(b[i]))
    }
    #[inline(always)]
    unsafe fn xor(a: [u32; 4], b: [u32; 4]) -> [u32; 4] {
        std::array::from_fn(|i| a[i] ^ b[i])
    }
    #[inline(always)]
    unsafe fn rotate<const LEFT: i32, const RIGHT: i32>(a: [u32; 4]) -> [u32; 4] {
        a.map(|word| word.rotate_left(LEFT as u32))
    }
    #[inline(always)]
    unsafe fn store(to: *mut u32, a: [u32; 4]) {
        to.cast::<[u32; 4]>().write_unaligned(a);
    }
}

#[inline(always)]
unsafe fn words_simd<S: WordLanes>(_: S, key: &[u32; 8], first: u64, words: &mut [u32]) {
    for (group, words) in (first..).zip(words.chunks_exact_mut(GROUP)) {
        for lane in (0..BLOCKS).step_by(S::LANES) {
            // A group starts at a multiple of sixteen, so that the low word does not overflow.
            let counter = group * BLOCKS as u64 + lane as u64;
            let mut start = [S::splat(0); 16];
            for (i, &constant) in CONSTANTS.iter().enumerate() {
                start[i] = S::splat(constant);
            }
            for (i, &word) in key.iter().enumerate() {
                start[4 + i] = S::splat(word);
            }
            start[12] = S::counting(counter as u32);
            start[13] = S::splat((counter >> 32) as u32);
            let mut state = start;
            for _ in 0..DOUBLE_ROUNDS {
                double_round::<S>(&mut state);
            }
            for (i, &word) in state.iter().enumerate() {
                S::store(words.as_mut_ptr().add(i * BLOCKS + lane), S::add(word, start[i]));
            }
        }
    }
}

#[inline(always)]
unsafe fn double_round<S: WordLanes>(state: &mut [S::W; 16]) {
    quarter_round::<S, 0, 4, 8, 12>(state);
    quarter_round::<S, 1, 5, 9, 13>(state);
    quarter_round::<S, 2, 6, 10, 14>(state);
    quarter_round::<S, 3, 7, 11, 15>(state);
    quarter_round::<S, 0, 5, 10, 15>(state);
    quarter_round::<S, 1, 6, 11, 12>(state);
    quarter_round::<S, 2, 7, 8, 13>(state);
    quarter_round::<S, 3, 4, 9, 14>(state);
}

/// The indices are constants, so that the state stays in registers.
#[inline(always)]
unsafe fn quarter_round<S: WordLanes, const A: usize, const B: usize, const C: usize, const D: usize>(
    state: &mut [S::W; 16],
) {
    state[A] = S::add(state[A], state[B]);
    state[D] = S::rotate::<16, 16>(S::xor(state[D], state[A]));
    state[C] = S::add(state[C], state[D]);
    state[B] = S::rotate::<12, 20>(S::xor(state[B], state[C]));
    state[A] = S::add(state[A], state[B]);
    state[D] = S::rotate::<8, 24>(S::xor(state[D], state[A]));
    state[C] = S::add(state[C], state[D]);
    state[B] = S::rotate::<7, 25>(S::xor(state[B], state[C]));
}

/// Writes the words by the generator of `rand_chacha`.
fn words_reference(key: &[u32; 8], first: u64, words: &mut [u32]) {
    use rand_chacha::ChaCha8Rng;
    use rand_chacha::rand_core::{Rng, SeedableRng};

    let mut seed = [0; 32];
    for (bytes, word) in seed.chunks_exact_mut(4).zip(key) {
        bytes.copy_from_slice(&word.to_le_bytes());
    }
    let mut cipher = ChaCha8Rng::from_seed(seed);
    cipher.set_word_pos(u128::from(first) * GROUP as u128);
    for group in words.chunks_exact_mut(GROUP) {
        for block in 0..BLOCKS {
            for word in 0..GROUP / BLOCKS {
                group[word * BLOCKS + block] = cipher.next_u32();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::{Granted, Isa};

    #[test]
    fn every_instruction_set_has_the_words_of_the_cipher() {
        let key = [1, 2, 3, 0xffff_ffff, 5, 6, 7, 8];
        // The last of these is where the counter of blocks exceeds 32 bits.
        for first in [0, 1, 1000, (1 << 28) - 1] {
            let mut expected = vec![0; 3 * GROUP];
            words_reference(&key, first, &mut expected);
            for isa in Isa::available() {
                let mut found = vec![0; 3 * GROUP];
                write_words(Granted::new(isa), &key, first, &mut found);
                assert_eq!(found, expected, "{isa}, group {first}");
            }
        }
    }
}
