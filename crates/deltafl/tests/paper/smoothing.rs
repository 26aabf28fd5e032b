//! The smoothed objective (section 4 and appendix).

use deltafl::superquantile::smooth::{Minimisers, Smoothing};
use deltafl::superquantile::{Conformity, DeviceLoss, objective};
use rand::RngExt;

use crate::{device, random_losses, random_theta, rng, theta};

fn nu(value: f64) -> Smoothing {
    Smoothing::try_from(value).unwrap()
}

#[test]
fn equation_6_g_nu_is_within_half_nu_of_the_positive_part() {
    let mut rng = rng(11);
    for _ in 0..2000 {
        let nu = nu(10_f64.powf(rng.random_range(-6.0..3.0)));
        let rho = nu.get() * rng.random_range(-3.0..3.0);
        let above = nu.plus(rho) - rho.max(0.0);
        assert!((-1e-15 * nu.get()..=nu.get() / 2.0 * (1.0 + 1e-15)).contains(&above), "{above} at {rho}");
    }
}

#[test]
fn equation_6_g_nu_is_1_lipschitz_and_its_slope_is_1_over_nu_lipschitz() {
    let mut rng = rng(12);
    for _ in 0..2000 {
        let nu = nu(rng.random_range(0.01..10.0));
        let (a, b) = (rng.random_range(-20.0..20.0), rng.random_range(-20.0..20.0_f64));
        assert!((nu.plus(a) - nu.plus(b)).abs() <= (a - b).abs() + 1e-12);
        assert!((nu.slope(a) - nu.slope(b)).abs() <= (a - b).abs() / nu.get() + 1e-12);
        // The slope is the derivative: for a convex function it lies between the secants.
        let h = 1e-3;
        let (before, after) = ((nu.plus(a) - nu.plus(a - h)) / h, (nu.plus(a + h) - nu.plus(a)) / h);
        assert!(before - 1e-9 <= nu.slope(a) && nu.slope(a) <= after + 1e-9);
    }
}

#[test]
fn equation_5_the_smoothed_objective_is_within_nu_over_2_theta() {
    let mut rng = rng(13);
    for _ in 0..1000 {
        let (losses, theta) = (random_losses(&mut rng), random_theta(&mut rng));
        let size = losses.iter().map(|d| d.loss().abs()).fold(1e-6, f64::max);
        let (nu, eta) = (nu(size * rng.random_range(1e-3..2.0)), size * rng.random_range(-2.0..2.0));
        let above = nu.objective(theta, eta, &losses) - objective(theta, eta, &losses);
        let most = nu.get() / (2.0 * theta.get());
        let rounding = 1e-12 * size / theta.get();
        assert!((-rounding..=most + rounding).contains(&above), "{above} of {most}");
    }
}

#[test]
fn smoothed_derivative_in_eta_is_1_over_nu_theta_lipschitz() {
    let mut rng = rng(14);
    for _ in 0..500 {
        let (losses, theta) = (random_losses(&mut rng), random_theta(&mut rng));
        let size = losses.iter().map(|d| d.loss().abs()).fold(1e-6, f64::max);
        let nu = nu(size * rng.random_range(1e-3..2.0));
        let (a, b) = (size * rng.random_range(-1.5..1.5), size * rng.random_range(-1.5..1.5_f64));
        let change = (nu.derivative(theta, a, &losses) - nu.derivative(theta, b, &losses)).abs();
        assert!(change <= (a - b).abs() / (nu.get() * theta.get()) + 1e-9);
    }
}

/// The paper's proof as a program: h' at all x_k and x_k − ν, quadratic in N.
fn minimisers_by_brute_force(nu: Smoothing, theta: Conformity, losses: &[DeviceLoss]) -> Minimisers {
    let slope = |eta: f64| nu.derivative(theta, eta, losses);
    let points = || losses.iter().flat_map(|d| [d.loss(), d.loss() - nu.get()]);
    let a = points().filter(|eta| slope(*eta) >= 0.0).fold(f64::INFINITY, f64::min);
    let b = points().filter(|eta| slope(*eta) <= 0.0).fold(f64::NEG_INFINITY, f64::max);
    if slope(a) > 0.0 {
        let crossing = b - slope(b) * (a - b) / (slope(a) - slope(b));
        Minimisers { least: crossing, greatest: crossing }
    } else {
        Minimisers { least: a, greatest: b }
    }
}

#[test]
fn minimisers_over_eta_agree_with_brute_force() {
    let mut rng = rng(15);
    let mut flat = 0;
    for _ in 0..5000 {
        // Eighths, powers of two and a total weight of 16 or 32: every h' is exact, and so are its zeros.
        let total = [16, 32][rng.random_range(0..2_usize)];
        let mut left = total;
        let mut losses = Vec::new();
        while left > 0 {
            let weight = rng.random_range(1..=left.min(8));
            left -= weight;
            losses.push(device(f64::from(rng.random_range(-16..16_i32)) / 8.0, f64::from(weight)));
        }
        let nu = nu(2_f64.powi(rng.random_range(-4..4)));
        let theta = theta(f64::from(rng.random_range(1..16_u32)) / 16.0);
        let ours = nu.minimisers(theta, &losses).unwrap();
        let brute = minimisers_by_brute_force(nu, theta, &losses);
        flat += u32::from(brute.least < brute.greatest);
        assert!((ours.least - brute.least).abs() <= 1e-12, "{ours:?} for {brute:?} of {losses:?}");
        assert!((ours.greatest - brute.greatest).abs() <= 1e-12, "{ours:?} for {brute:?} of {losses:?}");
    }
    assert!(flat > 300, "only {flat} cases had more than one minimiser");
}

#[test]
fn minimisers_over_eta_agree_with_brute_force_on_any_losses() {
    let mut rng = rng(16);
    for _ in 0..500 {
        let losses = random_losses(&mut rng);
        let theta = theta(rng.random_range(0.01..0.99));
        let size = losses.iter().map(|d| d.loss().abs()).fold(1e-6, f64::max);
        let nu = nu(size * 10_f64.powf(rng.random_range(-3.0..1.0)));
        let ours = nu.minimisers(theta, &losses).unwrap();
        let brute = minimisers_by_brute_force(nu, theta, &losses);
        // On a line that is nearly flat η is not well determined, but its objective is.
        for (ours, brute) in [(ours.least, brute.least), (ours.greatest, brute.greatest)] {
            let gap = nu.objective(theta, ours, &losses) - nu.objective(theta, brute, &losses);
            assert!(gap.abs() <= 1e-12 * size / theta.get(), "{ours} for {brute}");
        }
    }
}

#[test]
fn minimiser_for_a_nu_below_every_gap_has_the_closed_form() {
    let mut rng = rng(17);
    for _ in 0..1000 {
        let mut loss = 0.0;
        let losses: Vec<_> = (0..rng.random_range(2..30))
            .map(|_| {
                loss += rng.random_range(0.2..1.0);
                device(loss, rng.random_range(0.1..1.0))
            })
            .collect();
        let (nu, theta) = (nu(0.1), theta(rng.random_range(0.01..0.99)));
        let total: f64 = losses.iter().map(DeviceLoss::weight).sum();
        let mut below = 0.0;
        let boundary = losses.iter().find(|d| {
            below += d.weight() / total;
            below >= 1.0 - theta.get()
        });
        let boundary = boundary.unwrap();
        let share = boundary.weight() / total;
        let closed_form = boundary.loss() - nu.get() / share * (below - (1.0 - theta.get()));
        assert!((nu.minimisers(theta, &losses).unwrap().eta() - closed_form).abs() < 1e-9);
    }
}
