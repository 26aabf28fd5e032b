//! Conformity, the superquantile and its dual (sections 2 and 3).

use deltafl::superquantile::mixture::Mixture;
use deltafl::superquantile::{Conformity, DeviceLoss, objective, quantile, superquantile};
use rand::RngExt;

use crate::{device, random_losses, random_theta, rng, theta};

/// A mixture in P_θ: any mixture, drawn towards α until it conforms.
fn random_member(theta: Conformity, training: &Mixture, rng: &mut impl rand::Rng) -> Mixture {
    let spikes: Vec<f64> = training.shares().iter().map(|_| rng.random_range(0.0..1.0_f64).powi(6)).collect();
    let total: f64 = spikes.iter().sum();
    // π = (1−s)·α + s·p has π_k/α_k = 1 + s·(p_k/α_k − 1), at most 1/θ for the s chosen here.
    let steepest =
        spikes.iter().zip(training.shares()).map(|(p, alpha)| p / total / alpha).fold(1.0, f64::max);
    let room = if steepest > 1.0 { (1.0 / theta.get() - 1.0) / (steepest - 1.0) } else { 1.0 };
    let s = room.min(1.0);
    let blend = spikes.iter().zip(training.shares()).map(|(p, alpha)| (1.0 - s) * alpha + s * p / total);
    Mixture::new(blend.collect()).unwrap()
}

#[test]
fn definition_1_conformity_is_in_the_unit_interval_and_bounds_every_share() {
    let mut rng = rng(1);
    for _ in 0..300 {
        let losses = random_losses(&mut rng);
        let training = Mixture::of_training(&losses).unwrap();
        let pi = random_member(theta(0.2), &training, &mut rng);
        let conformity = pi.conformity(&training).unwrap().get();
        for (pi, alpha) in pi.shares().iter().zip(training.shares()) {
            assert!(*pi <= alpha / conformity * (1.0 + 1e-12));
            assert!(*pi >= alpha - (1.0 - conformity) - 1e-12);
        }
        assert_eq!(training.conformity(&training), Some(Conformity::FULL));
    }
}

#[test]
fn property_2_duality() {
    let mut rng = rng(2);
    for case in 0..2000 {
        let (losses, theta) = (random_losses(&mut rng), random_theta(&mut rng));
        let minimum_over_eta = superquantile(theta, &losses).unwrap();
        let maximum_over_p_theta = Mixture::worst_case(theta, &losses).unwrap().loss(&losses);
        let size = losses.iter().map(|d| d.loss().abs()).fold(0.0, f64::max);
        let error = (minimum_over_eta - maximum_over_p_theta).abs();
        assert!(error <= 1e-12 * size, "case {case}: {error:e} of {size}");
    }
}

#[test]
fn property_2_no_member_of_p_theta_has_a_larger_loss_and_no_eta_a_smaller_objective() {
    let mut rng = rng(3);
    for _ in 0..300 {
        let (losses, theta) = (random_losses(&mut rng), random_theta(&mut rng));
        let training = Mixture::of_training(&losses).unwrap();
        let size = losses.iter().map(|d| d.loss().abs()).fold(1e-9, f64::max);
        let value = superquantile(theta, &losses).unwrap();
        for _ in 0..20 {
            let pi = random_member(theta, &training, &mut rng);
            assert!(pi.conforms(theta, &training));
            assert!(pi.loss(&losses) <= value + 1e-9 * size);
            let eta = size * rng.random_range(-1.5..1.5);
            assert!(objective(theta, eta, &losses) >= value - 1e-9 * size);
        }
    }
}

#[test]
fn eta_star_is_the_weighted_quantile() {
    let mut rng = rng(4);
    for _ in 0..500 {
        let (losses, theta) = (random_losses(&mut rng), random_theta(&mut rng));
        let eta = quantile(theta, &losses).unwrap();
        let total: f64 = losses.iter().map(DeviceLoss::weight).sum();
        let weight_of = |keep: &dyn Fn(f64) -> bool| -> f64 {
            losses.iter().filter(|d| keep(d.loss())).map(DeviceLoss::weight).sum()
        };
        assert!(weight_of(&|x| x <= eta) >= (1.0 - theta.get()) * total * (1.0 - 1e-12));
        assert!(weight_of(&|x| x < eta) <= (1.0 - theta.get()) * total + 1e-12 * total);
    }
}

#[test]
fn the_superquantile_of_a_continuous_loss_is_the_mean_above_its_quantile() {
    // Uniform on [0, 1]: S(θ) = 1 − θ/2.
    let losses: Vec<_> = (0..1000).map(|k| device((f64::from(k) + 0.5) / 1000.0, 1.0)).collect();
    for level in [0.1, 0.25, 0.5, 0.9, 1.0] {
        let value = superquantile(theta(level), &losses).unwrap();
        assert!((value - (1.0 - level / 2.0)).abs() < 1e-12, "{value} at {level}");
    }
}

#[test]
fn property_3_convexity() {
    let mut rng = rng(5);
    for _ in 0..300 {
        let theta = random_theta(&mut rng);
        // F_k(w) = a (w − c)² + b, convex on the line.
        let devices: Vec<[f64; 4]> = (0..20).map(|_| rng.random::<[f64; 4]>()).collect();
        let at = |w: f64| -> Vec<DeviceLoss> {
            devices
                .iter()
                .map(|[a, b, c, weight]| device(a * (w - 4.0 * c).powi(2) + b, weight + 0.1))
                .collect()
        };
        let (w, v, s) = (rng.random_range(-5.0..5.0), rng.random_range(-5.0..5.0), rng.random::<f64>());
        let (eta, mu) = (rng.random_range(-5.0..50.0), rng.random_range(-5.0..50.0));
        let between = |x: f64, y: f64| (1.0 - s) * x + s * y;

        let joint = objective(theta, between(eta, mu), &at(between(w, v)));
        assert!(joint <= between(objective(theta, eta, &at(w)), objective(theta, mu, &at(v))) + 1e-9);
        let value = |w: f64| superquantile(theta, &at(w)).unwrap();
        assert!(value(between(w, v)) <= between(value(w), value(v)) + 1e-9);
    }
}
