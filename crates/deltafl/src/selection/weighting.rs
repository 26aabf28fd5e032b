//! The function from a device's loss to the fraction ω_k of its weight.
//!
//! A weighting is a named function of the loss with a few numbers. A question contains the name and
//! the numbers, and a device looks up the function in the table of algorithms. An algorithm with a
//! new weighting provides its own [`WeightingKind`].

use std::fmt;

use super::{DeviceRule, OWN_REPORTS};
use crate::superquantile::smooth::Smoothing;

/// The maximum number of numbers of a weighting.
pub const MAX_NUMBERS: usize = 8;

/// A family of weightings: a function of the loss and the meaning of its numbers.
#[derive(Debug)]
pub struct WeightingKind {
    /// Its name in a question, unique among all kinds.
    pub name: &'static str,
    /// The names of its numbers.
    pub numbers: &'static [&'static str],
    /// Whether a device needs its loss.
    pub needs_loss: bool,
    /// Returns `true` if these finite numbers are valid.
    pub is_valid: fn(&[f64]) -> bool,
    /// Returns ω_k of a device. [`Weighting::share`] limits it to [0, `most`].
    pub share: fn(&[f64], &DeviceFacts) -> f64,
    /// The largest share.
    pub most: f64,
    /// The names of the numbers that the sum contains in addition to the update, each multiplied by
    /// α_k.
    pub reports: &'static [&'static str],
    /// Writes the reported numbers of a device, as many as `reports` has names.
    pub report: fn(&[f64], &UpdateFacts, &mut [f64]),
}

/// The largest share of the weightings that exceed 1. No entry of an update of usual length times
/// this share is too large for a sum.
pub const LARGEST_SHARE: f64 = (1 << 20) as f64;

/// The facts about a device that are known before it trains.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DeviceFacts {
    /// F_k(w), or 0 if the weighting does not need it.
    pub loss: f64,
    /// K, the number of local steps.
    pub steps: u64,
    /// The index of its declared group, or 0 if it declares none.
    pub group: usize,
    /// n_k.
    pub examples: u64,
}

/// The facts about an update that its device knows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct UpdateFacts {
    /// The facts known before the training.
    pub device: DeviceFacts,
    /// ω_k.
    pub share: f64,
    /// ‖w_k − w‖², after clipping.
    pub squared_norm: f64,
}

/// Every device with its full weight: FedAvg.
pub static EVERYONE: WeightingKind = WeightingKind {
    name: "everyone",
    numbers: &[],
    needs_loss: false,
    is_valid: |_| true,
    share: |_, _| 1.0,
    most: 1.0,
    reports: &[],
    report: no_report,
};

/// The tail: F_k(w) ≥ η (Algorithm 2, line 6).
pub static TAIL: WeightingKind = WeightingKind {
    name: "tail",
    numbers: &["eta"],
    needs_loss: true,
    is_valid: |_| true,
    share: |numbers, device| f64::from(u8::from(device.loss >= numbers[0])),
    most: 1.0,
    reports: &[],
    report: no_report,
};

/// The smoothed tail: device k counts with g'_ν(F_k(w) − η).
pub static SMOOTH_TAIL: WeightingKind = WeightingKind {
    name: "smooth-tail",
    numbers: &["eta", "nu"],
    needs_loss: true,
    is_valid: |numbers| Smoothing::try_from(numbers[1]).is_ok(),
    share: |numbers, device| {
        Smoothing::try_from(numbers[1]).map_or(0.0, |nu| nu.slope(device.loss - numbers[0]))
    },
    most: 1.0,
    reports: &[],
    report: no_report,
};

/// Every device with its full weight, and the mean of the losses in the sum.
pub static MEAN_LOSS: WeightingKind = WeightingKind {
    name: "mean-loss",
    numbers: &[],
    needs_loss: true,
    is_valid: |_| true,
    share: |_, _| 1.0,
    most: 1.0,
    reports: &["weight", "loss"],
    report: |_, update, report| report.copy_from_slice(&[1.0, update.device.loss]),
};

/// The report of a weighting without reports.
pub fn no_report(_numbers: &[f64], _update: &UpdateFacts, _report: &mut [f64]) {}

/// The weighting of devices in one update.
#[derive(Clone, Copy)]
pub struct Weighting {
    kind: &'static WeightingKind,
    numbers: [f64; MAX_NUMBERS],
}

impl Weighting {
    /// Creates a weighting of this kind. Returns `None` if the number of values is wrong, or if
    /// they are not finite or invalid for the kind.
    pub fn new(kind: &'static WeightingKind, numbers: &[f64]) -> Option<Self> {
        let fits = numbers.len() == kind.numbers.len() && numbers.len() <= MAX_NUMBERS;
        if !fits || !numbers.iter().all(|number| number.is_finite()) || !(kind.is_valid)(numbers) {
            return None;
        }
        let mut all = [0.0; MAX_NUMBERS];
        all[..numbers.len()].copy_from_slice(numbers);
        Some(Self { kind, numbers: all })
    }

    /// Every device counts, and the server learns the mean of the losses.
    pub fn mean_loss() -> Self {
        Self { kind: &MEAN_LOSS, numbers: [0.0; MAX_NUMBERS] }
    }

    /// Every device counts.
    pub fn everyone() -> Self {
        Self { kind: &EVERYONE, numbers: [0.0; MAX_NUMBERS] }
    }

    /// Creates the tail above η. If η is not finite, devices cannot be compared and all of them
    /// count.
    pub fn tail(eta: f64) -> Self {
        Self::new(&TAIL, &[eta]).unwrap_or_else(Self::everyone)
    }

    /// Creates the tail above η, smoothed over ν.
    pub fn smooth_tail(eta: f64, nu: Smoothing) -> Self {
        Self::new(&SMOOTH_TAIL, &[eta, nu.get()]).unwrap_or_else(Self::everyone)
    }

    /// Returns its kind.
    pub fn kind(&self) -> &'static WeightingKind {
        self.kind
    }

    /// Returns its numbers in the order of [`WeightingKind::numbers`].
    pub fn numbers(&self) -> &[f64] {
        &self.numbers[..self.kind.numbers.len()]
    }

    /// Returns `true` if a device needs its loss.
    pub fn needs_loss(&self) -> bool {
        self.kind.needs_loss
    }

    /// Returns ω_k of a device, or NaN if its loss is NaN.
    pub fn share(&self, device: &DeviceFacts) -> f64 {
        if device.loss.is_nan() {
            return f64::NAN;
        }
        (self.kind.share)(self.numbers(), device).clamp(0.0, self.kind.most)
    }

    /// Returns the numbers that a device adds to its update, before they are multiplied by α_k.
    pub fn report(&self, update: &UpdateFacts) -> Vec<f64> {
        let mut report = vec![0.0; self.kind.reports.len()];
        (self.kind.report)(self.numbers(), update, &mut report);
        report
    }
}

/// A report that a device adds to its update.
#[derive(Clone, Copy, Debug)]
pub struct Report<'a> {
    /// The weighting that defines it.
    pub weighting: &'a Weighting,
    /// The facts about the device before it trains.
    pub device: DeviceFacts,
    /// α_k.
    pub weight: f64,
    /// ω_k.
    pub share: f64,
    /// The rule of a simulated device, if its program has one.
    pub rule: Option<&'a dyn DeviceRule>,
}

impl Report<'_> {
    /// Returns the numbers to add for an update of this squared norm.
    pub fn numbers(&self, squared_norm: f64) -> Vec<f64> {
        let update = UpdateFacts { device: self.device, share: self.share, squared_norm };
        let mut report = self.weighting.report(&update);
        if let Some(rule) = self.rule {
            rule.report(&update, &mut report[OWN_REPORTS..]);
        }
        report.into_iter().map(|number| self.weight * number).collect()
    }
}

impl PartialEq for Weighting {
    fn eq(&self, other: &Self) -> bool {
        let bits = |weighting: &Self| weighting.numbers.map(f64::to_bits);
        self.kind.name == other.kind.name && bits(self) == bits(other)
    }
}

impl fmt::Debug for Weighting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{:?}", self.kind.name, self.numbers())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn share(weighting: &Weighting, loss: f64) -> f64 {
        weighting.share(&DeviceFacts { loss, steps: 1, examples: 1, group: 0 })
    }

    #[test]
    fn the_boundary_device_is_in_the_tail() {
        let tail = Weighting::tail(0.5);
        assert_eq!([0.4, 0.5, 0.6].map(|loss| share(&tail, loss)), [0.0, 1.0, 1.0]);
    }

    #[test]
    fn the_smoothed_tail_grows_linearly_over_nu() {
        let smooth = Weighting::smooth_tail(1.0, Smoothing::try_from(0.5).unwrap());
        assert_eq!([0.9, 1.0, 1.25, 1.5, 2.0].map(|loss| share(&smooth, loss)), [0.0, 0.0, 0.5, 1.0, 1.0]);
    }

    #[test]
    fn numbers_that_fit_no_kind_are_refused() {
        assert!(Weighting::new(&TAIL, &[]).is_none());
        assert!(Weighting::new(&TAIL, &[f64::NAN]).is_none());
        assert!(Weighting::new(&SMOOTH_TAIL, &[1.0, 0.0]).is_none());
        assert!(Weighting::new(&EVERYONE, &[1.0]).is_none());
        assert_eq!(Weighting::new(&TAIL, &[0.5]), Some(Weighting::tail(0.5)));
    }

    #[test]
    fn a_loss_that_is_no_number_has_no_share() {
        assert!(share(&Weighting::tail(0.5), f64::NAN).is_nan());
    }
}
