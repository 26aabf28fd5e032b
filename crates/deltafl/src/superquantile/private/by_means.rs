//! A quantile as an iterated weighted mean: the paper's majorisation-minimisation (appendix).
//!
//! ```text
//! μ'  = (Σ β_k x_k + (2τ−1) Σ α_k) / Σ β_k = μ + G(μ) / Σ β_k        τ = 1 − θ
//! β_k = α_k / |x_k − μ|_f                                            |r|_f = max(|r|, f)
//! G   = Σ β_k (x_k − μ) + (2τ−1) Σ α_k
//! ```
//!
//! The mean relative to μ is mathematically equivalent, and bounds each term by α_k in fixed point.
//! The published iteration stalls at a data point, where β_k diverges and identifies its device.
//! The floor f, one hundredth of the range of losses, prevents both
//! (docs/src/explanation/paper-choices.md).
//!
//! G does not increase with μ. With the floor, it bounds the quantile q:
//!
//! ```text
//! G(μ) > 0  ⇒  q > μ − f        if μ ≥ q + f, all x_k ≤ q count fully: G ≤ 2 (P(F>q) − θ) ≤ 0
//! G(μ) ≤ 0  ⇒  q ≤ μ + f        if μ < q − f, all x_k ≥ q count fully: G ≥ 2 (P(F≥q) − θ) > 0
//! ```
//!
//! The search ends when the two bounds are close, not when the steps are short, because a short
//! step does not bound the remaining distance. A step that is shorter than the tolerance or
//! outside the bounds is replaced by a step that moves a bound.

use super::super::{Conformity, DeviceLoss, kept_mass};
use super::bins::Bins;
use super::loss_range::LossRange;
use super::{QuantileQuery, SearchState, whole_weight};

/// The three sums: Σ β_k (x_k − μ), Σ β_k·floor and Σ α_k.
pub(super) const ANSWER_LEN: usize = 3;

/// One in the fixed-point format of the first two sums.
const ONE: f64 = (1_u64 << 29) as f64;

/// The largest weight: 2²⁰ · 2²⁹ · 10⁴ < 2⁶³.
const MOST_WEIGHT: u64 = 1 << 20;

/// The floor as a share of the range.
const FLOOR: f64 = 0.01;

/// The required distance of the bounds as a share of the floor, beyond the unavoidable two floors.
const TOLERANCE: f64 = 0.5;

/// The distance of most losses from the quantile, in harmonic means of |x_k − μ|.
const SPREADS: f64 = 2.0;

/// A little more than one, to allow for the rounding of G in fixed point.
const ROUNDING: f64 = 1.001;

/// The number of sums after which the search ends with its current bounds.
const MOST_SUMS: u32 = 256;

/// Computes a device's contribution to the sums. The numbers are signed, modulo 2⁶⁴.
pub(super) fn answer(mu: f64, floor: f64, device: DeviceLoss) -> [u64; ANSWER_LEN] {
    let alpha = whole_weight(device).min(MOST_WEIGHT);
    let weight = alpha as f64 * ONE;
    let distance = device.loss() - mu;
    let pull = weight * (distance / floor).clamp(-1.0, 1.0);
    // Far away β_k must not vanish, or the mean step would be unbounded.
    let beta = (weight * (floor / distance.abs()).min(1.0)).max(1.0);
    [pull.round() as i64 as u64, beta.round() as u64, alpha]
}

/// The iteration.
#[derive(Clone, Debug)]
pub(super) struct ByMeans {
    theta: Conformity,
    mu: f64,
    floor: f64,
    /// The largest μ so far with G > 0.
    rising: Option<f64>,
    /// The smallest μ so far with G ≤ 0.
    falling: Option<f64>,
    /// The length of the next step that does not follow the mean.
    stride: f64,
    /// The weighted harmonic mean of |x_k − μ|_f at the last sum.
    spread: f64,
    sums: u32,
}

impl ByMeans {
    /// Starts in the middle of the range.
    pub(super) fn new(theta: Conformity, range: LossRange) -> Self {
        let mut search = Self {
            theta,
            mu: range.lower().midpoint(range.upper()),
            floor: 0.0,
            rising: None,
            falling: None,
            stride: 0.0,
            spread: 0.0,
            sums: 0,
        };
        search.set_scale(range.span());
        search
    }

    pub(super) fn query(&self) -> QuantileQuery {
        QuantileQuery::MeanStep { mu: self.mu, floor: self.floor }
    }

    pub(super) fn take(&mut self, sum: &[u64]) -> SearchState {
        let &[pull, beta, alpha] = sum else { return SearchState::Nobody };
        if alpha == 0 {
            return SearchState::Nobody;
        }
        self.sums += 1;
        let (alpha, beta) = (alpha as f64, (beta as f64 / ONE).max(1.0 / ONE));
        let gradient = pull as i64 as f64 / ONE + alpha - 2.0 * kept_mass(self.theta, alpha);
        self.spread = self.floor * alpha / beta;
        self.note_bound(gradient);
        if self.sums == MOST_SUMS || self.gap() <= TOLERANCE * self.floor {
            return self.ended();
        }
        let mean_step = gradient * (self.floor / beta);
        if self.gap().is_infinite() && FLOOR * self.spread > self.floor {
            self.set_scale(self.spread); // far out of the range: a wider floor keeps both bounds true
        }
        let last = self.mu;
        self.step(mean_step);
        let moved = (self.mu - last).abs() > 0.0;
        if moved { SearchState::Searching } else { self.ended() }
    }

    fn set_scale(&mut self, scale: f64) {
        self.floor = (FLOOR * scale).min(Bins::LIMIT);
        self.stride = TOLERANCE * self.floor;
    }

    fn note_bound(&mut self, gradient: f64) {
        // At θ = 1 the quantile is the least loss, and G = 0 as long as μ + f is below it.
        let rises = gradient > 0.0 || (gradient == 0.0 && self.theta == Conformity::FULL);
        let bound = if rises { &mut self.rising } else { &mut self.falling };
        *bound = Some(self.mu); // μ never steps over a bound, so that this one is closer
    }

    /// Returns the distance of the bounds.
    fn gap(&self) -> f64 {
        match (self.rising, self.falling) {
            (Some(rising), Some(falling)) => falling - rising,
            _ => f64::INFINITY,
        }
    }

    /// Moves μ by a mean step, or by a step that moves a bound.
    fn step(&mut self, mean_step: f64) {
        let up = self.falling.is_none_or(|falling| falling > self.mu);
        let stalls = mean_step.abs() < self.stride;
        let next = self.mu + mean_step;
        self.mu = match (self.rising, self.falling) {
            (Some(rising), Some(falling)) if stalls || next <= rising || next >= falling => {
                rising.midpoint(falling)
            }
            _ if stalls => self.stride_on(up),
            _ => next,
        }
        .clamp(-Bins::LIMIT, Bins::LIMIT);
    }

    fn stride_on(&mut self, up: bool) -> f64 {
        let stride = self.stride;
        self.stride *= 2.0;
        if up { self.mu + stride } else { self.mu - stride }
    }

    fn ended(&self) -> SearchState {
        let eta = self.rising.map_or(f64::MIN, |rising| rising - ROUNDING * self.floor);
        // Devices that dropped out between two sums may have reversed the bounds.
        SearchState::Found { eta, resolution: self.gap().max(0.0) + 2.0 * ROUNDING * self.floor }
    }

    /// Returns the interval of most of the weight, estimated from the spread about μ.
    pub(super) fn occupied(&self) -> (f64, f64) {
        (self.mu - SPREADS * self.spread, self.mu + SPREADS * self.spread)
    }
}
