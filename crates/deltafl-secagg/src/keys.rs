//! The keys of a round: agreement, derivation, the boxes that carry shares, and commitments to seeds.
//!
//! ```text
//! s_uv      = X25519(s_u, S_v) = X25519(s_v, S_u)
//! mask key  = HKDF-SHA-256(s_uv;    "mask"  ‖ params ‖ slot ‖ min(u,v) ‖ max(u,v))
//! self key  = HKDF-SHA-256(b_u;     "self"  ‖ params ‖ slot ‖ u ‖ u)
//! box key   = HKDF-SHA-256(c_uv;    "share" ‖ params ‖ –    ‖ min(u,v) ‖ max(u,v))
//! ```
//!
//! "params" is the digest of version, session, round and every other parameter; "slot" that of the slot, its
//! ring, its length and its context. Binding the context here, and not only in the signatures, means that a
//! device that was given another η has masks that cancel with nobody's.

use chacha20poly1305::aead::{Aead, Payload};
use chacha20poly1305::{ChaCha20Poly1305, KeyInit};
use hkdf::Hkdf;
use rand_core::CryptoRng;
use sha2::Sha256;
use subtle::ConstantTimeEq;
use thiserror::Error;
use x25519_dalek::{PublicKey, StaticSecret};
use zeroize::{Zeroize, ZeroizeOnDrop, Zeroizing};

use crate::identity::DeviceId;
use crate::mask::{MaskKey, Sign};
use crate::params::SlotSpec;
use crate::transcript::{Digest, Hasher, PROTOCOL};

/// The shared secret was all zeros: the peer's public key is of small order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("the shared secret is zero: a public key of small order")]
pub(crate) struct ZeroSecret;

/// An X25519 key pair of one round (RFC 7748).
#[cfg_attr(test, derive(Clone))]
pub(crate) struct KeyPair {
    secret: StaticSecret,
    public: [u8; 32],
}

/// The u-coordinates of small order on the curve and on its twist, canonical or not (RFC 7748, section 6.1):
/// whatever secret they meet, the result is zero.
const SMALL_ORDER: [[u8; 32]; 7] = [
    small(0, 0, 0),
    small(1, 0, 0),
    // The two points of order eight.
    [
        0xe0, 0xeb, 0x7a, 0x7c, 0x3b, 0x41, 0xb8, 0xae, 0x16, 0x56, 0xe3, 0xfa, 0xf1, 0x9f, 0xc4, 0x6a, 0xda,
        0x09, 0x8d, 0xeb, 0x9c, 0x32, 0xb1, 0xfd, 0x86, 0x62, 0x05, 0x16, 0x5f, 0x49, 0xb8, 0x00,
    ],
    [
        0x5f, 0x9c, 0x95, 0xbc, 0xa3, 0x50, 0x8c, 0x24, 0xb1, 0xd0, 0xb1, 0x55, 0x9c, 0x83, 0xef, 0x5b, 0x04,
        0x44, 0x5c, 0xc4, 0x58, 0x1c, 0x8e, 0x86, 0xd8, 0x22, 0x4e, 0xdd, 0xd0, 0x9f, 0x11, 0x57,
    ],
    // p − 1, p and p + 1.
    small(0xec, 0xff, 0x7f),
    small(0xed, 0xff, 0x7f),
    small(0xee, 0xff, 0x7f),
];

/// A number with this first byte, this byte in the middle and this last one.
const fn small(first: u8, middle: u8, last: u8) -> [u8; 32] {
    let mut bytes = [middle; 32];
    bytes[0] = first;
    bytes[31] = last;
    bytes
}

/// Whether nothing can be agreed with the owner of a public key. The top bit of a coordinate is not read.
pub(crate) fn is_small_order(public: &[u8; 32]) -> bool {
    let mut read = *public;
    read[31] &= 0x7f;
    SMALL_ORDER.contains(&read)
}

impl KeyPair {
    pub(crate) fn generate(rng: &mut impl CryptoRng) -> Self {
        let mut secret = Zeroizing::new([0; 32]);
        rng.fill_bytes(&mut *secret);
        Self::from_secret(&secret)
    }

    pub(crate) fn from_secret(secret: &[u8; 32]) -> Self {
        let secret = StaticSecret::from(*secret);
        let public = PublicKey::from(&secret).to_bytes();
        Self { secret, public }
    }

    pub(crate) fn public(&self) -> [u8; 32] {
        self.public
    }

    pub(crate) fn secret(&self) -> &[u8; 32] {
        self.secret.as_bytes()
    }

    /// The secret shared with the owner of `public`.
    pub(crate) fn agree(&self, public: &[u8; 32]) -> Result<SharedSecret, ZeroSecret> {
        let shared = self.secret.diffie_hellman(&PublicKey::from(*public));
        if !shared.was_contributory() {
            return Err(ZeroSecret);
        }
        Ok(SharedSecret(shared.to_bytes()))
    }
}

impl std::fmt::Debug for KeyPair {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("KeyPair(..)")
    }
}

/// What two devices share.
#[derive(Zeroize, ZeroizeOnDrop)]
#[cfg_attr(test, derive(Clone))]
pub(crate) struct SharedSecret([u8; 32]);

impl std::fmt::Debug for SharedSecret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SharedSecret(..)")
    }
}

impl SharedSecret {
    /// The key of the mask between a pair in a slot.
    pub(crate) fn mask_key(&self, params: &Digest, slot: &SlotSpec, a: DeviceId, b: DeviceId) -> MaskKey {
        MaskKey(derive(&self.0, "mask", params, &slot.digest(), (a, b)))
    }

    /// The box for shares that `from` sends to `to`.
    pub(crate) fn share_box(&self, params: &Digest, from: DeviceId, to: DeviceId) -> ShareBox {
        let key = Zeroizing::new(derive(&self.0, "share", params, &[0; 32], (from, to)));
        ShareBox { cipher: ChaCha20Poly1305::new((&*key).into()), params: *params, from, to }
    }
}

/// The key of a device's own mask in a slot, from its seed b_u.
pub(crate) fn self_mask_key(seed: &[u8; 32], params: &Digest, slot: &SlotSpec, id: DeviceId) -> MaskKey {
    MaskKey(derive(seed, "self", params, &slot.digest(), (id, id)))
}

/// The sign with which `own` adds its mask with `peer`: the smaller id adds, the larger subtracts.
pub(crate) fn mask_sign(own: DeviceId, peer: DeviceId) -> Sign {
    if own < peer { Sign::Plus } else { Sign::Minus }
}

fn derive(
    secret: &[u8; 32],
    purpose: &str,
    params: &Digest,
    slot: &Digest,
    (a, b): (DeviceId, DeviceId),
) -> [u8; 32] {
    let (low, high) = (a.min(b).0.to_le_bytes(), a.max(b).0.to_le_bytes());
    let mut key = [0; 32];
    Hkdf::<Sha256>::new(Some(PROTOCOL), secret)
        .expand_multi_info(&[purpose.as_bytes(), params, slot, &low, &high], &mut key)
        .expect("HKDF-SHA-256 gives up to 8160 bytes");
    key
}

/// The commitment to the seed of a device's own mask, published before and checked after recovery.
pub(crate) fn seed_commitment(params: &Digest, id: DeviceId, slot: u32, seed: &[u8; 32]) -> Digest {
    Hasher::new("seed").digest(params).device(id).number(u64::from(slot)).part(seed).finish()
}

/// The commitment to a device's part of the graph's randomness.
pub(crate) fn nonce_commitment(params: &Digest, id: DeviceId, nonce: &[u8; 32]) -> Digest {
    Hasher::new("nonce").digest(params).device(id).part(nonce).finish()
}

/// Whether two digests are the same, in constant time.
pub(crate) fn same(a: &Digest, b: &Digest) -> bool {
    a.ct_eq(b).into()
}

/// ChaCha20-Poly1305 (RFC 8439) in one direction between a pair, for one message.
pub(crate) struct ShareBox {
    cipher: ChaCha20Poly1305,
    params: Digest,
    from: DeviceId,
    to: DeviceId,
}

impl ShareBox {
    /// Bytes that a box adds to what it carries.
    pub(crate) const OVERHEAD: usize = 16;

    pub(crate) fn seal(&self, plaintext: &[u8]) -> Vec<u8> {
        let payload = Payload { msg: plaintext, aad: &self.context() };
        self.cipher.encrypt(&self.nonce().into(), payload).expect("shares are far below 256 GiB")
    }

    /// What was sealed, or `None` when key, context or contents are not those of the sender.
    pub(crate) fn open(&self, sealed: &[u8]) -> Option<Zeroizing<Vec<u8>>> {
        let payload = Payload { msg: sealed, aad: &self.context() };
        self.cipher.decrypt(&self.nonce().into(), payload).ok().map(Zeroizing::new)
    }

    /// The pair's key serves one message each way; the nonce tells them apart.
    fn nonce(&self) -> [u8; 12] {
        let mut nonce = [0; 12];
        nonce[0] = u8::from(self.from > self.to);
        nonce
    }

    /// The whole context as associated data.
    fn context(&self) -> Digest {
        Hasher::new("share-box").digest(&self.params).device(self.from).device(self.to).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ring::Ring;
    use chacha20::ChaCha20Rng;
    use rand_core::SeedableRng;

    const A: DeviceId = DeviceId(1);
    const B: DeviceId = DeviceId(2);

    fn pair() -> (KeyPair, KeyPair) {
        let mut rng = ChaCha20Rng::seed_from_u64(1);
        (KeyPair::generate(&mut rng), KeyPair::generate(&mut rng))
    }

    fn slot(slot: u32, context: &[u8]) -> SlotSpec {
        SlotSpec::new(slot, Ring::Z32, 4, context)
    }

    #[test]
    fn both_ends_of_a_pair_derive_the_same_mask_key() {
        let (a, b) = pair();
        let from_a = a.agree(&b.public()).unwrap().mask_key(&[0; 32], &slot(0, b"eta"), A, B);
        let from_b = b.agree(&a.public()).unwrap().mask_key(&[0; 32], &slot(0, b"eta"), B, A);
        assert_eq!(from_a.0, from_b.0);
    }

    #[test]
    fn another_slot_round_context_or_pair_has_another_mask_key() {
        let (a, b) = pair();
        let shared = a.agree(&b.public()).unwrap();
        let key = shared.mask_key(&[0; 32], &slot(0, b"eta"), A, B).0;
        assert_ne!(key, shared.mask_key(&[1; 32], &slot(0, b"eta"), A, B).0);
        assert_ne!(key, shared.mask_key(&[0; 32], &slot(1, b"eta"), A, B).0);
        assert_ne!(key, shared.mask_key(&[0; 32], &slot(0, b"another eta"), A, B).0);
        assert_ne!(key, shared.mask_key(&[0; 32], &slot(0, b"eta"), A, DeviceId(3)).0);
    }

    #[test]
    fn public_keys_of_small_order_are_refused() {
        let (a, _) = pair();
        assert_eq!(a.agree(&[0; 32]).err(), Some(ZeroSecret));
        let mut one = [0; 32];
        one[0] = 1;
        assert_eq!(a.agree(&one).err(), Some(ZeroSecret));
    }

    #[test]
    fn the_list_of_small_order_keys_is_the_list_of_those_that_agree_on_nothing() {
        let (a, b) = pair();
        for public in SMALL_ORDER {
            let mut with_top_bit = public;
            with_top_bit[31] |= 0x80;
            for public in [public, with_top_bit] {
                assert!(is_small_order(&public));
                assert_eq!(a.agree(&public).err(), Some(ZeroSecret), "{public:02x?}");
            }
        }
        // Their neighbours are sound, and so is an honest key.
        for first in [2, 3, 0xeb, 0xef] {
            let middle = if first > 3 { 0xff } else { 0 };
            let public = small(first, middle, middle & 0x7f);
            assert!(!is_small_order(&public) && a.agree(&public).is_ok(), "{public:02x?}");
        }
        assert!(!is_small_order(&b.public()));
    }

    #[test]
    fn a_share_box_opens_for_its_sender_direction_and_round_only() {
        let (a, b) = pair();
        let (at_a, at_b) = (a.agree(&b.public()).unwrap(), b.agree(&a.public()).unwrap());
        let mut sealed = at_a.share_box(&[0; 32], A, B).seal(b"shares");
        assert_eq!(sealed.len(), b"shares".len() + ShareBox::OVERHEAD);
        assert_eq!(
            at_b.share_box(&[0; 32], A, B).open(&sealed).as_deref().map(Vec::as_slice),
            Some(&b"shares"[..])
        );
        assert!(at_b.share_box(&[0; 32], B, A).open(&sealed).is_none(), "reflected");
        assert!(at_b.share_box(&[1; 32], A, B).open(&sealed).is_none(), "another round");
        let mut confused = at_b.share_box(&[0; 32], A, B);
        confused.params = [1; 32];
        assert!(confused.open(&sealed).is_none(), "the same key in another context");
        sealed[0] ^= 1;
        assert!(at_b.share_box(&[0; 32], A, B).open(&sealed).is_none(), "changed");
    }
}
