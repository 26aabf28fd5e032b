//! Key agreement between two devices: X25519 (RFC 7748) and ML-KEM-768 (FIPS 203) combined.
//!
//! Each device encapsulates to the other, in the message that carries its box:
//!
//! ```text
//! dh               = X25519(a, B) = X25519(b, A)
//! (c_ab, k_ab)     = ML-KEM-768.Encaps(key of b),  and (c_ba, k_ba) in the other direction
//! key of box a → b = HKDF-SHA-256(k_ab ‖ dh;
//!                      "share" ‖ H(params ‖ a ‖ keys of a ‖ b ‖ keys of b ‖ c_ab))
//! pair secret      = HKDF-SHA-256(k_lh ‖ k_hl ‖ dh;
//!                      "pair" ‖ H(params ‖ l ‖ keys of l ‖ c_lh ‖ h ‖ keys of h ‖ c_hl))
//! ```
//!
//! Here l is the smaller id and h the larger. "Keys" is everything that a device signed for the
//! round. Each of the two primitives alone keeps both results secret. The authenticity of a box
//! depends on dh: both X25519 keys are signed, whereas every party can encapsulate.

use ml_kem::{
    Decapsulate, DecapsulationKey, Encapsulate, EncapsulationKey, KeyExport, MlKem768, array::Array,
};
use rand_core::CryptoRng;
use thiserror::Error;
use x25519_dalek::{PublicKey, StaticSecret};
use zeroize::{Zeroize, ZeroizeOnDrop, Zeroizing};

use super::small_order::is_small_order;
use super::{PairSecret, ShareBox, expand};
use crate::defences::{Defence, is_on};
use crate::identity::DeviceId;
use crate::transcript::{Hasher, Sha256Digest};

/// The length in bytes of the public agreement keys: X25519, then ML-KEM-768.
pub(crate) const AGREEMENT_KEY_LEN: usize = X25519_LEN + 1184;
/// The length in bytes of an ML-KEM-768 ciphertext.
pub(crate) const CIPHERTEXT_LEN: usize = 1088;
const X25519_LEN: usize = 32;

/// A public key that cannot be used: X25519 of small order, or an invalid ML-KEM key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("the public key is invalid for key agreement")]
pub(crate) struct BadKey;

/// A device's key pairs for key agreement in one round.
#[cfg_attr(test, derive(Clone))]
pub(crate) struct AgreementKeys {
    dh: StaticSecret,
    kem: DecapsulationKey<MlKem768>,
}

/// A device in an agreement: its id and the digest of everything that it signed for the round.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AgreementParty {
    pub(crate) id: DeviceId,
    pub(crate) keys: Sha256Digest,
}

/// The two devices of an agreement, and the digest of the round's parameters.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AgreementPair<'a> {
    pub(crate) params: &'a Sha256Digest,
    pub(crate) own: AgreementParty,
    pub(crate) peer: AgreementParty,
}

/// This device's half of an agreement: the secret that it encapsulated to its peer.
#[derive(Zeroize, ZeroizeOnDrop)]
#[cfg_attr(test, derive(Clone))]
pub(crate) struct PartialAgreement {
    dh: [u8; 32],
    sent: [u8; 32],
    #[zeroize(skip)]
    ciphertext: [u8; CIPHERTEXT_LEN],
}

/// The result of an agreement: the box that came with the peer's ciphertext, and the pair's secret.
pub(crate) struct CompletedAgreement {
    pub(crate) share_box: ShareBox,
    pub(crate) secret: PairSecret,
}

/// Returns true if the public keys can be used for key agreement.
pub(crate) fn are_sound(public: &[u8; AGREEMENT_KEY_LEN]) -> bool {
    let (dh, kem) = split(public);
    !is_small_order(&dh) && kem_key(kem).is_ok()
}

fn split(public: &[u8; AGREEMENT_KEY_LEN]) -> ([u8; X25519_LEN], &[u8]) {
    let (dh, kem) = public.split_at(X25519_LEN);
    (dh.try_into().expect("split off with this length"), kem)
}

fn kem_key(bytes: &[u8]) -> Result<EncapsulationKey<MlKem768>, BadKey> {
    let bytes = Array::try_from(bytes).map_err(|_| BadKey)?;
    EncapsulationKey::new(&bytes).map_err(|_| BadKey)
}

impl AgreementKeys {
    pub(crate) fn generate(rng: &mut impl CryptoRng) -> Self {
        let (mut dh, mut seed) = (Zeroizing::new([0; 32]), Zeroizing::new([0; 64]));
        rng.fill_bytes(&mut *dh);
        rng.fill_bytes(&mut *seed);
        Self { dh: StaticSecret::from(*dh), kem: DecapsulationKey::from_seed((*seed).into()) }
    }

    pub(crate) fn public(&self) -> [u8; AGREEMENT_KEY_LEN] {
        let mut public = [0; AGREEMENT_KEY_LEN];
        let (dh, kem) = public.split_at_mut(X25519_LEN);
        dh.copy_from_slice(PublicKey::from(&self.dh).as_bytes());
        kem.copy_from_slice(&self.kem.encapsulation_key().to_bytes());
        public
    }

    /// Encapsulates to the owner of `public`.
    pub(crate) fn begin(
        &self,
        public: &[u8; AGREEMENT_KEY_LEN],
        rng: &mut impl CryptoRng,
    ) -> Result<PartialAgreement, BadKey> {
        let (dh, kem) = split(public);
        let shared = self.dh.diffie_hellman(&PublicKey::from(dh));
        if !shared.was_contributory() {
            return Err(BadKey);
        }
        let (ciphertext, mut sent) = kem_key(kem)?.encapsulate_with_rng(rng);
        let half =
            PartialAgreement { dh: shared.to_bytes(), sent: sent.into(), ciphertext: ciphertext.into() };
        sent.zeroize();
        Ok(half)
    }

    /// Decapsulates the peer's ciphertext. A modified ciphertext yields different keys, not an
    /// error.
    pub(crate) fn finish(
        &self,
        pair: &AgreementPair<'_>,
        half: &PartialAgreement,
        ciphertext: &[u8; CIPHERTEXT_LEN],
    ) -> CompletedAgreement {
        let mut received = self.kem.decapsulate(&(*ciphertext).into());
        let received_key = Zeroizing::new(<[u8; 32]>::from(received));
        received.zeroize();
        let share_box = share_box(pair.params, (pair.peer, pair.own), &received_key, &half.dh, ciphertext);
        let low_first = pair.own.id < pair.peer.id;
        let (own, peer) = ((pair.own, &half.sent, &half.ciphertext), (pair.peer, &*received_key, ciphertext));
        let (low, high) = if low_first { (own, peer) } else { (peer, own) };
        let sent = |ciphertext: &'_ [u8; CIPHERTEXT_LEN]| match is_on(Defence::PairCiphertexts) {
            true => ciphertext.to_vec(),
            false => Vec::new(),
        };
        let context = Hasher::new("pair")
            .digest(pair.params)
            .device(low.0.id)
            .digest(&low.0.keys)
            .part(&sent(low.2))
            .device(high.0.id)
            .digest(&high.0.keys)
            .part(&sent(high.2))
            .finish();
        let secret = PairSecret(expand(&[low.1, high.1, &half.dh], &[b"pair", &context]));
        CompletedAgreement { share_box, secret }
    }
}

impl PartialAgreement {
    /// Returns the ciphertext for the peer.
    pub(crate) fn ciphertext(&self) -> &[u8; CIPHERTEXT_LEN] {
        &self.ciphertext
    }

    /// Returns the box for messages from this device to its peer.
    pub(crate) fn share_box(&self, pair: &AgreementPair<'_>) -> ShareBox {
        share_box(pair.params, (pair.own, pair.peer), &self.sent, &self.dh, &self.ciphertext)
    }
}

fn share_box(
    params: &Sha256Digest,
    (from, to): (AgreementParty, AgreementParty),
    encapsulated: &[u8; 32],
    dh: &[u8; 32],
    ciphertext: &[u8; CIPHERTEXT_LEN],
) -> ShareBox {
    let context = Hasher::new("share-box")
        .digest(params)
        .device(from.id)
        .digest(&from.keys)
        .device(to.id)
        .digest(&to.keys)
        .part(if is_on(Defence::BoxCiphertext) { ciphertext } else { &[] })
        .finish();
    let key = Zeroizing::new(expand(&[encapsulated, dh], &[b"share", &context]));
    ShareBox::new(&key, context)
}

impl std::fmt::Debug for AgreementKeys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("AgreementKeys(..)")
    }
}

impl std::fmt::Debug for PartialAgreement {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("PartialAgreement(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use chacha20::ChaCha20Rng;
    use rand_core::SeedableRng;

    const PARAMS: Sha256Digest = [9; 32];

    struct End {
        party: AgreementParty,
        keys: AgreementKeys,
        half: PartialAgreement,
    }

    /// Two devices that have encapsulated to each other.
    fn ends() -> (End, End) {
        let mut rng = ChaCha20Rng::seed_from_u64(1);
        let (a, b) = (AgreementKeys::generate(&mut rng), AgreementKeys::generate(&mut rng));
        let (half_a, half_b) = (a.begin(&b.public(), &mut rng), b.begin(&a.public(), &mut rng));
        let party = |id: u32| AgreementParty { id: DeviceId(id), keys: [id as u8; 32] };
        let end = |id, keys, half: Result<PartialAgreement, BadKey>| End {
            party: party(id),
            keys,
            half: half.expect("valid keys"),
        };
        (end(1, a, half_a), end(2, b, half_b))
    }

    fn pair<'a>(params: &'a Sha256Digest, own: &End, peer: &End) -> AgreementPair<'a> {
        AgreementPair { params, own: own.party, peer: peer.party }
    }

    fn whole(own: &End, peer: &End) -> CompletedAgreement {
        own.keys.finish(&pair(&PARAMS, own, peer), &own.half, peer.half.ciphertext())
    }

    #[test]
    fn both_devices_open_each_others_boxes_and_share_one_secret() {
        let (a, b) = ends();
        let (at_a, at_b) = (whole(&a, &b), whole(&b, &a));
        assert_eq!(at_a.secret.0, at_b.secret.0);
        let sealed = a.half.share_box(&pair(&PARAMS, &a, &b)).seal(b"shares");
        assert_eq!(at_b.share_box.open(&sealed).as_deref().map(Vec::as_slice), Some(&b"shares"[..]));
        assert!(at_a.share_box.open(&sealed).is_none(), "reflected");
    }

    #[test]
    fn boxes_and_secrets_depend_on_round_keys_and_ciphertexts() {
        let (a, b) = ends();
        let sealed = a.half.share_box(&pair(&PARAMS, &a, &b)).seal(b"shares");
        let honest = whole(&b, &a).secret.0;
        let mut others = vec![b.keys.finish(&pair(&[8; 32], &b, &a), &b.half, a.half.ciphertext())];
        let mut changed = *a.half.ciphertext();
        changed[100] ^= 1;
        others.push(b.keys.finish(&pair(&PARAMS, &b, &a), &b.half, &changed));
        let mut renamed = pair(&PARAMS, &b, &a);
        renamed.peer.id = DeviceId(3);
        others.push(b.keys.finish(&renamed, &b.half, a.half.ciphertext()));
        let mut resigned = pair(&PARAMS, &b, &a);
        resigned.peer.keys = [0; 32];
        others.push(b.keys.finish(&resigned, &b.half, a.half.ciphertext()));
        for other in others {
            assert!(other.share_box.open(&sealed).is_none());
            assert_ne!(other.secret.0, honest);
        }
    }

    /// Every input is necessary: without X25519 or one of the encapsulated keys, the secret
    /// differs.
    #[test]
    fn the_secret_rests_on_x25519_and_on_both_encapsulated_keys() {
        let (a, b) = ends();
        let honest = whole(&b, &a).secret.0;
        let with = |change: fn(&mut PartialAgreement)| {
            let mut half = b.half.clone();
            change(&mut half);
            b.keys.finish(&pair(&PARAMS, &b, &a), &half, a.half.ciphertext()).secret.0
        };
        assert_eq!(with(|_| {}), honest);
        assert_ne!(with(|half| half.dh[0] ^= 1), honest);
        assert_ne!(with(|half| half.sent[0] ^= 1), honest);
        let stranger = AgreementKeys::generate(&mut ChaCha20Rng::seed_from_u64(5));
        let theirs = AgreementKeys { dh: b.keys.dh.clone(), kem: stranger.kem };
        let whole = theirs.finish(&pair(&PARAMS, &b, &a), &b.half, a.half.ciphertext());
        assert_ne!(whole.secret.0, honest);
    }

    /// The security does not rest on the binding of ML-KEM: two ciphertexts that decapsulate to one
    /// key still give two keys.
    #[test]
    fn equal_secrets_under_different_ciphertexts_give_different_boxes_and_pair_secrets() {
        let (a, b) = ends();
        let sealed = |ciphertext: u8| {
            let mut half = a.half.clone();
            half.ciphertext = [ciphertext; CIPHERTEXT_LEN];
            half.share_box(&pair(&PARAMS, &a, &b)).seal(b"shares")
        };
        assert_ne!(sealed(1), sealed(2), "the key of a box");
        let secret = |ciphertext: u8| {
            let mut half = b.half.clone();
            half.ciphertext = [ciphertext; CIPHERTEXT_LEN];
            b.keys.finish(&pair(&PARAMS, &b, &a), &half, a.half.ciphertext()).secret.0
        };
        assert_ne!(secret(1), secret(2), "the secret of a pair");
    }

    #[test]
    fn invalid_agreement_keys_are_rejected() {
        let (a, b) = ends();
        let sound = b.keys.public();
        assert!(are_sound(&sound));
        let mut small = sound;
        small[..32].fill(0);
        // A coefficient of ML-KEM is below 3329. Twelve one bits are not.
        let mut large = sound;
        large[32..].fill(0xff);
        for bad in [small, large] {
            assert!(!are_sound(&bad));
            assert!(a.keys.begin(&bad, &mut ChaCha20Rng::seed_from_u64(2)).is_err());
        }
    }
}
