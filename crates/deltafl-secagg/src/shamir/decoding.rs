//! Detection and correction of false shares, as errors in a Reed–Solomon code.
//!
//! m shares at points x_1 … x_m are values of a polynomial f of degree below t. If at most (m−t)/2
//! of them are false, f is the only polynomial that close (Reed and Solomon 1960). Gao's algorithm
//! (2003) finds it in O(m²). Most words contain no errors. A test with one product per share
//! detects this case, because f is orthogonal to the dual code:
//!
//! ```text
//! Σ_i v_i h(x_i) f(x_i) = 0      v_i = 1 / Π_{j≠i} (x_i − x_j),  h of degree below m−t
//! ```
//!
//! The test uses h(X) = Σ_j α^j X^j with an α that was unknown when the shares were created. Shares
//! with errors pass only if α is one of fewer than m−t roots, with probability below 2⁻⁵⁰. The five
//! limbs of a share are tested together as Σ_l β^l share_l.

use super::{Interpolation, SecretShare, ShamirError, inverses};
use crate::field::FieldElement;
use crate::transcript::Sha256Digest;

/// The random coefficients α and β, derived from a hash of the shares.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Challenge {
    alpha: FieldElement,
    beta: FieldElement,
}

impl Challenge {
    /// Derives the challenge from a digest that covers all shares.
    pub(crate) fn new(digest: &Sha256Digest) -> Self {
        let element = |at: usize| {
            let word = u64::from_le_bytes(digest[at..at + 8].try_into().expect("eight bytes"));
            // One of the 2⁶¹ values maps onto another, which is negligible here.
            FieldElement::new(word >> 3).unwrap_or(FieldElement::ONE)
        };
        Self { alpha: element(0), beta: element(8) }
    }

    /// Combines the limbs of a share into one element.
    fn combine(self, share: &SecretShare) -> FieldElement {
        share.0.iter().rev().fold(FieldElement::ZERO, |sum, &limb| sum * self.beta + limb)
    }
}

/// Checks and corrects shares at a fixed set of points.
pub(crate) struct Checker {
    points: Vec<FieldElement>,
    threshold: usize,
    challenge: Challenge,
    /// The values v_i h(x_i).
    weights: Vec<FieldElement>,
    first: Interpolation,
}

impl Checker {
    /// Creates a checker for shares at these points, of which there must be at least `threshold`.
    /// O(m²).
    pub(crate) fn new(
        points: Vec<FieldElement>,
        threshold: usize,
        challenge: Challenge,
    ) -> Result<Self, ShamirError> {
        let first = points.get(..threshold).ok_or(ShamirError::Points)?;
        let first = Interpolation::new(first.to_vec())?;
        let checks = points.len() - threshold;
        let dual = dual_weights(&points).ok_or(ShamirError::Points)?;
        let h = |x: FieldElement| {
            (0..checks).fold(FieldElement::ZERO, |sum, _| sum * challenge.alpha * x + FieldElement::ONE)
        };
        let weights = points.iter().zip(dual).map(|(&x, v)| v * h(x)).collect();
        Ok(Self { points, threshold, challenge, weights, first })
    }

    /// Returns the false shares, or `None` if there are too many to identify.
    pub(crate) fn errors<'a>(&self, shares: impl IntoIterator<Item = &'a SecretShare>) -> Option<Vec<usize>> {
        let word: Vec<FieldElement> = shares.into_iter().map(|share| self.challenge.combine(share)).collect();
        let products = word.iter().zip(&self.weights).map(|(&y, &weight)| y * weight);
        if products.fold(FieldElement::ZERO, |sum, product| sum + product) == FieldElement::ZERO {
            return Some(Vec::new());
        }
        let f = decode(&self.points, &word, self.threshold)?;
        let wrong = |&i: &usize| evaluate(&f, self.points[i]) != word[i];
        let errors: Vec<usize> = (0..word.len()).filter(wrong).collect();
        (2 * errors.len() <= word.len() - self.threshold).then_some(errors)
    }

    /// Returns the interpolation at the first `threshold` points.
    pub(crate) fn first(&self) -> &Interpolation {
        &self.first
    }

    /// Returns the interpolation at the first `threshold` points that are not in `errors`, and
    /// those points.
    pub(crate) fn without(&self, errors: &[usize]) -> Result<(Vec<usize>, Interpolation), ShamirError> {
        let good: Vec<usize> =
            (0..self.points.len()).filter(|i| !errors.contains(i)).take(self.threshold).collect();
        let points = good.iter().map(|&i| self.points[i]).collect();
        Ok((good, Interpolation::new(points)?))
    }
}

/// Returns 1 / Π_{j≠i} (x_i − x_j) for each i, or `None` if two points are equal.
fn dual_weights(points: &[FieldElement]) -> Option<Vec<FieldElement>> {
    let product = |i: usize| {
        let others = points.iter().enumerate().filter(|(j, _)| *j != i);
        others.fold(FieldElement::ONE, |product, (_, &other)| product * (points[i] - other))
    };
    inverses(&(0..points.len()).map(product).collect::<Vec<_>>())
}

/// A polynomial with the constant term first and without leading zeros.
type Polynomial = Vec<FieldElement>;

/// Returns the polynomial of degree below t that differs from the word in at most (m−t)/2 positions
/// (Gao 2003).
fn decode(points: &[FieldElement], word: &[FieldElement], threshold: usize) -> Option<Polynomial> {
    let m = points.len();
    let vanishing = points.iter().fold(vec![FieldElement::ONE], |product, &x| times_linear(&product, x));
    let (mut previous, mut rest) = (vanishing.clone(), interpolate(points, word, &vanishing)?);
    let (mut before, mut cofactor): (Polynomial, Polynomial) = (Vec::new(), vec![FieldElement::ONE]);
    // Stop when the degree of the remainder is below (m+t)/2.
    while 2 * rest.len() >= m + threshold + 2 {
        let (quotient, remainder) = divide(&previous, &rest)?;
        let next = subtract(&before, &multiply(&quotient, &cofactor));
        (previous, rest) = (rest, remainder);
        (before, cofactor) = (cofactor, next);
    }
    let (f, remainder) = divide(&rest, &cofactor)?;
    (remainder.is_empty() && f.len() <= threshold).then_some(f)
}

/// Returns the polynomial of degree below m through all points of the word.
fn interpolate(points: &[FieldElement], word: &[FieldElement], vanishing: &Polynomial) -> Option<Polynomial> {
    let weights = dual_weights(points)?;
    let mut sum = vec![FieldElement::ZERO; points.len()];
    for ((&x, &y), weight) in points.iter().zip(word).zip(weights) {
        // vanishing / (X − x), highest power first, by Horner's rule.
        let (scale, mut coefficient) = (y * weight, FieldElement::ZERO);
        for power in (0..points.len()).rev() {
            coefficient = coefficient * x + vanishing[power + 1];
            sum[power] = sum[power] + coefficient * scale;
        }
    }
    Some(trimmed(sum))
}

fn evaluate(polynomial: &Polynomial, x: FieldElement) -> FieldElement {
    polynomial.iter().rev().fold(FieldElement::ZERO, |sum, &coefficient| sum * x + coefficient)
}

/// Returns p · (X − x).
fn times_linear(polynomial: &Polynomial, x: FieldElement) -> Polynomial {
    let mut product = vec![FieldElement::ZERO; polynomial.len() + 1];
    for (power, &coefficient) in polynomial.iter().enumerate() {
        product[power + 1] = product[power + 1] + coefficient;
        product[power] = product[power] - coefficient * x;
    }
    product
}

fn multiply(a: &Polynomial, b: &Polynomial) -> Polynomial {
    let mut product = vec![FieldElement::ZERO; (a.len() + b.len()).saturating_sub(1)];
    for (i, &x) in a.iter().enumerate() {
        for (j, &y) in b.iter().enumerate() {
            product[i + j] = product[i + j] + x * y;
        }
    }
    trimmed(product)
}

fn subtract(a: &Polynomial, b: &Polynomial) -> Polynomial {
    let mut difference = a.clone();
    difference.resize(a.len().max(b.len()), FieldElement::ZERO);
    for (sum, &y) in difference.iter_mut().zip(b) {
        *sum = *sum - y;
    }
    trimmed(difference)
}

/// Returns quotient and remainder, or `None` if the divisor is zero.
fn divide(a: &Polynomial, b: &Polynomial) -> Option<(Polynomial, Polynomial)> {
    let lead = b.last()?.inverse()?;
    let mut rest = a.clone();
    let mut quotient = vec![FieldElement::ZERO; (a.len() + 1).saturating_sub(b.len())];
    for shift in (0..quotient.len()).rev() {
        let factor = rest[shift + b.len() - 1] * lead;
        quotient[shift] = factor;
        for (power, &coefficient) in b.iter().enumerate() {
            rest[shift + power] = rest[shift + power] - coefficient * factor;
        }
    }
    Some((trimmed(quotient), trimmed(rest)))
}

fn trimmed(mut polynomial: Polynomial) -> Polynomial {
    while polynomial.last() == Some(&FieldElement::ZERO) {
        polynomial.pop();
    }
    polynomial
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shamir::{LIMBS, split};
    use chacha20::ChaCha20Rng;
    use proptest::prelude::*;
    use rand_core::{Rng, SeedableRng};

    const SECRET: [u8; 32] = [9; 32];

    fn shares(m: u32, threshold: usize, seed: u64) -> (Vec<FieldElement>, Vec<SecretShare>) {
        let points: Vec<FieldElement> = (1..=m).map(|x| FieldElement::from(x * x)).collect();
        let shares = split(&SECRET, &points, threshold, &mut ChaCha20Rng::seed_from_u64(seed)).unwrap();
        (points, shares)
    }

    fn falsify(share: &mut SecretShare, rng: &mut ChaCha20Rng) {
        let limb = rng.next_u32() as usize % LIMBS;
        share.0[limb] = share.0[limb] + FieldElement::from(1 + rng.next_u32() / 2);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(60))]

        #[test]
        fn up_to_half_as_many_false_shares_as_spare_shares_are_found(
            m in 1u32..40, pick: prop::sample::Index, few: prop::sample::Index, seed: u64,
        ) {
            let threshold = pick.index(m as usize) + 1;
            let (points, mut shares) = shares(m, threshold, seed);
            let spare = (m as usize - threshold) / 2;
            let count = few.index(spare + 1);
            let mut rng = ChaCha20Rng::seed_from_u64(seed ^ 1);
            let start = rng.next_u32() as usize;
            let mut wrong: Vec<usize> = (0..count).map(|i| (start + i) % m as usize).collect();
            wrong.iter().for_each(|&i| falsify(&mut shares[i], &mut rng));
            wrong.sort_unstable();
            let checker = Checker::new(points, threshold, Challenge::new(&[7; 32])).unwrap();
            prop_assert_eq!(checker.errors(&shares), Some(wrong.clone()));
            let (good, interpolation) = checker.without(&wrong).unwrap();
            let secret = interpolation.recover(good.iter().map(|&i| &shares[i])).unwrap();
            prop_assert_eq!(*secret, SECRET);
        }

        #[test]
        fn too_many_false_shares_blame_no_honest_device(m in 3u32..20, seed: u64) {
            // One false share more than half of the spare shares: no polynomial is close enough.
            let threshold = m as usize / 2;
            let (points, mut shares) = shares(m, threshold, seed);
            let count = (m as usize - threshold) / 2 + 1;
            let mut rng = ChaCha20Rng::seed_from_u64(seed);
            shares.iter_mut().take(count).for_each(|share| falsify(share, &mut rng));
            let checker = Checker::new(points, threshold, Challenge::new(&[7; 32])).unwrap();
            prop_assert_eq!(checker.errors(&shares), None);
        }
    }

    #[test]
    fn division_has_a_remainder_of_lower_degree() {
        let polynomial =
            |values: &[u32]| values.iter().map(|&value| FieldElement::from(value)).collect::<Vec<_>>();
        // X³ + 2X + 5 = (X + 1)(X² − X + 3) + 2.
        let (quotient, remainder) = divide(&polynomial(&[5, 2, 0, 1]), &polynomial(&[1, 1])).unwrap();
        assert_eq!(
            quotient,
            vec![FieldElement::from(3), FieldElement::ZERO - FieldElement::ONE, FieldElement::ONE]
        );
        assert_eq!(remainder, polynomial(&[2]));
        assert!(divide(&polynomial(&[1]), &Vec::new()).is_none());
    }
}
