//! AEGIS-128X4 as a stream cipher (RFC 10032: the encryption of zeros).
//!
//! It uses the AES round of the `aes` crate: AES instructions if the processor has them,
//! constant-time software otherwise. A lane has eight blocks of state. A step outputs two blocks
//! per lane and computes one AES round per block of state. This is four rounds per 16 bytes, where
//! AES-128 takes ten.

use aes::Block;
use aes::hazmat::{Block8, cipher_round_par};
use zeroize::Zeroize;

/// The number of parallel lanes.
pub(super) const LANES: usize = 4;
/// The number of initialisation steps.
pub(super) const INITIAL_STEPS: usize = 10;
/// Bytes per step: the first blocks of all lanes, then the second blocks.
const STEP: usize = 2 * LANES * 16;
/// The constants C0 and C1 of the initialisation.
const C: [[u8; 16]; 2] = [
    [0x00, 0x01, 0x01, 0x02, 0x03, 0x05, 0x08, 0x0d, 0x15, 0x22, 0x37, 0x59, 0x90, 0xe9, 0x79, 0x62],
    [0xdb, 0x3d, 0x18, 0x55, 0x6d, 0xc2, 0x2f, 0xf1, 0x20, 0x11, 0x31, 0x42, 0x73, 0xb5, 0x28, 0xdd],
];

/// Returns the state of each lane before the first initialisation step.
pub(super) fn start([key, nonce]: &[[u8; 16]; 2]) -> [[u8; 16]; 8] {
    let both = xor(key, nonce);
    let [key_c0, key_c1] = C.map(|constant| xor(key, &constant));
    [both, C[1], C[0], C[1], both, key_c0, key_c1, key_c0]
}

/// Returns the constant that distinguishes a lane: its number and the number of the last lane.
pub(super) fn context(lane: usize) -> [u8; 16] {
    let mut context = [0; 16];
    context[..2].copy_from_slice(&[lane as u8, LANES as u8 - 1]);
    context
}

fn xor(a: &[u8; 16], b: &[u8; 16]) -> [u8; 16] {
    std::array::from_fn(|i| a[i] ^ b[i])
}

/// The stream of a key at its current step. The state is wiped on drop.
pub(super) struct AegisStream {
    lanes: [Block8; LANES],
}

impl AegisStream {
    /// Creates the stream of a key and a nonce.
    pub(super) fn new(key_and_nonce: &[[u8; 16]; 2]) -> Self {
        let [key, nonce] = key_and_nonce;
        let mut first = start(key_and_nonce);
        let mut lanes = [Block8::from_fn(|i| Block::from(first[i])); LANES];
        first.zeroize();
        for _ in 0..INITIAL_STEPS {
            for (i, lane) in lanes.iter_mut().enumerate() {
                for place in [3, 7] {
                    lane[place] = Block::from(xor(&lane[place].into(), &context(i)));
                }
                step(lane, nonce, key);
            }
        }
        Self { lanes }
    }

    /// Writes the next bytes of the stream.
    ///
    /// All calls but the last must be for whole steps of 128 bytes.
    pub(super) fn write(&mut self, bytes: &mut [u8]) {
        let mut out = [0; STEP];
        for chunk in bytes.chunks_mut(STEP) {
            for (i, lane) in self.lanes.iter_mut().enumerate() {
                for (half, [a, b, c, d]) in [[6, 1, 2, 3], [2, 5, 6, 7]].into_iter().enumerate() {
                    let block = &mut out[16 * (half * LANES + i)..][..16];
                    for (at, byte) in block.iter_mut().enumerate() {
                        *byte = lane[a][at] ^ lane[b][at] ^ (lane[c][at] & lane[d][at]);
                    }
                }
                step(lane, &[0; 16], &[0; 16]);
            }
            chunk.copy_from_slice(&out[..chunk.len()]);
        }
        out.zeroize();
    }
}

/// Performs one step of a lane with two input blocks. Each block of state becomes the AES round of
/// the previous block, with itself as the round key.
fn step(lane: &mut Block8, first: &[u8; 16], second: &[u8; 16]) {
    let mut keys = *lane;
    for (place, taken) in [(0, first), (4, second)] {
        keys[place] = Block::from(xor(&keys[place].into(), taken));
    }
    lane.rotate_right(1);
    cipher_round_par(lane, &keys);
    wipe(&mut keys);
}

fn wipe(blocks: &mut Block8) {
    blocks.iter_mut().for_each(|block| block.as_mut_slice().zeroize());
}

impl Drop for AegisStream {
    fn drop(&mut self) {
        self.lanes.iter_mut().for_each(wipe);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_initial_state_matches_the_rfc() {
        // RFC 10032, AEGIS-128X4: V[i, lane] after the initialisation, for the first and the last
        // lane.
        let key = std::array::from_fn(|i| i as u8);
        let stream = AegisStream::new(&[key, key.map(|byte| byte + 16)]);
        let expected: [[u128; 8]; 2] = [
            [
                0x924eb07635003a37e6c6575ba8ce1929,
                0x1a1f60c4fab64e5471dc72edfcf6fe6b,
                0x7bb50c534f6ec4780530ff1cce8a16e8,
                0xaf339fd2d50ee45fc47665c647cf6586,
                0x9f93737d699ba05c11e94f2b201bef5e,
                0x7a5aca78d636c05bbc702b2980196ab6,
                0xe46f4cf71a95ac45b6f0823e3aba1a86,
                0x85075f0080e9d618e7eb40f57c32d9f7,
            ],
            [
                0x2e9f58cfb893a8800220242c373a8b18,
                0xc2d4cf7f4287a98744645674265d4ca8,
                0xd95626f6dfad1aed7467622c38529932,
                0x233b640d1f4d56e2757e72c1a9d8ecb1,
                0x87a1fe4d558161a8f4c38731f3223032,
                0x8834ea57a15b9fbdc0245464a4b8cbef,
                0x3d34ea89da73caa3016c280500a155a3,
                0x5cce4d00329d69f1aae36aa541347512,
            ],
        ];
        for (lane, expected) in [0, LANES - 1].into_iter().zip(expected) {
            let state = stream.lanes[lane].iter().map(|&block| u128::from_be_bytes(block.into()));
            assert!(state.eq(expected), "lane {lane}");
        }
    }
}
