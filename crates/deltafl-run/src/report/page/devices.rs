//! The value of each device, for the page.
//!
//! Values are kept for as many frames as fit in [`DEVICE_VALUES`], evenly spaced and always
//! including the last. A value is a 16-bit fraction between the minimum and the maximum. It is
//! stored as the difference to the previous frame, which compresses well. If the range is too large
//! for this precision, values are stored unchanged.

use serde::Serialize;

use super::super::distribution::Measured;
use super::numbers::{Array, PageNumbers};

/// The number of device values in a page, over all runs: about 2 MB.
pub(super) const DEVICE_VALUES: usize = 1_200_000;

#[derive(Serialize)]
pub(super) struct Devices {
    /// The number of devices. `ids` may be an even sample of them.
    all: usize,
    ids: Vec<String>,
    examples: Vec<u64>,
    /// The frames with device values.
    frames: Vec<usize>,
    /// The value of 0 among 16-bit values, and the distance of 65535 from it.
    low: f64,
    scale: f64,
    /// Frame by track by device, averaged over seeds: 16-bit differences to the previous frame
    /// modulo 2¹⁶, or the values.
    values: Array,
}

impl Devices {
    /// Returns an empty table for devices that sent only sums.
    fn unknown(numbers: &mut PageNumbers) -> Self {
        Self {
            all: 0,
            ids: Vec::new(),
            examples: Vec::new(),
            frames: vec![0],
            low: 0.0,
            scale: 1.0,
            values: numbers.f32s(&[]),
        }
    }

    /// Returns the values of a measure within a budget.
    pub(super) fn new(measured: &Measured, budget: usize, numbers: &mut PageNumbers) -> Self {
        if measured.devices.is_empty() {
            return Self::unknown(numbers);
        }
        let tracks = measured.frames[0].len();
        let sample = (measured.devices.len() * tracks).div_ceil(budget);
        let sampled: Vec<_> = measured.devices.iter().step_by(sample).collect();
        let frames = spaced(measured.frames.len(), budget / (sampled.len() * tracks));
        let means: Vec<Vec<f64>> = frames
            .iter()
            .map(|&f| {
                let tracks = measured.frames[f].iter();
                tracks.flat_map(|d| d.device_means().into_iter().step_by(sample)).collect()
            })
            .collect();
        let range = Range::from_means(&means, measured.measure.lower_is_better());
        let resolved = measured.measure.display_scale() * range.scale / 65535.0;
        let values = if resolved < 0.5 * 0.1f64.powi(measured.decimals() as i32) {
            numbers.u16s(&range.coded(&means))
        } else {
            let values = means.iter().flatten().map(|&mean| range.finite(mean) as f32);
            numbers.f32s(&values.collect::<Vec<_>>())
        };
        Self {
            all: measured.devices.len(),
            ids: sampled.iter().map(|device| device.id.clone()).collect(),
            examples: sampled.iter().map(|device| device.examples).collect(),
            frames,
            low: range.low,
            scale: range.scale,
            values,
        }
    }
}

/// The range of the finite values.
struct Range {
    low: f64,
    scale: f64,
    lower_is_better: bool,
}

impl Range {
    /// Returns the range, starting at 0 or at the least value if it is negative.
    fn from_means(means: &[Vec<f64>], lower_is_better: bool) -> Self {
        let finite = || means.iter().flatten().copied().filter(|x| x.is_finite());
        let low = finite().fold(0.0, f64::min);
        let scale = finite().fold(0.0, f64::max) - low;
        Self { low, scale: scale.max(f64::MIN_POSITIVE), lower_is_better }
    }

    /// Replaces a value that is not finite by the worst value.
    fn finite(&self, value: f64) -> f64 {
        if value.is_finite() {
            value
        } else if self.lower_is_better {
            self.low + self.scale
        } else {
            self.low
        }
    }

    fn coded(&self, means: &[Vec<f64>]) -> Vec<u16> {
        let mut before = vec![0u16; means.first().map_or(0, Vec::len)];
        let mut coded = Vec::with_capacity(before.len() * means.len());
        for frame in means {
            for (before, &mean) in before.iter_mut().zip(frame) {
                let now = ((self.finite(mean) - self.low) / self.scale * 65535.0).round() as u16;
                coded.push(now.wrapping_sub(*before));
                *before = now;
            }
        }
        coded
    }
}

/// Returns at most `most` of `frames` frames at a fixed stride, at least the last.
fn spaced(frames: usize, most: usize) -> Vec<usize> {
    let stride = frames.div_ceil(most.max(1));
    let mut kept: Vec<usize> = (0..frames).rev().step_by(stride).collect();
    kept.reverse();
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_evenly_spaced_and_end_with_the_last() {
        assert_eq!(spaced(5, 5), [0, 1, 2, 3, 4]);
        assert_eq!(spaced(5, 3), [0, 2, 4]);
        assert_eq!(spaced(6, 3), [1, 3, 5]);
        assert_eq!(spaced(6, 0), [5]);
    }

    #[test]
    fn nan_counts_as_the_worst_value() {
        let means = vec![vec![-1.0, f64::NAN], vec![3.0, f64::INFINITY]];
        let (lower, higher) = (Range::from_means(&means, true), Range::from_means(&means, false));
        assert_eq!((lower.low, lower.scale), (-1.0, 4.0));
        assert_eq!((lower.finite(f64::NAN), higher.finite(f64::NAN)), (3.0, -1.0));
        assert_eq!(lower.coded(&means), [0, 65535, 65535, 0], "differences to the previous frame");
    }
}
