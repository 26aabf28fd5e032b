//! The keys of a round: agreement, derivation, sealed boxes, deposits and commitments.
//!
//! ```text
//! p_uv        the secret of u and v from X25519 and ML-KEM-768 ([`agreement`])
//! m_uv        = HKDF-SHA-256(p_uv;  "slot"    ‖ params ‖ slot number ‖ min(u,v) ‖ max(u,v))
//! mask key    = HKDF-SHA-256(m_uv;  "mask"    ‖ params ‖ slot        ‖ min(u,v) ‖ max(u,v))
//! self key    = HKDF-SHA-256(b_u;   "self"    ‖ params ‖ slot        ‖ u ‖ u)
//! deposit     = HKDF-SHA-256(k_u;   "deposit" ‖ params ‖ slot number ‖ min(u,v) ‖ max(u,v)) ⊕ m_uv
//! ```
//!
//! "params" is the digest of version, session, round, suite and every other parameter. "slot" is
//! the digest of the slot number, its ring, its length and its context. The context is bound here,
//! not only in the signatures: the masks of a device that received a different η do not cancel.
//!
//! k_u, the deposit key of u in a slot, is shared among the circle of u. If u drops out, t devices
//! of its circle reveal their shares of k_u. The server then decrypts every m_uv of that slot from
//! the deposits of u, and of no other slot.

pub(crate) mod agreement;
mod share_box;
mod small_order;

use hkdf::Hkdf;
use sha2::Sha256;
use subtle::ConstantTimeEq;
use zeroize::{Zeroize, ZeroizeOnDrop, Zeroizing};

pub(crate) use self::agreement::{
    AGREEMENT_KEY_LEN, AgreementKeys, AgreementPair, AgreementParty, CIPHERTEXT_LEN, PartialAgreement,
};
pub(crate) use self::share_box::ShareBox;
use crate::identity::DeviceId;
use crate::mask::{MaskKey, MaskSign};
use crate::params::SlotSpec;
use crate::transcript::{Hasher, PROTOCOL, Sha256Digest};

/// p_uv: the secret that two devices agreed on in a round.
#[derive(Zeroize, ZeroizeOnDrop)]
pub(crate) struct PairSecret([u8; 32]);

/// m_uv: the key that two devices have in common in one slot.
#[derive(Zeroize, ZeroizeOnDrop)]
#[cfg_attr(test, derive(Clone))]
pub(crate) struct PairKey([u8; 32]);

/// A 32-byte secret of a device in one slot: the seed b_u of its self mask, or its deposit key k_u.
#[derive(Zeroize, ZeroizeOnDrop)]
#[cfg_attr(test, derive(Clone))]
pub(crate) struct Secret(pub(crate) [u8; 32]);

/// A device's deposit with the server about a neighbour and a slot: m_uv encrypted under the
/// deposit key, and a commitment to m_uv.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Deposit {
    sealed: [u8; 32],
    pub(crate) commitment: Sha256Digest,
}

/// A pair of devices in one slot of one round.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PairSlot<'a> {
    pub(crate) params: &'a Sha256Digest,
    pub(crate) slot: u32,
    pub(crate) pair: (DeviceId, DeviceId),
}

impl PairSecret {
    /// Derives the pair's key in a slot.
    pub(crate) fn in_slot(&self, place: &PairSlot<'_>) -> PairKey {
        PairKey(place.derive(&self.0, "slot"))
    }
}

impl PairKey {
    /// Derives the key of the mask between the pair, bound to the slot.
    pub(crate) fn mask_key(
        &self,
        params: &Sha256Digest,
        slot: &SlotSpec,
        pair: (DeviceId, DeviceId),
    ) -> MaskKey {
        MaskKey(derive(&self.0, "mask", params, &slot.digest(), pair))
    }

    /// Returns the deposit of the owner of `key`, one of the pair.
    pub(crate) fn deposit(&self, place: &PairSlot<'_>, key: &Secret) -> Deposit {
        let mut sealed = place.derive(&key.0, "deposit");
        sealed.iter_mut().zip(self.0).for_each(|(byte, own)| *byte ^= own);
        Deposit { sealed, commitment: self.commitment(place) }
    }

    fn commitment(&self, place: &PairSlot<'_>) -> Sha256Digest {
        let (a, b) = place.pair;
        let hasher = Hasher::new("pair-key").digest(place.params).number(u64::from(place.slot));
        hasher.device(a.min(b)).device(a.max(b)).part(&self.0).finish()
    }
}

impl Deposit {
    /// The length of a deposit in bytes.
    pub(crate) const LEN: usize = 64;

    pub(crate) fn to_bytes(self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes[..32].copy_from_slice(&self.sealed);
        bytes[32..].copy_from_slice(&self.commitment);
        bytes
    }

    /// Returns the deposit of a slot from the deposits of all slots, or `None` if there are too few
    /// bytes.
    pub(crate) fn for_slot(deposits: &[u8], slot: u32) -> Option<Self> {
        let (all, _) = deposits.as_chunks::<{ Self::LEN }>();
        let bytes = all.get(slot as usize)?;
        let (sealed, commitment) = bytes.split_at(32);
        Some(Self { sealed: sealed.try_into().ok()?, commitment: commitment.try_into().ok()? })
    }

    /// Decrypts the pair's key. Returns `None` if it does not match the commitment.
    pub(crate) fn open(&self, place: &PairSlot<'_>, key: &Secret) -> Option<PairKey> {
        let mut opened = PairKey(place.derive(&key.0, "deposit"));
        opened.0.iter_mut().zip(self.sealed).for_each(|(byte, sealed)| *byte ^= sealed);
        same(&opened.commitment(place), &self.commitment).then_some(opened)
    }
}

impl PairSlot<'_> {
    fn derive(&self, secret: &[u8; 32], purpose: &str) -> [u8; 32] {
        let slot = Hasher::new("slot-number").number(u64::from(self.slot)).finish();
        derive(secret, purpose, self.params, &slot, self.pair)
    }
}

macro_rules! hidden {
    ($($secret:ident),*) => {$(
        impl std::fmt::Debug for $secret {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(concat!(stringify!($secret), "(..)"))
            }
        }
    )*};
}
hidden!(PairSecret, PairKey, Secret);

/// Derives the key of a device's self mask in a slot from its seed b_u.
pub(crate) fn self_mask_key(
    seed: &[u8; 32],
    params: &Sha256Digest,
    slot: &SlotSpec,
    id: DeviceId,
) -> MaskKey {
    MaskKey(derive(seed, "self", params, &slot.digest(), (id, id)))
}

/// Returns the sign of `own`'s mask with `peer`: the smaller id adds, the larger subtracts.
pub(crate) fn mask_sign(own: DeviceId, peer: DeviceId) -> MaskSign {
    if own < peer { MaskSign::Plus } else { MaskSign::Minus }
}

fn derive(
    secret: &[u8; 32],
    purpose: &str,
    params: &Sha256Digest,
    slot: &Sha256Digest,
    (a, b): (DeviceId, DeviceId),
) -> [u8; 32] {
    let (low, high) = (a.min(b).0.to_le_bytes(), a.max(b).0.to_le_bytes());
    expand(&[secret], &[purpose.as_bytes(), params, slot, &low, &high])
}

/// Computes HKDF-SHA-256 (RFC 5869) of concatenated secrets of fixed length.
fn expand(secrets: &[&[u8; 32]], info: &[&[u8]]) -> [u8; 32] {
    // Allocate the full length at once: a growing vector would leave copies of secrets in memory.
    let mut secret = Zeroizing::new(Vec::with_capacity(32 * secrets.len()));
    secrets.iter().for_each(|part| secret.extend_from_slice(*part));
    let mut key = [0; 32];
    Hkdf::<Sha256>::new(Some(PROTOCOL), &secret)
        .expand_multi_info(info, &mut key)
        .expect("HKDF-SHA-256 outputs up to 8160 bytes");
    key
}

/// Returns the commitment to the seed of a device's self mask. It is checked after recovery.
pub(crate) fn seed_commitment(
    params: &Sha256Digest,
    id: DeviceId,
    slot: u32,
    seed: &[u8; 32],
) -> Sha256Digest {
    Hasher::new("seed").digest(params).device(id).number(u64::from(slot)).part(seed).finish()
}

/// Returns the commitment to a device's deposit key. It is checked after recovery.
pub(crate) fn deposit_commitment(
    params: &Sha256Digest,
    id: DeviceId,
    slot: u32,
    key: &[u8; 32],
) -> Sha256Digest {
    Hasher::new("deposit-key").digest(params).device(id).number(u64::from(slot)).part(key).finish()
}

/// Returns the commitment to a device's contribution to the graph's randomness.
pub(crate) fn nonce_commitment(params: &Sha256Digest, id: DeviceId, nonce: &[u8; 32]) -> Sha256Digest {
    Hasher::new("nonce").digest(params).device(id).part(nonce).finish()
}

/// Compares two digests in constant time.
pub(crate) fn same(a: &Sha256Digest, b: &Sha256Digest) -> bool {
    a.ct_eq(b).into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ring::Ring;

    const A: DeviceId = DeviceId(1);
    const B: DeviceId = DeviceId(2);
    const PARAMS: Sha256Digest = [0; 32];

    fn place(slot: u32) -> PairSlot<'static> {
        PairSlot { params: &PARAMS, slot, pair: (A, B) }
    }

    #[test]
    fn both_ends_of_a_pair_derive_the_same_keys() {
        let secret = PairSecret([7; 32]);
        let (at_a, at_b) =
            (secret.in_slot(&place(0)), secret.in_slot(&PairSlot { pair: (B, A), ..place(0) }));
        assert_eq!(at_a.0, at_b.0);
        let spec = SlotSpec::new(0, Ring::Z32, 4, b"eta");
        assert_eq!(at_a.mask_key(&PARAMS, &spec, (A, B)).0, at_b.mask_key(&PARAMS, &spec, (B, A)).0);
    }

    #[test]
    fn mask_keys_depend_on_slot_round_context_and_pair() {
        let spec = |slot, context: &[u8]| SlotSpec::new(slot, Ring::Z32, 4, context);
        let key = |place: PairSlot<'_>, context: &[u8]| {
            let pair_key = PairSecret([7; 32]).in_slot(&place);
            pair_key.mask_key(place.params, &spec(place.slot, context), place.pair).0
        };
        let first = key(place(0), b"eta");
        assert_ne!(first, key(PairSlot { params: &[1; 32], ..place(0) }, b"eta"));
        assert_ne!(first, key(place(1), b"eta"));
        assert_ne!(first, key(place(0), b"another eta"));
        assert_ne!(first, key(PairSlot { pair: (A, DeviceId(3)), ..place(0) }, b"eta"));
    }

    #[test]
    fn a_deposit_opens_only_with_its_key_in_its_slot() {
        let (pair_key, key) = (PairKey([3; 32]), Secret([4; 32]));
        let bytes: Vec<u8> =
            (0..2).flat_map(|slot| pair_key.deposit(&place(slot), &key).to_bytes()).collect();
        let second = Deposit::for_slot(&bytes, 1).expect("two slots");
        assert_eq!(second.open(&place(1), &key).expect("as deposited").0, pair_key.0);
        assert!(second.open(&place(0), &key).is_none(), "a different slot");
        assert!(second.open(&PairSlot { params: &[1; 32], ..place(1) }, &key).is_none(), "a different round");
        assert!(second.open(&place(1), &Secret([5; 32])).is_none(), "a different key");
        let mut changed = bytes.clone();
        changed[Deposit::LEN] ^= 1;
        assert!(
            Deposit::for_slot(&changed, 1).expect("two slots").open(&place(1), &key).is_none(),
            "changed"
        );
        assert!(Deposit::for_slot(&bytes, 2).is_none());
    }
}
