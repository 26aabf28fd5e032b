//! The prime field of the secret sharing, F_p with p = 2⁶¹ − 1.
//!
//! p is a Mersenne prime: 2⁶¹ ≡ 1 (mod p), so a product is reduced with one shift and two
//! additions. No operation branches on a secret value or uses one as an address.

use rand_core::Rng;
use zeroize::Zeroize;

/// An element of F_p with p = 2⁶¹ − 1, always in [0, p).
#[derive(Clone, Copy, PartialEq, Eq, Default, Zeroize)]
pub struct FieldElement(u64);

impl FieldElement {
    /// The prime p = 2⁶¹ − 1.
    pub const MODULUS: u64 = (1 << 61) - 1;
    /// The element 0.
    pub const ZERO: Self = Self(0);
    /// The element 1.
    pub const ONE: Self = Self(1);

    /// Creates an element. Returns `None` if `value` ≥ p, so that every element has one encoding.
    pub fn new(value: u64) -> Option<Self> {
        (value < Self::MODULUS).then_some(Self(value))
    }

    /// Returns the value in [0, p).
    pub fn get(self) -> u64 {
        self.0
    }

    /// Draws a uniform element by rejection sampling over 61 random bits.
    pub fn random(rng: &mut impl Rng) -> Self {
        loop {
            if let Some(element) = Self::new(rng.next_u64() >> 3) {
                return element;
            }
        }
    }

    /// Returns self⁻¹ = self^(p−2) (Fermat), or `None` for zero.
    pub fn inverse(self) -> Option<Self> {
        if self == Self::ZERO {
            return None;
        }
        // All bits of p − 2 = 2⁶¹ − 3 are set except bit 1.
        let mut power = Self::ONE;
        for bit in (0..61).rev() {
            power = power * power;
            if bit != 1 {
                power = power * self;
            }
        }
        Some(power)
    }

    /// Reduces a value below 2p to [0, p).
    #[inline]
    fn reduce_once(value: u64) -> Self {
        let reduced = value.wrapping_sub(Self::MODULUS);
        // All ones if the subtraction borrowed, that is, if `value` was already below p.
        let borrowed = 0u64.wrapping_sub(reduced >> 63);
        Self(reduced.wrapping_add(borrowed & Self::MODULUS))
    }
}

impl From<u32> for FieldElement {
    fn from(value: u32) -> Self {
        Self(u64::from(value))
    }
}

impl std::ops::Add for FieldElement {
    type Output = Self;

    #[inline]
    fn add(self, other: Self) -> Self {
        Self::reduce_once(self.0 + other.0)
    }
}

impl std::ops::Sub for FieldElement {
    type Output = Self;

    #[inline]
    fn sub(self, other: Self) -> Self {
        Self::reduce_once(self.0 + Self::MODULUS - other.0)
    }
}

impl std::ops::Mul for FieldElement {
    type Output = Self;

    #[inline]
    fn mul(self, other: Self) -> Self {
        let product = u128::from(self.0) * u128::from(other.0);
        let low = product as u64 & Self::MODULUS;
        let high = (product >> 61) as u64;
        Self::reduce_once(low + high)
    }
}

/// Omits the value, because elements are shares of secrets.
impl std::fmt::Debug for FieldElement {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("FieldElement(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const P: u128 = FieldElement::MODULUS as u128;

    fn element() -> impl Strategy<Value = FieldElement> {
        prop_oneof![
            Just(0),
            Just(1),
            Just(FieldElement::MODULUS - 1),
            Just(FieldElement::MODULUS - 2),
            0..FieldElement::MODULUS
        ]
        .prop_map(|value| FieldElement::new(value).expect("below p"))
    }

    fn remainder(value: u128) -> u64 {
        u64::try_from(value % P).expect("below p")
    }

    proptest! {
        #[test]
        fn arithmetic_matches_integers_modulo_p(a in element(), b in element()) {
            let (x, y) = (u128::from(a.get()), u128::from(b.get()));
            prop_assert_eq!((a + b).get(), remainder(x + y));
            prop_assert_eq!((a - b).get(), remainder(x + P - y));
            prop_assert_eq!((a * b).get(), remainder(x * y));
        }

        #[test]
        fn an_element_times_its_inverse_is_one(a in element()) {
            match a.inverse() {
                Some(inverse) => prop_assert_eq!(a * inverse, FieldElement::ONE),
                None => prop_assert_eq!(a, FieldElement::ZERO),
            }
        }
    }

    #[test]
    fn values_of_p_and_above_are_rejected() {
        assert!(FieldElement::new(FieldElement::MODULUS - 1).is_some());
        assert!(FieldElement::new(FieldElement::MODULUS).is_none());
        assert!(FieldElement::new(u64::MAX).is_none());
    }
}
