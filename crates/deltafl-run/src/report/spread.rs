//! The distribution of devices under one model, as in the paper's histograms. Each device is first
//! averaged over the seeds.
//!
//! Weights are those of the tables: test devices count equally, train devices by their examples.
//! The mean and the percentile drawn over the bars are those of the tables, which are averaged over
//! the seeds afterwards.

use super::distribution::{Distribution, Measured};
use super::figures::bins::HistogramBins;
use super::measure::TAIL;

/// The values of the devices under one model, averaged over seeds.
pub(super) struct DeviceSpread {
    /// A value per device, and its contribution to the height of its bar.
    devices: Vec<(f64, f64)>,
    /// The mean in the tables.
    pub(super) mean: f64,
    /// The tail percentile in the tables: the 90th if lower is better.
    pub(super) tail: f64,
}

impl DeviceSpread {
    /// Creates the distribution of a track in a frame.
    pub(super) fn new(measured: &Measured, frame: usize, track: usize) -> Self {
        if measured.devices.is_empty() {
            return Self::of_cohorts(&measured.frames[frame][track]);
        }
        let values = measured.frames[frame][track].device_means();
        let examples = || measured.devices.iter().map(|device| device.examples);
        let total: u64 = examples().sum();
        let height = |examples: u64| {
            if measured.measure.weighted() { 100.0 * examples as f64 / total as f64 } else { 1.0 }
        };
        // NaN counts as the worst value.
        let worst = measured.measure.cost(f64::INFINITY);
        let values = values.into_iter().map(|value| if value.is_nan() { worst } else { value });
        let devices = values.zip(examples().map(height)).collect();
        Self::marked(devices, &measured.frames[frame][track])
    }

    fn marked(devices: Vec<(f64, f64)>, distribution: &Distribution) -> Self {
        let column = |column: usize| distribution.column(column).mean;
        Self { devices, mean: column(0), tail: column(1 + TAIL) }
    }

    /// Creates the distribution of cohorts of anonymous devices, which cannot be averaged over the
    /// seeds. It combines a cohort of every seed, in which each device has its share of a bar.
    fn of_cohorts(distribution: &Distribution) -> Self {
        let values = || distribution.values.iter().map(|&value| f64::from(value));
        let height = 1.0 / distribution.figures.len().max(1) as f64;
        Self::marked(values().map(|value| (value, height)).collect(), distribution)
    }

    /// Returns the value of each device.
    pub(super) fn values(&self) -> impl Iterator<Item = f64> {
        self.devices.iter().map(|device| device.0)
    }

    /// Returns the height of each bar: devices, or their share of the examples in per cent.
    pub(super) fn heights(&self, bins: &HistogramBins) -> Vec<f64> {
        bins.heights(self.devices.iter().copied())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::measure::ReportMeasure;
    use deltafl::data::Split;
    use deltafl::exchange::EvaluatedDevice;
    use deltafl::metrics::Figures;
    use deltafl::task::Task;

    fn test_error() -> ReportMeasure {
        ReportMeasure::metrics(Split::Test, Task::Classes).next().unwrap()
    }

    /// Returns two devices with 1 and 3 examples, for two seeds.
    fn measured(measure: ReportMeasure) -> Measured {
        let device = |id: &str, examples| EvaluatedDevice { id: id.into(), examples };
        let figures = [[0.0, 0.5], [1.0, 0.5]].map(|seed| Figures::unweighted(&seed).unwrap());
        let distribution = Distribution {
            figures: figures.to_vec(),
            values: vec![0.0, 0.5, 1.0, 0.5],
            ..Distribution::default()
        };
        Measured {
            measure,
            devices: [device("a", 1), device("b", 3)].into_iter().collect(),
            population: None,
            frames: vec![vec![distribution]],
        }
    }

    #[test]
    fn a_device_is_averaged_over_seeds_before_it_is_counted() {
        let spread = DeviceSpread::new(&measured(test_error()), 0, 0);
        let bins = HistogramBins { from: 0.0, step: 0.25, count: 4, open: [false; 2] };
        // Pooled seeds would show bars at 0, 0.5 and 1.
        assert_eq!(spread.heights(&bins), [0.0, 0.0, 2.0, 0.0]);
    }

    #[test]
    fn the_marks_are_the_values_of_the_tables() {
        let measured = measured(test_error());
        let spread = DeviceSpread::new(&measured, 0, 0);
        let seeds = &measured.frames[0][0].figures;
        let expected = (seeds[0].percentiles[TAIL] + seeds[1].percentiles[TAIL]) / 2.0;
        assert!((spread.tail - expected).abs() < 1e-12 && (spread.mean - 0.5).abs() < 1e-12);
        // Both devices have a mean of 0.5 over the seeds, which is not what the tables show.
        assert!((spread.tail - 0.5).abs() > 0.1);
    }

    #[test]
    fn train_devices_count_by_their_examples() {
        let mut measured = measured(ReportMeasure::train_loss(Task::Classes));
        measured.frames[0][0].values = vec![2.0, 0.5, 4.0, 0.5];
        let spread = DeviceSpread::new(&measured, 0, 0);
        assert_eq!(
            spread.heights(&HistogramBins { from: 0.0, step: 1.0, count: 4, open: [false; 2] }),
            [75.0, 0.0, 0.0, 25.0]
        );
    }
}
