//! The cost of noisy sums: Rényi divergences and their conversion to (ε, δ).
//!
//! A device is protected: its answers are in the sums, or zeros are in their place. One noisy sum
//! has the Rényi divergence RDP(α) = α·ρ at every order α, so that one number ρ describes it. The ρ
//! of several sums add up. [`Rho::epsilon`] converts the total:
//!
//! ```text
//! ε(δ) = min over α of  α·ρ + ln(1 − 1/α) − ln(δ·α)/(α − 1)
//! ```
//!
//! The orders are those of `dp-accounting` up to 256. Every ε is rounded up by a millionth, so that
//! rounding errors never lower it.

use std::f64::consts::PI;
use std::iter::Sum;
use std::ops::{Add, AddAssign, Mul};

use serde::{Deserialize, Serialize};

/// The factor by which an ε is rounded up.
const ROUNDED_UP: f64 = 1.0 + 1e-6;

/// Returns the orders α: 1.1 to 10.9 in tenths, 11 to 63, 128 and 256.
pub(super) fn orders() -> impl Iterator<Item = f64> {
    let tenths = (1..100).map(|tenth| 1.0 + f64::from(tenth) / 10.0);
    tenths.chain((11..64).map(f64::from)).chain([128.0, 256.0])
}

/// Returns ε for the divergences at [`orders`].
pub(super) fn epsilon(divergences: impl Iterator<Item = f64>, delta: Delta) -> f64 {
    let delta = delta.get();
    let at_order = |(alpha, divergence): (f64, f64)| {
        if delta * delta + (-divergence).exp_m1() > 0.0 {
            // δ ≤ √(1 − exp(−KL)), and KL is at most the divergence.
            return 0.0;
        }
        divergence + (-1.0 / alpha).ln_1p() - (delta * alpha).ln() / (alpha - 1.0)
    };
    let least = orders().zip(divergences).map(at_order).fold(f64::INFINITY, f64::min);
    least.max(0.0) * ROUNDED_UP
}

/// δ, the probability with which the bound ε may fail: in (0, 1].
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd, Serialize, Deserialize)]
#[serde(try_from = "f64", into = "f64")]
pub struct Delta(f64);

/// A number that is not in (0, 1].
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
#[error("expected a number in (0, 1], got {got}")]
pub struct InvalidDelta {
    /// The rejected number.
    pub got: f64,
}

impl Delta {
    /// Returns the number.
    pub fn get(self) -> f64 {
        self.0
    }
}

impl TryFrom<f64> for Delta {
    type Error = InvalidDelta;

    fn try_from(got: f64) -> Result<Self, InvalidDelta> {
        if got > 0.0 && got <= 1.0 { Ok(Self(got)) } else { Err(InvalidDelta { got }) }
    }
}

impl From<Delta> for f64 {
    fn from(delta: Delta) -> Self {
        delta.0
    }
}

/// ρ: the cost of noisy sums. RDP(α) ≤ α·ρ at every order.
///
/// # Examples
///
/// ```
/// use deltafl::privacy::{Delta, Rho};
///
/// let delta = Delta::try_from(1e-6)?;
/// let round = Rho::from_noise_multiplier(10.0);
/// assert!(((round * 100).epsilon(delta) - 5.22).abs() < 0.01);
/// // A hundred rounds need ten times the noise of one.
/// let run = Rho::within(2.0, delta);
/// assert!((run.noise_multiplier() * 10.0 - (run * 0.01).noise_multiplier()).abs() < 1e-9);
/// # Ok::<(), deltafl::privacy::InvalidDelta>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, PartialOrd, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Rho(f64);

impl Rho {
    /// No cost.
    pub const ZERO: Self = Self(0.0);
    /// Sums without noise.
    pub const UNBOUNDED: Self = Self(f64::INFINITY);

    /// Creates a cost from its number. A negative number or NaN is no cost.
    pub fn new(rho: f64) -> Self {
        Self(rho.max(0.0))
    }

    /// Returns ρ of a Gaussian whose standard deviation is `multiplier` times the sensitivity.
    pub fn from_noise_multiplier(multiplier: f64) -> Self {
        Self(0.5 / (multiplier * multiplier))
    }

    /// Returns the ratio of standard deviation and sensitivity of one Gaussian of this cost.
    pub fn noise_multiplier(self) -> f64 {
        (0.5 / self.0).sqrt()
    }

    /// Returns the largest ρ whose ε is at most `epsilon`.
    pub fn within(epsilon: f64, delta: Delta) -> Self {
        let (mut low, mut high) = (0.0, 1.0);
        while Self(high).epsilon(delta) <= epsilon && high < 1e12 {
            high *= 2.0;
        }
        for _ in 0..200 {
            let middle = f64::midpoint(low, high);
            if Self(middle).epsilon(delta) <= epsilon { low = middle } else { high = middle }
        }
        Self(low)
    }

    /// Returns the number.
    pub fn get(self) -> f64 {
        self.0
    }

    /// Returns ε at δ. It is infinite for sums without noise.
    pub fn epsilon(self, delta: Delta) -> f64 {
        if self.0.is_finite() { epsilon(orders().map(|alpha| alpha * self.0), delta) } else { f64::INFINITY }
    }
}

impl Add for Rho {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self(self.0 + other.0)
    }
}

impl AddAssign for Rho {
    fn add_assign(&mut self, other: Self) {
        self.0 += other.0;
    }
}

impl Sum for Rho {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::ZERO, Add::add)
    }
}

impl Mul<f64> for Rho {
    type Output = Self;

    fn mul(self, factor: f64) -> Self {
        Self(if factor > 0.0 { self.0 * factor } else { 0.0 })
    }
}

impl Mul<u64> for Rho {
    type Output = Self;

    fn mul(self, count: u64) -> Self {
        self * count as f64
    }
}

/// The influence of one device on a sum of integers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sensitivity {
    /// The number of entries of the sum.
    pub entries: u64,
    /// The largest Euclidean norm of an answer.
    pub l2: f64,
    /// The largest sum of magnitudes of an answer.
    pub l1: f64,
}

impl Sensitivity {
    /// Returns ρ of a sum to which `devices` devices add a discrete Gaussian of this variance each.
    ///
    /// The noise of the sum is nearly a Gaussian of variance n·σ². With s_p = Δ_p/(√n·σ) and
    /// τ = 10·Σ_{k<n} exp(−2π²σ²·k/(k+1)) (Kairouz, Liu, Steinke 2021, Theorem 1):
    ///
    /// ```text
    /// ρ = ½·min{ s₂² + 2·s₁·τ + τ²·d,  (s₂ + √d·τ)² }
    /// ```
    pub fn rho(&self, variance: u32, devices: u64) -> Rho {
        self.rho_of_total(f64::from(variance) * devices as f64, devices)
    }

    /// Returns ρ of a sum to which `devices` devices add discrete Gaussians of this total variance.
    /// If a device adds several of variance 16 or more, τ vanishes as for one.
    pub(super) fn rho_of_total(&self, total: f64, devices: u64) -> Rho {
        if total <= 0.0 || devices == 0 {
            return Rho::UNBOUNDED;
        }
        let (variance, d) = (total / devices as f64, self.entries as f64);
        let sigma = total.sqrt();
        let (s1, s2, tau) = (self.l1 / sigma, self.l2 / sigma, tau(variance, devices));
        let apart = s2 * s2 + 2.0 * s1 * tau + tau * tau * d;
        let joint = (s2 + d.sqrt() * tau).powi(2);
        Rho(0.5 * apart.min(joint))
    }

    /// Returns the smallest variance of each of `devices` devices for which the sum costs at most
    /// `rho`. It is at least the variance at which τ vanishes.
    pub fn variance(&self, rho: Rho, devices: u64) -> f64 {
        let least = f64::from(deltafl_secagg::noise::MIN_VARIANCE);
        (self.l2 * self.l2 / (2.0 * rho.get() * devices as f64)).max(least)
    }
}

fn tau(variance: f64, devices: u64) -> f64 {
    // The terms approach exp(−2π²σ²). Those after the first thousand are bounded by the last.
    let term = |k: f64| (-2.0 * PI * PI * variance * k / (k + 1.0)).exp();
    let few = devices.min(1000);
    let rest = (devices - few) as f64 * term(few as f64);
    10.0 * ((1..few).map(|k| term(k as f64)).sum::<f64>() + rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn delta(number: f64) -> Delta {
        Delta::try_from(number).unwrap()
    }

    #[test]
    fn both_ways_of_calibration_agree() {
        for epsilon in [0.1, 1.0, 3.0, 10.0, 50.0] {
            for number in [1e-9, 1e-6, 1e-3] {
                let back = Rho::within(epsilon, delta(number)).epsilon(delta(number));
                assert!(back <= epsilon && back > 0.9999 * epsilon, "{epsilon} {number}: {back}");
            }
        }
    }

    #[test]
    fn few_devices_with_little_noise_cost_more_than_a_gaussian() {
        let count = Sensitivity { entries: 1, l2: 1.0, l1: 1.0 };
        let gaussian = Rho::from_noise_multiplier(10.0);
        // A hundred devices of variance 1 have the variance 100 together.
        assert!((count.rho(16, 100).get() - Rho::from_noise_multiplier(40.0).get()).abs() < 1e-12);
        assert!(count.rho(1, 100).get() > gaussian.get());
        assert_eq!(count.rho(0, 100), Rho::UNBOUNDED);
        assert_eq!(count.rho(16, 0), Rho::UNBOUNDED);
        assert!(Rho::UNBOUNDED.epsilon(delta(1e-6)).is_infinite());
    }

    #[test]
    fn the_variance_of_a_budget_spends_it() {
        let sum = Sensitivity { entries: 1000, l2: 500.0, l1: 10_000.0 };
        let budget = Rho::from_noise_multiplier(3.0);
        let variance = sum.variance(budget, 40).ceil() as u32;
        let spent = sum.rho(variance, 40);
        assert!(spent <= budget && spent.get() > 0.99 * budget.get(), "{spent:?}");
    }

    #[test]
    fn a_number_that_is_no_delta_is_refused() {
        for got in [0.0, 1.5, -0.5, f64::NAN, f64::INFINITY] {
            assert!(Delta::try_from(got).is_err());
        }
    }
}
