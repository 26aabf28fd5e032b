//! Test vectors of the standards, through our types if possible and otherwise through the crates
//! used.

use aes::Aes128;
use chacha20::ChaCha20;
use chacha20poly1305::aead::{Aead, Payload};
use chacha20poly1305::{ChaCha20Poly1305, KeyInit};
use ctr::cipher::{KeyIvInit, StreamCipher};
use deltafl_secagg::field::FieldElement;
use deltafl_secagg::identity::{DeviceId, KeyRoster, SigningIdentity};
use deltafl_secagg::mask::{self, MaskKey, MaskSign, MaskSuite};
use deltafl_secagg::ring::{Ring, RingVector};
use deltafl_secagg::shamir::{Interpolation, SecretShare};
use hkdf::Hkdf;
use sha2::Sha256;
use x25519_dalek::{PublicKey, StaticSecret};

fn hex<const N: usize>(text: &str) -> [u8; N] {
    hex_bytes(text).try_into().expect("as many bytes as the vector says")
}

fn hex_bytes(text: &str) -> Vec<u8> {
    let digits: Vec<char> = text.chars().filter(|digit| !digit.is_whitespace()).collect();
    let byte = |pair: &[char]| u8::from_str_radix(&pair.iter().collect::<String>(), 16).expect("hexadecimal");
    digits.chunks(2).map(byte).collect()
}

#[test]
fn x25519_agrees_as_in_rfc_7748_section_6_1() {
    let alice = StaticSecret::from(hex("77076d0a7318a57d3c16c17251b26645df4c2f87ebc0992ab177fba51db92c2a"));
    let bob = StaticSecret::from(hex("5dab087e624a8a4b79e17f8b83800ee66f3bb1292618b6fd1c2f8b27ff88e0eb"));
    let (alices, bobs) = (PublicKey::from(&alice), PublicKey::from(&bob));
    assert_eq!(alices.to_bytes(), hex("8520f0098930a754748b7ddcb43ef75a0dbf3a0d26381af4eba4a98eaa9b4e6a"));
    assert_eq!(bobs.to_bytes(), hex("de9edb7d7b7dc1b4d35b61c2ece435373f8343c85b78674dadfc7e146f882b4f"));
    let shared = hex("4a5d9d5ba4ce2de1728e3bf480350f25e07e21c947d19e3376f09b3c1e161742");
    assert_eq!(alice.diffie_hellman(&bobs).to_bytes(), shared);
    assert_eq!(bob.diffie_hellman(&alices).to_bytes(), shared);
}

#[test]
fn ed25519_signs_as_in_rfc_8032_section_7_1() {
    for (secret, public, message, signature) in [
        (
            "9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60",
            "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a",
            "",
            "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e06522490155
             5fb8821590a33bacc61e39701cf9b46bd25bf5f0595bbe24655141438e7a100b",
        ),
        (
            "4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb",
            "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c",
            "72",
            "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da
             085ac1e43e15996e458f3613d0f11d8c387b2eaeb4302aeeb00d291612bb0c00",
        ),
    ] {
        let identity = SigningIdentity::from_secret(DeviceId(0), &hex(secret));
        assert_eq!(identity.public(), hex(public));
        let mut roster = KeyRoster::new();
        roster.add(DeviceId(0), &identity.public()).expect("a sound key");
        assert!(roster.verifies(DeviceId(0), &hex_bytes(message), &hex(signature)));
        assert!(!roster.verifies(DeviceId(0), b"another message", &hex(signature)));
    }
}

#[test]
fn aes_128_counts_as_in_sp_800_38a_f_5_1() {
    let key: [u8; 16] = hex("2b7e151628aed2a6abf7158809cf4f3c");
    let counter: [u8; 16] = hex("f0f1f2f3f4f5f6f7f8f9fafbfcfdfeff");
    let mut text: [u8; 64] = hex("6bc1bee22e409f96e93d7e117393172a ae2d8a571e03ac9c9eb76fac45af8e51
         30c81c46a35ce411e5fbc1191a0a52ef f69f2445df4f9b17ad2b417be66c3710");
    ctr::Ctr64BE::<Aes128>::new(&key.into(), &counter.into()).apply_keystream(&mut text);
    let cipher = "874d6191b620e3261bef6864990db6ce 9806f66b7970fdff8617187bb9fffdff
         5ae4df3edbd5d35e5b4f09020db03eab 1e031dda2fbe03d1792170a0f3009cee";
    assert_eq!(text, hex(cipher));
}

#[test]
fn chacha20_streams_as_in_rfc_8439_section_2_4_2() {
    let key: [u8; 32] = std::array::from_fn(|i| i as u8);
    let nonce: [u8; 12] = hex("000000000000004a00000000");
    let mut text = *b"Ladies and Gentl";
    let mut cipher = ChaCha20::new(&key.into(), &nonce.into());
    let mut block_zero = [0; 64];
    cipher.apply_keystream(&mut block_zero);
    cipher.apply_keystream(&mut text);
    assert_eq!(text, hex("6e2e359a2568f98041ba0728dd0d6981"));
}

#[test]
fn chacha20_poly1305_seals_as_in_rfc_8439_section_2_8_2() {
    let key: [u8; 32] = std::array::from_fn(|i| 0x80 + i as u8);
    let nonce: [u8; 12] = hex("070000004041424344454647");
    let msg = b"Ladies and Gentlemen of the class of '99: \
                If I could offer you only one tip for the future, sunscreen would be it.";
    let aad = &hex_bytes("50515253c0c1c2c3c4c5c6c7");
    let sealed =
        ChaCha20Poly1305::new(&key.into()).encrypt(&nonce.into(), Payload { msg, aad }).expect("short");
    assert_eq!(sealed[..16], hex::<16>("d31a8d34648e60db7b86afbc53ef7ec2"));
    assert_eq!(sealed[msg.len()..], hex::<16>("1ae10b594f09e26a7e902ecbd0600691"));
}

#[test]
fn hkdf_sha_256_expands_as_in_rfc_5869_case_1() {
    let salt = hex_bytes("000102030405060708090a0b0c");
    let mut key = [0; 42];
    Hkdf::<Sha256>::new(Some(&salt), &[0x0b; 22])
        .expand(&hex_bytes("f0f1f2f3f4f5f6f7f8f9"), &mut key)
        .expect("a short key");
    let expected = "3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf34007208d5b887185865";
    assert_eq!(key, hex(expected));
}

/// The bytes that a key adds to a vector.
fn stream(suite: MaskSuite, ring: Ring, key: [u8; 32], len: usize) -> Vec<u8> {
    let mut vector = RingVector::zeros(ring, len / ring.width());
    mask::apply(&mut vector, suite, &[(MaskSign::Plus, MaskKey::from_bytes(key))]);
    vector.to_le_bytes()
}

#[test]
fn aes_and_chacha_masks_match_the_published_streams_of_the_zero_key() {
    // AES-128 of 0, 1 and 2 under the zero key: the hash key, the first block of test case 1 and
    // the ciphertext of test case 2 of the GCM specification.
    let aes = hex_bytes(
        "66e94bd4ef8a2c3b884cfa59ca342b2e 58e2fccefa7e3061367f1d57a4e7455a 0388dace60b6a392f328c2b971b2fe78",
    );
    // RFC 8439, appendix A.1, test vector 1.
    let chacha = hex_bytes(
        "76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7
         da41597c5157488d7724e03fb8d84a376a43b8f41518a11cc387b669b2ee6586",
    );
    for ring in [Ring::Z32, Ring::Z64] {
        assert_eq!(stream(MaskSuite::Aes128Ctr, ring, [0; 32], 48), aes);
        assert_eq!(stream(MaskSuite::ChaCha20, ring, [0; 32], 64), chacha);
    }
}

#[test]
fn aegis_masks_match_an_independent_implementation() {
    // Key and nonce of the AEGIS-128X4 vectors in RFC 10032. The RFC has no encryption of zeros, so
    // these two steps were computed with the `aegis` crate 0.9.20.
    let aegis = hex_bytes(
        "d5412061a52d2649c31c95d780c6e06d1dab7a2c3991279d52e064e7ab965b70
         59cca3bc618aac8e22a8c5798f028f7efef201f287f971c4316e1c710eac913b
         85e88a2b99d980231fa0d40176a164d86a5f59c35fff56f95d469060c1b5747d
         bb52b7ef144594987de6d4e793bb3a674d6684a16ce7cdf1b4231e4d9cca07df
         ec33178266f1419b9930c77452ad35164824ffad3de1dba2e1cd794656a509c9
         9e793eff36eff88c1817fea0cb17ae1d1eddafc54facd8d8b9af5e68faa37bdb
         841baf7a9eb1ae75f02808322a2215ddc965999346c47310c1a79ba83a2f39ab
         4bf3b73f084b40d87f0d6cf1ca6ec7ea5d4e8bd14ee82c7978a66e60b4751d29",
    );
    for ring in [Ring::Z32, Ring::Z64] {
        assert_eq!(stream(MaskSuite::Aegis128X4, ring, std::array::from_fn(|i| i as u8), 256), aegis);
    }
}

#[test]
fn shamir_recovers_a_secret_from_a_parabola_computed_by_hand() {
    // Limb l of the secret 0, 1, …, 31 is f_l(0) with f_l(x) = f_l(0) + (l+1)·x + (l+2)·x² over the
    // integers. No value reaches p.
    let secret: [u8; 32] = std::array::from_fn(|i| i as u8);
    let limb = |l: usize| {
        let bytes = secret[7 * l..(7 * l + 7).min(32)].iter().rev();
        bytes.fold(0u64, |limb, &byte| limb << 8 | u64::from(byte))
    };
    let share = |x: u64| {
        let value = |l: usize| limb(l) + (l as u64 + 1) * x + (l as u64 + 2) * x * x;
        let bytes: Vec<u8> = (0..5).flat_map(|l| value(l).to_le_bytes()).collect();
        SecretShare::from_bytes(&bytes.try_into().expect("forty bytes")).expect("below p")
    };
    let points = [3u32, 10, 4];
    let interpolation =
        Interpolation::new(points.iter().copied().map(FieldElement::from).collect()).expect("distinct");
    let shares = points.map(|x| share(u64::from(x)));
    assert_eq!(*interpolation.recover(&shares).expect("a secret"), secret);
}
