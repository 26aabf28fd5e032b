//! Alternating minimisation of the smoothed objective (Algorithm 1).
//!
//! ```text
//! for t = 0, 1, 2, …
//!     η_t     ∈ argmin_η F̄_θ,ν(w_t, η)                                line 2, in closed form
//!     w_{t+1} ≈ argmin_w F̄_θ,ν(w, η_t), to within ε_t                 line 3, eq. (4)
//! ```
//!
//! On convex losses the result is within ν/(2θ) of min F_θ, and the gradient of F̄_θ,ν vanishes
//! (Proposition 4). The algorithm needs every device in every round, which is not possible in a
//! federation. It is the reference for the federated algorithms, and it computes the paper's
//! illustration.
//!
//! **The w-step's certificate.** With γ_k = g'_ν(F_k(w) − η) and g_ν(ρ) = max_γ {ργ − νγ²/2} + ν/2,
//! the function
//!
//! ```text
//! L(v) = η + (1/θ) Σ_k α_k (γ_k (F_k(v) − η) − νγ_k²/2 + ν/2)
//! ```
//!
//! is a lower bound of F̄_θ,ν(·, η). It equals F̄ at v = w, with the same gradient. It is strongly
//! convex with modulus m = (μ/θ) Σ_k α_k γ_k if every F_k is with modulus μ. Its minimum bounds the
//! remaining decrease:
//!
//! ```text
//! F̄_θ,ν(w, η) − min_v F̄_θ,ν(v, η) ≤ ‖∇_w F̄_θ,ν(w, η)‖² / (2m)
//! ```
//!
//! No decrease remains when all γ_k are zero.
//!
//! **Small ν.** A w-step makes no progress once the tail has fallen to η_t, so η changes by at most
//! ν in a round. [`Alternating::run_graduated`] starts with a ν as wide as the losses, and passes
//! each stage's w to the next.
//!
//! **Other losses.** [`StochasticAlternating`] uses SGD as the w-step and requires no convexity.

mod descent;
mod stochastic;

use crate::superquantile::smooth::Smoothing;
use crate::superquantile::{Conformity, DeviceLoss, InvalidDeviceLoss};

use self::descent::Descent;
pub use self::stochastic::{
    Iterate, StepSizes, StochasticAlternating, StochasticProblem, StochasticallyAlternated,
};

/// A convex problem over N devices.
pub trait ConvexProblem {
    /// Returns the N weights α_k.
    fn weights(&self) -> &[f64];

    /// Computes F_k(w) of each device.
    fn losses(&self, w: &[f64]) -> Vec<f64>;

    /// Computes Σ_k s_k ∇F_k(w) with one factor s_k per device.
    fn gradient(&self, w: &[f64], factors: &[f64]) -> Vec<f64>;

    /// Returns μ > 0 such that every F_k is strongly convex with modulus μ. An ℓ₂ penalty λ/2‖w‖²
    /// contributes λ.
    fn strong_convexity(&self) -> f64;

    /// Returns a lower bound of all F_k(w).
    fn least_loss(&self) -> f64 {
        0.0
    }
}

/// The settings of Algorithm 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Alternating {
    /// The conformity level θ.
    pub theta: Conformity,
    /// The smoothing ν.
    pub nu: Smoothing,
    /// The accuracy of each w-step.
    pub inexactness: Inexactness,
    /// The number of rounds.
    pub rounds: u32,
}

/// The sequence ε_t = first / (t+1)^power. It is summable, as Proposition 4 requires, if power > 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Inexactness {
    /// ε_0.
    pub first: f64,
    /// The exponent of the decrease.
    pub power: f64,
}

impl Inexactness {
    /// Returns ε_t.
    pub fn at(&self, round: u32) -> f64 {
        self.first / (f64::from(round) + 1.0).powf(self.power)
    }
}

/// Returns ε_t = 1/(t+1)².
impl Default for Inexactness {
    fn default() -> Self {
        Self { first: 1.0, power: 2.0 }
    }
}

/// The result of Algorithm 1.
#[derive(Clone, Debug, PartialEq)]
pub struct Alternated {
    /// The last w.
    pub w: Vec<f64>,
    /// A minimiser η of F̄_θ,ν(w, ·).
    pub eta: f64,
    /// ‖∇ F̄_θ,ν(w, η)‖, over w and η.
    pub gradient_norm: f64,
    /// One entry per round.
    pub rounds: Vec<AlternatingRound>,
}

/// One round of Algorithm 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AlternatingRound {
    /// η_t.
    pub eta: f64,
    /// F_θ,ν(w_t) = F̄_θ,ν(w_t, η_t), before the w-step.
    pub objective: f64,
    /// The bound on the remaining decrease after the w-step. It is at most ε_t, except for
    /// rounding.
    pub certificate: f64,
    /// The number of gradient steps.
    pub steps: u32,
}

impl Alternating {
    /// Runs Algorithm 1 from `start`.
    ///
    /// Returns an error if a loss is not finite or a weight is not positive.
    pub fn run(
        &self,
        problem: &impl ConvexProblem,
        start: Vec<f64>,
    ) -> Result<Alternated, InvalidDeviceLoss> {
        let mut w = start;
        let mut rounds = Vec::new();
        let mut descent = Descent::new(self.theta, self.nu, problem);
        for t in 0..self.rounds {
            let losses = device_losses(problem, &w)?;
            let eta = self.eta_step(problem, &losses);
            let objective = self.nu.objective(self.theta, eta, &losses);
            let step = descent.run(w, eta, self.inexactness.at(t));
            w = step.w;
            rounds.push(AlternatingRound {
                eta,
                objective,
                certificate: step.certificate,
                steps: step.steps,
            });
        }
        let losses = device_losses(problem, &w)?;
        let eta = self.eta_step(problem, &losses);
        let by_eta = self.nu.derivative(self.theta, eta, &losses);
        let gradient_norm = descent.gradient_norm(&w, eta).hypot(by_eta);
        Ok(Alternated { w, eta, gradient_norm, rounds })
    }

    /// Runs Algorithm 1 for ν′ from the spread of the losses at `start` down to ν, divided by four
    /// in each stage.
    ///
    /// Every stage has [`Self::rounds`] rounds. The result is that of the last stage, at ν itself.
    pub fn run_graduated(
        &self,
        problem: &impl ConvexProblem,
        start: Vec<f64>,
    ) -> Result<Alternated, InvalidDeviceLoss> {
        let losses = device_losses(problem, &start)?;
        let least = losses.iter().map(DeviceLoss::loss).fold(f64::INFINITY, f64::min);
        let greatest = losses.iter().map(DeviceLoss::loss).fold(f64::NEG_INFINITY, f64::max);
        let mut w = start;
        let mut wider = Smoothing::try_from(greatest - least).unwrap_or(self.nu);
        while wider > self.nu {
            w = Self { nu: wider, ..*self }.run(problem, w)?.w;
            wider = Smoothing::try_from(wider.get() / 4.0).unwrap_or(self.nu);
        }
        self.run(problem, w)
    }

    /// Returns η_t. Of all minimisers it is the middle one, which leaves the most room for the
    /// w-step.
    fn eta_step(&self, problem: &impl ConvexProblem, losses: &[DeviceLoss]) -> f64 {
        // Without devices F̄(w, η) = η has no minimum, and all w are equivalent.
        let Some(minimisers) = self.nu.minimisers(self.theta, losses) else { return 0.0 };
        if minimisers.least.is_finite() {
            minimisers.least.midpoint(minimisers.greatest)
        } else {
            minimisers.greatest.min(problem.least_loss() - self.nu.get())
        }
    }
}

fn device_losses(problem: &impl ConvexProblem, w: &[f64]) -> Result<Vec<DeviceLoss>, InvalidDeviceLoss> {
    device_loss_list(problem.losses(w), problem.weights())
}

fn device_loss_list(losses: Vec<f64>, weights: &[f64]) -> Result<Vec<DeviceLoss>, InvalidDeviceLoss> {
    losses.into_iter().zip(weights).map(|(loss, &weight)| DeviceLoss::new(loss, weight)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::superquantile::superquantile;

    /// F_k(w) = (w − c_k)² in one dimension.
    struct Line {
        centres: Vec<f64>,
        weights: Vec<f64>,
    }

    impl ConvexProblem for Line {
        fn weights(&self) -> &[f64] {
            &self.weights
        }

        fn losses(&self, w: &[f64]) -> Vec<f64> {
            self.centres.iter().map(|c| (w[0] - c).powi(2)).collect()
        }

        fn gradient(&self, w: &[f64], factors: &[f64]) -> Vec<f64> {
            vec![self.centres.iter().zip(factors).map(|(c, s)| 2.0 * s * (w[0] - c)).sum()]
        }

        fn strong_convexity(&self) -> f64 {
            2.0
        }
    }

    fn alternating(theta: f64) -> Alternating {
        Alternating {
            theta: Conformity::try_from(theta).unwrap(),
            nu: Smoothing::try_from(0.01).unwrap(),
            inexactness: Inexactness { first: 1e-2, power: 3.0 },
            rounds: 100,
        }
    }

    #[test]
    fn full_conformity_ends_at_the_weighted_mean() {
        let line = Line { centres: vec![0.0, 1.0, 5.0], weights: vec![1.0, 2.0, 1.0] };
        let found = alternating(1.0).run(&line, vec![30.0]).unwrap();
        assert!((found.w[0] - 1.75).abs() < 1e-3, "{}", found.w[0]);
    }

    #[test]
    fn low_conformity_ends_in_the_middle_of_the_extremes() {
        let line = Line { centres: vec![0.0, 1.0, 5.0], weights: vec![1.0, 2.0, 1.0] };
        let found = alternating(0.2).run_graduated(&line, vec![30.0]).unwrap();
        assert!((found.w[0] - 2.5).abs() < 1e-2, "{}", found.w[0]);
    }

    #[test]
    fn every_w_step_is_as_exact_as_asked() {
        let line = Line { centres: vec![0.0, 1.0, 5.0, 7.0], weights: vec![1.0, 2.0, 1.0, 4.0] };
        let settings = alternating(0.4);
        let found = settings.run(&line, vec![-9.0]).unwrap();
        for (t, round) in (0..).zip(&found.rounds) {
            assert!(round.certificate <= settings.inexactness.at(t), "round {t}: {round:?}");
        }
    }

    #[test]
    fn the_mixture_of_the_last_round_proves_the_minimum() {
        let line = Line { centres: vec![0.0, 1.0, 5.0, 7.0], weights: vec![1.0, 2.0, 1.0, 4.0] };
        let settings = alternating(0.4);
        let found = settings.run_graduated(&line, vec![-9.0]).unwrap();
        let losses = device_losses(&line, &found.w).unwrap();
        let mixture = settings.nu.mixture(settings.theta, &losses).unwrap();
        let mean: f64 = mixture.shares().iter().zip(&line.centres).map(|(pi, c)| pi * c).sum();
        let at_mean = mixture.loss(&device_losses(&line, &[mean]).unwrap());
        let gap = superquantile(settings.theta, &losses).unwrap() - at_mean;
        assert!(gap <= 0.01 / (2.0 * 0.4), "{gap}");
    }

    #[test]
    fn a_problem_whose_losses_are_not_finite_is_refused() {
        let line = Line { centres: vec![0.0, f64::NAN], weights: vec![1.0, 1.0] };
        assert!(matches!(
            alternating(0.5).run(&line, vec![0.0]),
            Err(InvalidDeviceLoss::NonFiniteLoss { .. })
        ));
    }
}
