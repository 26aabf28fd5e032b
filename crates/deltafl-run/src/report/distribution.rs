//! The distribution of a measure over devices.

use std::sync::Arc;

use deltafl::exchange::EvaluatedDevice;
use deltafl::metrics::{DispersionBySize, Figures, FiguresOverSeeds, OverSeeds, SampleError};

use super::measure::ReportMeasure;

/// A measure of the devices of a split over the frames.
pub(super) struct Measured {
    pub(super) measure: ReportMeasure,
    /// The devices. Empty if they sent only sums.
    pub(super) devices: Arc<[EvaluatedDevice]>,
    /// The number of devices of which these are a sample.
    pub(super) population: Option<usize>,
    /// For each frame, a distribution per track.
    pub(super) frames: Vec<Vec<Distribution>>,
}

/// Devices under one model.
#[derive(Clone, Default)]
pub(super) struct Distribution {
    /// The statistics of each seed.
    pub(super) figures: Vec<Figures>,
    /// F_θ(w) for each seed, only for train devices.
    pub(super) objectives: Vec<f64>,
    /// A value per device, one seed after another. In a cohort of anonymous devices, they are
    /// sorted by value.
    pub(super) values: Vec<f32>,
    /// The bounds for each seed. Empty if the statistics are exact.
    pub(super) between: Vec<FiguresBetween>,
}

/// The bounds of a cohort's statistics. Unknown bounds are infinite or NaN.
#[derive(Clone, Copy, Debug)]
pub(super) struct FiguresBetween {
    pub(super) lower: Figures,
    pub(super) upper: Figures,
}

impl Measured {
    /// Returns the distribution of a track in the last frame.
    pub(super) fn last(&self, track: usize) -> &Distribution {
        &self.frames[self.frames.len() - 1][track]
    }

    /// Returns the number of decimals of its statistics in the last frame.
    pub(super) fn decimals(&self) -> usize {
        let tracks = 0..self.frames[self.frames.len() - 1].len();
        if self.devices.is_empty() && self.measure.percent() {
            // The bins of a share are one percentage point wide, so more decimals are not
            // justified.
            return 1;
        }
        let figures = tracks.flat_map(|track| {
            let figures = self.last(track).over_seeds();
            [figures.mean.mean, figures.p90.mean]
        });
        self.measure.decimals(figures)
    }

    /// Returns the dispersion over devices in the last frame, with equal weights. Returns `None` if
    /// devices sent only sums.
    pub(super) fn dispersion(&self, track: usize) -> Option<DispersionBySize> {
        let of_seed = |values: &[f32]| {
            let values = values.iter().map(|&value| f64::from(value));
            values.zip(self.devices.iter().map(|device| device.examples)).collect()
        };
        let seeds = self.last(track).values.chunks_exact(self.devices.len().max(1)).map(of_seed);
        DispersionBySize::new(&seeds.collect::<Vec<_>>(), self.measure.direction())
    }

    /// Returns the sampling error in the last frame if the devices are a sample.
    pub(super) fn sample_error(&self, track: usize) -> Option<SampleError> {
        let of = self.population?;
        let of_seed = |values: &[f32]| {
            let weight = |device: &EvaluatedDevice| if self.measure.weighted() { device.examples } else { 1 };
            let values = values.iter().map(|&value| f64::from(value));
            SampleError::of_values(&values.zip(self.devices.iter().map(weight)).collect::<Vec<_>>(), of)
        };
        let seeds = self.last(track).values.chunks_exact(self.devices.len().max(1)).filter_map(of_seed);
        SampleError::over_seeds(&seeds.collect::<Vec<_>>())
    }
}

impl Distribution {
    /// Returns the values of the tables.
    pub(super) fn over_seeds(&self) -> FiguresOverSeeds {
        FiguresOverSeeds::new(&self.figures).expect("a distribution has at least one seed")
    }

    /// Returns one value of the tables.
    pub(super) fn figure(&self, figure: impl Fn(&Figures) -> f64) -> OverSeeds {
        OverSeeds::new(&self.figures.iter().map(figure).collect::<Vec<_>>())
            .expect("a distribution has at least one seed")
    }

    /// Returns the value in a table column: the mean, then the percentiles.
    pub(super) fn column(&self, column: usize) -> OverSeeds {
        self.figure(|figures| if column == 0 { figures.mean } else { figures.percentiles[column - 1] })
    }

    /// Returns the bounds of the value in a table column, averaged over seeds, or `None` if it is
    /// exact.
    pub(super) fn between(&self, column: usize) -> Option<(f64, f64)> {
        let figure =
            |figures: &Figures| if column == 0 { figures.mean } else { figures.percentiles[column - 1] };
        let mean = |end: fn(&FiguresBetween) -> &Figures| {
            let ends = self.between.iter().map(|between| figure(end(between)));
            ends.sum::<f64>() / self.between.len() as f64
        };
        (!self.between.is_empty()).then(|| (mean(|between| &between.lower), mean(|between| &between.upper)))
    }

    /// Returns F_θ(w) over seeds. Returns `None` for test devices and if a loss was not finite.
    pub(super) fn objective(&self) -> Option<OverSeeds> {
        if self.objectives.len() < self.figures.len() {
            return None;
        }
        OverSeeds::new(&self.objectives)
    }

    /// Returns the value of each device, averaged over seeds.
    pub(super) fn device_means(&self) -> Vec<f64> {
        let devices = self.values.len() / self.figures.len();
        let mut means = vec![0.0; devices];
        for seed in self.values.chunks_exact(devices.max(1)) {
            means.iter_mut().zip(seed).for_each(|(mean, &value)| *mean += f64::from(value));
        }
        means.iter_mut().for_each(|mean| *mean /= self.figures.len() as f64);
        means
    }
}
