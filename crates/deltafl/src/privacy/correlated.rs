//! The error of noise that is correlated over rounds, by calculation.
//!
//! The model after t rounds contains the sum of t noisy updates. Independent noise adds up.
//! Correlated noise cancels in part: a round adds the noise C⁻¹z, where C is lower triangular with
//! `bands` diagonals and z is independent (matrix factorisation; distributed: arXiv 2410.16161).
//! The sums of updates are A·x with a lower triangle A of ones, and their noise is A·C⁻¹·z.
//!
//! If a device takes part at most every b ≥ `bands` rounds, the columns of C in which it answers
//! have no row in common. Its influence on C·x is then that of one answer, times √k for k answers
//! and times the norm of a column of C. The calculation uses the square root of A, cut off after
//! `bands` diagonals: c_j = C(2j, j)/4^j.

/// The error of the sums of updates with correlated noise, relative to independent noise of the
/// same ε.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CorrelatedNoise {
    /// The number of diagonals of C with the smallest error.
    pub bands: u64,
    /// The root mean square error of the sums after every round.
    pub every_round: f64,
    /// The error of the sum after the last round.
    pub last_round: f64,
}

impl CorrelatedNoise {
    /// Returns the smallest error over all rounds, if a device takes part at most every
    /// `rounds_between` of `rounds` rounds.
    pub fn best(rounds: u64, rounds_between: u64) -> Self {
        let most = rounds_between.clamp(1, rounds.max(1));
        let each = (1..=most).map(|bands| Self::with_bands(rounds, bands));
        each.min_by(|a, b| a.every_round.total_cmp(&b.every_round)).unwrap_or(Self::INDEPENDENT)
    }

    /// One diagonal.
    const INDEPENDENT: Self = Self { bands: 1, every_round: 1.0, last_round: 1.0 };

    /// Returns the error with this many diagonals.
    pub fn with_bands(rounds: u64, bands: u64) -> Self {
        let rounds = usize::try_from(rounds).unwrap_or(usize::MAX).max(1);
        let root = square_root(rounds.min(usize::try_from(bands).unwrap_or(usize::MAX).max(1)));
        let influence: f64 = root.iter().map(|entry| entry * entry).sum();
        // The entries of A·C⁻¹ are constant along diagonals.
        let noise = sums_of_inverse(&root, rounds);
        let squares = || noise.iter().map(|entry| entry * entry);
        let last: f64 = squares().sum();
        let every: f64 = squares().enumerate().map(|(j, square)| (rounds - j) as f64 * square).sum();
        let count = rounds as f64;
        Self {
            bands,
            every_round: (influence * every / (count * (count + 1.0) / 2.0)).sqrt(),
            last_round: (influence * last / count).sqrt(),
        }
    }
}

/// Returns the first diagonals of the square root of A.
fn square_root(bands: usize) -> Vec<f64> {
    let mut entries = vec![1.0];
    for j in 1..bands {
        entries.push(entries[j - 1] * (2 * j - 1) as f64 / (2 * j) as f64);
    }
    entries
}

/// Returns the diagonals of A·C⁻¹: the running sums of the inverse power series.
fn sums_of_inverse(root: &[f64], rounds: usize) -> Vec<f64> {
    let mut inverse: Vec<f64> = Vec::with_capacity(rounds);
    for j in 0..rounds {
        let earlier: f64 = (1..root.len().min(j + 1)).map(|i| root[i] * inverse[j - i]).sum();
        inverse.push(if j == 0 { 1.0 } else { -earlier });
    }
    let mut sum = 0.0;
    inverse
        .iter()
        .map(|entry| {
            sum += entry;
            sum
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stream::{Purpose, Stream};

    #[test]
    fn one_diagonal_is_independent_noise_and_two_rounds_are_known() {
        for rounds in [1, 2, 100] {
            let one = CorrelatedNoise::with_bands(rounds, 1);
            assert!((one.every_round - 1.0).abs() < 1e-12 && (one.last_round - 1.0).abs() < 1e-12);
        }
        // C = [1 0; ½ 1], A·C⁻¹ = [1 0; ½ 1]: squares 1, ¼ and 1; a column has 1 + ¼.
        let two = CorrelatedNoise::with_bands(2, 2);
        assert!((two.every_round - (1.25_f64 * 2.25 / 3.0).sqrt()).abs() < 1e-12);
        assert!((two.last_round - (1.25_f64 * 1.25 / 2.0).sqrt()).abs() < 1e-12);
    }

    #[test]
    fn more_diagonals_help_until_the_influence_grows() {
        let best = CorrelatedNoise::best(100, 40);
        assert!((2..=40).contains(&best.bands) && best.every_round < 1.0, "{best:?}");
        let all = CorrelatedNoise::best(1000, 1000);
        assert!(all.every_round < best.every_round, "{all:?}");
        assert_eq!(CorrelatedNoise::best(100, 1), CorrelatedNoise::INDEPENDENT);
    }

    #[test]
    fn drawn_noise_has_the_computed_error() {
        let (rounds, bands, draws) = (30, 6, 4000);
        let root = square_root(bands);
        let mut stream = Stream::new(1, Purpose::Synthesis, 0, 0);
        let mut squares = 0.0;
        for _ in 0..draws {
            // y = C⁻¹·z, by forward substitution.
            let mut noise: Vec<f64> = Vec::new();
            for t in 0..rounds {
                let earlier: f64 = (1..bands.min(t + 1)).map(|i| root[i] * noise[t - i]).sum();
                noise.push(stream.normal() - earlier);
            }
            squares += noise.iter().sum::<f64>().powi(2);
        }
        let influence: f64 = root.iter().map(|entry| entry * entry).sum();
        let found = (influence * squares / f64::from(draws) / rounds as f64).sqrt();
        let expected = CorrelatedNoise::with_bands(rounds as u64, bands as u64).last_round;
        // A sample variance of n normal numbers is off by √(2/n), and its root by half of that.
        let error = 4.0 * (0.5 / f64::from(draws)).sqrt();
        assert!((found / expected - 1.0).abs() < error, "{found} {expected}");
    }

    #[test]
    fn the_influence_of_a_device_that_waits_is_that_of_its_columns() {
        let (rounds, bands, between) = (50, 8, 9);
        let root = square_root(bands);
        let column: f64 = root.iter().map(|entry| entry * entry).sum();
        for start in 0..between {
            let mut released = vec![0.0; rounds];
            let answers: Vec<usize> = (start..rounds).step_by(between).collect();
            for &t in &answers {
                released.iter_mut().skip(t).zip(&root).for_each(|(entry, root)| *entry += root);
            }
            let squares: f64 = released.iter().map(|entry| entry * entry).sum();
            assert!(squares <= answers.len() as f64 * column + 1e-9, "{start}");
        }
    }
}
