//! Alternating minimisation and the illustration (sections 3 and 4).

use deltafl::algorithm::alternating::{Alternating, Inexactness, Problem};
use deltafl::illustration::{Illustration, MixtureLoss};
use deltafl::superquantile::smooth::Smoothing;
use deltafl::superquantile::{DeviceLoss, superquantile};
use rand::RngExt;

use crate::{device, rng, theta};

/// F_k(w) = a_k ‖w − c_k‖² + b_k, whose mixtures have their minimum in closed form.
struct Bowls {
    curvatures: Vec<f64>,
    centres: Vec<Vec<f64>>,
    floors: Vec<f64>,
    weights: Vec<f64>,
}

impl Bowls {
    fn random(seed: u64, devices: usize, dim: usize) -> Self {
        let mut rng = rng(seed);
        Self {
            curvatures: (0..devices).map(|_| rng.random_range(0.5..2.0)).collect(),
            centres: (0..devices).map(|_| (0..dim).map(|_| rng.random_range(-1.0..1.0)).collect()).collect(),
            floors: (0..devices).map(|_| rng.random_range(0.0..0.5)).collect(),
            weights: (0..devices).map(|_| f64::from(rng.random_range(1..20_u32))).collect(),
        }
    }

    fn device_losses(&self, w: &[f64]) -> Vec<DeviceLoss> {
        self.losses(w).into_iter().zip(&self.weights).map(|(loss, &weight)| device(loss, weight)).collect()
    }

    /// min over w of Σ_k π_k F_k(w).
    fn least_loss_of(&self, pi: &[f64]) -> f64 {
        let curvature: f64 = self.curvatures.iter().zip(pi).map(|(a, pi)| a * pi).sum();
        let mean: Vec<f64> = (0..self.centres[0].len())
            .map(|i| {
                (0..pi.len()).map(|k| pi[k] * self.curvatures[k] * self.centres[k][i]).sum::<f64>()
                    / curvature
            })
            .collect();
        self.losses(&mean).iter().zip(pi).map(|(loss, pi)| loss * pi).sum()
    }
}

impl Problem for Bowls {
    fn weights(&self) -> &[f64] {
        &self.weights
    }

    fn losses(&self, w: &[f64]) -> Vec<f64> {
        let distance = |c: &[f64]| -> f64 { w.iter().zip(c).map(|(w, c)| (w - c).powi(2)).sum() };
        (0..self.weights.len())
            .map(|k| self.curvatures[k] * distance(&self.centres[k]) + self.floors[k])
            .collect()
    }

    fn gradient(&self, w: &[f64], factors: &[f64]) -> Vec<f64> {
        let slope = |k: usize, i: usize| 2.0 * factors[k] * self.curvatures[k] * (w[i] - self.centres[k][i]);
        (0..w.len()).map(|i| (0..factors.len()).map(|k| slope(k, i)).sum()).collect()
    }

    fn strong_convexity(&self) -> f64 {
        1.0 // 2a with a ≥ 1/2
    }
}

fn settings(level: f64, nu: f64) -> Alternating {
    Alternating {
        theta: theta(level),
        nu: Smoothing::try_from(nu).unwrap(),
        inexactness: Inexactness { first: 1e-3, power: 4.0 },
        rounds: 300,
    }
}

#[test]
fn proposition_4_algorithm_1_ends_within_nu_over_2_theta_of_the_minimum() {
    for (seed, level) in [(21, 0.2), (22, 0.5), (23, 0.8), (24, 1.0)] {
        let bowls = Bowls::random(seed, 25, 4);
        let settings = settings(level, 0.02);
        let found = settings.run_graduated(&bowls, vec![3.0; 4]).unwrap();
        let losses = bowls.device_losses(&found.w);
        // Any mixture of P_θ bounds min F_θ from below by its own least loss.
        let pi = settings.nu.mixture(settings.theta, &losses).unwrap();
        let gap = superquantile(settings.theta, &losses).unwrap() - bowls.least_loss_of(pi.shares());
        assert!(gap <= settings.nu.get() / (2.0 * level), "θ = {level}: {gap}");
    }
}

#[test]
fn proposition_4_the_gradient_of_algorithm_1_vanishes() {
    for (seed, level) in [(21, 0.2), (22, 0.5), (23, 0.8), (24, 1.0)] {
        let bowls = Bowls::random(seed, 25, 4);
        let norms: Vec<f64> = [3, 30, 300]
            .map(|rounds| Alternating { rounds, ..settings(level, 0.1) })
            .map(|settings| settings.run(&bowls, vec![3.0; 4]).unwrap().gradient_norm)
            .to_vec();
        assert!(norms[2] < 1e-3, "θ = {level}: {norms:?}");
        assert!(norms[2] <= norms[0], "θ = {level}: {norms:?}");
    }
}

#[test]
fn equation_4_every_w_step_leaves_no_more_than_its_inexactness() {
    let bowls = Bowls::random(25, 25, 4);
    let settings = Alternating { rounds: 12, ..settings(0.3, 0.1) };
    let exact = Inexactness { first: 1e-13, power: 0.0 };
    for rounds in 1..settings.rounds {
        let before = Alternating { rounds, ..settings }.run(&bowls, vec![2.0; 4]).unwrap();
        let step = Alternating { rounds: rounds + 1, ..settings }.run(&bowls, vec![2.0; 4]).unwrap();
        let best = Alternating { rounds: 1, inexactness: exact, ..settings }.run(&bowls, before.w).unwrap();
        let eta = step.rounds.last().unwrap().eta;
        let value = |w: &[f64]| settings.nu.objective(settings.theta, eta, &bowls.device_losses(w));
        assert!(value(&step.w) - value(&best.w) <= settings.inexactness.at(rounds) + 1e-12);
    }
}

fn two_thirds() -> Illustration {
    Illustration::new(theta(2.0 / 3.0), 1)
}

fn worst(samples: &[MixtureLoss], loss: impl Fn(&MixtureLoss) -> f64) -> f64 {
    samples.iter().map(loss).fold(f64::NEG_INFINITY, f64::max)
}

#[test]
fn illustration_w_1_is_the_mean_of_the_means() {
    let Illustration { means: [a, b, c], w_full, .. } = two_thirds();
    for i in 0..2 {
        assert!((w_full[i] - (a[i] + b[i] + c[i]) / 3.0).abs() < 1e-6, "{w_full:?}");
    }
}

#[test]
fn illustration_w_two_thirds_is_the_midpoint_of_the_longest_side() {
    let Illustration { means: [a, _, c], w_theta, .. } = two_thirds();
    for i in 0..2 {
        assert!((w_theta[i] - a[i].midpoint(c[i])).abs() < 1e-6, "{w_theta:?}");
    }
}

#[test]
fn illustration_each_model_is_better_on_some_mixtures_and_w_theta_on_the_worst() {
    let illustration = two_thirds();
    assert!(illustration.simplex.iter().any(|point| point.theta < point.full));
    assert!(illustration.simplex.iter().any(|point| point.theta > point.full));
    let samples = &illustration.samples;
    assert!(worst(samples, |sample| sample.theta) < worst(samples, |sample| sample.full));
}
