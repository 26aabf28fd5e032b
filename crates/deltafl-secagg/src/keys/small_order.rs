//! X25519 public keys of small order.

/// The u-coordinates of small order on the curve and on its twist, canonical or not (RFC 7748,
/// section 6.1). Their Diffie–Hellman result is zero for every secret.
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

/// Returns a number with this first byte, these middle bytes and this last byte.
const fn small(first: u8, middle: u8, last: u8) -> [u8; 32] {
    let mut bytes = [middle; 32];
    bytes[0] = first;
    bytes[31] = last;
    bytes
}

/// Returns true if the public key has small order. The top bit of a coordinate is ignored.
pub(super) fn is_small_order(public: &[u8; 32]) -> bool {
    let mut read = *public;
    read[31] &= 0x7f;
    SMALL_ORDER.contains(&read)
}

#[cfg(test)]
mod tests {
    use super::*;
    use x25519_dalek::{PublicKey, StaticSecret};

    /// Returns true if the shared secret depends on the local secret.
    fn agrees(public: [u8; 32]) -> bool {
        StaticSecret::from([7; 32]).diffie_hellman(&PublicKey::from(public)).was_contributory()
    }

    #[test]
    fn exactly_the_keys_of_small_order_give_a_constant_secret() {
        for public in SMALL_ORDER {
            let mut with_top_bit = public;
            with_top_bit[31] |= 0x80;
            for public in [public, with_top_bit] {
                assert!(is_small_order(&public));
                assert!(!agrees(public), "{public:02x?}");
            }
        }
        // The adjacent values and honest keys are valid.
        for first in [2, 3, 0xeb, 0xef] {
            let middle = if first > 3 { 0xff } else { 0 };
            let public = small(first, middle, middle & 0x7f);
            assert!(!is_small_order(&public) && agrees(public), "{public:02x?}");
        }
        let honest = PublicKey::from(&StaticSecret::from([8; 32])).to_bytes();
        assert!(!is_small_order(&honest) && agrees(honest));
    }
}
