//! AEGIS-128X4: a register holds one block of state of each of the four lanes. All eight registers
//! of state stay in registers during a tile.

use std::arch::x86_64::{
    __m512i, _mm512_aesenc_epi128, _mm512_and_si512, _mm512_loadu_si512, _mm512_setzero_si512,
    _mm512_ternarylogic_epi64, _mm512_xor_si512,
};

use zeroize::Zeroize;

use super::super::Word;
use super::super::aegis::{INITIAL_STEPS, LANES, context, start};
use super::{REGISTER, RegisterStream, combine, supported};

/// The truth table of a ⊕ b ⊕ c.
const XOR: i32 = 0x96;

/// The stream of a key at its current step.
pub(in crate::mask) struct VaesAegis {
    state: [__m512i; 8],
}

impl VaesAegis {
    /// Creates the stream of a key and a nonce. Returns `None` if the processor lacks the
    /// instructions.
    pub(in crate::mask) fn new(key_and_nonce: &[[u8; 16]; 2]) -> Option<Self> {
        // SAFETY: `supported` has confirmed the instructions that `initial` is compiled for.
        supported().then(|| Self { state: unsafe { initial(key_and_nonce) } })
    }
}

// SAFETY: `new` returns a stream only if `supported` returns true.
unsafe impl RegisterStream for VaesAegis {
    #[target_feature(enable = "vaes,avx512f,avx512bw")]
    unsafe fn run<W: Word, const PLUS: bool>(&mut self, words: &mut [W]) {
        let mut state = self.state;
        let mut whole = words.chunks_exact_mut(2 * REGISTER / W::BYTES);
        for chunk in &mut whole {
            let (first, second) = chunk.split_at_mut(REGISTER / W::BYTES);
            let stream = output(&state);
            state = step(&state, state[0], state[4]);
            combine::<W, PLUS>(first, stream[0]);
            combine::<W, PLUS>(second, stream[1]);
        }
        let rest = whole.into_remainder();
        for (register, stream) in rest.chunks_mut(REGISTER / W::BYTES).zip(output(&state)) {
            combine::<W, PLUS>(register, stream);
        }
        self.state = state;
    }
}

impl Drop for VaesAegis {
    fn drop(&mut self) {
        self.state.zeroize();
    }
}

/// Returns the two output registers of a state.
#[inline]
#[target_feature(enable = "avx512f")]
fn output(s: &[__m512i; 8]) -> [__m512i; 2] {
    [
        _mm512_ternarylogic_epi64::<XOR>(s[6], s[1], _mm512_and_si512(s[2], s[3])),
        _mm512_ternarylogic_epi64::<XOR>(s[2], s[5], _mm512_and_si512(s[6], s[7])),
    ]
}

/// Returns the state after a step. Each block becomes the AES round of the previous block, with
/// itself as the round key. `first` and `fifth` are the round keys of those blocks, which include
/// the input.
#[inline]
#[target_feature(enable = "vaes,avx512f")]
fn step(s: &[__m512i; 8], first: __m512i, fifth: __m512i) -> [__m512i; 8] {
    [
        _mm512_aesenc_epi128(s[7], first),
        _mm512_aesenc_epi128(s[0], s[1]),
        _mm512_aesenc_epi128(s[1], s[2]),
        _mm512_aesenc_epi128(s[2], s[3]),
        _mm512_aesenc_epi128(s[3], fifth),
        _mm512_aesenc_epi128(s[4], s[5]),
        _mm512_aesenc_epi128(s[5], s[6]),
        _mm512_aesenc_epi128(s[6], s[7]),
    ]
}

/// Returns the state of a key and a nonce after the initialisation.
#[target_feature(enable = "vaes,avx512f")]
fn initial(key_and_nonce: &[[u8; 16]; 2]) -> [__m512i; 8] {
    let mut first = start(key_and_nonce);
    let mut state = [_mm512_setzero_si512(); 8];
    for (state, block) in state.iter_mut().zip(first) {
        *state = lanes([block; LANES]);
    }
    first.zeroize();
    let [key, nonce] = key_and_nonce.map(|block| lanes([block; LANES]));
    let contexts = lanes(std::array::from_fn(context));
    for _ in 0..INITIAL_STEPS {
        for place in [3, 7] {
            state[place] = _mm512_xor_si512(state[place], contexts);
        }
        state = step(&state, _mm512_xor_si512(state[0], nonce), _mm512_xor_si512(state[4], key));
    }
    state
}

/// Loads one block per lane into a register.
#[inline]
#[target_feature(enable = "avx512f")]
fn lanes(blocks: [[u8; 16]; LANES]) -> __m512i {
    // SAFETY: four blocks have the 64 bytes of a register. Unaligned loads need no alignment.
    unsafe { _mm512_loadu_si512(blocks.as_ptr().cast()) }
}
