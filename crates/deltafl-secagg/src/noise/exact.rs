//! P(|X| ≤ m) of the discrete Gaussian with any number of bits, by integer arithmetic.
//!
//! Numbers are little-endian words with `bits` = 64·n fractional bits and one word for the integer
//! part. All operations round down. `ulp` is 2^−bits.
//!
//! - q = exp(−1/2σ²) is an alternating series. Each of its terms is the previous one divided by an
//!   integer.
//! - w_{m+1} = w_m·r_m and r_{m+1} = r_m·q² yield w_m = exp(−m²/2σ²).
//! - P(|X| ≤ m) = (w_0 + 2w_1 + … + 2w_m)/Z, where Z is the sum to the end of the list, plus the
//!   rest.
//!
//! # Error
//!
//! All factors are at most 1. If a and b are off by at most e and f ulp, the product rounded down
//! is off by at most e + f + 1. With k terms of the series, q is off by at most 2k + 2 ulp and q²
//! by at most e₀ = 4k + 5. Then r_m is off by at most (m+1)(e₀+1), w_m by at most (m+1)²(e₀+2), and
//! the sum of M of them by at most 2M·M²(e₀+2). [`Thresholds::error`] is this bound, four times
//! over: the reciprocal of Z and the product with it add as much, because Z ≥ 1 and P ≤ 1.

use std::cmp::Ordering;

/// P(|X| ≤ m) for m = 0, 1, … with a bound on the error.
pub(super) struct Thresholds {
    /// Fractional words, little-endian.
    probabilities: Vec<Vec<u64>>,
    /// The bound on the error of each, in ulp.
    error: u128,
}

impl Thresholds {
    /// Computes the probabilities with `n` ≥ 3 fractional words, up to the m with P(|X| > m) <
    /// 2⁻⁶⁶.
    pub(super) fn new(variance: u32, n: usize) -> Self {
        Self::with_tail(variance, n, 66)
    }

    /// The list ends where P(|X| > m) is below 2^−tail.
    fn with_tail(variance: u32, n: usize, tail: u32) -> Self {
        let (q, terms) = exponential(variance, n);
        let squared = product(&q, &q);
        let one = { std::iter::repeat_n(0, n) }.chain([1]).collect::<Vec<u64>>();
        let (mut weight, mut ratio) = (one.clone(), q);
        let mut sums = vec![one];
        // Up to the tail of the list, and then on until nothing changes the sum any more.
        let mut kept = None;
        let mut total = sums[0].clone();
        let mut magnitude = 0_u64;
        loop {
            weight = product(&weight, &ratio);
            ratio = product(&ratio, &squared);
            magnitude += 1;
            if weight.iter().all(|&word| word == 0) {
                break;
            }
            add(&mut total, &weight);
            add(&mut total, &weight);
            if kept.is_none() {
                sums.push(total.clone());
                // Z > σ, and the rest of the sum is below w_m·(σ²/m + 1).
                let small = leading_zeros(&weight) > tail + 64;
                if small && magnitude * magnitude > u64::from(variance) {
                    kept = Some(magnitude);
                }
            }
        }
        let largest = u128::from(magnitude) + 1;
        let error = 8 * largest * largest * largest * (4 * terms as u128 + 7);
        // The weights that were omitted are below one ulp each.
        let reciprocal = reciprocal(&total);
        let probability = |sum: &Vec<u64>| {
            let mut probability = product(sum, &reciprocal);
            if probability[n] > 0 {
                // Rounding of Z: the probability is at most 1.
                probability = vec![u64::MAX; n + 1];
            }
            probability.truncate(n);
            probability
        };
        Self { probabilities: sums.iter().map(probability).collect(), error }
    }

    /// Returns ⌊2⁶⁴·P(|X| ≤ m)⌋.
    ///
    /// # Panics
    ///
    /// Panics if the error allows two values. At 256 bits this has a probability of 2⁻¹²⁰ for each
    /// threshold, and the tests compute the tables of many variances.
    pub(super) fn leading_words(&self) -> Vec<u64> {
        let leading = |probability: &Vec<u64>| {
            let (below, above) = (self.moved(probability, false), self.moved(probability, true));
            let leading = probability.last().copied().unwrap_or(0);
            assert!(
                below.last() == Some(&leading) && above.last() == Some(&leading),
                "256 bits decide a threshold"
            );
            leading
        };
        self.probabilities.iter().map(leading).collect()
    }

    /// Returns the probability plus or minus the bound on its error, within [0, 1).
    fn moved(&self, probability: &[u64], up: bool) -> Vec<u64> {
        let mut moved = probability.to_vec();
        let mut carry = self.error;
        for word in &mut moved {
            let part = carry as u64;
            let (next, over) = if up { word.overflowing_add(part) } else { word.overflowing_sub(part) };
            *word = next;
            carry = (carry >> 64) + u128::from(over);
        }
        match (carry > 0, up) {
            (true, true) => vec![u64::MAX; moved.len()],
            (true, false) => vec![0; moved.len()],
            (false, _) => moved,
        }
    }
}

/// Returns |X| for a uniform number that starts with the word `first`. Draws further words until
/// the number is certainly between two thresholds.
pub(super) fn resolve(variance: u32, first: u64, words: &mut impl FnMut() -> u64) -> u64 {
    // Most significant word first.
    let mut number = vec![first];
    loop {
        number.push(words());
        // Three more words than are drawn exceed the error by far.
        let n = number.len() + 3;
        let thresholds = Thresholds::with_tail(variance, n, 64 * number.len() as u32 + 2);
        let above = |probability: &[u64]| {
            // The number with all later words zero, and with all of them 2⁶⁴ − 1.
            let least = extended(&number, n, 0);
            let most = extended(&number, n, u64::MAX);
            match () {
                () if compare(&most, &thresholds.moved(probability, false)) == Ordering::Less => Some(false),
                () if compare(&least, &thresholds.moved(probability, true)) == Ordering::Greater => {
                    Some(true)
                }
                () => None,
            }
        };
        let mut magnitude = 0;
        for probability in &thresholds.probabilities {
            match above(probability) {
                Some(true) => magnitude += 1,
                Some(false) => return magnitude,
                None => break,
            }
        }
    }
}

/// Returns a number given by its leading words as `n` little-endian words.
fn extended(number: &[u64], n: usize, rest: u64) -> Vec<u64> {
    let mut words = vec![rest; n];
    for (word, &leading) in words.iter_mut().rev().zip(number) {
        *word = leading;
    }
    words
}

/// Compares two numbers of the same length.
fn compare(a: &[u64], b: &[u64]) -> Ordering {
    a.iter().rev().cmp(b.iter().rev())
}

/// Returns exp(−1/(2·variance)) with `n` fractional words, and the number of terms of the series.
fn exponential(variance: u32, n: usize) -> (Vec<u64>, usize) {
    let mut sum: Vec<u64> = { std::iter::repeat_n(0, n) }.chain([1]).collect();
    let mut term = sum.clone();
    let mut k = 0_u64;
    while term.iter().any(|&word| word != 0) {
        k += 1;
        divide(&mut term, 2 * u64::from(variance) * k);
        if k % 2 == 1 { subtract(&mut sum, &term) } else { add(&mut sum, &term) }
    }
    (sum, k as usize)
}

/// Divides by an integer, rounding down.
fn divide(number: &mut [u64], divisor: u64) {
    let mut rest = 0_u128;
    for word in number.iter_mut().rev() {
        let part = rest << 64 | u128::from(*word);
        *word = (part / u128::from(divisor)) as u64;
        rest = part % u128::from(divisor);
    }
}

fn add(a: &mut [u64], b: &[u64]) {
    let mut carry = false;
    for (a, b) in a.iter_mut().zip(b) {
        let (sum, first) = a.overflowing_add(*b);
        let (sum, second) = sum.overflowing_add(u64::from(carry));
        (*a, carry) = (sum, first | second);
    }
}

fn subtract(a: &mut [u64], b: &[u64]) {
    let mut borrow = false;
    for (a, b) in a.iter_mut().zip(b) {
        let (difference, first) = a.overflowing_sub(*b);
        let (difference, second) = difference.overflowing_sub(u64::from(borrow));
        (*a, borrow) = (difference, first | second);
    }
}

/// Returns a·b, rounded down. The integer parts must not overflow.
fn product(a: &[u64], b: &[u64]) -> Vec<u64> {
    let n = a.len() - 1;
    let mut all = vec![0_u64; 2 * a.len()];
    for (i, &x) in a.iter().enumerate() {
        let mut carry = 0_u128;
        for (j, &y) in b.iter().enumerate() {
            let sum = u128::from(x) * u128::from(y) + u128::from(all[i + j]) + carry;
            all[i + j] = sum as u64;
            carry = sum >> 64;
        }
        all[i + b.len()] = carry as u64;
    }
    all[n..=2 * n].to_vec()
}

/// Returns 1/a for a ≥ 1, rounded down, bit by bit.
fn reciprocal(a: &[u64]) -> Vec<u64> {
    let n = a.len() - 1;
    let (mut quotient, mut rest) = (vec![0_u64; n + 1], vec![0_u64; n + 2]);
    // `rest` = 2^k − quotient·a at step k, with the fractional bits of a. It stays below 2a.
    rest[n] = 1;
    let divisor: Vec<u64> = a.iter().copied().chain([0]).collect();
    for step in 0..=64 * n {
        if compare(&rest, &divisor) != Ordering::Less {
            subtract(&mut rest, &divisor);
            let place = 64 * n - step;
            quotient[place / 64] |= 1 << (place % 64);
        }
        let copy = rest.clone();
        add(&mut rest, &copy);
    }
    quotient
}

/// Returns the number of leading zero bits, including the word of the integer part.
fn leading_zeros(number: &[u64]) -> u32 {
    let zero_words = number.iter().rev().take_while(|&&word| word == 0).count();
    let bits = number.iter().rev().nth(zero_words).map_or(0, |word| word.leading_zeros());
    64 * zero_words as u32 + bits
}

#[cfg(test)]
mod tests {
    use super::*;

    /// P(|X| ≤ m)·2¹²⁸, rounded down, by `tests/vectors/discrete_gaussian.py`.
    const KNOWN: &str = include_str!("../../tests/vectors/discrete-gaussian.json");

    #[test]
    fn probabilities_are_those_of_an_independent_program() {
        let cases: serde_json::Value = serde_json::from_str(KNOWN).unwrap();
        let cases = cases.as_array().unwrap();
        assert!(cases.len() >= 8);
        for case in cases {
            let variance = case["variance"].as_u64().unwrap() as u32;
            let thresholds = Thresholds::new(variance, 4);
            for entry in case["probabilities"].as_array().unwrap() {
                let magnitude = entry[0].as_u64().unwrap() as usize;
                let expected = entry[1].as_str().unwrap();
                let words = &thresholds.probabilities[magnitude];
                assert_eq!(format!("{:016x}{:016x}", words[3], words[2]), expected, "{variance} {magnitude}");
            }
        }
    }

    #[test]
    fn more_bits_stay_within_the_error() {
        for variance in [1, 16, 777] {
            let (few, many) = (Thresholds::new(variance, 3), Thresholds::new(variance, 6));
            for (few_bits, many_bits) in few.probabilities.iter().zip(&many.probabilities) {
                let (below, above) = (few.moved(few_bits, false), few.moved(few_bits, true));
                assert!(compare(&below, &many_bits[3..]) != Ordering::Greater);
                assert!(compare(&above, &many_bits[3..]) != Ordering::Less);
            }
        }
    }
}
