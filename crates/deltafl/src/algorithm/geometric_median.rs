//! The geometric median of the updates: robust federated aggregation (Pillutla et al., "Robust
//! Aggregation for Federated Learning", 2022).
//!
//! ```text
//! w_{t+1} = w_t + argmin_z Σ α_k ‖z − (w_k − w_t)‖
//! ```
//!
//! The smoothed Weiszfeld algorithm starts from the weighted mean and computes z ← Σ β_k u_k / Σ
//! β_k with β_k = α_k / max(ν, ‖z − u_k‖), ν = 10⁻⁶. The server sees the update of each device, so
//! only open simulations can use it. (The paper computes each iteration in a secure sum.)

use super::median::EACH_UPDATE;
use super::{Algorithm, AlgorithmParts};
use crate::aggregation::{Aggregation, DeviceUpdate, weighted_mean};
use crate::options::{OptionDefault, OptionKind, OptionSpec, OptionValue};

/// The geometric median.
pub static GEOMETRIC_MEDIAN: Algorithm = Algorithm {
    kind: "geometric-median",
    title: "Geometric median",
    about: "the server takes the geometric median of the updates",
    options: &[OptionSpec::new(
        "iterations",
        OptionKind::Whole(1),
        OptionDefault::Value(OptionValue::Whole(3)),
        "the number of Weiszfeld iterations",
        OptionValue::Whole(3),
    )
    .with_symbol("R")],
    build: |options| {
        let median = Weiszfeld { iterations: options.whole("iterations")? };
        Ok(AlgorithmParts { aggregation: Some(Box::new(median)), ..AlgorithmParts::default() })
    },
    weightings: &[],
    corrections: &[],
    requires: EACH_UPDATE,
};

/// ν, the least distance.
const LEAST_DISTANCE: f64 = 1e-6;

/// The smoothed Weiszfeld algorithm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Weiszfeld {
    iterations: u64,
}

impl Aggregation for Weiszfeld {
    fn aggregate(&self, updates: &[DeviceUpdate]) -> Vec<f64> {
        let weights: Vec<f64> = updates.iter().map(|update| update.weight).collect();
        let mut median = weighted_mean(updates, &weights);
        for _ in 0..self.iterations {
            let near = |update: &DeviceUpdate| {
                update.weight / update.squared_distance(&median).sqrt().max(LEAST_DISTANCE)
            };
            let weights: Vec<f64> = updates.iter().map(near).collect();
            median = weighted_mean(updates, &weights);
        }
        median
    }
}
