//! Algorithm 1 with a stochastic w-step, for losses that need not be convex.
//!
//! The paper claims both: the template "can be instantiated with a stochastic algorithm such as
//! SGD", and Proposition 4 (a) and (b) require no convexity. A step draws a device k with
//! probability α_k and one of its examples ξ, and moves
//!
//! ```text
//! w ← w − γ_s (1/θ) g'_ν(F_k(w) − η_t) ∇f(w; ξ)
//! ```
//!
//! The device knows F_k(w), so the expectation over k and ξ is exactly ∇_w F̄_θ,ν(w, η_t). The rate
//! γ_s decreases over all steps as SGD requires (Σ γ_s = ∞, Σ γ_s² < ∞). Each round takes more
//! steps than the previous one, so that ε_t of eq. (4) decreases. On convex losses that is eq. (4)
//! in expectation. On other losses no finite number of steps guarantees a point near min_w F̄, as
//! eq. (4) requires. The gradient still vanishes, which the tests check.

use rand::{Rng, RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::device_loss_list;
use crate::superquantile::smooth::Smoothing;
use crate::superquantile::{Conformity, DeviceLoss, InvalidDeviceLoss};

/// A problem over N devices with gradients sampled from examples. F_k needs only a gradient.
pub trait StochasticProblem {
    /// Returns the N weights α_k.
    fn weights(&self) -> &[f64];

    /// Computes F_k(w).
    fn loss(&self, device: usize, w: &[f64]) -> f64;

    /// Computes ∇F_k(w), the expectation of [`Self::sampled_gradient`].
    fn gradient(&self, device: usize, w: &[f64]) -> Vec<f64>;

    /// Computes ∇f(w; ξ) for an example ξ drawn from device k.
    fn sampled_gradient(&self, device: usize, w: &[f64], rng: &mut dyn Rng) -> Vec<f64>;
}

/// The settings of Algorithm 1 with SGD as its w-step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StochasticAlternating {
    /// The conformity level θ.
    pub theta: Conformity,
    /// The smoothing ν.
    pub nu: Smoothing,
    /// The sequence of learning rates.
    pub rate: StepSizes,
    /// The number of SGD steps in the first round. Round t takes t + 1 times as many.
    pub steps: u32,
    /// The number of rounds.
    pub rounds: u32,
}

/// The sequence γ_s = first / (1 + s/half)^power, with s counted over all rounds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepSizes {
    /// γ_0.
    pub first: f64,
    /// The number of steps after which the rate is first / 2^power.
    pub half: f64,
    /// The exponent of the decrease. SGD converges for a power in (1/2, 1].
    pub power: f64,
}

impl StepSizes {
    /// Returns γ_s.
    pub fn at(&self, step: u64) -> f64 {
        self.first / (1.0 + step as f64 / self.half).powf(self.power)
    }
}

/// The result of the stochastic algorithm.
#[derive(Clone, Debug, PartialEq)]
pub struct StochasticallyAlternated {
    /// The last w.
    pub w: Vec<f64>,
    /// (w_t, η_t) of every round before its w-step, and at the end.
    pub iterates: Vec<Iterate>,
}

/// An iterate of Algorithm 1, after the η-step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Iterate {
    /// η_t, a minimiser of F̄_θ,ν(w_t, ·).
    pub eta: f64,
    /// F_θ,ν(w_t).
    pub objective: f64,
    /// ‖∇_w F̄_θ,ν(w_t, η_t)‖ in expectation over the examples. The derivative with respect to η is
    /// zero.
    pub gradient_norm: f64,
}

impl StochasticAlternating {
    /// Runs Algorithm 1 from `start`. `seed` determines devices and examples.
    ///
    /// Returns an error if a loss is not finite or a weight is not positive.
    pub fn run(
        &self,
        problem: &impl StochasticProblem,
        start: Vec<f64>,
        seed: u64,
    ) -> Result<StochasticallyAlternated, InvalidDeviceLoss> {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let draw = DeviceDraw::new(problem.weights());
        let (mut w, mut iterates, mut taken) = (start, Vec::new(), 0);
        for round in 0..self.rounds {
            let iterate = self.iterate(problem, &w)?;
            iterates.push(iterate);
            for _ in 0..u64::from(self.steps) * (u64::from(round) + 1) {
                self.step(problem, &mut w, (iterate.eta, self.rate.at(taken)), &draw, &mut rng);
                taken += 1;
            }
        }
        iterates.push(self.iterate(problem, &w)?);
        Ok(StochasticallyAlternated { w, iterates })
    }

    /// Performs the η-step and evaluates F̄ afterwards.
    fn iterate(&self, problem: &impl StochasticProblem, w: &[f64]) -> Result<Iterate, InvalidDeviceLoss> {
        let losses = (0..problem.weights().len()).map(|k| problem.loss(k, w)).collect();
        let losses = device_loss_list(losses, problem.weights())?;
        // Without devices F̄(w, η) = η has no minimum, and all w are equivalent.
        let eta = self.nu.minimisers(self.theta, &losses).map_or(0.0, |minimisers| minimisers.eta());
        Ok(Iterate {
            eta,
            objective: self.nu.objective(self.theta, eta, &losses),
            gradient_norm: norm(&self.gradient(problem, w, eta, &losses)),
        })
    }

    /// Computes ∇_w F̄_θ,ν(w, η) = (1/θ) Σ_k α_k g'_ν(F_k(w) − η) ∇F_k(w).
    fn gradient(
        &self,
        problem: &impl StochasticProblem,
        w: &[f64],
        eta: f64,
        losses: &[DeviceLoss],
    ) -> Vec<f64> {
        let kept: f64 = self.theta.get() * losses.iter().map(DeviceLoss::weight).sum::<f64>();
        let mut sum = vec![0.0; w.len()];
        for (k, device) in losses.iter().enumerate() {
            let share = device.weight() * self.nu.slope(device.loss() - eta) / kept;
            if share > 0.0 {
                sum.iter_mut().zip(problem.gradient(k, w)).for_each(|(sum, g)| *sum += share * g);
            }
        }
        sum
    }

    /// Takes one step of SGD on F̄_θ,ν(·, η).
    fn step(
        &self,
        problem: &impl StochasticProblem,
        w: &mut [f64],
        (eta, rate): (f64, f64),
        draw: &DeviceDraw,
        rng: &mut ChaCha8Rng,
    ) {
        let Some(k) = draw.device(rng) else { return };
        let factor = rate * self.nu.slope(problem.loss(k, w) - eta) / self.theta.get();
        if factor > 0.0 {
            let gradient = problem.sampled_gradient(k, w, rng);
            w.iter_mut().zip(gradient).for_each(|(w, g)| *w -= factor * g);
        }
    }
}

/// Draws device k with probability α_k.
struct DeviceDraw {
    /// The cumulative sums of the weights.
    cumulative: Vec<f64>,
}

impl DeviceDraw {
    fn new(weights: &[f64]) -> Self {
        let cumulative = weights.iter().scan(0.0, |sum, weight| {
            *sum += weight;
            Some(*sum)
        });
        Self { cumulative: cumulative.collect() }
    }

    fn device(&self, rng: &mut impl Rng) -> Option<usize> {
        let at = rng.random::<f64>() * self.cumulative.last()?;
        Some(self.cumulative.partition_point(|&sum| sum <= at).min(self.cumulative.len() - 1))
    }
}

fn norm(vector: &[f64]) -> f64 {
    vector.iter().map(|x| x * x).sum::<f64>().sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_drawn_by_their_weight() {
        let draw = DeviceDraw::new(&[1.0, 0.0, 3.0]);
        let mut rng = ChaCha8Rng::seed_from_u64(1);
        let mut counts = [0u32; 3];
        (0..40_000).for_each(|_| counts[draw.device(&mut rng).unwrap()] += 1);
        // Five standard deviations of the first count are 433.
        assert!(counts[0].abs_diff(10_000) < 433 && counts[1] == 0, "{counts:?}");
        assert_eq!(DeviceDraw::new(&[]).device(&mut rng), None);
    }

    #[test]
    fn the_rate_falls_by_its_power() {
        let rate = StepSizes { first: 0.5, half: 10.0, power: 1.0 };
        assert!((rate.at(0) - 0.5).abs() < 1e-15 && (rate.at(10) - 0.25).abs() < 1e-15);
    }
}
