//! Statistics over the devices of all splits, with intervals over splits and devices.
//!
//! Values are costs: smaller values are better. The interval of a statistic is that of a bootstrap
//! in two stages. It resamples the splits, and the devices of every drawn split. All methods use
//! the same resamples, so that the interval of a difference is a paired one.

use deltafl::metrics::Figures;
use deltafl::stream::{Purpose, Stream};
use deltafl::superquantile::Conformity;
use serde::Serialize;

use crate::compare::Bootstrap;

/// The levels θ at which F_θ is reported.
pub const LEVELS: [f64; 3] = [0.8, 0.5, 0.1];

/// The costs of a method: split by seed by device.
pub(super) type Costs = Vec<Vec<Vec<f64>>>;

/// A statistic and its 95 % interval over splits and devices.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Estimate {
    /// The value.
    pub value: f64,
    /// The bounds of the interval.
    pub interval: [f64; 2],
}

/// The levels θ.
pub(super) fn levels() -> [Conformity; 3] {
    LEVELS.map(|theta| Conformity::try_from(theta).expect("the levels are in (0, 1]"))
}

/// The mean and the 90th percentile of every method.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Intervals {
    /// Mean and 90th percentile of each method.
    pub(super) figures: Vec<[Estimate; 2]>,
    /// Their differences from those of the baseline, if there is one.
    pub(super) differences: Vec<Option<[Estimate; 2]>>,
}

impl Intervals {
    /// Computes the intervals of methods that were evaluated on the same devices.
    pub(super) fn new(methods: &[Costs], baseline: Option<usize>, bootstrap: Bootstrap) -> Self {
        let everyone: Vec<(usize, Vec<usize>)> = methods.first().map_or_else(Vec::new, |costs| {
            costs.iter().enumerate().map(|(s, seeds)| (s, (0..devices(seeds)).collect())).collect()
        });
        let values: Vec<[f64; 2]> = methods.iter().map(|costs| main_figures(costs, &everyone)).collect();
        let mut resampled: Vec<Vec<[f64; 2]>> = vec![Vec::new(); methods.len()];
        for resample in 0..bootstrap.resamples {
            let mut stream = Stream::new(bootstrap.seed, Purpose::Bootstrap, resample as u64, 0);
            let mut below = |n: usize| stream.below(n as u64) as usize;
            let draw = |_: &(usize, Vec<usize>)| {
                let (split, all) = &everyone[below(everyone.len())];
                (*split, all.iter().map(|_| below(all.len())).collect())
            };
            let drawn: Vec<(usize, Vec<usize>)> = everyone.iter().map(draw).collect();
            for (found, costs) in resampled.iter_mut().zip(methods) {
                found.push(main_figures(costs, &drawn));
            }
        }
        let estimate = |value: f64, found: Vec<f64>| Estimate { value, interval: interval(found) };
        let of_method = |m: usize| {
            [0, 1].map(|f| estimate(values[m][f], resampled[m].iter().map(|figures| figures[f]).collect()))
        };
        let difference = |m: usize, b: usize| {
            [0, 1].map(|f| {
                let found = resampled[m].iter().zip(&resampled[b]).map(|(own, other)| own[f] - other[f]);
                estimate(values[m][f] - values[b][f], found.collect())
            })
        };
        let others = |m: usize| baseline.filter(|&b| b != m).map(|b| difference(m, b));
        Self {
            figures: (0..methods.len()).map(of_method).collect(),
            differences: (0..methods.len()).map(others).collect(),
        }
    }
}

fn devices(seeds: &[Vec<f64>]) -> usize {
    seeds.first().map_or(0, Vec::len)
}

/// Returns mean and 90th percentile over these devices, averaged over seeds and splits.
fn main_figures(costs: &Costs, drawn: &[(usize, Vec<usize>)]) -> [f64; 2] {
    let (mut sums, mut count) = ([0.0; 2], 0.0);
    for (split, devices) in drawn {
        for seed in &costs[*split] {
            let values: Vec<f64> = devices.iter().map(|&k| seed[k]).collect();
            let Some(figures) = Figures::unweighted(&values) else { continue };
            sums[0] += figures.mean;
            sums[1] += figures.percentile(90).unwrap_or(f64::NAN);
            count += 1.0;
        }
    }
    sums.map(|sum| sum / count)
}

/// Returns the average of a statistic of the devices over seeds and splits.
pub(super) fn average(costs: &Costs, statistic: impl Fn(&[f64]) -> f64) -> f64 {
    let all: Vec<f64> = costs.iter().flatten().map(|devices| statistic(devices)).collect();
    all.iter().sum::<f64>() / all.len() as f64
}

/// Returns the standard deviation over devices.
pub(super) fn deviation(values: &[f64]) -> f64 {
    let n = values.len() as f64;
    let mean = values.iter().sum::<f64>() / n;
    (values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / n).sqrt()
}

/// Returns the mean of the worst tenth of the devices, at least one.
pub(super) fn worst_tenth(costs: &[f64]) -> f64 {
    let mut sorted = costs.to_vec();
    sorted.sort_unstable_by(|a, b| b.total_cmp(a));
    let count = (costs.len() as f64 / 10.0).round().max(1.0) as usize;
    sorted.iter().take(count).sum::<f64>() / count as f64
}

/// Returns the Gini coefficient of non-negative values: 0 if all are equal.
pub(super) fn gini(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    let (n, total) = (values.len() as f64, values.iter().sum::<f64>());
    let ranked: f64 = sorted.iter().enumerate().map(|(i, value)| (i + 1) as f64 * value).sum();
    if total > 0.0 { 2.0 * ranked / (n * total) - (n + 1.0) / n } else { 0.0 }
}

/// Returns whether each point is on the Pareto front: no other point is at least as good in both
/// coordinates and better in one.
pub(super) fn pareto_front(points: &[[f64; 2]]) -> Vec<bool> {
    let dominates = |a: &[f64; 2], b: &[f64; 2]| a[0] <= b[0] && a[1] <= b[1] && (a[0] < b[0] || a[1] < b[1]);
    let on_front = |point: &[f64; 2]| {
        point.iter().all(|value| value.is_finite()) && !points.iter().any(|other| dominates(other, point))
    };
    points.iter().map(on_front).collect()
}

/// Returns the bounds of the central 95 %.
fn interval(mut values: Vec<f64>) -> [f64; 2] {
    values.sort_unstable_by(f64::total_cmp);
    let at = |share: f64| {
        let place = (values.len().saturating_sub(1) as f64 * share).round() as usize;
        values.get(place).copied().unwrap_or(f64::NAN)
    };
    [at(0.025), at(0.975)]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn close(a: f64, b: f64) -> bool {
        (a - b).abs() < 1e-12
    }

    #[test]
    fn dispersion_of_known_lists() {
        assert!(close(gini(&[1.0, 1.0, 1.0]), 0.0) && close(gini(&[0.0, 0.0, 0.0, 4.0]), 0.75));
        assert!(close(gini(&[1.0, 3.0]), 0.25) && close(gini(&[0.0, 0.0]), 0.0));
        let values: Vec<f64> = (1..=20).map(f64::from).collect();
        assert!(close(worst_tenth(&values), 19.5) && close(worst_tenth(&[1.0, 2.0]), 2.0));
        assert!(close(deviation(&[1.0, 3.0]), 1.0));
    }

    #[test]
    fn the_front_has_the_points_that_no_other_dominates() {
        let points = [[1.0, 5.0], [2.0, 3.0], [2.0, 4.0], [3.0, 3.0], [4.0, 1.0], [f64::NAN, 0.0]];
        assert_eq!(pareto_front(&points), [true, true, false, false, true, false]);
        assert_eq!(pareto_front(&[[1.0, 1.0], [1.0, 1.0]]), [true, true], "equal points are both on it");
    }

    #[test]
    fn the_difference_of_a_shifted_method_is_certain_and_its_value_is_not() {
        let costs = |shift: f64| -> Costs {
            let devices = |split: u32| (0..30).map(|k| f64::from(k * (split + 1)) / 100.0 + shift).collect();
            (0..3).map(|split| vec![devices(split)]).collect()
        };
        let bootstrap = Bootstrap { resamples: 200, seed: 1 };
        let found = Intervals::new(&[costs(0.0), costs(-0.125)], Some(0), bootstrap);
        let [mean, p90] = found.figures[0];
        assert!(mean.interval[0] < mean.value && mean.value < mean.interval[1], "{mean:?}");
        assert!(p90.interval[0] < p90.value && p90.value < p90.interval[1], "{p90:?}");
        assert!(found.differences[0].is_none());
        for difference in found.differences[1].unwrap() {
            let Estimate { value, interval: [low, high] } = difference;
            assert!([value, low, high].iter().all(|x| (x + 0.125).abs() < 1e-9), "{difference:?}");
        }
    }
}
