//! One test per claim of the paper, named after it; `docs/src/reference/paper-map.md` lists them.

#![allow(clippy::unwrap_used, reason = "the helpers of tests are tests too")]

#[path = "paper/algorithm_1.rs"]
mod algorithm_1;
#[path = "paper/algorithm_2.rs"]
mod algorithm_2;
#[path = "paper/documented.rs"]
mod documented;
#[path = "paper/private_quantile.rs"]
mod private_quantile;
#[path = "paper/smoothing.rs"]
mod smoothing;
#[path = "paper/superquantile.rs"]
mod superquantile;

use deltafl::superquantile::{Conformity, DeviceLoss};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

fn rng(seed: u64) -> ChaCha8Rng {
    ChaCha8Rng::seed_from_u64(seed)
}

fn theta(level: f64) -> Conformity {
    Conformity::try_from(level).unwrap()
}

fn device(loss: f64, weight: f64) -> DeviceLoss {
    DeviceLoss::new(loss, weight).unwrap()
}

/// A conformity level: mostly one that a person would write, sometimes 1.
fn random_theta(rng: &mut ChaCha8Rng) -> Conformity {
    match rng.random_range(0..4) {
        0 => theta(rng.random_range(1e-3..1.0)),
        1 => Conformity::FULL,
        _ => theta(f64::from(rng.random_range(1..100_u32)) / 100.0),
    }
}

/// Up to 200 devices: heavy-tailed losses of either sign or a few that tie, weights in examples or
/// as shares.
fn random_losses(rng: &mut ChaCha8Rng) -> Vec<DeviceLoss> {
    let (tied, in_examples, scale) =
        (rng.random_bool(0.3), rng.random_bool(0.5), 10_f64.powi(rng.random_range(-3..6)));
    (0..rng.random_range(1..200))
        .map(|_| {
            let uniform = rng.random_range(-1.0..1.0_f64);
            let loss = if tied { (uniform * 4.0).round() } else { scale * uniform / (1.1 - uniform.abs()) };
            let skewed = rng.random_range(0.01..1.0_f64).powi(3);
            device(loss, if in_examples { (1e4 * skewed).ceil() } else { skewed })
        })
        .collect()
}
