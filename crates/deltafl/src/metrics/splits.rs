//! Results over several splits of the devices, with training seeds nested in splits.
//!
//! The seeds of a split share its train and test devices, so only splits are independent. The
//! interval of a difference is therefore a t interval over the means of the splits. It refers to
//! other random splits of the same devices, and not to other devices.

use serde::{Deserialize, Serialize};

/// A figure over splits and, within a split, over seeds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct OverSplits {
    /// The mean of the means of the splits.
    pub mean: f64,
    /// The standard deviation (n − 1) of the means of the splits; `None` for one split.
    pub std_over_splits: Option<f64>,
    /// The standard deviation over the seeds of a split: the root of the mean variance (n − 1) of
    /// the splits with several seeds. `None` if there is none.
    pub std_within_split: Option<f64>,
    /// The number of splits.
    pub splits: usize,
    /// The number of values, over all splits and seeds.
    pub values: usize,
}

impl OverSplits {
    /// Computes the statistics of the values of each split, one per seed. Splits without a value
    /// do not count. Returns `None` without values.
    pub fn new(splits: &[Vec<f64>]) -> Option<Self> {
        let splits: Vec<&Vec<f64>> = splits.iter().filter(|seeds| !seeds.is_empty()).collect();
        let means: Vec<f64> = splits.iter().map(|seeds| mean(seeds)).collect();
        let within: Vec<f64> = splits.iter().filter_map(|seeds| variance(seeds)).collect();
        if means.is_empty() {
            return None;
        }
        Some(Self {
            mean: mean(&means),
            std_over_splits: variance(&means).map(f64::sqrt),
            std_within_split: (!within.is_empty()).then(|| mean(&within).sqrt()),
            splits: splits.len(),
            values: splits.iter().map(|seeds| seeds.len()).sum(),
        })
    }
}

/// The sign of a difference over splits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// The mean of every split is below zero, and so is the interval.
    Lower,
    /// The mean of every split is above zero, and so is the interval.
    Higher,
    /// The sign changes over splits, the interval contains zero, or there is only one split.
    Undecided,
}

/// The difference of a figure between two tracks, paired by split and seed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DifferenceOverSplits {
    /// Mean and deviations of the differences.
    pub over: OverSplits,
    /// The 95 % t interval of the mean over splits; `None` for one split.
    pub interval: Option<[f64; 2]>,
    /// The mean of each split.
    pub of_splits: Vec<f64>,
    /// The sign.
    pub verdict: Verdict,
}

impl DifferenceOverSplits {
    /// Computes `after − before` for pairs of one split and seed each, listed by split. Returns
    /// `None` without pairs.
    ///
    /// ```
    /// use deltafl::metrics::{DifferenceOverSplits, Verdict};
    /// let pairs = [vec![(0.50, 0.48), (0.52, 0.49)], vec![(0.44, 0.45), (0.46, 0.45)]];
    /// let difference = DifferenceOverSplits::new(&pairs).unwrap();
    /// assert!((difference.over.mean + 0.0125).abs() < 1e-12);
    /// assert_eq!(difference.verdict, Verdict::Undecided); // no change on the second split
    /// ```
    pub fn new(splits: &[Vec<(f64, f64)>]) -> Option<Self> {
        let of_split =
            |pairs: &Vec<(f64, f64)>| pairs.iter().map(|(before, after)| after - before).collect::<Vec<_>>();
        let differences: Vec<Vec<f64>> =
            splits.iter().map(of_split).filter(|seeds| !seeds.is_empty()).collect();
        let over = OverSplits::new(&differences)?;
        let of_splits: Vec<f64> = differences.iter().map(|seeds| mean(seeds)).collect();
        let interval = over.std_over_splits.map(|std| {
            let half = t_quantile(over.splits - 1) * std / (over.splits as f64).sqrt();
            [over.mean - half, over.mean + half]
        });
        let verdict = match interval {
            Some([_, upper]) if upper < 0.0 && of_splits.iter().all(|&split| split < 0.0) => Verdict::Lower,
            Some([lower, _]) if lower > 0.0 && of_splits.iter().all(|&split| split > 0.0) => Verdict::Higher,
            _ => Verdict::Undecided,
        };
        Some(Self { over, interval, of_splits, verdict })
    }

    /// Returns the number of splits with a mean below zero.
    pub fn lower(&self) -> usize {
        self.of_splits.iter().filter(|&&split| split < 0.0).count()
    }
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// Returns the variance of a sample (n − 1), or `None` for one value.
fn variance(values: &[f64]) -> Option<f64> {
    let centre = mean(values);
    let squares: f64 = values.iter().map(|value| (value - centre).powi(2)).sum();
    (values.len() > 1).then(|| squares / (values.len() as f64 - 1.0))
}

/// The 97.5th percentiles of Student's t distribution with 1, 2, … degrees of freedom.
const T_QUANTILES: [f64; 20] = [
    12.706_205, 4.302_653, 3.182_446, 2.776_445, 2.570_582, 2.446_912, 2.364_624, 2.306_004, 2.262_157,
    2.228_139, 2.200_985, 2.178_813, 2.160_369, 2.144_787, 2.131_450, 2.119_905, 2.109_816, 2.100_922,
    2.093_024, 2.085_963,
];

/// Returns the 97.5th percentile of Student's t distribution, to about six digits.
fn t_quantile(freedom: usize) -> f64 {
    if let Some(known) = freedom.checked_sub(1).and_then(|i| T_QUANTILES.get(i)) {
        return *known;
    }
    // The expansion of Cornish and Fisher about the normal quantile.
    let (z, n): (f64, f64) = (1.959_963_985, freedom as f64);
    let first = (z.powi(3) + z) / 4.0;
    let second = (5.0 * z.powi(5) + 16.0 * z.powi(3) + 3.0 * z) / 96.0;
    let third = (3.0 * z.powi(7) + 19.0 * z.powi(5) + 17.0 * z.powi(3) - 15.0 * z) / 384.0;
    z + (first + (second + third / n) / n) / n
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stream::{Purpose, Stream};

    #[test]
    fn deviations_over_splits_and_within_splits_are_separate() {
        let over = OverSplits::new(&[vec![1.0, 3.0], vec![5.0, 7.0], vec![], vec![12.0]]).unwrap();
        assert_eq!((over.splits, over.values), (3, 5));
        assert!((over.mean - (2.0 + 6.0 + 12.0) / 3.0).abs() < 1e-12, "the means of splits count alike");
        assert!((over.std_within_split.unwrap() - 2f64.sqrt()).abs() < 1e-12);
        let expected =
            ((4.666_666_7f64.powi(2) + 0.666_666_7f64.powi(2) + 5.333_333_3f64.powi(2)) / 2.0).sqrt();
        assert!((over.std_over_splits.unwrap() - expected).abs() < 1e-6);
        assert_eq!(OverSplits::new(&[vec![1.0]]).unwrap().std_over_splits, None);
        assert_eq!(OverSplits::new(&[vec![], vec![]]), None);
    }

    #[test]
    fn a_sign_that_changes_over_splits_is_undecided() {
        let of = |differences: &[f64]| {
            let pairs: Vec<Vec<(f64, f64)>> = differences.iter().map(|&d| vec![(1.0, 1.0 + d)]).collect();
            DifferenceOverSplits::new(&pairs).unwrap()
        };
        // The differences of Sent140 linear at θ = 0.5.
        let sent140 = of(&[-0.77, -0.51, -0.42, 0.12, 0.23]);
        assert_eq!((sent140.verdict, sent140.lower()), (Verdict::Undecided, 3));
        assert_eq!(of(&[-2.1, -0.8, -1.0, -1.2]).verdict, Verdict::Lower);
        assert_eq!(of(&[2.1, 0.8, 1.0, 1.2]).verdict, Verdict::Higher);
        // One sign and an interval with zero, and one split.
        assert_eq!(of(&[-0.1, -3.0, -0.1]).verdict, Verdict::Undecided);
        assert_eq!(of(&[-3.0]).verdict, Verdict::Undecided);
        assert_eq!(of(&[-3.0]).interval, None);
    }

    #[test]
    fn the_interval_contains_the_mean_of_normal_splits_in_19_of_20_cases() {
        let mut stream = Stream::new(3, Purpose::Synthesis, 0, 0);
        let cases = 2000;
        let covered = (0..cases).filter(|_| {
            let split = |_| {
                let of_split = stream.normal();
                (0..3).map(|_| (0.0, 0.7 + of_split + 0.5 * stream.normal())).collect::<Vec<_>>()
            };
            let pairs: Vec<Vec<(f64, f64)>> = (0..5).map(split).collect();
            let [lower, upper] = DifferenceOverSplits::new(&pairs).unwrap().interval.unwrap();
            (lower..upper).contains(&0.7)
        });
        // Three standard errors of a share of 0.95 are 0.015.
        let share = covered.count() as f64 / f64::from(cases);
        assert!((share - 0.95).abs() < 0.015, "{share}");
    }

    #[test]
    fn the_expansion_of_the_t_quantile_continues_the_table() {
        // scipy.stats.t.ppf(0.975, [21, 30, 100])
        for (freedom, expected) in [(21, 2.079_614), (30, 2.042_272), (100, 1.983_972)] {
            assert!((t_quantile(freedom) - expected).abs() < 2e-5, "{freedom}: {}", t_quantile(freedom));
        }
    }
}
