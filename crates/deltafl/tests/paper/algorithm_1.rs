//! Alternating minimisation and the illustration (sections 3 and 4).

use deltafl::algorithm::alternating::{
    Alternating, ConvexProblem, Inexactness, StepSizes, StochasticAlternating, StochasticProblem,
};
use deltafl::illustration::{Illustration, MixtureLoss};
use deltafl::superquantile::smooth::Smoothing;
use deltafl::superquantile::{DeviceLoss, superquantile};
use rand::{Rng, RngExt};

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

impl ConvexProblem for Bowls {
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

/// A lower bound of min F_θ,ν: for every π of P_θ,
/// F_θ,ν(w) ≥ Σ_k π_k F_k(w) − (νθ/2) Σ_k π_k²/α_k + ν/(2θ), by the dual form of g_ν.
fn least_smoothed(bowls: &Bowls, settings: &Alternating, w: &[f64]) -> f64 {
    let (theta, nu) = (settings.theta.get(), settings.nu.get());
    let pi = settings.nu.mixture(settings.theta, &bowls.device_losses(w)).unwrap();
    let total: f64 = bowls.weights.iter().sum();
    let spread: f64 = pi.shares().iter().zip(&bowls.weights).map(|(pi, a)| pi * pi * total / a).sum();
    bowls.least_loss_of(pi.shares()) - nu * theta / 2.0 * spread + nu / (2.0 * theta)
}

#[test]
fn proposition_4_b_the_subdifferential_of_algorithm_1_comes_to_zero() {
    for (seed, level) in [(21, 0.2), (22, 0.5), (23, 0.8)] {
        let bowls = Bowls::random(seed, 25, 4);
        let distances = [3, 30, 300].map(|rounds| {
            let settings = Alternating { rounds, ..settings(level, 0.1) };
            let w = settings.run(&bowls, vec![3.0; 4]).unwrap().w;
            let losses = bowls.device_losses(&w);
            let minimisers = settings.nu.minimisers(settings.theta, &losses).unwrap();
            // ∂F_θ,ν(w) is the hull of ∇_w F̄(w, η) over the minimisers η; its distance to 0 is at
            // most that of any.
            let kept = level * bowls.weights.iter().sum::<f64>();
            let at = |eta: f64| {
                let shares: Vec<f64> =
                    losses.iter().map(|d| d.weight() * settings.nu.slope(d.loss() - eta) / kept).collect();
                ConvexProblem::gradient(&bowls, &w, &shares).iter().map(|g| g * g).sum::<f64>().sqrt()
            };
            at(minimisers.least).min(at(minimisers.greatest))
        });
        assert!(distances[2] < 1e-3 && distances[2] <= distances[0], "θ = {level}: {distances:?}");
    }
}

#[test]
fn proposition_4_c_algorithm_1_comes_to_the_minimum_of_the_smoothed_objective() {
    for (seed, level) in [(21, 0.2), (22, 0.5), (23, 0.8)] {
        let bowls = Bowls::random(seed, 25, 4);
        let gaps = [3, 30, 300].map(|rounds| {
            let settings = Alternating { rounds, ..settings(level, 0.1) };
            let w = settings.run(&bowls, vec![3.0; 4]).unwrap().w;
            let value = settings.nu.superquantile(settings.theta, &bowls.device_losses(&w)).unwrap();
            value - least_smoothed(&bowls, &settings, &w)
        });
        assert!(gaps.iter().all(|gap| *gap > -1e-9), "a lower bound is one: {gaps:?}");
        assert!(gaps[2] < 1e-6 && gaps[2] <= gaps[0], "θ = {level}: {gaps:?}");
    }
}

#[test]
fn proposition_4_d_algorithm_1_itself_ends_within_delta_of_the_minimum() {
    for (seed, level) in [(21, 0.2), (22, 0.5), (23, 0.8)] {
        let bowls = Bowls::random(seed, 25, 4);
        let delta = 0.1;
        // ν = 2δθ, as the proposition has it.
        let settings = settings(level, 2.0 * delta * level);
        let found = settings.run(&bowls, vec![3.0; 4]).unwrap();
        let losses = bowls.device_losses(&found.w);
        let pi = settings.nu.mixture(settings.theta, &losses).unwrap();
        let gap = superquantile(settings.theta, &losses).unwrap() - bowls.least_loss_of(pi.shares());
        assert!(gap <= delta, "θ = {level}: {gap}");
    }
}

/// Bowls seen through examples ξ = c_k ± 1/2 in each coordinate: f(w; ξ) = a_k ‖w − ξ‖² + b_k − d
/// a_k/4.
impl StochasticProblem for Bowls {
    fn weights(&self) -> &[f64] {
        &self.weights
    }

    fn loss(&self, device: usize, w: &[f64]) -> f64 {
        self.losses(w)[device]
    }

    fn gradient(&self, device: usize, w: &[f64]) -> Vec<f64> {
        w.iter().zip(&self.centres[device]).map(|(w, c)| 2.0 * self.curvatures[device] * (w - c)).collect()
    }

    fn sampled_gradient(&self, device: usize, w: &[f64], rng: &mut dyn Rng) -> Vec<f64> {
        let gradient = StochasticProblem::gradient(self, device, w);
        let noise = |rng: &mut dyn Rng| {
            if rng.random_bool(0.5) { self.curvatures[device] } else { -self.curvatures[device] }
        };
        gradient.into_iter().map(|g| g + noise(&mut *rng)).collect()
    }
}

/// F_k(w) = 1 − exp(−‖w − c_k‖²/2): bounded, Lipschitz and smooth, and convex only near c_k.
struct Wells {
    centres: Vec<[f64; 2]>,
    weights: Vec<f64>,
}

impl Wells {
    fn random(seed: u64, devices: usize) -> Self {
        let mut rng = rng(seed);
        Self {
            centres: (0..devices)
                .map(|_| [rng.random_range(-1.5..1.5), rng.random_range(-1.5..1.5)])
                .collect(),
            weights: (0..devices).map(|_| f64::from(rng.random_range(1..20_u32))).collect(),
        }
    }

    fn offset(&self, device: usize, w: &[f64]) -> [f64; 2] {
        [w[0] - self.centres[device][0], w[1] - self.centres[device][1]]
    }
}

impl StochasticProblem for Wells {
    fn weights(&self) -> &[f64] {
        &self.weights
    }

    fn loss(&self, device: usize, w: &[f64]) -> f64 {
        let [x, y] = self.offset(device, w);
        1.0 - (-(x * x + y * y) / 2.0).exp()
    }

    fn gradient(&self, device: usize, w: &[f64]) -> Vec<f64> {
        let height = 1.0 - self.loss(device, w);
        self.offset(device, w).iter().map(|x| height * x).collect()
    }

    fn sampled_gradient(&self, device: usize, w: &[f64], rng: &mut dyn Rng) -> Vec<f64> {
        let gradient = self.gradient(device, w);
        gradient.into_iter().map(|g| g + rng.random_range(-0.5..0.5)).collect()
    }
}

fn stochastic(level: f64, nu: f64, rounds: u32) -> StochasticAlternating {
    StochasticAlternating {
        theta: theta(level),
        nu: Smoothing::try_from(nu).unwrap(),
        rate: StepSizes { first: 0.1, half: 300.0, power: 0.9 },
        steps: 60,
        rounds,
    }
}

#[test]
fn the_expectation_of_a_stochastic_step_is_the_gradient_of_the_smoothed_objective() {
    // 400 000 first steps of rate 1 from one point, at the first η.
    let wells = Wells::random(31, 6);
    let start = vec![0.7, -0.4];
    let settings = StochasticAlternating {
        rate: StepSizes { first: 1.0, half: 1.0, power: 1.0 },
        steps: 1,
        rounds: 1,
        ..stochastic(0.5, 0.2, 1)
    };
    let (mut mean, draws) = ([0.0; 2], 400_000);
    for seed in 0..draws {
        let w = settings.run(&wells, start.clone(), seed).unwrap().w;
        for i in 0..2 {
            mean[i] += (start[i] - w[i]) / draws as f64;
        }
    }
    let norm = settings.run(&wells, start, 0).unwrap().iterates[0].gradient_norm;
    assert!((mean[0].hypot(mean[1]) - norm).abs() < 0.01, "{mean:?} {norm}");
}

#[test]
fn proposition_4_a_and_b_hold_for_losses_that_are_not_convex_in_20_of_20_seeds() {
    // If fewer than 86 % of all federations passed, 20 of 20 would pass with probability below
    // 0.05. The seeds were not used to choose the settings.
    for level in [0.3, 0.5, 0.8] {
        let failed: Vec<_> = (2001..2021)
            .filter_map(|seed| {
                let wells = Wells::random(seed, 12);
                let found = stochastic(level, 0.2, 120).run(&wells, vec![1.2, 1.2], seed).unwrap();
                let norm = |iterates: &[deltafl::algorithm::alternating::Iterate]| {
                    iterates.iter().map(|iterate| iterate.gradient_norm).fold(0.0, f64::max)
                };
                let (first, last) = (norm(&found.iterates[..10]), norm(&found.iterates[110..]));
                let falls = found.iterates[120].objective < found.iterates[0].objective;
                (last >= 0.03 || last >= first / 4.0 || !falls).then_some((seed, first, last))
            })
            .collect();
        assert!(failed.is_empty(), "θ = {level}: {failed:?}");
    }
}

#[test]
fn proposition_4_c_and_d_hold_for_a_stochastic_w_step() {
    for (seed, level) in [(21, 0.3), (22, 0.5), (23, 0.8)] {
        let bowls = Bowls::random(seed, 25, 4);
        let nu = 0.2;
        let found = stochastic(level, nu, 120).run(&bowls, vec![2.0; 4], seed).unwrap();
        let exact = settings(level, nu);
        let w = exact.run(&bowls, vec![2.0; 4]).unwrap().w;
        let least = least_smoothed(&bowls, &exact, &w);
        let gaps: Vec<f64> = found.iterates.iter().map(|iterate| iterate.objective - least).collect();
        assert!(gaps[120] < 1e-2 && gaps[120] < gaps[0] / 100.0, "θ = {level}: {} to {}", gaps[0], gaps[120]);
        let losses = bowls.device_losses(&found.w);
        let unsmoothed = superquantile(exact.theta, &losses).unwrap();
        assert!(unsmoothed <= least + 1e-2, "F_θ is below F_θ,ν: {unsmoothed} {least}");
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
