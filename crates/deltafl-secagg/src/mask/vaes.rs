//! Key streams that are added directly to a vector, with VAES and AVX-512.
//!
//! The `aes` crate has a VAES backend too, but it writes the stream to memory before the stream is
//! added. Here the stream stays in registers. The portable streams remain as the reference, and
//! tests compare both. Machines without these instructions use the portable streams.

// The only unsafe code of the crate: calls of functions compiled for these instructions, and
// unaligned loads and stores of whole registers.
#![allow(unsafe_code)]

mod aegis;
mod aes_ctr;

pub(super) use aegis::VaesAegis;
pub(super) use aes_ctr::VaesCtr;

use std::arch::x86_64::{
    __m512i, _mm512_add_epi32, _mm512_add_epi64, _mm512_loadu_si512, _mm512_storeu_si512, _mm512_sub_epi32,
    _mm512_sub_epi64,
};

use zeroize::Zeroize;

use super::{MaskSign, Word};

/// A key stream whose state stays in registers.
///
/// # Safety
///
/// A value may exist only if [`supported`] returns true.
pub(super) unsafe trait RegisterStream {
    /// Adds the next bytes of the stream to `words`, or subtracts them if `PLUS` is false.
    ///
    /// # Safety
    ///
    /// The processor must have the instructions that [`supported`] checks.
    unsafe fn run<W: Word, const PLUS: bool>(&mut self, words: &mut [W]);

    /// Adds the next bytes of the stream to `words`, or subtracts them.
    ///
    /// All calls but the last must be for whole steps of the stream.
    fn apply<W: Word>(&mut self, words: &mut [W], sign: MaskSign) {
        // SAFETY: a stream exists only if the processor has the instructions.
        unsafe {
            match sign {
                MaskSign::Plus => self.run::<W, true>(words),
                MaskSign::Minus => self.run::<W, false>(words),
            }
        }
    }
}

/// Bytes in a register.
const REGISTER: usize = 64;

/// Returns true if this processor has the instructions that the streams are compiled for.
fn supported() -> bool {
    is_x86_feature_detected!("aes")
        && is_x86_feature_detected!("vaes")
        && is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
}

/// Adds one register of the stream to at most one register of words, or subtracts it.
#[inline]
#[target_feature(enable = "avx512f")]
fn combine<W: Word, const PLUS: bool>(words: &mut [W], stream: __m512i) {
    if words.len() * W::BYTES < REGISTER {
        let mut bytes = [0u8; REGISTER];
        // SAFETY: the array has the 64 bytes of a register. Unaligned stores need no alignment.
        unsafe { _mm512_storeu_si512(bytes.as_mut_ptr().cast(), stream) };
        if PLUS {
            W::add_le_bytes(words, &bytes);
        } else {
            W::sub_le_bytes(words, &bytes);
        }
        bytes.zeroize();
        return;
    }
    let address = words.as_mut_ptr().cast::<__m512i>();
    // SAFETY: `words` has at least the 64 bytes of a register, which are plain integers. Unaligned
    // loads need no alignment.
    let old = unsafe { _mm512_loadu_si512(address) };
    let new = match (W::BYTES, PLUS) {
        (4, true) => _mm512_add_epi32(old, stream),
        (4, false) => _mm512_sub_epi32(old, stream),
        (_, true) => _mm512_add_epi64(old, stream),
        (_, false) => _mm512_sub_epi64(old, stream),
    };
    // SAFETY: same as for the load.
    unsafe { _mm512_storeu_si512(address, new) };
}
