//! Mean estimation on three Gaussians.

use super::Point;
use crate::algorithm::alternating::ConvexProblem;
use crate::superquantile::{Conformity, DeviceLoss, superquantile};

/// The trace of the identity covariance: the smallest possible loss.
const NOISE: f64 = 2.0;

/// Three Gaussians in the plane, with identity covariance and equal weights.
pub(super) struct Gaussians {
    means: [Point; 3],
    weights: [f64; 3],
}

impl Gaussians {
    pub(super) fn new(means: [Point; 3]) -> Self {
        Self { means, weights: [1.0; 3] }
    }

    /// Returns F(w; p_π).
    pub(super) fn mixture_loss(&self, w: Point, pi: [f64; 3]) -> f64 {
        self.losses(&w).iter().zip(pi).map(|(loss, share)| share * loss).sum()
    }
}

impl Gaussians {
    /// Returns F_θ(w) = max over π ∈ P_θ of F(w; p_π).
    pub(super) fn worst_loss(&self, w: Point, theta: Conformity) -> f64 {
        let losses = self.losses(&w).into_iter().zip(self.weights);
        let losses =
            losses.map(|(loss, weight)| DeviceLoss::new(loss, weight)).collect::<Result<Vec<_>, _>>();
        let losses = losses.expect("squared distances are finite");
        superquantile(theta, &losses).expect("there are three devices")
    }
}

impl ConvexProblem for Gaussians {
    fn weights(&self) -> &[f64] {
        &self.weights
    }

    fn losses(&self, w: &[f64]) -> Vec<f64> {
        self.means.iter().map(|mean| (w[0] - mean[0]).powi(2) + (w[1] - mean[1]).powi(2) + NOISE).collect()
    }

    fn gradient(&self, w: &[f64], factors: &[f64]) -> Vec<f64> {
        let along = |axis: usize| {
            self.means.iter().zip(factors).map(|(mean, factor)| 2.0 * factor * (w[axis] - mean[axis])).sum()
        };
        vec![along(0), along(1)]
    }

    fn strong_convexity(&self) -> f64 {
        2.0
    }

    fn least_loss(&self) -> f64 {
        NOISE
    }
}
