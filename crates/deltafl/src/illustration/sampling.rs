//! Mixtures of three devices: a grid on the simplex, and draws from P_θ.

use rand::{Rng, RngExt};

use crate::superquantile::Conformity;

/// Returns the mixtures whose shares are multiples of 1/`steps`.
pub(super) fn grid(steps: u32) -> impl Iterator<Item = [f64; 3]> {
    let share = move |i: u32| f64::from(i) / f64::from(steps);
    (0..=steps).flat_map(move |i| (0..=steps - i).map(move |j| [share(i), share(j), share(steps - i - j)]))
}

/// Draws a mixture uniformly from P_θ, for equal weights.
///
/// P_θ is the simplex restricted to π_k ≤ c = 1/(3θ). For c ≥ 1/2 it covers at least a quarter of
/// the simplex, and rejection sampling is used. For smaller c, the constraints leave the triangle π
/// = c − (3c − 1)λ for λ on the simplex.
pub(super) fn from_p_theta(theta: Conformity, rng: &mut impl Rng) -> [f64; 3] {
    let most = 1.0 / (3.0 * theta.get());
    if most < 0.5 {
        return from_simplex(rng).map(|lambda| most - (3.0 * most - 1.0) * lambda);
    }
    loop {
        let pi = from_simplex(rng);
        if pi.iter().all(|share| *share <= most) {
            return pi;
        }
    }
}

/// Draws a mixture uniformly from the simplex: the gaps between two uniform points in the unit
/// interval.
fn from_simplex(rng: &mut impl Rng) -> [f64; 3] {
    let (a, b) = (rng.random::<f64>(), rng.random::<f64>());
    let (first, second) = (a.min(b), a.max(b));
    [first, second - first, 1.0 - second]
}
