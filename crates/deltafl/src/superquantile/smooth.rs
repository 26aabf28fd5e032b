//! The smoothed objective.
//!
//! ```text
//!            ⎧ ν/2                 ρ ≤ 0
//! g_ν(ρ)   = ⎨ ρ²/(2ν) + ν/2   0 < ρ ≤ ν                  eq. (6);  0 ≤ g_ν(ρ) − (ρ)₊ ≤ ν/2
//!            ⎩ ρ                   ν < ρ
//! F̄_θ,ν(η) = η + (1/θ) Σ_k α_k g_ν(F_k − η)               eq. (5);  0 ≤ F̄_θ,ν − F̄_θ ≤ ν/(2θ)
//! ```
//!
//! g'_ν(F_k − η) ∈ [0, 1] is the share of a device in the tail. The filter of Algorithm 2 has only
//! the values 0 and 1. The tail K(η) = Σ α_k g'_ν(F_k − η) decreases with η, and η minimises F̄_θ,ν
//! if K(η) = θ.

use serde::{Deserialize, Serialize};

use super::mixture::Mixture;
use super::{Conformity, DeviceLoss, kept_mass, ratio, sum, total_weight, worst_first};

/// A smoothing parameter ν > 0, in the unit of the losses.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd, Serialize, Deserialize)]
#[serde(try_from = "f64", into = "f64")]
pub struct Smoothing(f64);

impl Smoothing {
    /// Returns ν.
    pub fn get(self) -> f64 {
        self.0
    }

    /// Returns g_ν(ρ), the smoothing of (ρ)₊.
    pub fn plus(self, rho: f64) -> f64 {
        let nu = self.0;
        if rho <= 0.0 {
            nu / 2.0
        } else if rho <= nu {
            rho * (rho / nu) / 2.0 + nu / 2.0
        } else {
            rho
        }
    }

    /// Returns g'_ν(ρ) in [0, 1]: the share in the tail of a device with loss η + ρ.
    pub fn slope(self, rho: f64) -> f64 {
        (rho / self.0).clamp(0.0, 1.0)
    }

    /// Returns F̄_θ,ν(η) with normalised α_k (eq. 5), or η if there are no devices.
    pub fn objective(self, theta: Conformity, eta: f64, losses: &[DeviceLoss]) -> f64 {
        let excess = sum(losses.iter().map(|d| d.weight() * self.plus(d.loss() - eta)));
        eta + ratio(excess, theta.get() * total_weight(losses))
    }

    /// Returns ∂F̄_θ,ν/∂η = 1 − K(η)/θ.
    pub fn derivative(self, theta: Conformity, eta: f64, losses: &[DeviceLoss]) -> f64 {
        let tail = sum(losses.iter().map(|d| d.weight() * self.slope(d.loss() - eta)));
        1.0 - ratio(tail, theta.get() * total_weight(losses))
    }

    /// Returns all η that minimise F̄_θ,ν (appendix, the minimisers of the smoothed objective), in
    /// O(N log N).
    ///
    /// Returns `None` if there are no devices. Integer weights are compared exactly, so that a flat
    /// interval of minimisers is found.
    pub fn minimisers(self, theta: Conformity, losses: &[DeviceLoss]) -> Option<Minimisers> {
        let least_loss = losses.iter().map(DeviceLoss::loss).min_by(f64::total_cmp)?;
        if theta == Conformity::FULL {
            return Some(Minimisers { least: f64::NEG_INFINITY, greatest: least_loss - self.0 });
        }
        Some(TailSweep::new(self, &worst_first(losses)).run(theta))
    }

    /// Returns F_θ,ν = min_η F̄_θ,ν(η).
    pub fn superquantile(self, theta: Conformity, losses: &[DeviceLoss]) -> Option<f64> {
        self.minimisers(theta, losses).map(|minimisers| self.objective(theta, minimisers.eta(), losses))
    }

    /// Returns the mixture π_k ∝ α_k g'_ν(F_k − η) at a minimiser η: a point of P_θ with ∇F_θ,ν(w)
    /// = Σ_k π_k ∇F_k(w).
    ///
    /// Since F_θ ≥ F(·; p_π), the smallest loss of this mixture is a lower bound of min F_θ. The
    /// bound is close if the gradient is small. Returns `None` if there are no devices.
    pub fn mixture(self, theta: Conformity, losses: &[DeviceLoss]) -> Option<Mixture> {
        let eta = self.minimisers(theta, losses)?.eta();
        let tail: Vec<f64> = losses.iter().map(|d| d.weight() * self.slope(d.loss() - eta)).collect();
        let total = sum(tail.iter().copied());
        // If ν is lost in the rounding of the losses, no device may have a share.
        Mixture::new(tail.iter().map(|mass| mass / total).collect())
            .ok()
            .or_else(|| Mixture::worst_case(theta, losses))
    }
}

/// A number that is not a valid smoothing parameter.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
#[error("smoothing parameter must be positive and finite, got {got}")]
pub struct InvalidSmoothing {
    /// The rejected number.
    pub got: f64,
}

impl TryFrom<f64> for Smoothing {
    type Error = InvalidSmoothing;

    fn try_from(nu: f64) -> Result<Self, Self::Error> {
        if nu > 0.0 && nu.is_finite() { Ok(Self(nu)) } else { Err(InvalidSmoothing { got: nu }) }
    }
}

impl From<Smoothing> for f64 {
    fn from(nu: Smoothing) -> Self {
        nu.0
    }
}

/// The closed interval [η₋, η₊] of minimisers.
///
/// At θ = 1, every η for which all devices are completely in the tail is one: η₋ = −∞ and η₊ = min
/// F_k − ν.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Minimisers {
    /// η₋, the smallest minimiser: −∞ at θ = 1, otherwise finite.
    pub least: f64,
    /// η₊, the largest minimiser, always finite.
    pub greatest: f64,
}

impl Minimisers {
    fn only(eta: f64) -> Self {
        Self { least: eta, greatest: eta }
    }

    /// Returns the finite minimiser closest to the quantile of the unsmoothed losses: η₋, or η₊ at
    /// θ = 1.
    pub fn eta(&self) -> f64 {
        if self.least.is_finite() { self.least } else { self.greatest }
    }
}

/// Traverses K(η) from the largest loss downwards.
///
/// Device k enters the tail at η = F_k, its share grows with slope α_k/ν, and it is completely in
/// the tail at F_k − ν. Between two of these points K is linear. If no device has a partial share,
/// K is flat and equals a sum of weights.
struct TailSweep<'a> {
    nu: f64,
    worst_first: &'a [&'a DeviceLoss],
    /// The first `entered` devices have a share, and the first `whole` of them have their full
    /// share.
    entered: usize,
    whole: usize,
    entered_weight: f64,
    whole_weight: f64,
}

impl<'a> TailSweep<'a> {
    fn new(nu: Smoothing, worst_first: &'a [&'a DeviceLoss]) -> Self {
        Self { nu: nu.get(), worst_first, entered: 0, whole: 0, entered_weight: 0.0, whole_weight: 0.0 }
    }

    /// Moves down to the point where K = θ Σ α.
    fn run(mut self, theta: Conformity) -> Minimisers {
        let kept = kept_mass(theta, sum(self.worst_first.iter().map(|device| device.weight())));
        let mut eta = f64::INFINITY;
        let mut tail = 0.0; // K(eta)
        while let Some(next) = self.next_point() {
            if self.entered_weight > kept {
                let slope = self.entered_weight - self.whole_weight;
                let crossing = eta - (kept - tail) / slope * self.nu;
                if crossing >= next {
                    return Minimisers::only(crossing.min(eta));
                }
            }
            tail = self.advance(eta, next, tail);
            eta = next;
            if self.is_flat() && tail >= kept {
                // Flat above θ: the crossing was lost in rounding and is here.
                let next = self.worst_first.get(self.entered).filter(|_| tail <= kept);
                return Minimisers { least: next.map_or(eta, |device| device.loss()), greatest: eta };
            }
        }
        Minimisers::only(eta)
    }

    /// Returns the next lower η where a device enters or is completely in the tail.
    fn next_point(&self) -> Option<f64> {
        let enters = self.worst_first.get(self.entered).map(|device| device.loss());
        let fills = self.worst_first.get(self.whole).map(|device| device.loss() - self.nu);
        match (enters, fills) {
            (Some(enters), Some(fills)) => Some(enters.max(fills)),
            (enters, fills) => enters.or(fills),
        }
    }

    /// Adds all devices that enter or are complete at `next`, and returns K there.
    fn advance(&mut self, eta: f64, next: f64, tail: f64) -> f64 {
        let growing = self.entered_weight - self.whole_weight;
        let grown = if growing > 0.0 { growing * ((eta - next) / self.nu) } else { 0.0 };
        let most = self.entered_weight;
        while let Some(device) = self.worst_first.get(self.entered).filter(|device| device.loss() >= next) {
            self.entered += 1;
            self.entered_weight += device.weight();
        }
        while let Some(device) = self.filling().filter(|device| device.loss() - self.nu >= next) {
            self.whole += 1;
            self.whole_weight += device.weight();
        }
        // The weight of complete devices is exact, and the rest is rounded. If ν is lost in the
        // rounding of F_k − ν, a device enters and completes at one point.
        let most = most.max(self.whole_weight);
        (tail + grown).clamp(self.whole_weight, most)
    }

    /// Returns the next device to be completely in the tail, if it has entered.
    fn filling(&self) -> Option<&'a DeviceLoss> {
        self.worst_first[..self.entered].get(self.whole).copied()
    }

    fn is_flat(&self) -> bool {
        self.whole == self.entered
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::tests::{cohort, devices, level, theta};
    use super::*;
    use crate::superquantile::quantile;

    fn nu(value: f64) -> Smoothing {
        Smoothing::try_from(value).unwrap()
    }

    fn any_nu() -> impl Strategy<Value = Smoothing> {
        prop_oneof![Just(1.0), Just(0.25), 1e-6..1e-3, 0.1..30.0].prop_map(nu)
    }

    #[test]
    fn a_smoothing_parameter_is_positive() {
        for value in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            assert!(Smoothing::try_from(value).is_err(), "{value}");
        }
    }

    #[test]
    fn no_devices_have_no_minimisers() {
        assert_eq!(nu(1.0).minimisers(theta(0.5), &[]), None);
    }

    #[test]
    fn equal_halves_leave_the_gap_between_them_free() {
        let losses = devices(&[(1.0, 1.0), (1.0, 1.0), (4.0, 2.0)]);
        let flat = Minimisers { least: 1.0, greatest: 3.0 };
        assert_eq!(nu(1.0).minimisers(theta(0.5), &losses), Some(flat));
        // ν is larger than the gap: the shares overlap, and there is one minimiser.
        let point = nu(6.0).minimisers(theta(0.5), &losses).unwrap();
        assert!((point.least - -0.5).abs() < 1e-12 && (point.greatest - -0.5).abs() < 1e-12, "{point:?}");
    }

    #[test]
    fn full_conformity_has_no_least_minimiser() {
        let all = nu(0.5).minimisers(Conformity::FULL, &devices(&[(1.0, 1.0), (2.0, 1.0)])).unwrap();
        assert_eq!(all, Minimisers { least: f64::NEG_INFINITY, greatest: 0.5 });
        assert!((all.eta() - 0.5).abs() < f64::EPSILON);
    }

    #[test]
    fn a_nu_lost_in_the_size_of_the_losses_leaves_the_quantile() {
        let losses = devices(&[(1e20, 1.0), (2e20, 1.0), (3e20, 1.0)]);
        let point = nu(1e-3).minimisers(theta(0.5), &losses).unwrap();
        assert_eq!(point, Minimisers::only(2e20));
    }

    proptest! {
        #[test]
        fn the_derivative_vanishes_on_the_minimisers_and_nowhere_else(
            losses in cohort(), theta in level(), nu in any_nu(),
        ) {
            let Minimisers { least, greatest } = nu.minimisers(theta, &losses).unwrap();
            prop_assert!(least <= greatest);
            let slope = |eta: f64| nu.derivative(theta, eta, &losses);
            // The curvature 1/(νθ) magnifies a rounding error of η.
            let exact = 1e-14 * (1.0 + greatest.abs()) / (nu.get() * theta.get()) + 1e-12;
            prop_assert!(slope(greatest).abs() <= exact, "{}", slope(greatest));
            prop_assert!(slope(greatest + nu.get()) > 0.0);
            if least.is_finite() {
                prop_assert!(slope(least).abs() <= exact, "{}", slope(least));
                prop_assert!(slope(least - nu.get()) < 0.0);
            }
        }

        #[test]
        fn the_mixture_of_the_shares_is_in_p_theta(losses in cohort(), theta in level(), nu in any_nu()) {
            let training = Mixture::of_training(&losses).unwrap();
            prop_assert!(nu.mixture(theta, &losses).unwrap().conforms(theta, &training));
        }

        #[test]
        fn a_vanishing_nu_gives_the_quantile(losses in cohort(), theta in level()) {
            let nu = nu(1e-9);
            let eta = nu.minimisers(theta, &losses).unwrap().eta();
            prop_assert!((eta - quantile(theta, &losses).unwrap()).abs() <= 2e-9);
        }
    }
}
