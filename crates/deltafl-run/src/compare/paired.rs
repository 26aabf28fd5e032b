//! Paired differences between two models, with bootstrap intervals.
//!
//! The devices are resampled with replacement, the same ones on both sides. The statistic of the
//! tables is then recomputed: its mean over seeds, after minus before. The interval spans the 2.5th
//! to the 97.5th percentile. It shows how the difference varies with other devices of the same
//! kind, but not with other seeds.

use std::collections::HashMap;

use deltafl::data::Split;
use deltafl::metrics::{Dispersion, Figures};
use deltafl::stream::{Purpose, Stream};
use deltafl::task::{Direction, Task, Unit};
use serde::Serialize;

use super::operand::Operand;
use crate::text_table;

/// Means over seeds that differ by less are considered equal, because their sums are rounded
/// differently.
const UNCHANGED: f64 = 1e-12;

/// Two models on the devices of a split.
#[derive(Debug, Serialize)]
pub struct Comparison {
    /// The first model.
    pub before: Side,
    /// The second model.
    pub after: Side,
    /// The name of the measure, for example `test error` or `train loss`.
    pub measure: String,
    /// The mean over devices.
    pub mean: PairedDifference,
    /// The 90th percentile over devices.
    pub p90: PairedDifference,
    /// The standard deviation over devices, with equal weights.
    pub std: PairedDifference,
    /// The mean of the worst tenth of the devices, with equal weights.
    pub worst_tenth: PairedDifference,
    /// The Gini coefficient; NaN if it is not defined.
    pub gini: PairedDifference,
    /// Devices that only one of the two evaluated.
    pub unpaired: usize,
    /// Devices whose number of examples differs between the two.
    pub resized: usize,
    /// The devices that both evaluated.
    pub devices: Vec<PairedDevice>,
    #[serde(skip)]
    split: Split,
    #[serde(skip)]
    task: Task,
}

/// A model.
#[derive(Debug, Serialize)]
pub struct Side {
    /// The name of the run.
    pub run: String,
    /// The track.
    pub track: String,
    /// Rounds done, by the slowest seed.
    pub rounds: u64,
}

/// A statistic of both models.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct PairedDifference {
    /// The value of the first model.
    pub before: f64,
    /// The value of the second model.
    pub after: f64,
    /// After minus before.
    pub change: f64,
    /// The 95 % bootstrap interval; NaN for a single device and for a statistic that is not defined.
    pub interval: [f64; 2],
}

/// A device under both models, averaged over seeds.
#[derive(Debug, Serialize)]
pub struct PairedDevice {
    /// Its name.
    pub device: String,
    /// Its number of examples.
    pub examples: u64,
    /// The value under the first model.
    pub before: f64,
    /// The value under the second model.
    pub after: f64,
}

/// The parameters of the resampling.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bootstrap {
    /// Number of resamples.
    pub resamples: usize,
    /// The seed of the resamples.
    pub seed: u64,
}

impl Default for Bootstrap {
    fn default() -> Self {
        Self { resamples: 2000, seed: 1 }
    }
}

impl Comparison {
    /// Returns the number of devices with a better value under the second model.
    pub fn gained(&self) -> usize {
        self.devices
            .iter()
            .filter(|device| self.cost(device.before) - self.cost(device.after) > UNCHANGED)
            .count()
    }

    /// Returns the number of devices with a worse value under the second model.
    pub fn lost(&self) -> usize {
        self.devices
            .iter()
            .filter(|device| self.cost(device.after) - self.cost(device.before) > UNCHANGED)
            .count()
    }

    /// Returns a number that is smaller for better values.
    fn cost(&self, value: f64) -> f64 {
        if self.split == Split::Test { self.task.primary().cost(value) } else { value }
    }

    /// Returns the factor that converts a value for display.
    pub fn display_scale(&self) -> f64 {
        if self.split == Split::Test { self.task.primary().display_value(1.0) } else { 1.0 }
    }

    /// Returns the number of displayed decimals of the Gini coefficient, which has no unit.
    pub fn gini_decimals(&self) -> usize {
        if self.split == Split::Test && self.task.primary().unit == Unit::Share { 2 } else { 3 }
    }

    /// Returns the number of displayed decimals of the other statistics.
    pub fn decimals(&self) -> usize {
        let figures = [self.mean.before, self.mean.after, self.p90.before, self.p90.after];
        match (self.split, self.task) {
            (Split::Test, _) => text_table::decimals(self.task.primary(), figures),
            (_, Task::Regression(_)) => text_table::places(figures),
            _ => 3,
        }
    }
}

/// Compares a track of one run with a track of another on a split. Returns `None` if they share no
/// device.
pub(super) fn compare(
    before: &Operand,
    a: usize,
    after: &Operand,
    b: usize,
    split: Split,
    bootstrap: Bootstrap,
) -> Option<Comparison> {
    let (first, second) = (Values::for_track(before, a, split)?, Values::for_track(after, b, split)?);
    let at: HashMap<&str, usize> =
        second.devices.iter().enumerate().map(|(k, device)| (device.0, k)).collect();
    let paired: Vec<(usize, usize)> =
        first.devices.iter().enumerate().filter_map(|(k, device)| Some((k, *at.get(device.0)?))).collect();
    if paired.is_empty() {
        return None;
    }
    let unpaired = first.devices.len() + second.devices.len() - 2 * paired.len();
    let (left, right): (Vec<usize>, Vec<usize>) = paired.into_iter().unzip();
    let (first, second) = (first.chosen(&left), second.chosen(&right));
    let resized = first.devices.iter().zip(&second.devices).filter(|(a, b)| a.1 != b.1).count();
    let [mean, p90, std, worst_tenth, gini] = differences(&first, &second, split, bootstrap);
    let devices = (0..left.len())
        .map(|k| PairedDevice {
            device: first.devices[k].0.to_owned(),
            examples: first.devices[k].1,
            before: first.mean(k),
            after: second.mean(k),
        })
        .collect();
    let side = |run: &Operand, track: usize| Side {
        run: run.name.clone(),
        track: run.tracks[track].label.clone(),
        rounds: run.rounds,
    };
    let metric = first.task.primary();
    // Different losses of a regression are not comparable.
    if split == Split::Train && second.task != first.task {
        return None;
    }
    let measure =
        if split == Split::Test { format!("test {}", metric.title) } else { "train loss".to_owned() };
    Some(Comparison {
        before: side(before, a),
        after: side(after, b),
        measure,
        mean,
        p90,
        std,
        worst_tenth,
        gini,
        unpaired,
        resized,
        devices,
        split,
        task: first.task,
    })
}

/// Mean, 90th percentile, standard deviation, worst tenth and Gini coefficient.
const STATISTICS: usize = 5;
type Statistics = [f64; STATISTICS];

/// The values of one model for each seed.
struct Values<'a> {
    task: Task,
    /// Name and number of examples of each device.
    devices: Vec<(&'a str, u64)>,
    seeds: Vec<Vec<f64>>,
}

impl<'a> Values<'a> {
    fn for_track(run: &'a Operand, track: usize, split: Split) -> Option<Self> {
        let evaluations: Vec<_> =
            run.seeds.iter().flatten().filter(|evaluation| evaluation.split == split).collect();
        let (devices, task) = (&evaluations.first()?.devices, evaluations.first()?.task);
        // Only seeds that evaluate the same federation can be averaged.
        let same = evaluations.iter().filter(|evaluation| evaluation.devices == *devices);
        let seeds = same
            .map(|evaluation| {
                let values = evaluation.tracks.get(track)?.iter();
                Some(
                    values
                        .map(|device| if split == Split::Test { device.primary() } else { device.loss })
                        .collect(),
                )
            })
            .collect::<Option<Vec<_>>>()?;
        Some(Self {
            task,
            devices: devices.iter().map(|device| (device.id.as_str(), device.examples)).collect(),
            seeds,
        })
    }

    fn chosen(&self, devices: &[usize]) -> Self {
        let of_seed = |seed: &Vec<f64>| devices.iter().map(|&k| seed[k]).collect();
        Self {
            task: self.task,
            devices: devices.iter().map(|&k| self.devices[k]).collect(),
            seeds: self.seeds.iter().map(of_seed).collect(),
        }
    }

    fn mean(&self, device: usize) -> f64 {
        self.seeds.iter().map(|seed| seed[device]).sum::<f64>() / self.seeds.len() as f64
    }

    /// Returns mean, 90th percentile and dispersion over these devices as in the tables, averaged
    /// over seeds.
    fn statistics(&self, devices: &[usize], split: Split) -> Statistics {
        let direction = if split == Split::Test { self.task.primary().direction } else { Direction::Lower };
        let mut sums = [0.0; STATISTICS];
        for seed in &self.seeds {
            let values: Vec<f64> = devices.iter().map(|&k| seed[k]).collect();
            let figures = if split == Split::Test {
                Figures::unweighted(&values)
            } else {
                Figures::weighted(&devices.iter().map(|&k| (seed[k], self.devices[k].1)).collect::<Vec<_>>())
            };
            // Devices without examples have zero weight.
            let Some(figures) = figures else { return [f64::NAN; STATISTICS] };
            let p90 = figures.percentile(90).unwrap_or(f64::NAN);
            let (std, worst_tenth, gini) = Dispersion::new(&values, direction)
                .map_or((f64::NAN, f64::NAN, None), |d| (d.std, d.worst_tenth, d.gini));
            let of_seed = [figures.mean, p90, std, worst_tenth, gini.unwrap_or(f64::NAN)];
            sums.iter_mut().zip(of_seed).for_each(|(sum, value)| *sum += value);
        }
        sums.map(|sum| sum / self.seeds.len() as f64)
    }
}

/// Returns the differences of all statistics, after minus before.
fn differences(
    before: &Values<'_>,
    after: &Values<'_>,
    split: Split,
    bootstrap: Bootstrap,
) -> [PairedDifference; STATISTICS] {
    let everyone: Vec<usize> = (0..before.devices.len()).collect();
    let (first, second) = (before.statistics(&everyone, split), after.statistics(&everyone, split));
    let mut changes = [(); STATISTICS].map(|()| Vec::new());
    for resample in 0..bootstrap.resamples {
        let mut stream = Stream::new(bootstrap.seed, Purpose::Bootstrap, resample as u64, 0);
        let drawn: Vec<usize> =
            everyone.iter().map(|_| stream.below(everyone.len() as u64) as usize).collect();
        let (a, b) = (before.statistics(&drawn, split), after.statistics(&drawn, split));
        changes.iter_mut().zip(a.iter().zip(b)).for_each(|(changes, (a, b))| changes.push(b - a));
    }
    std::array::from_fn(|s| PairedDifference {
        before: first[s],
        after: second[s],
        change: second[s] - first[s],
        interval: if everyone.len() > 1 { interval(&mut changes[s]) } else { [f64::NAN; 2] },
    })
}

/// Returns the bounds of the central 95 % of the resamples in which the statistic is defined.
fn interval(changes: &mut Vec<f64>) -> [f64; 2] {
    changes.retain(|change| !change.is_nan());
    if changes.is_empty() {
        return [f64::NAN; 2];
    }
    changes.sort_unstable_by(f64::total_cmp);
    let at = |share: f64| changes[((changes.len() - 1) as f64 * share).round() as usize];
    [at(0.025), at(0.975)]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(seed: Vec<f64>) -> Values<'static> {
        Values { task: Task::Classes, devices: vec![("d", 1); seed.len()], seeds: vec![seed] }
    }

    #[test]
    fn a_shift_of_every_device_has_an_interval_of_zero_width() {
        let before: Vec<f64> = (0..50).map(|k| f64::from(k) / 100.0).collect();
        let after = before.iter().map(|x| x - 0.125).collect();
        let bootstrap = Bootstrap { resamples: 200, seed: 1 };
        let [mean, p90, std, worst_tenth, _] =
            differences(&values(before), &values(after), Split::Test, bootstrap);
        assert!(std.change.abs() < 1e-9 && std.interval.iter().all(|end| end.abs() < 1e-9), "{std:?}");
        for difference in [mean, p90, worst_tenth] {
            for change in [difference.change, difference.interval[0], difference.interval[1]] {
                assert!((change + 0.125).abs() < 1e-9, "{difference:?}");
            }
        }
    }

    #[test]
    fn resamples_without_a_gini_coefficient_do_not_move_its_interval() {
        // In three of ten resamples all values before are zero.
        let (before, after) = (values(vec![0.0, 0.0, 0.5]), values(vec![0.25, 0.25, 0.5]));
        let bootstrap = Bootstrap { resamples: 500, seed: 1 };
        let [.., gini] = differences(&before, &after, Split::Test, bootstrap);
        let [lower, upper] = gini.interval;
        assert!((gini.change - lower).abs() < 1e-9 && upper.abs() < 1e-9, "{gini:?}");
        let one = |value: f64| values(vec![value]);
        let [mean, ..] = differences(&one(1.0), &one(0.0), Split::Test, bootstrap);
        assert!(mean.interval.iter().all(|end| end.is_nan()), "one device has no interval: {mean:?}");
    }

    #[test]
    fn the_interval_of_a_mean_is_close_to_the_normal_interval() {
        let mut stream = Stream::new(1, Purpose::Synthesis, 0, 0);
        let after: Vec<f64> = (0..400).map(|_| stream.normal()).collect();
        let before = vec![0.0; 400];
        let bootstrap = Bootstrap { resamples: 2000, seed: 1 };
        let [mean, ..] = differences(&values(before), &values(after), Split::Train, bootstrap);
        let half = (mean.interval[1] - mean.interval[0]) / 2.0;
        assert!((half - 1.96 / 20.0).abs() < 0.015, "{mean:?}");
    }
}
