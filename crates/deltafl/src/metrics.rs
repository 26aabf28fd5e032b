//! The figures of the paper's tables.
//!
//! Train devices: the loss weighted by n_k, and the objective F_θ. Test and validation devices: the
//! first metric of the task (for classes the misclassification error), with equal weights.
//!
//! The weights of train devices are the paper's α_k = n_k for every choice of
//! [`Weights`](crate::terms::Weights), so that runs with different choices can be compared.

use serde::{Deserialize, Serialize};

use crate::data::Split;
use crate::exchange::{Evaluation, SplitEvaluation};
use crate::superquantile::{Conformity, DeviceLoss, superquantile};

mod dispersion;
mod splits;
mod standard_error;

pub use dispersion::{Dispersion, DispersionBySize, DispersionOverSeeds, below_median_size};
pub use splits::{DifferenceOverSplits, OverSplits, Verdict};
pub use standard_error::{SampleError, standard_errors};

/// The percentiles of the tables.
pub const PERCENTILES: [u8; 6] = [20, 50, 60, 80, 90, 95];

/// Mean and percentiles over devices.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Figures {
    /// The mean.
    pub mean: f64,
    /// The values at [`PERCENTILES`].
    pub percentiles: [f64; PERCENTILES.len()],
}

impl Figures {
    /// Computes figures over devices with equal weights. Percentiles are interpolated linearly.
    /// Returns `None` without devices.
    ///
    /// ```
    /// let figures = deltafl::metrics::Figures::unweighted(&[0.1, 0.3, 0.2]).unwrap();
    /// assert!((figures.mean - 0.2).abs() < 1e-12);
    /// assert!((figures.percentiles[1] - 0.2).abs() < 1e-12); // the median
    /// ```
    pub fn unweighted(values: &[f64]) -> Option<Self> {
        if values.is_empty() {
            return None;
        }
        let mut sorted = values.to_vec();
        sorted.sort_unstable_by(f64::total_cmp);
        let mean = values.iter().sum::<f64>() / values.len() as f64;
        Some(Self { mean, percentiles: PERCENTILES.map(|tau| interpolated(&sorted, f64::from(tau) / 100.0)) })
    }

    /// Computes figures over devices with these weights. Percentiles invert the distribution
    /// function. Returns `None` without devices.
    pub fn weighted(values: &[(f64, u64)]) -> Option<Self> {
        let total: u64 = values.iter().map(|(_, weight)| weight).sum();
        if total == 0 {
            return None;
        }
        let mut sorted = values.to_vec();
        sorted.sort_unstable_by(|a, b| a.0.total_cmp(&b.0));
        let mean = values.iter().map(|(x, weight)| x * *weight as f64).sum::<f64>() / total as f64;
        Some(Self { mean, percentiles: PERCENTILES.map(|tau| inverse_cdf(&sorted, total, tau)) })
    }

    /// Returns the figures that the tables report for a split: the weighted loss of the train
    /// devices, and the first metric of the task for the others.
    pub fn of_track(evaluation: &SplitEvaluation, track: usize) -> Option<Self> {
        let devices = &evaluation.tracks[track];
        match evaluation.split {
            Split::Test | Split::Validation => {
                Self::unweighted(&devices.iter().map(Evaluation::primary).collect::<Vec<_>>())
            }
            Split::Train => {
                let weighted = devices.iter().zip(evaluation.devices.iter());
                Self::weighted(&weighted.map(|(e, device)| (e.loss, device.examples)).collect::<Vec<_>>())
            }
        }
    }

    /// Returns the first metric of the task over the devices of any split, with equal weights.
    pub fn of_primary(evaluation: &SplitEvaluation, track: usize) -> Option<Self> {
        Self::unweighted(&evaluation.tracks.get(track)?.iter().map(Evaluation::primary).collect::<Vec<_>>())
    }

    /// Returns the percentile τ, one of [`PERCENTILES`].
    pub fn percentile(&self, tau: u8) -> Option<f64> {
        PERCENTILES.iter().position(|&known| known == tau).map(|i| self.percentiles[i])
    }
}

/// Returns F_θ(w) of a track: the superquantile at its θ of the losses of the train devices,
/// weighted by n_k (eq. 1).
///
/// The losses exclude the penalty on w. Returns `None` for other splits, without devices, and if a
/// loss is not finite.
pub fn objective(evaluation: &SplitEvaluation, track: usize, theta: Conformity) -> Option<f64> {
    if evaluation.split != Split::Train {
        return None;
    }
    let devices = evaluation.tracks.get(track)?.iter().zip(evaluation.devices.iter());
    let losses = devices.map(|(e, device)| DeviceLoss::new(e.loss, device.examples as f64));
    superquantile(theta, &losses.collect::<Result<Vec<_>, _>>().ok()?)
}

/// Returns the value at a share of the devices with equal weights, interpolated linearly. Returns
/// `None` without devices.
pub fn percentile(values: &[f64], share: f64) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    (!sorted.is_empty()).then(|| interpolated(&sorted, share.clamp(0.0, 1.0)))
}

/// NumPy's default rule: linear between the two nearest ranks.
fn interpolated(sorted: &[f64], tau: f64) -> f64 {
    let rank = tau * (sorted.len() - 1) as f64;
    let below = rank.floor() as usize;
    let above = (below + 1).min(sorted.len() - 1);
    let between = rank - rank.floor();
    // Zero times an infinite value is NaN.
    if between > 0.0 { sorted[below] + between * (sorted[above] - sorted[below]) } else { sorted[below] }
}

/// Returns the smallest value whose cumulative weight reaches τ %, in exact integers.
fn inverse_cdf(sorted: &[(f64, u64)], total: u64, tau: u8) -> f64 {
    let wanted = u128::from(total) * u128::from(tau);
    let mut cumulative = 0u128;
    for &(value, weight) in sorted {
        cumulative += u128::from(weight) * 100;
        if cumulative >= wanted {
            return value;
        }
    }
    sorted[sorted.len() - 1].0
}

/// Mean and standard deviation of a figure over the seeds of a run.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct OverSeeds {
    /// The mean.
    pub mean: f64,
    /// The standard deviation of the sample (n − 1), or zero for one seed.
    pub std: Option<f64>,
}

impl OverSeeds {
    /// Computes the spread over one value per seed. Returns `None` without values.
    pub fn new(values: &[f64]) -> Option<Self> {
        if values.is_empty() {
            return None;
        }
        let n = values.len() as f64;
        let mean = values.iter().sum::<f64>() / n;
        let squares: f64 = values.iter().map(|x| (x - mean).powi(2)).sum();
        let std = (values.len() > 1).then(|| (squares / (n - 1.0)).sqrt());
        Some(Self { mean, std })
    }
}

/// Figures over the seeds of a run.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct FiguresOverSeeds {
    /// Mean over devices.
    pub mean: OverSeeds,
    /// 20th percentile.
    pub p20: OverSeeds,
    /// Median.
    pub p50: OverSeeds,
    /// 60th percentile.
    pub p60: OverSeeds,
    /// 80th percentile.
    pub p80: OverSeeds,
    /// 90th percentile.
    pub p90: OverSeeds,
    /// 95th percentile.
    pub p95: OverSeeds,
}

impl FiguresOverSeeds {
    /// Computes the figures over all seeds. Returns `None` without seeds.
    pub fn new(seeds: &[Figures]) -> Option<Self> {
        let over =
            |figure: fn(&Figures) -> f64| OverSeeds::new(&seeds.iter().map(figure).collect::<Vec<_>>());
        Some(Self {
            mean: over(|f| f.mean)?,
            p20: over(|f| f.percentiles[0])?,
            p50: over(|f| f.percentiles[1])?,
            p60: over(|f| f.percentiles[2])?,
            p80: over(|f| f.percentiles[3])?,
            p90: over(|f| f.percentiles[4])?,
            p95: over(|f| f.percentiles[5])?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exchange::EvaluatedDevice;
    use crate::task::Task;

    #[test]
    fn unweighted_percentiles_are_those_of_numpy() {
        // numpy.percentile([1, 2, 4, 8, 16], [20, 50, 60, 80, 90, 95])
        let figures = Figures::unweighted(&[16.0, 1.0, 8.0, 2.0, 4.0]).unwrap();
        let expected = [1.8, 4.0, 5.6, 9.6, 12.8, 14.4];
        assert!(figures.percentiles.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-12), "{figures:?}");
    }

    #[test]
    fn weighted_percentiles_are_values_that_occur() {
        let figures = Figures::weighted(&[(3.0, 1), (1.0, 2), (2.0, 7)]).unwrap();
        assert_eq!(figures.percentiles, [1.0, 2.0, 2.0, 2.0, 2.0, 3.0]);
        assert!((figures.mean - 1.9).abs() < 1e-12);
    }

    #[test]
    fn held_out_devices_count_alike_and_by_their_error_as_test_devices_do() {
        let evaluation = |split| SplitEvaluation {
            split,
            task: Task::Classes,
            devices: [(1, "a"), (99, "b")]
                .map(|(examples, id)| EvaluatedDevice { id: id.into(), examples })
                .into_iter()
                .collect(),
            tracks: vec![vec![Evaluation::of_primary(5.0, 0.2), Evaluation::of_primary(7.0, 0.4)]],
        };
        let mean = |split| Figures::of_track(&evaluation(split), 0).unwrap().mean;
        assert!((mean(Split::Train) - 6.98).abs() < 1e-12);
        assert!((mean(Split::Validation) - 0.3).abs() < 1e-12);
        assert!((mean(Split::Test) - 0.3).abs() < 1e-12);
    }

    #[test]
    fn the_objective_is_the_mean_of_the_worst_share_of_the_weight() {
        let evaluation = |split, third: f64| SplitEvaluation {
            split,
            task: Task::Classes,
            devices: [(1, "a"), (2, "b"), (1, "c")]
                .map(|(examples, id)| EvaluatedDevice { id: id.into(), examples })
                .into_iter()
                .collect(),
            tracks: vec![[1.0, 2.0, third].map(|loss| Evaluation::of_primary(loss, 0.5)).to_vec()],
        };
        let at = |theta: f64| {
            objective(&evaluation(Split::Train, 4.0), 0, Conformity::try_from(theta).unwrap()).unwrap()
        };
        // The worst half of the weight: all of c (a quarter) and half of b (a quarter).
        assert!(
            (at(0.5) - 3.0).abs() < 1e-12 && (at(0.25) - 4.0).abs() < 1e-12 && (at(1.0) - 2.25).abs() < 1e-12
        );
        assert_eq!(objective(&evaluation(Split::Test, 4.0), 0, Conformity::FULL), None);
        assert_eq!(objective(&evaluation(Split::Train, f64::INFINITY), 0, Conformity::FULL), None);
    }

    #[test]
    fn the_deviation_over_seeds_is_that_of_the_sample_and_one_seed_has_none() {
        let over = OverSeeds::new(&[1.0, 2.0, 3.0]).unwrap();
        assert_eq!((over.mean, over.std), (2.0, Some(1.0)));
        assert_eq!(OverSeeds::new(&[5.0]).unwrap().std, None);
    }
}
