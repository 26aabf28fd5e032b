//! The standard errors of figures that are computed on a sample of the devices.
//!
//! A sample is drawn without replacement from N devices, so errors shrink by √(1 − n/N) and vanish
//! if the sample contains all of them. The error of a percentile is half the distance between the
//! values at τ ± √(τ(1 − τ)/n) of the weight (Woodruff), which needs no density.

use serde::{Deserialize, Serialize};

use super::{Figures, PERCENTILES};
use crate::data::Split;
use crate::exchange::SplitEvaluation;

/// The standard errors of the main figures of a sample of devices.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct SampleError {
    /// Devices in the sample.
    pub devices: usize,
    /// Devices in the population.
    pub of: usize,
    /// Standard error of the mean.
    pub mean: f64,
    /// Standard error of the 90th percentile.
    pub p90: f64,
}

impl SampleError {
    /// Returns the errors of [`Figures::of_track`] for a split of `of` devices.
    pub fn of_track(evaluation: &SplitEvaluation, track: usize, of: usize) -> Option<Self> {
        let devices = evaluation.tracks.get(track)?.iter().zip(evaluation.devices.iter());
        let values: Vec<(f64, u64)> = match evaluation.split {
            Split::Train => devices.map(|(e, device)| (e.loss, device.examples)).collect(),
            Split::Test | Split::Validation => devices.map(|(e, _)| (e.primary(), 1)).collect(),
        };
        Self::of_values(&values, of)
    }

    /// Returns the errors of [`Figures::of_primary`] for a split of `of` devices.
    pub fn of_primary(evaluation: &SplitEvaluation, track: usize, of: usize) -> Option<Self> {
        let devices = evaluation.tracks.get(track)?.iter();
        Self::of_values(&devices.map(|e| (e.primary(), 1)).collect::<Vec<_>>(), of)
    }

    /// Returns the errors of a sample of weighted values.
    pub fn of_values(values: &[(f64, u64)], of: usize) -> Option<Self> {
        let errors = standard_errors(values, of)?;
        Some(Self { devices: values.len(), of, mean: errors.mean, p90: errors.percentiles[4] })
    }

    /// Combines the errors of the same sample under several seeds: their mean, because more seeds
    /// do not enlarge the sample.
    pub fn over_seeds(seeds: &[Self]) -> Option<Self> {
        let mean = |error: fn(&Self) -> f64| seeds.iter().map(error).sum::<f64>() / seeds.len() as f64;
        Some(Self { mean: mean(|e| e.mean), p90: mean(|e| e.p90), ..*seeds.first()? })
    }
}

/// Returns the standard error of each figure over a sample of devices, weighted as in
/// [`Figures::weighted`].
///
/// `population` is N, the size of the population. Returns `None` for fewer than two devices.
///
/// ```
/// use deltafl::metrics::standard_errors;
/// let sample: Vec<(f64, u64)> = (0..100).map(|i| (f64::from(i % 10), 1)).collect();
/// let all = standard_errors(&sample, 100).unwrap();
/// assert_eq!(all.mean, 0.0); // all devices are in the sample
/// let part = standard_errors(&sample, 1_000_000).unwrap();
/// assert!((part.mean - 0.287).abs() < 1e-2); // √8.25/√100
/// ```
pub fn standard_errors(values: &[(f64, u64)], population: usize) -> Option<Figures> {
    let figures = Figures::weighted(values)?;
    let n = values.len();
    if n < 2 {
        return None;
    }
    let left_out = (1.0 - n as f64 / population.max(n) as f64).sqrt();
    let total: f64 = values.iter().map(|(_, weight)| *weight as f64).sum();
    let squares: f64 = values.iter().map(|(x, weight)| (*weight as f64 * (x - figures.mean)).powi(2)).sum();
    let mean = left_out * (squares * n as f64 / (n as f64 - 1.0)).sqrt() / total;

    // The number of devices of equal weight with the same information.
    let effective = total.powi(2) / values.iter().map(|(_, weight)| (*weight as f64).powi(2)).sum::<f64>();
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(|a, b| a.0.total_cmp(&b.0));
    let percentile = |tau: u8| {
        let tau = f64::from(tau) / 100.0;
        let away = left_out * (tau * (1.0 - tau) / effective).sqrt();
        (at_share(&sorted, total, tau + away) - at_share(&sorted, total, tau - away)) / 2.0
    };
    Some(Figures { mean, percentiles: PERCENTILES.map(percentile) })
}

/// Returns the smallest value that this share of the weight does not exceed.
fn at_share(sorted: &[(f64, u64)], total: f64, share: f64) -> f64 {
    let mut reached = 0.0;
    for &(value, weight) in sorted {
        reached += weight as f64;
        if reached >= share * total {
            return value;
        }
    }
    sorted[sorted.len() - 1].0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stream::{Purpose, Stream};

    /// Returns the deviation of the figures of many samples of `n` of `all`, and the mean of their
    /// stated errors.
    fn spread_and_stated(all: &[(f64, u64)], n: usize, figure: fn(&Figures) -> f64) -> (f64, f64) {
        let (mut found, mut stated) = (Vec::new(), 0.0);
        let draws = 400;
        for draw in 0..draws {
            let mut devices = all.to_vec();
            Stream::new(7, Purpose::Bootstrap, draw, 0).shuffle(&mut devices);
            devices.truncate(n);
            found.push(figure(&Figures::weighted(&devices).unwrap()));
            stated += figure(&standard_errors(&devices, all.len()).unwrap()) / draws as f64;
        }
        let mean = found.iter().sum::<f64>() / draws as f64;
        let squares: f64 = found.iter().map(|x| (x - mean).powi(2)).sum();
        ((squares / draws as f64).sqrt(), stated)
    }

    #[test]
    fn stated_errors_are_those_that_repeated_samples_make() {
        let mut stream = Stream::new(3, Purpose::Synthesis, 0, 0);
        let all: Vec<(f64, u64)> =
            (0..2000).map(|_| (stream.unit().powi(2), 20 + stream.below(60))).collect();
        let figures: [fn(&Figures) -> f64; 2] = [|f| f.mean, |f| f.percentiles[4]];
        for (n, figure) in [(100, figures[0]), (1000, figures[0]), (200, figures[1])] {
            let (spread, stated) = spread_and_stated(&all, n, figure);
            assert!((spread / stated - 1.0).abs() < 0.2, "n = {n}: {spread} found, {stated} stated");
        }
    }

    #[test]
    fn one_device_states_no_error() {
        assert_eq!(standard_errors(&[(1.0, 3)], 10), None);
    }
}
