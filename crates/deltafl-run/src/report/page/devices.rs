//! The value of each device, for the page.
//!
//! Kept of as many frames as fit in [`DEVICE_VALUES`], evenly spaced and always of the last. A value is a 16-bit fraction
//! between the least and the greatest, stored as the difference to the frame before, which deflates well. Where values lie
//! so far apart that this would show in the digits, they are stored as they are.

use serde::Serialize;

use super::super::results::Measured;
use super::numbers::{Array, Numbers};

/// Device values in a page, over all runs: about 2 MB of it.
pub(super) const DEVICE_VALUES: usize = 1_200_000;

#[derive(Serialize)]
pub(super) struct Devices {
    /// How many there are; `ids` may be an even sample of them.
    all: usize,
    ids: Vec<String>,
    examples: Vec<u64>,
    /// The frames of which values are kept.
    frames: Vec<usize>,
    /// What 0 stands for among 16-bit values, and how far 65535 lies above it.
    low: f64,
    scale: f64,
    /// Frame by track by device, mean over seeds: 16-bit differences to the frame before, modulo 2¹⁶, or the values.
    values: Array,
}

impl Devices {
    /// Of devices that told nothing but sums.
    fn unknown(numbers: &mut Numbers) -> Self {
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

    /// Of a measure, within a budget of values.
    pub(super) fn of(measured: &Measured, budget: usize, numbers: &mut Numbers) -> Self {
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
        let range = Range::of(&means, measured.measure.lower_is_better());
        let resolved = measured.measure.shown() * range.scale / 65535.0;
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

/// Where the finite values lie.
struct Range {
    low: f64,
    scale: f64,
    lower_is_better: bool,
}

impl Range {
    /// From 0, or from the least value where one is negative.
    fn of(means: &[Vec<f64>], lower_is_better: bool) -> Self {
        let finite = || means.iter().flatten().copied().filter(|x| x.is_finite());
        let low = finite().fold(0.0, f64::min);
        let scale = finite().fold(0.0, f64::max) - low;
        Self { low, scale: scale.max(f64::MIN_POSITIVE), lower_is_better }
    }

    /// A value that is not finite is as bad as can be.
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

/// At most `most` of `frames` frames (at least the last), a fixed stride apart.
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
    fn what_is_no_number_is_as_bad_as_can_be() {
        let means = vec![vec![-1.0, f64::NAN], vec![3.0, f64::INFINITY]];
        let (lower, higher) = (Range::of(&means, true), Range::of(&means, false));
        assert_eq!((lower.low, lower.scale), (-1.0, 4.0));
        assert_eq!((lower.finite(f64::NAN), higher.finite(f64::NAN)), (3.0, -1.0));
        assert_eq!(lower.coded(&means), [0, 65535, 65535, 0], "differences to the frame before");
    }
}
