//! How the devices of a split lie under one model, as the paper's histograms show it: each device is averaged over the
//! seeds first.
//!
//! What counts is what the tables count: test devices alike, train devices by their points. So the mean and the
//! percentile that are drawn over the bars are those of the bars.

use deltafl::metrics::Figures;

use super::figures::bins::Bins;
use super::results::{Measure, SplitResults};

/// The devices of a split under one model, mean over seeds.
pub(super) struct Spread {
    /// A value per device, and what it adds to the height of its bar.
    devices: Vec<(f64, f64)>,
    /// Mean and percentiles of these values, weighted as the bars are.
    pub(super) figures: Figures,
}

impl Spread {
    /// Of a track in a frame.
    pub(super) fn new(split: &SplitResults, frame: usize, track: usize) -> Self {
        let values = split.frames[frame][track].device_means();
        let examples = || split.devices.iter().map(|device| device.examples);
        let figures = match split.measure {
            Measure::TestError => Figures::unweighted(&values),
            Measure::TrainLoss => {
                Figures::weighted(&values.iter().copied().zip(examples()).collect::<Vec<_>>())
            }
        };
        let total: u64 = examples().sum();
        let height = |examples: u64| match split.measure {
            Measure::TestError => 1.0,
            Measure::TrainLoss => 100.0 * examples as f64 / total as f64,
        };
        let devices = values.into_iter().zip(examples().map(height)).collect();
        Self { devices, figures: figures.expect("a split in a report has devices with points") }
    }

    /// The value of each device.
    pub(super) fn values(&self) -> impl Iterator<Item = f64> {
        self.devices.iter().map(|device| device.0)
    }

    /// The height of each bar: devices, or their share of the points in per cent.
    pub(super) fn heights(&self, bins: &Bins) -> Vec<f64> {
        bins.heights(self.devices.iter().copied())
    }

    /// The 90th percentile.
    pub(super) fn p90(&self) -> f64 {
        self.figures.percentiles[4]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::results::Distribution;
    use deltafl::exchange::EvaluatedDevice;

    /// Two devices of 1 and 3 points, two seeds.
    fn split(measure: Measure) -> SplitResults {
        let device = |id: &str, examples| EvaluatedDevice { id: id.into(), examples };
        let figures = Figures::unweighted(&[0.0]).unwrap();
        let distribution = Distribution {
            figures: vec![figures; 2],
            objectives: Vec::new(),
            values: vec![0.0, 0.5, 1.0, 0.5],
        };
        SplitResults {
            measure,
            devices: [device("a", 1), device("b", 3)].into_iter().collect(),
            population: None,
            frames: vec![vec![distribution]],
        }
    }

    #[test]
    fn a_device_is_averaged_over_seeds_before_it_is_counted() {
        let spread = Spread::new(&split(Measure::TestError), 0, 0);
        let bins = Bins { step: 0.25, count: 4 };
        // Pooled seeds would show bars at 0, 0.5 and 1.
        assert_eq!(spread.heights(&bins), [0.0, 0.0, 2.0, 0.0]);
        assert!((spread.p90() - 0.5).abs() < 1e-12);
    }

    #[test]
    fn train_devices_weigh_in_the_bars_as_in_their_percentiles() {
        let mut split = split(Measure::TrainLoss);
        split.frames[0][0].values = vec![2.0, 0.5, 4.0, 0.5];
        let spread = Spread::new(&split, 0, 0);
        assert_eq!(spread.heights(&Bins { step: 1.0, count: 4 }), [75.0, 0.0, 0.0, 25.0]);
        assert!((spread.figures.mean - 1.125).abs() < 1e-12);
        assert!((spread.p90() - 3.0).abs() < 1e-12 && (spread.figures.percentiles[2] - 0.5).abs() < 1e-12);
    }
}
