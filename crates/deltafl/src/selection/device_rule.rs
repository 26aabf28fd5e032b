//! Weights that the caller's program computes for simulated devices.
//!
//! A device of a deployment looks up a weighting by its name and cannot know the function of a
//! program. A simulation computes its devices in this process, so that it can call the function
//! with the facts that only the device knows. The server still receives sums only.

use std::fmt;

use super::{DeviceFacts, LARGEST_SHARE, LossMean, UpdateFacts, WeightingKind};

/// A weighting of simulated devices, with the numbers that they report.
pub trait DeviceRule: fmt::Debug + Send + Sync {
    /// Returns ω_k of a device. It is limited to [0, [`LARGEST_SHARE`]]. A device with NaN is
    /// counted as refused.
    fn share(&self, device: &DeviceFacts) -> f64;

    /// Writes the numbers that a device reports with its update, at most [`MAX_REPORTS`].
    fn report(&self, update: &UpdateFacts, report: &mut [f64]);
}

/// The maximum number of reports of a [`DeviceRule`].
pub const MAX_REPORTS: usize = 4;

/// The number of reports that precede those of the rule: 1 and F_k, as in [`LossMean::REPORTS`].
pub const OWN_REPORTS: usize = 2;

/// The weighting of a [`DeviceRule`], which replaces its share. No device of a deployment knows it.
pub static DEVICE_RULE: WeightingKind = WeightingKind {
    name: "device-rule",
    numbers: &[],
    needs_loss: true,
    is_valid: |_| true,
    share: |_, _| 1.0,
    most: LARGEST_SHARE,
    reports: &[LossMean::REPORTS[0], LossMean::REPORTS[1], "report-0", "report-1", "report-2", "report-3"],
    report: |_, update, report| {
        report.fill(0.0);
        report[..OWN_REPORTS].copy_from_slice(&[1.0, update.device.loss]);
    },
};
