//! The w-step: accelerated gradient descent on F̄_θ,ν(·, η) until its certificate is small enough.

use super::ConvexProblem;
use crate::superquantile::Conformity;
use crate::superquantile::smooth::Smoothing;

/// The maximum number of gradient steps of a w-step.
const MOST_STEPS: u32 = 20_000;

/// The curvature beyond which a step is lost in rounding.
const MOST_CURVATURE: f64 = 1e15;

/// F̄_θ,ν(·, η) and the curvature observed in the last steps.
pub(super) struct Descent<'a, P> {
    theta: Conformity,
    nu: Smoothing,
    problem: &'a P,
    total_weight: f64,
    curvature: f64,
}

/// The result of a w-step.
pub(super) struct Step {
    pub(super) w: Vec<f64>,
    pub(super) certificate: f64,
    pub(super) steps: u32,
}

/// Computes F̄_θ,ν(w, η) at a point.
struct Point {
    value: f64,
    gradient: Vec<f64>,
    /// (1/θ) Σ_k α_k γ_k, the mass of the devices that contribute curvature here.
    share: f64,
}

impl<'a, P: ConvexProblem> Descent<'a, P> {
    pub(super) fn new(theta: Conformity, nu: Smoothing, problem: &'a P) -> Self {
        let total_weight = problem.weights().iter().sum();
        Self { theta, nu, problem, total_weight, curvature: 1.0 }
    }

    /// ‖∇_w F̄_θ,ν(w, η)‖.
    pub(super) fn gradient_norm(&self, w: &[f64], eta: f64) -> f64 {
        norm_squared(&self.at(w, eta).gradient).sqrt()
    }

    /// Descends from `w` until the remaining decrease is at most `epsilon`.
    ///
    /// Nesterov's method with backtracking. It restarts when its momentum is an ascent direction.
    pub(super) fn run(&mut self, w: Vec<f64>, eta: f64, epsilon: f64) -> Step {
        let mut ahead = w.clone(); // the extrapolated point
        let mut last = w;
        let mut momentum = 1.0;
        let mut steps = 0;
        loop {
            let point = self.at(&ahead, eta);
            let certificate = self.certificate(&point);
            if certificate <= epsilon || steps == MOST_STEPS {
                return Step { w: ahead, certificate, steps };
            }
            let Some(next) = self.gradient_step(&ahead, &point, eta) else {
                return Step { w: ahead, certificate, steps };
            };
            let uphill = dot_difference(&point.gradient, &next, &last) > 0.0;
            let grown = (1.0 + f64::sqrt(1.0 + 4.0 * momentum * momentum)) / 2.0;
            let (factor, kept) = if uphill { (0.0, 1.0) } else { ((momentum - 1.0) / grown, grown) };
            ahead = next.iter().zip(&last).map(|(new, old)| new + factor * (new - old)).collect();
            (last, momentum) = (next, kept);
            steps += 1;
        }
    }

    /// Returns a bound on F̄(w, η) − min_v F̄(v, η).
    fn certificate(&self, point: &Point) -> f64 {
        let modulus = self.problem.strong_convexity() * point.share;
        if point.share > 0.0 { norm_squared(&point.gradient) / (2.0 * modulus) } else { 0.0 }
    }

    /// Takes a gradient step that achieves the decrease of its quadratic model. Returns `None` if
    /// rounding hides the decrease.
    fn gradient_step(&mut self, w: &[f64], point: &Point, eta: f64) -> Option<Vec<f64>> {
        let fall = norm_squared(&point.gradient) / 2.0;
        let noise = 4.0 * f64::EPSILON * point.value.abs();
        self.curvature *= 0.9;
        while self.curvature < MOST_CURVATURE {
            let next: Vec<f64> = w.iter().zip(&point.gradient).map(|(w, g)| w - g / self.curvature).collect();
            if self.value(&next, eta) <= point.value - fall / self.curvature + noise {
                return Some(next);
            }
            self.curvature *= 2.0;
        }
        self.curvature = 1.0;
        None
    }

    fn value(&self, w: &[f64], eta: f64) -> f64 {
        let terms = self.problem.losses(w).into_iter().zip(self.problem.weights());
        let excess: f64 = terms.map(|(loss, alpha)| alpha * self.nu.plus(loss - eta)).sum();
        eta + excess / (self.theta.get() * self.total_weight)
    }

    fn at(&self, w: &[f64], eta: f64) -> Point {
        let losses = self.problem.losses(w);
        let kept = self.theta.get() * self.total_weight;
        let terms = losses.iter().zip(self.problem.weights());
        let factors: Vec<f64> = terms.map(|(loss, alpha)| alpha * self.nu.slope(loss - eta) / kept).collect();
        Point {
            value: self.value(w, eta),
            gradient: self.problem.gradient(w, &factors),
            share: factors.iter().sum(),
        }
    }
}

fn norm_squared(vector: &[f64]) -> f64 {
    vector.iter().map(|x| x * x).sum()
}

/// Computes ⟨g, a − b⟩.
fn dot_difference(g: &[f64], a: &[f64], b: &[f64]) -> f64 {
    g.iter().zip(a).zip(b).map(|((g, a), b)| g * (a - b)).sum()
}
