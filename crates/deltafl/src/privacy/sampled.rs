//! Amplification by sampling: the cost for adversaries who do not know the cohorts.
//!
//! A reader of the models does not know in which rounds a device took part. If every cohort is a
//! uniform sample of m of N devices without replacement, a round costs less than a round in which
//! the device certainly takes part (Wang, Balle, Kasiviswanathan 2019, Theorem 27). The theorem
//! compares a device with any other device instead of zeros, so that the sensitivity is doubled and
//! ρ is four times that of the round. A server that draws the cohort knows it, and nothing is
//! amplified.
//!
//! ```text
//! (α−1)·RDP(α) = ln(1 + Σ_{j=2}^α (α over j)·q^j·min(4·√(B(2⌊j/2⌋)·B(2⌈j/2⌉)), 2·exp((j−1)·jρ)))
//! ```
//!
//! B(l) = E[(e^{μx − μ²/2} − 1)^l] for a standard normal x and μ² = 2ρ. For even l the integrand is
//! not negative, and the trapezoidal rule has no cancellation.

use std::f64::consts::{LN_2, TAU};

use super::accountant::{self, Delta, Rho, orders};

/// The Rényi divergences of one round at the orders of the accountant.
#[derive(Clone, Debug, PartialEq)]
pub struct SampledRound(Vec<f64>);

/// The largest order.
const MOST: usize = 256;
/// Above this ρ the second term of the minimum is the smaller one for all j > 2.
const LARGE_RHO: f64 = 2.0;

impl SampledRound {
    /// Returns the divergences of a round of cost `rho` whose cohort is the share `q` of all
    /// devices, drawn without replacement.
    pub fn new(q: f64, rho: Rho) -> Self {
        Self::from_replaced(q, rho * 4.0)
    }

    /// The same for the cost of replacing a device by another.
    fn from_replaced(q: f64, rho: Rho) -> Self {
        let rho = rho.get();
        if q >= 1.0 || !rho.is_finite() {
            return Self(orders().map(|alpha| alpha * rho).collect());
        }
        let moments = Moments::new(rho);
        let mut moments_of_order = vec![None; MOST + 1];
        let mut log_moment =
            |alpha: usize| *moments_of_order[alpha].get_or_insert_with(|| moments.sampled(q, alpha));
        let divergence = |alpha: f64| {
            // The logarithm of the moment is convex in α, so that a chord bounds it.
            let (below, share) = (alpha.floor(), alpha.fract());
            let mut bound = (1.0 - share) * log_moment(below as usize);
            if share > 0.0 {
                bound += share * log_moment(below as usize + 1);
            }
            bound / (alpha - 1.0)
        };
        Self(orders().map(divergence).collect())
    }

    /// Returns ε of this many rounds.
    pub fn epsilon(&self, rounds: u64, delta: Delta) -> f64 {
        accountant::epsilon(self.0.iter().map(|divergence| rounds as f64 * divergence), delta)
    }
}

/// The logarithms of B(l) for even l.
struct Moments {
    rho: f64,
    /// ln B(2i).
    even: Vec<f64>,
}

impl Moments {
    fn new(rho: f64) -> Self {
        if rho > LARGE_RHO {
            return Self { rho, even: Vec::new() };
        }
        let (mu, step) = ((2.0 * rho).sqrt(), 0.1);
        let end = MOST as f64 * mu + 40.0;
        let points = ((end + 40.0) / step) as usize;
        let point = |i: usize| {
            let x = -40.0 + step * i as f64;
            ((mu * x - rho).exp_m1().abs().ln(), -0.5 * x * x)
        };
        let points: Vec<(f64, f64)> = (0..points).map(point).collect();
        let even = (0..=MOST / 2).map(|half| {
            let power = 2.0 * half as f64;
            let logs = || points.iter().map(move |(base, density)| scaled(power, *base) + density);
            let largest = logs().fold(f64::NEG_INFINITY, f64::max);
            largest + (logs().map(|log| (log - largest).exp()).sum::<f64>() * step / TAU.sqrt()).ln()
        });
        Self { rho, even: even.collect() }
    }

    /// Returns ln of the moment of the sampled mechanism at an integer order.
    fn sampled(&self, q: f64, alpha: usize) -> f64 {
        let (mut total, mut chosen) = (0.0, 0.0);
        for j in 1..=alpha {
            // ln of (α over j)·q^j.
            chosen += ((alpha - j + 1) as f64 / j as f64).ln() + q.ln();
            let order = j as f64;
            let plain = LN_2 + (order - 1.0) * order * self.rho;
            let bound = match j {
                1 => continue,
                // E[(L − 1)²] = e^{2ρ} − 1.
                2 => plain.min(2.0 * LN_2 + (2.0 * self.rho).exp_m1().ln()),
                _ => match (self.even.get(j / 2), self.even.get(j.div_ceil(2))) {
                    (Some(low), Some(high)) => plain.min(2.0 * LN_2 + f64::midpoint(*low, *high)),
                    _ => plain,
                },
            };
            total = log_add(total, chosen + bound);
        }
        total
    }
}

/// Returns power·base, and 0 for a power of 0.
fn scaled(power: f64, base: f64) -> f64 {
    if power > 0.0 { power * base } else { 0.0 }
}

/// Returns ln(e^a + e^b).
fn log_add(a: f64, b: f64) -> f64 {
    let (low, high) = if a < b { (a, b) } else { (b, a) };
    high + (low - high).exp().ln_1p()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// ε of `dp-accounting` on a grid: rows of noise multiplier, cohort, devices, rounds, δ and ε.
    /// A cohort of all devices has no amplification. `accountant_grid.py` writes the table.
    const GRID: &str = include_str!("accountant_grid.csv");

    #[test]
    fn the_accountant_agrees_with_dp_accounting_and_is_never_below() {
        let mut cases = 0;
        for row in GRID.lines().skip(1) {
            let row: Vec<f64> = row.split(',').map(|number| number.parse().unwrap()).collect();
            let [multiplier, cohort, devices, rounds, delta, expected] = row[..] else {
                panic!("six columns")
            };
            let (rho, delta) = (Rho::from_noise_multiplier(multiplier), Delta::try_from(delta).unwrap());
            let found = if cohort < devices {
                SampledRound::from_replaced(cohort / devices, rho).epsilon(rounds as u64, delta)
            } else {
                (rho * rounds).epsilon(delta)
            };
            let case = format!("{row:?}: {found}");
            assert!(found >= expected && found <= 1.01 * expected, "{case}");
            cases += 1;
        }
        assert_eq!(cases, 200);
    }

    #[test]
    fn a_cohort_of_everybody_amplifies_nothing() {
        let (rho, delta) = (Rho::from_noise_multiplier(2.0), Delta::try_from(1e-5).unwrap());
        assert_eq!(SampledRound::new(1.0, rho).epsilon(3, delta), (rho * 12).epsilon(delta));
        assert!(SampledRound::new(0.01, rho).epsilon(3, delta) < 0.5 * (rho * 3).epsilon(delta));
    }
}
