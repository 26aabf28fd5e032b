//! Shamir secret sharing of 32-byte secrets over F_p (Bonawitz et al. 2017, section 3.1).
//!
//! A secret consists of five little-endian limbs of 7, 7, 7, 7 and 4 bytes. Limb l is the constant
//! term of a random polynomial of degree t − 1. The share of the device at point x contains the
//! values of the five polynomials at x:
//!
//! ```text
//! f_l(X) = secret_l + c_{l,1} X + … + c_{l,t−1} X^{t−1}        share(x) = (f_0(x), …, f_4(x))
//! secret_l = Σ_i f_l(x_i) · Π_{j≠i} x_j / (x_j − x_i)            over any t of the shares
//! ```
//!
//! t − 1 shares reveal nothing about the secret. Any t shares determine it.

mod decoding;

use rand_core::CryptoRng;
use subtle::{Choice, ConstantTimeEq};
use thiserror::Error;
use zeroize::{Zeroize, ZeroizeOnDrop, Zeroizing};

pub(crate) use self::decoding::{Challenge, Checker};
use crate::field::FieldElement;

/// The number of field elements in a share.
const LIMBS: usize = 5;
/// The number of secret bytes in each limb but the last.
const LIMB_BYTES: usize = 7;

/// The length of a shared secret in bytes.
pub const SECRET_LEN: usize = 32;
/// The length of an encoded share in bytes.
pub const SHARE_LEN: usize = LIMBS * 8;

/// One device's share of a 32-byte secret: the values of five polynomials at the device's point.
#[derive(Clone, Zeroize, ZeroizeOnDrop)]
pub struct SecretShare([FieldElement; LIMBS]);

impl SecretShare {
    /// Returns the share as five little-endian 64-bit words.
    pub fn to_bytes(&self) -> [u8; SHARE_LEN] {
        let mut bytes = [0; SHARE_LEN];
        for (word, limb) in bytes.chunks_exact_mut(8).zip(self.0) {
            word.copy_from_slice(&limb.get().to_le_bytes());
        }
        bytes
    }

    /// Decodes a share. Returns `None` if a word is not below p.
    pub fn from_bytes(bytes: &[u8; SHARE_LEN]) -> Option<Self> {
        let mut limbs = [FieldElement::ZERO; LIMBS];
        for (limb, word) in limbs.iter_mut().zip(bytes.chunks_exact(8)) {
            *limb = FieldElement::new(u64::from_le_bytes(word.try_into().ok()?))?;
        }
        Some(Self(limbs))
    }
}

impl ConstantTimeEq for SecretShare {
    fn ct_eq(&self, other: &Self) -> Choice {
        self.to_bytes().ct_eq(&other.to_bytes())
    }
}

impl std::fmt::Debug for SecretShare {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SecretShare(..)")
    }
}

/// An error from splitting or recovering a secret.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ShamirError {
    /// The threshold is zero or larger than the number of shares.
    #[error("threshold {threshold} is not in 1..={shares}")]
    Threshold {
        /// The requested threshold.
        threshold: usize,
        /// The number of shares.
        shares: usize,
    },
    /// A point is zero, which would reveal the secret, or occurs twice.
    #[error("share points must be distinct and nonzero")]
    Points,
    /// The shares combine to a value that encodes no secret.
    #[error("the shares do not encode a secret")]
    NotASecret,
}

/// Splits `secret` into one share per point. Any `threshold` shares recover it.
///
/// Takes O(points × threshold) time. The random coefficients are wiped before the function returns.
///
/// # Errors
///
/// Returns an error if the threshold is out of range or the points are invalid.
pub fn split(
    secret: &[u8; SECRET_LEN],
    points: &[FieldElement],
    threshold: usize,
    rng: &mut impl CryptoRng,
) -> Result<Vec<SecretShare>, ShamirError> {
    if threshold == 0 || threshold > points.len() {
        return Err(ShamirError::Threshold { threshold, shares: points.len() });
    }
    if points.contains(&FieldElement::ZERO) {
        return Err(ShamirError::Points);
    }
    // Highest power first, for Horner's rule.
    let mut polynomial = Zeroizing::new(Vec::with_capacity(threshold));
    for _ in 1..threshold {
        polynomial.push(std::array::from_fn::<_, LIMBS, _>(|_| FieldElement::random(rng)));
    }
    polynomial.push(limbs(secret));
    Ok(points.iter().map(|&x| evaluate(&polynomial, x)).collect())
}

fn evaluate(polynomial: &[[FieldElement; LIMBS]], x: FieldElement) -> SecretShare {
    let mut value = [FieldElement::ZERO; LIMBS];
    for coefficients in polynomial {
        for (limb, &coefficient) in value.iter_mut().zip(coefficients) {
            *limb = *limb * x + coefficient;
        }
    }
    SecretShare(value)
}

fn limbs(secret: &[u8; SECRET_LEN]) -> [FieldElement; LIMBS] {
    let mut limbs = [FieldElement::ZERO; LIMBS];
    for (limb, bytes) in limbs.iter_mut().zip(secret.chunks(LIMB_BYTES)) {
        let mut word = [0; 8];
        word[..bytes.len()].copy_from_slice(bytes);
        *limb = FieldElement::new(u64::from_le_bytes(word)).expect("seven bytes are below p");
    }
    limbs
}

/// Interpolation at zero from a fixed set of points: Lagrange weights, computed once for many
/// secrets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Interpolation {
    points: Vec<FieldElement>,
    weights: Vec<FieldElement>,
}

impl Interpolation {
    /// Computes the weights of these points with O(t²) products and one inversion.
    ///
    /// # Errors
    ///
    /// Returns an error if a point is zero or occurs twice.
    pub fn new(points: Vec<FieldElement>) -> Result<Self, ShamirError> {
        let mut numerators = Vec::with_capacity(points.len());
        let mut denominators = Vec::with_capacity(points.len());
        for (i, &x) in points.iter().enumerate() {
            let (mut numerator, mut denominator) = (FieldElement::ONE, FieldElement::ONE);
            for (j, &other) in points.iter().enumerate() {
                if i != j {
                    numerator = numerator * other;
                    denominator = denominator * (other - x);
                }
            }
            numerators.push(numerator);
            denominators.push(denominator);
        }
        if points.contains(&FieldElement::ZERO) {
            return Err(ShamirError::Points);
        }
        let inverses = inverses(&denominators).ok_or(ShamirError::Points)?;
        let weights = numerators.iter().zip(inverses).map(|(&n, d)| n * d).collect();
        Ok(Self { points, weights })
    }

    /// Returns the points, in the order in which [`Self::recover`] expects the shares.
    pub fn points(&self) -> &[FieldElement] {
        &self.points
    }

    /// Recovers the secret from the shares at [`Self::points`], in the same order.
    ///
    /// # Errors
    ///
    /// Returns an error if the shares do not encode a secret.
    pub fn recover<'a>(
        &self,
        shares: impl IntoIterator<Item = &'a SecretShare>,
    ) -> Result<Zeroizing<[u8; SECRET_LEN]>, ShamirError> {
        let mut sums = Zeroizing::new([FieldElement::ZERO; LIMBS]);
        for (share, &weight) in shares.into_iter().zip(&self.weights) {
            for (sum, &value) in sums.iter_mut().zip(&share.0) {
                *sum = *sum + value * weight;
            }
        }
        secret(&sums)
    }
}

/// Inverts all elements by Montgomery's trick. Returns `None` if one of them is zero.
fn inverses(elements: &[FieldElement]) -> Option<Vec<FieldElement>> {
    let mut prefixes = Vec::with_capacity(elements.len());
    let mut product = FieldElement::ONE;
    for &element in elements {
        prefixes.push(product);
        product = product * element;
    }
    let mut suffix = product.inverse()?;
    for (prefix, &element) in prefixes.iter_mut().zip(elements).rev() {
        *prefix = *prefix * suffix;
        suffix = suffix * element;
    }
    Some(prefixes)
}

fn secret(limbs: &[FieldElement; LIMBS]) -> Result<Zeroizing<[u8; SECRET_LEN]>, ShamirError> {
    let mut secret = Zeroizing::new([0; SECRET_LEN]);
    for (bytes, limb) in secret.chunks_mut(LIMB_BYTES).zip(limbs) {
        let word = Zeroizing::new(limb.get().to_le_bytes());
        if word[bytes.len()..].iter().any(|&byte| byte != 0) {
            return Err(ShamirError::NotASecret);
        }
        bytes.copy_from_slice(&word[..bytes.len()]);
    }
    Ok(secret)
}

#[cfg(test)]
mod tests {
    use super::*;
    use chacha20::ChaCha20Rng;
    use proptest::prelude::*;
    use rand_core::SeedableRng;

    fn points(n: u32) -> Vec<FieldElement> {
        (1..=n).map(FieldElement::from).collect()
    }

    fn recover(points: &[FieldElement], shares: &[SecretShare]) -> Result<[u8; SECRET_LEN], ShamirError> {
        Interpolation::new(points.to_vec())?.recover(shares).map(|secret| *secret)
    }

    proptest! {
        #[test]
        fn any_threshold_of_the_shares_recovers_the_secret(
            secret: [u8; 32], n in 1u32..20, seed: u64, pick: u64,
        ) {
            let mut rng = ChaCha20Rng::seed_from_u64(seed);
            let threshold = 1 + (pick as usize) % n as usize;
            let all = points(n);
            let shares = split(&secret, &all, threshold, &mut rng).unwrap();
            // Rotate the shares, so that the selected ones differ from case to case.
            let start = (pick >> 32) as usize % n as usize;
            let chosen: Vec<usize> = (0..threshold).map(|i| (start + i) % n as usize).collect();
            let xs: Vec<FieldElement> = chosen.iter().map(|&i| all[i]).collect();
            let held: Vec<SecretShare> = chosen.iter().map(|&i| shares[i].clone()).collect();
            prop_assert_eq!(recover(&xs, &held), Ok(secret));
        }

        #[test]
        fn encoded_shares_read_back(secret: [u8; 32], seed: u64) {
            let shares = split(&secret, &points(3), 2, &mut ChaCha20Rng::seed_from_u64(seed)).unwrap();
            for share in &shares {
                let read = SecretShare::from_bytes(&share.to_bytes()).unwrap();
                prop_assert!(bool::from(read.ct_eq(share)));
            }
        }
    }

    #[test]
    fn one_share_too_few_gives_a_wrong_secret() {
        let secret = [7; 32];
        let shares = split(&secret, &points(5), 3, &mut ChaCha20Rng::seed_from_u64(1)).unwrap();
        assert_ne!(recover(&points(2), &shares[..2]), Ok(secret));
    }

    #[test]
    fn shares_of_a_known_line_match_values_computed_by_hand() {
        // Secret 5 in the first limb, slope 3: f(1) = 8, f(2) = 11, and 2·8 − 11 = 5.
        let share = |value| {
            SecretShare([
                FieldElement::from(value),
                FieldElement::ZERO,
                FieldElement::ZERO,
                FieldElement::ZERO,
                FieldElement::ZERO,
            ])
        };
        let mut secret = [0; 32];
        secret[0] = 5;
        assert_eq!(recover(&points(2), &[share(8), share(11)]), Ok(secret));
    }

    #[test]
    fn impossible_thresholds_and_points_are_rejected() {
        let mut rng = ChaCha20Rng::seed_from_u64(1);
        let secret = [0; 32];
        assert!(matches!(split(&secret, &points(3), 0, &mut rng), Err(ShamirError::Threshold { .. })));
        assert!(matches!(split(&secret, &points(3), 4, &mut rng), Err(ShamirError::Threshold { .. })));
        assert!(matches!(split(&secret, &[FieldElement::ZERO], 1, &mut rng), Err(ShamirError::Points)));
        assert_eq!(Interpolation::new(vec![FieldElement::ONE, FieldElement::ONE]), Err(ShamirError::Points));
        assert_eq!(Interpolation::new(vec![FieldElement::ZERO, FieldElement::ONE]), Err(ShamirError::Points));
    }

    #[test]
    fn shares_that_encode_no_secret_are_rejected() {
        // A limb of eight bytes cannot come from a secret.
        let mut bytes = [0; SHARE_LEN];
        bytes[..8].copy_from_slice(&(1u64 << 60).to_le_bytes());
        let share = SecretShare::from_bytes(&bytes).unwrap();
        assert_eq!(recover(&points(1), &[share]), Err(ShamirError::NotASecret));
    }

    #[test]
    fn debug_prints_no_share() {
        let shares = split(&[9; 32], &points(1), 1, &mut ChaCha20Rng::seed_from_u64(1)).unwrap();
        assert_eq!(format!("{shares:?}"), "[SecretShare(..)]");
    }
}
