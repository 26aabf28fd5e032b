//! The prime field of the secret sharing, F_p with p = 2⁶¹ − 1.
//!
//! A Mersenne prime: 2⁶¹ ≡ 1, so a product reduces with a shift and two additions. No operation here branches
//! on a value or uses one as an address.

use rand_core::Rng;
use zeroize::Zeroize;

/// An element of F_p, p = 2⁶¹ − 1, always in [0, p).
#[derive(Clone, Copy, PartialEq, Eq, Default, Zeroize)]
pub struct FieldElement(u64);

impl FieldElement {
    /// The prime p = 2⁶¹ − 1.
    pub const MODULUS: u64 = (1 << 61) - 1;
    /// 0.
    pub const ZERO: Self = Self(0);
    /// 1.
    pub const ONE: Self = Self(1);

    /// The element of this value, or `None` when `value` ≥ p: a wire value has one form only.
    pub fn new(value: u64) -> Option<Self> {
        (value < Self::MODULUS).then_some(Self(value))
    }

    /// The value in [0, p).
    pub fn get(self) -> u64 {
        self.0
    }

    /// A uniform element: 61 random bits, drawn again in the one case of 2⁶¹ where they are p.
    pub fn random(rng: &mut impl Rng) -> Self {
        loop {
            if let Some(element) = Self::new(rng.next_u64() >> 3) {
                return element;
            }
        }
    }

    /// 1/self by Fermat, self^(p−2); `None` for zero.
    pub fn inverse(self) -> Option<Self> {
        if self == Self::ZERO {
            return None;
        }
        // p − 2 = 2⁶¹ − 3 has every bit set but bit 1.
        let mut power = Self::ONE;
        for bit in (0..61).rev() {
            power = power * power;
            if bit != 1 {
                power = power * self;
            }
        }
        Some(power)
    }

    /// Takes a value below 2p into [0, p).
    #[inline]
    fn reduce_once(value: u64) -> Self {
        let reduced = value.wrapping_sub(Self::MODULUS);
        // All ones when the subtraction borrowed, that is when `value` was already below p.
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

/// Elements carry shares of secrets: their value is never printed.
impl std::fmt::Debug for FieldElement {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Element(..)")
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
        fn arithmetic_is_that_of_the_integers_modulo_p(a in element(), b in element()) {
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
    fn values_from_p_up_are_refused() {
        assert!(FieldElement::new(FieldElement::MODULUS - 1).is_some());
        assert!(FieldElement::new(FieldElement::MODULUS).is_none());
        assert!(FieldElement::new(u64::MAX).is_none());
    }
}
