//! Algorithm 1 with a stochastic w-step, on losses that need not be convex.
//!
//! The paper claims both: the template "can be instantiated with a stochastic algorithm such as SGD", and Proposition 4
//! (a) and (b) ask for no convexity. A step draws a device k with probability α_k and an example ξ of it, and moves
//!
//! ```text
//! w ← w − γ_s (1/θ) g'_ν(F_k(w) − η_t) ∇f(w; ξ)
//! ```
//!
//! The device knows F_k(w), so the expectation over k and ξ is ∇_w F̄_θ,ν(w, η_t) itself. The rate γ_s falls over all
//! steps as SGD needs it (Σ γ_s = ∞, Σ γ_s² < ∞), and round t takes more steps than the one before, so that ε_t of
//! eq. (4) falls. On convex losses that is eq. (4) in expectation. On others no finite number of steps can promise to be
//! near min_w F̄, which eq. (4) asks for; what remains, and what the tests hold, is that the gradient vanishes.

use rand::{Rng, RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::device_loss_list;
use crate::superquantile::smooth::Smoothing;
use crate::superquantile::{Conformity, DeviceLoss, InvalidDeviceLoss};

/// A problem over N devices whose gradients come from examples; nothing is asked of the shape of F_k but a gradient.
pub trait StochasticProblem {
    /// The weights α_k; their number is N.
    fn weights(&self) -> &[f64];

    /// F_k(w).
    fn loss(&self, device: usize, w: &[f64]) -> f64;

    /// ∇F_k(w), the expectation of [`Self::sampled_gradient`].
    fn gradient(&self, device: usize, w: &[f64]) -> Vec<f64>;

    /// ∇f(w; ξ) for an example ξ drawn from device k.
    fn sampled_gradient(&self, device: usize, w: &[f64], rng: &mut dyn Rng) -> Vec<f64>;
}

/// The settings of Algorithm 1 with SGD as its w-step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StochasticAlternating {
    /// The conformity level θ.
    pub theta: Conformity,
    /// The smoothing ν.
    pub nu: Smoothing,
    /// How the rate falls.
    pub rate: Rate,
    /// Steps of SGD in the first round; round t takes t + 1 times as many.
    pub steps: u32,
    /// The number of rounds.
    pub rounds: u32,
}

/// The sequence γ_s = first / (1 + s/half)^power, s counted over all rounds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rate {
    /// γ_0.
    pub first: f64,
    /// Steps after which the rate is first / 2^power.
    pub half: f64,
    /// How fast it falls; SGD converges for a power in (1/2, 1].
    pub power: f64,
}

impl Rate {
    /// γ_s.
    pub fn at(&self, step: u64) -> f64 {
        self.first / (1.0 + step as f64 / self.half).powf(self.power)
    }
}

/// What it found.
#[derive(Clone, Debug, PartialEq)]
pub struct StochasticallyAlternated {
    /// The last w.
    pub w: Vec<f64>,
    /// (w_t, η_t) of every round before its w-step, and of the end.
    pub iterates: Vec<Iterate>,
}

/// An iterate of Algorithm 1, after the η-step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Iterate {
    /// η_t, a minimiser of F̄_θ,ν(w_t, ·).
    pub eta: f64,
    /// F_θ,ν(w_t).
    pub objective: f64,
    /// ‖∇_w F̄_θ,ν(w_t, η_t)‖ in expectation over the examples; the derivative by η is zero.
    pub gradient_norm: f64,
}

impl StochasticAlternating {
    /// Runs Algorithm 1 from `start`; `seed` chooses devices and examples.
    ///
    /// Fails when a loss is not finite, or a weight not positive.
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

    /// The η-step, and where it leaves F̄.
    fn iterate(&self, problem: &impl StochasticProblem, w: &[f64]) -> Result<Iterate, InvalidDeviceLoss> {
        let losses = (0..problem.weights().len()).map(|k| problem.loss(k, w)).collect();
        let losses = device_loss_list(losses, problem.weights())?;
        // Without devices F̄(w, η) = η has no minimum, and no w is better than another.
        let eta = self.nu.minimisers(self.theta, &losses).map_or(0.0, |minimisers| minimisers.eta());
        Ok(Iterate {
            eta,
            objective: self.nu.objective(self.theta, eta, &losses),
            gradient_norm: norm(&self.gradient(problem, w, eta, &losses)),
        })
    }

    /// ∇_w F̄_θ,ν(w, η) = (1/θ) Σ_k α_k g'_ν(F_k(w) − η) ∇F_k(w).
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

    /// One step of SGD on F̄_θ,ν(·, η).
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
    /// The sums of the first weights.
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
        // Five standard deviations of the count of the first are 433.
        assert!(counts[0].abs_diff(10_000) < 433 && counts[1] == 0, "{counts:?}");
        assert_eq!(DeviceDraw::new(&[]).device(&mut rng), None);
    }

    #[test]
    fn the_rate_falls_by_its_power() {
        let rate = Rate { first: 0.5, half: 10.0, power: 1.0 };
        assert!((rate.at(0) - 0.5).abs() < 1e-15 && (rate.at(10) - 0.25).abs() < 1e-15);
    }
}
