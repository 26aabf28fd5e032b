//! The dispersion of a metric over devices, which a percentile alone does not show.
//!
//! All statistics count devices with equal weights.

use serde::{Deserialize, Serialize};

use super::OverSeeds;
use crate::exchange::{Evaluation, SplitEvaluation};
use crate::task::Direction;

/// The share of the devices in [`Dispersion::worst_tenth`].
const WORST: f64 = 0.1;

/// The dispersion of a metric over devices.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Dispersion {
    /// The standard deviation over these devices (divided by n).
    pub std: f64,
    /// The mean over the worst tenth of the devices. The device at the boundary counts in part.
    pub worst_tenth: f64,
    /// The Gini coefficient Σ|x_j − x_k| / (2n Σx): 0 if all devices are equal. It is `None` if a
    /// value is negative or all are zero.
    pub gini: Option<f64>,
}

impl Dispersion {
    /// Computes the dispersion over devices. `direction` decides which values are the worst.
    /// Returns `None` without devices and if a value is not finite.
    ///
    /// ```
    /// use deltafl::metrics::Dispersion;
    /// use deltafl::task::Direction;
    /// let equal = Dispersion::new(&[0.2; 20], Direction::Lower).unwrap();
    /// assert!(equal.std < 1e-12 && equal.gini.unwrap() < 1e-12);
    /// assert!((equal.worst_tenth - 0.2).abs() < 1e-12);
    /// ```
    pub fn new(values: &[f64], direction: Direction) -> Option<Self> {
        if values.is_empty() || values.iter().any(|value| !value.is_finite()) {
            return None;
        }
        let mut sorted = values.to_vec();
        sorted.sort_unstable_by(f64::total_cmp);
        let n = sorted.len() as f64;
        let sum: f64 = sorted.iter().sum();
        let squares: f64 = sorted.iter().map(|value| (value - sum / n).powi(2)).sum();
        let gini = (sorted[0] >= 0.0 && sum > 0.0).then(|| {
            // In ascending order, Σ|x_j − x_k| over all pairs is 2 Σ (2j − n − 1) x_j.
            let ranked = sorted.iter().zip(1..).map(|(value, j)| (2.0 * f64::from(j) - n - 1.0) * value);
            ranked.sum::<f64>() / (n * sum)
        });
        Some(Self { std: (squares / n).sqrt(), worst_tenth: worst_tenth(&sorted, direction), gini })
    }

    /// Computes the dispersion over the devices with fewer examples than the median device.
    /// `devices` are values with numbers of examples. Returns `None` if there is no such device.
    pub fn below_median_size(devices: &[(f64, u64)], direction: Direction) -> Option<Self> {
        Self::new(&below_median_size(devices), direction)
    }
}

/// Returns the values of the devices with fewer examples than the median device.
pub fn below_median_size(devices: &[(f64, u64)]) -> Vec<f64> {
    let mut sizes: Vec<u64> = devices.iter().map(|(_, examples)| *examples).collect();
    sizes.sort_unstable();
    let Some(upper) = sizes.get(sizes.len() / 2) else { return Vec::new() };
    // Of an even number of devices, the median is the mean of the two in the middle.
    let lower = if sizes.len().is_multiple_of(2) { sizes[sizes.len() / 2 - 1] } else { *upper };
    let twice = u128::from(lower) + u128::from(*upper);
    let small = devices.iter().filter(|(_, examples)| 2 * u128::from(*examples) < twice);
    small.map(|(value, _)| *value).collect()
}

/// Returns the mean of the worst tenth of values in ascending order.
fn worst_tenth(sorted: &[f64], direction: Direction) -> f64 {
    let wanted = WORST * sorted.len() as f64;
    let worst_first: Box<dyn Iterator<Item = &f64>> = match direction {
        Direction::Lower => Box::new(sorted.iter().rev()),
        Direction::Higher => Box::new(sorted.iter()),
    };
    let (mut left, mut sum) = (wanted, 0.0);
    for value in worst_first {
        let share = left.min(1.0);
        sum += share * value;
        left -= share;
        if left <= 0.0 {
            break;
        }
    }
    sum / wanted
}

/// A dispersion over the seeds of a run.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct DispersionOverSeeds {
    /// The standard deviation over devices.
    pub std: OverSeeds,
    /// The mean over the worst tenth of the devices.
    pub worst_tenth: OverSeeds,
    /// The Gini coefficient, if it is defined for every seed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gini: Option<OverSeeds>,
}

impl DispersionOverSeeds {
    /// Computes mean and deviation over seeds. Returns `None` without seeds.
    pub fn new(seeds: &[Dispersion]) -> Option<Self> {
        let over =
            |figure: fn(&Dispersion) -> f64| OverSeeds::new(&seeds.iter().map(figure).collect::<Vec<_>>());
        let gini: Option<Vec<f64>> = seeds.iter().map(|seed| seed.gini).collect();
        Some(Self {
            std: over(|seed| seed.std)?,
            worst_tenth: over(|seed| seed.worst_tenth)?,
            gini: gini.and_then(|seeds| OverSeeds::new(&seeds)),
        })
    }
}

/// The dispersion over all devices of a split, and over the small ones.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct DispersionBySize {
    /// Over all devices.
    pub all: DispersionOverSeeds,
    /// Over the devices with fewer examples than the median device, if there are any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub small: Option<DispersionOverSeeds>,
}

impl DispersionBySize {
    /// Computes the dispersion from the devices of each seed: values with numbers of examples.
    /// Returns `None` without seeds, and if a seed has no devices or a value that is not finite.
    pub fn new(seeds: &[Vec<(f64, u64)>], direction: Direction) -> Option<Self> {
        let all = |devices: &Vec<(f64, u64)>| {
            Dispersion::new(&devices.iter().map(|(value, _)| *value).collect::<Vec<_>>(), direction)
        };
        let all: Option<Vec<Dispersion>> = seeds.iter().map(all).collect();
        let small: Option<Vec<Dispersion>> =
            seeds.iter().map(|devices| Dispersion::below_median_size(devices, direction)).collect();
        Some(Self {
            all: DispersionOverSeeds::new(&all?)?,
            small: small.and_then(|small| DispersionOverSeeds::new(&small)),
        })
    }

    /// Computes the dispersion of the first metric of the task from one evaluation per seed.
    pub fn of_primary<'a>(
        seeds: impl IntoIterator<Item = &'a SplitEvaluation>,
        track: usize,
    ) -> Option<Self> {
        let mut direction = Direction::Lower;
        let mut devices = Vec::new();
        for evaluation in seeds {
            direction = evaluation.task.primary().direction;
            devices.push(sized(evaluation, track, Evaluation::primary)?);
        }
        Self::new(&devices, direction)
    }

    /// Computes the dispersion of the losses from one evaluation per seed.
    pub fn of_losses<'a>(seeds: impl IntoIterator<Item = &'a SplitEvaluation>, track: usize) -> Option<Self> {
        let seeds = seeds.into_iter().map(|evaluation| sized(evaluation, track, |device| device.loss));
        Self::new(&seeds.collect::<Option<Vec<_>>>()?, Direction::Lower)
    }
}

/// Returns a value of each device with its number of examples.
fn sized(
    evaluation: &SplitEvaluation,
    track: usize,
    value: fn(&Evaluation) -> f64,
) -> Option<Vec<(f64, u64)>> {
    let devices = evaluation.tracks.get(track)?.iter().zip(evaluation.devices.iter());
    Some(devices.map(|(evaluation, device)| (value(evaluation), device.examples)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn close(a: f64, b: f64) -> bool {
        (a - b).abs() < 1e-12
    }

    #[test]
    fn the_dispersion_is_that_of_a_direct_computation() {
        let values: Vec<f64> = (0..25).map(|k| f64::from((k * 7) % 25) / 25.0).collect();
        let found = Dispersion::new(&values, Direction::Lower).unwrap();
        let n = values.len() as f64;
        let pairs: f64 = values.iter().flat_map(|a| values.iter().map(move |b| (a - b).abs())).sum();
        let mean = values.iter().sum::<f64>() / n;
        assert!(close(found.gini.unwrap(), pairs / (2.0 * n * n * mean)), "{found:?}");
        // numpy.std(numpy.arange(25) / 25)
        assert!(close(found.std, (624.0f64 / 12.0).sqrt() / 25.0), "{found:?}");
        // A tenth of 25 devices: the worst two and half of the third.
        assert!(close(found.worst_tenth, (24.0 + 23.0 + 11.0) / 25.0 / 2.5), "{found:?}");
        let best = Dispersion::new(&values, Direction::Higher).unwrap();
        assert!(close(best.worst_tenth, (0.0 + 1.0 + 1.0) / 25.0 / 2.5), "{best:?}");
    }

    #[test]
    fn small_devices_have_fewer_examples_than_the_median_device() {
        let odd = [(0.5, 30), (0.1, 10), (0.3, 20), (0.9, 20), (0.7, 40)];
        assert_eq!(below_median_size(&odd), [0.1]);
        let even = [(0.5, 30), (0.1, 10), (0.3, 20), (0.7, 40)];
        assert_eq!(below_median_size(&even), [0.1, 0.3]);
        assert_eq!(Dispersion::below_median_size(&[(0.1, 7), (0.2, 7)], Direction::Lower), None);
        assert_eq!(Dispersion::below_median_size(&[], Direction::Lower), None);
    }

    #[test]
    fn a_gini_coefficient_needs_values_that_are_not_negative() {
        assert_eq!(Dispersion::new(&[-1.0, 2.0], Direction::Higher).unwrap().gini, None);
        assert_eq!(Dispersion::new(&[0.0, 0.0], Direction::Lower).unwrap().gini, None);
        assert_eq!(Dispersion::new(&[0.0, f64::NAN], Direction::Lower), None);
        let one_has_all = Dispersion::new(&[0.0, 0.0, 0.0, 1.0], Direction::Lower).unwrap();
        assert!(close(one_has_all.gini.unwrap(), 0.75));
    }
}
