//! The superquantile of the device losses.
//!
//! With losses F_k of weight α_k (Σ α_k = 1) and conformity level θ ∈ (0, 1],
//!
//! ```text
//! Q(θ)    = inf { x : P(F > x) ≤ θ }                  the (1−θ)-quantile
//! F̄_θ(η)  = η + (1/θ) Σ_k α_k (F_k − η)₊              eq. (2)
//! S(θ)    = min_η F̄_θ(η) = F̄_θ(Q(θ))                  Property 2
//! ```
//!
//! θ is the mass of the tail that is *kept*: θ = 1 is the mean, θ → 0 the maximum.
//!
//! The weights need not sum to one. The weight of a device is its number of examples, and every
//! function normalises by the total if the paper's α_k requires it. Integers are added exactly.
//!
//! [`mixture`] contains the dual, the mixtures P_θ. [`smooth`] contains the smoothing g_ν, and
//! [`private`] the quantile of losses that are not revealed individually.
//!
//! ```
//! use deltafl::superquantile::{Conformity, DeviceLoss, quantile, superquantile};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // Four devices with ten examples each; the tail keeps half of the mass, two devices.
//! let losses = [1.0, 2.0, 3.0, 5.0].map(|loss| DeviceLoss::new(loss, 10.0));
//! let losses = losses.into_iter().collect::<Result<Vec<_>, _>>()?;
//! let half = Conformity::try_from(0.5)?;
//! assert_eq!(quantile(half, &losses), Some(2.0)); // P(F > 2) = 1/2 ≤ θ
//! assert_eq!(superquantile(half, &losses), Some(4.0)); // the mean of 3 and 5
//! # Ok(())
//! # }
//! ```

mod conformity;
mod device_loss;
mod distribution;
pub mod mixture;
pub mod private;
pub mod smooth;

pub use conformity::{Conformity, OutsideUnitInterval};
pub use device_loss::{DeviceLoss, InvalidDeviceLoss};
pub use distribution::{Bounds, Histogram, LOSS_PERCENTILES, LossDistribution};

/// Returns the threshold η = Q(θ) for the tail (Algorithm 2, line 5): the smallest loss F_j with
/// P(F > F_j) ≤ θ.
///
/// At θ = 1 it is the smallest loss, which admits every device. Takes O(m log m) for m devices.
/// Returns `None` if there are no devices.
pub fn quantile(theta: Conformity, losses: &[DeviceLoss]) -> Option<f64> {
    if theta == Conformity::FULL {
        return losses.iter().map(DeviceLoss::loss).min_by(f64::total_cmp);
    }
    let kept = kept_mass(theta, total_weight(losses));
    let mut eta = None;
    let mut above = 0.0; // P(F > eta), unnormalised
    for device in worst_first(losses) {
        if above > kept {
            break;
        }
        eta = Some(device.loss());
        above += device.weight();
    }
    eta
}

/// Returns F_θ = S(θ), the mean loss of the worst tail of mass θ (Property 2).
///
/// Returns `None` if there are no devices.
pub fn superquantile(theta: Conformity, losses: &[DeviceLoss]) -> Option<f64> {
    quantile(theta, losses).map(|eta| objective(theta, eta, losses))
}

/// Returns F̄_θ(η) = η + (1/θ) Σ_k α_k (F_k − η)₊ with normalised α_k (eq. 2).
///
/// Returns η if there are no devices.
pub fn objective(theta: Conformity, eta: f64, losses: &[DeviceLoss]) -> f64 {
    let excess = sum(losses.iter().map(|d| d.weight() * (d.loss() - eta).max(0.0)));
    eta + ratio(excess, theta.get() * total_weight(losses))
}

/// Returns the mass θ·Σα of the tail, in the unit of the weights.
///
/// A conformity level such as 0.57 is not a binary fraction, so 0.57 · 100 is slightly below 57 and
/// would exclude the 57th of a hundred equal devices. A product within rounding error of an integer
/// is rounded to that integer.
fn kept_mass(theta: Conformity, total: f64) -> f64 {
    let kept = theta.get() * total;
    let whole = kept.round();
    if (kept - whole).abs() <= 2.0 * f64::EPSILON * kept { whole } else { kept }
}

/// Returns Σ_k α_k before normalisation.
fn total_weight(losses: &[DeviceLoss]) -> f64 {
    sum(losses.iter().map(DeviceLoss::weight))
}

/// Returns the devices by decreasing loss. Devices with equal losses keep their order.
fn worst_first(losses: &[DeviceLoss]) -> Vec<&DeviceLoss> {
    let mut sorted: Vec<&DeviceLoss> = losses.iter().collect();
    sorted.sort_by(|a, b| b.loss().total_cmp(&a.loss()));
    sorted
}

/// A compensated sum (Neumaier) whose error does not grow with the number of terms.
fn sum(terms: impl Iterator<Item = f64>) -> f64 {
    let mut total = 0.0_f64;
    let mut lost = 0.0;
    for term in terms {
        let next = total + term;
        lost += if total.abs() >= term.abs() { (total - next) + term } else { (term - next) + total };
        total = next;
    }
    // An overflow leaves infinities in both parts, whose sum would be NaN.
    if total.is_finite() { total + lost } else { total }
}

/// Returns `part / whole`, or 0 if `whole` is 0.
fn ratio(part: f64, whole: f64) -> f64 {
    if whole > 0.0 { part / whole } else { 0.0 }
}

#[cfg(test)]
pub(crate) mod tests {
    use proptest::prelude::*;

    use super::*;

    pub(crate) fn devices(pairs: &[(f64, f64)]) -> Vec<DeviceLoss> {
        pairs.iter().map(|&(loss, weight)| DeviceLoss::new(loss, weight).unwrap()).collect()
    }

    pub(crate) fn theta(value: f64) -> Conformity {
        Conformity::try_from(value).unwrap()
    }

    /// Losses with many ties, and integer weights.
    pub(crate) fn cohort() -> impl Strategy<Value = Vec<DeviceLoss>> {
        let loss = prop_oneof![(-4..4_i32).prop_map(f64::from), -10.0..10.0];
        let device = (loss, 1..200_u32).prop_map(|(x, n)| DeviceLoss::new(x, f64::from(n)).unwrap());
        prop::collection::vec(device, 1..40)
    }

    pub(crate) fn level() -> impl Strategy<Value = Conformity> {
        prop_oneof![
            (1..=100_u32).prop_map(|percent| theta(f64::from(percent) / 100.0)),
            (1e-3..1.0).prop_map(theta)
        ]
    }

    #[test]
    fn no_devices_have_no_quantile() {
        assert_eq!(quantile(theta(0.5), &[]), None);
        assert_eq!(superquantile(theta(0.5), &[]), None);
    }

    #[test]
    fn every_decimal_level_of_a_hundred_equal_devices_keeps_its_percentage_above() {
        let losses: Vec<_> = (0..100).map(|k| (f64::from(k), 1.0)).collect();
        for percent in 1..100 {
            let eta = quantile(theta(f64::from(percent) / 100.0), &devices(&losses));
            assert_eq!(eta, Some(f64::from(99 - percent)), "θ = {percent} %");
        }
    }

    #[test]
    fn full_conformity_admits_a_device_whose_weight_vanishes_in_the_sum() {
        let losses = devices(&[(1.0, 1e-30), (2.0, 0.1), (3.0, 0.2), (4.0, 0.7)]);
        assert_eq!(quantile(Conformity::FULL, &losses), Some(1.0));
    }

    #[test]
    fn ties_at_the_threshold_are_all_in_the_tail() {
        let losses = devices(&[(1.0, 1.0), (2.0, 1.0), (2.0, 1.0), (2.0, 1.0)]);
        let eta = quantile(theta(0.25), &losses).unwrap();
        assert_eq!(losses.iter().filter(|d| d.in_tail(eta)).count(), 3);
    }

    #[test]
    fn the_superquantile_runs_from_the_mean_to_the_maximum() {
        let losses = devices(&[(1.0, 2.0), (4.0, 1.0)]);
        assert_eq!(superquantile(Conformity::FULL, &losses), Some(2.0));
        assert_eq!(superquantile(theta(1e-9), &losses), Some(4.0));
    }

    #[test]
    fn the_sum_keeps_what_large_terms_would_swallow() {
        assert_eq!(sum([1.0, 1e100, 1.0, -1e100].into_iter()).to_bits(), 2.0_f64.to_bits());
    }

    proptest! {
        #[test]
        fn quantile_is_the_smallest_loss_with_at_most_theta_above(losses in cohort(), theta in level()) {
            let eta = quantile(theta, &losses).unwrap();
            let total = total_weight(&losses);
            let fits = |x: f64| {
                let above: f64 = losses.iter().filter(|d| d.loss() > x).map(DeviceLoss::weight).sum();
                above <= theta.get() * total * (1.0 + 1e-15)
            };
            prop_assert!(fits(eta));
            prop_assert!(losses.iter().all(|d| d.loss() >= eta || !fits(d.loss())));
        }

        #[test]
        fn quantile_minimises_the_objective(losses in cohort(), theta in level(), eta in -12.0..12.0) {
            let least = superquantile(theta, &losses).unwrap();
            prop_assert!(least <= objective(theta, eta, &losses) + 1e-12 * (1.0 + least.abs()));
        }

        #[test]
        fn quantile_ignores_the_order_of_devices(losses in cohort(), theta in level()) {
            let reversed: Vec<_> = losses.iter().rev().copied().collect();
            prop_assert_eq!(quantile(theta, &losses), quantile(theta, &reversed));
        }
    }
}
