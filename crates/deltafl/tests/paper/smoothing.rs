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
        // Eighths, powers of two and a total weight of 16 or 32: every h' is exact, and so are its
        // zeros.
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

#[test]
fn theorem_on_infimal_convolution_holds_for_g_nu() {
    // g_ν smooths (ρ)₊ = max over γ ∈ [0, 1] of ργ, with ω(γ) = (γ² − 1)/2 in [−1/2, 0].
    let grid = |steps: u32| (0..=steps).map(move |i| f64::from(i) / f64::from(steps));
    for value in [0.1, 0.7, 3.0] {
        for rho in grid(60).map(|share| 10.0 * (share - 0.5)) {
            let dual = |gamma: f64| rho * gamma - value * (gamma * gamma - 1.0) / 2.0;
            let best = grid(20_000).max_by(|a, b| dual(*a).total_cmp(&dual(*b))).unwrap();
            assert!((nu(value).plus(rho) - dual(best)).abs() < 1e-7, "ν = {value}, ρ = {rho}");
            assert!((nu(value).slope(rho) - best).abs() < 1e-4, "the gradient is the argmax");
            // For ν₁ ≥ ν₂: (ν₁ − ν₂) inf ω ≤ g_ν₂ − g_ν₁ ≤ (ν₁ − ν₂) sup ω.
            let wider = value + 0.5;
            let fall = nu(value).plus(rho) - nu(wider).plus(rho);
            assert!((-0.25 - 1e-12..=1e-12).contains(&fall), "{fall}");
        }
    }
}

#[test]
fn smoothed_objective_is_jointly_convex() {
    let mut rng = rng(15);
    for _ in 0..300 {
        let (theta, nu) = (random_theta(&mut rng), nu(rng.random_range(0.01..5.0)));
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
        let joint = nu.objective(theta, between(eta, mu), &at(between(w, v)));
        let ends = between(nu.objective(theta, eta, &at(w)), nu.objective(theta, mu, &at(v)));
        assert!(joint <= ends + 1e-9, "{joint} {ends}");
    }
}

#[test]
fn smoothed_gradient_in_w_is_l_w_lipschitz() {
    // F_k(w) = b √(1 + ‖w − c_k‖²): b-Lipschitz and b-smooth, so L_w = (b + b²/ν)/θ.
    let mut rng = rng(16);
    let mut closest: f64 = 0.0;
    for _ in 0..300 {
        let (level, value) = (rng.random_range(0.05..1.0), rng.random_range(0.05..2.0));
        let (nu, b) = (nu(value), rng.random_range(0.5..3.0));
        let centres: Vec<[f64; 2]> = (0..8).map(|_| rng.random::<[f64; 2]>()).collect();
        let eta = rng.random_range(0.5..2.0) * b;
        let gradient = |w: [f64; 2]| {
            let mut sum = [0.0; 2];
            for c in &centres {
                let root = (1.0 + (w[0] - c[0]).powi(2) + (w[1] - c[1]).powi(2)).sqrt();
                let share = nu.slope(b * root - eta) / (8.0 * level);
                (0..2).for_each(|i| sum[i] += share * b * (w[i] - c[i]) / root);
            }
            sum
        };
        let constant = (b + b * b / value) / level;
        let w = [rng.random_range(-2.0..2.0), rng.random_range(-2.0..2.0)];
        let v = [w[0] + rng.random_range(-0.1..0.1), w[1] + rng.random_range(-0.1..0.1)];
        let apart = |x: [f64; 2], y: [f64; 2]| (x[0] - y[0]).hypot(x[1] - y[1]);
        let ratio = apart(gradient(w), gradient(v)) / (constant * apart(w, v));
        assert!(ratio <= 1.0 + 1e-9, "{ratio}");
        closest = closest.max(ratio);
    }
    assert!(closest > 0.2, "a bound that nothing comes near tests nothing: {closest}");
}

#[test]
fn lemma_on_level_sets_the_smoothed_objective_is_linear_outside_the_losses() {
    let mut rng = rng(17);
    for _ in 0..200 {
        let (level, value) = (rng.random_range(0.05..0.95), rng.random_range(0.01..3.0));
        let losses: Vec<DeviceLoss> =
            (0..15).map(|_| device(rng.random_range(-3.0..3.0), rng.random_range(0.1..1.0))).collect();
        let (theta, nu) = (theta(level), nu(value));
        let at = |eta: f64| nu.objective(theta, eta, &losses);
        let least = losses.iter().map(DeviceLoss::loss).fold(f64::INFINITY, f64::min) - value;
        let greatest = losses.iter().map(DeviceLoss::loss).fold(f64::NEG_INFINITY, f64::max);
        // Slopes that depend on no loss: level sets in η are bounded, locally uniformly in w.
        assert!((at(greatest + 2.0) - at(greatest) - 2.0).abs() < 1e-9);
        assert!((at(greatest) - greatest - value / (2.0 * level)).abs() < 1e-9);
        assert!((at(least - 2.0) - at(least) - 2.0 * (1.0 - level) / level).abs() < 1e-9);
        let minimisers = nu.minimisers(theta, &losses).unwrap();
        assert!(minimisers.least >= least - 1e-9 && minimisers.greatest <= greatest + 1e-9);
    }
}

#[test]
fn lemma_on_the_subdifferential_every_minimiser_eta_has_the_same_gradient() {
    let mut rng = rng(18);
    let mut intervals = 0;
    for _ in 0..2000 {
        // Few devices with whole weights, so that a sum of them often is θ of all and η is free in
        // an interval.
        let losses: Vec<DeviceLoss> = (0..4)
            .map(|_| device(rng.random_range(0.0..4.0), f64::from(rng.random_range(1..3_u32))))
            .collect();
        let (theta, nu) = (theta(0.5), nu(rng.random_range(0.01..0.5)));
        let minimisers = nu.minimisers(theta, &losses).unwrap();
        intervals += u32::from(minimisers.greatest > minimisers.least + 1e-6);
        for d in &losses {
            let shares = [minimisers.least, minimisers.greatest].map(|eta| nu.slope(d.loss() - eta));
            assert!((shares[0] - shares[1]).abs() < 1e-9, "{shares:?}");
        }
    }
    assert!(intervals > 100, "{intervals}");
}
