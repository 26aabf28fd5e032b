//! AFL: the worst mixture of the devices (Mohri et al., "Agnostic Federated Learning", ICML 2019).
//!
//! ```text
//! minimise over w, maximise over λ in the simplex    Σ_k λ_k F_k(w)
//! λ_{t+1} = projection of λ_t + γ_λ F(w_t) on the simplex
//! w_{t+1} = w_t + Σ λ_k (w_k − w_t) / Σ λ_k          with λ_t
//! ```
//!
//! The state is the density ρ_k = λ_k/p_k with respect to the weights p of the devices, from ρ = 1.
//! With equal weights the rule is that of the paper with N γ_λ instead of γ_λ. With other weights
//! the projection is orthogonal with respect to p, as if a device were α_k equal devices. If a
//! cohort is a part of the devices, λ changes on the cohort, whose total λ stays.
//!
//! The server knows λ and the loss of each device by name, so only open simulations can use it.
//! γ_λ = 0 equals FedAvg to the bit.

use super::{Algorithm, AlgorithmParts, Requires};
use crate::exchange::{CohortMember, NamedLoss, TrainIndex};
use crate::memory::AlgorithmState;
use crate::options::{Interval, OptionSpec};
use crate::selection::{Learned, Needs, Selection, SummedTail, Weighting};
use crate::stream::Stream;

/// AFL.
pub static AFL: Algorithm = Algorithm {
    kind: "afl",
    title: "AFL",
    about: "the weights of the devices ascend along the losses: minimises the worst mixture of devices",
    options: &[LAMBDA_RATE],
    build: |options| {
        let rate = options.real("lambda_rate")?;
        let selection = Box::new(Ascent { rate, sharing: Sharing::Weights });
        Ok(AlgorithmParts { selection, ..AlgorithmParts::default() })
    },
    weightings: &[],
    corrections: &[],
    requires: NAMED_LOSSES,
};

/// γ_λ.
pub(super) const LAMBDA_RATE: OptionSpec = OptionSpec::real(
    "lambda_rate",
    "γ_λ",
    Interval::NON_NEGATIVE,
    0.1,
    "the step of the ascent of the device weights, relative to equal weights",
)
.with_levels()
.with_grid(&[0.01, 0.1, 1.0]);
/// The reason for which λ needs open simulations.
pub(super) const NAMED_LOSSES: Requires =
    Requires::Open("the server keeps a weight for each device, from its loss");
/// The densities before and after the losses of the current round, by train index.
const DENSITY: [&str; 2] = ["density", "density.next"];

/// The densities ρ of the devices, in the track's memory.
#[derive(Clone, Copy, Debug)]
struct Density;

impl Density {
    /// Returns ρ_k, which is 1 for a device without a stored value.
    fn get(memory: &AlgorithmState, device: TrainIndex) -> f64 {
        let density = memory.vector(DENSITY[0]).and_then(|density| density.as_slice().get(device.place()));
        density.map_or(1.0, |&density| density.into())
    }

    /// Computes ρ of the next round from the losses of a cohort.
    fn ascend(rate: f64, losses: &[NamedLoss], memory: &mut AlgorithmState) {
        let weights: Vec<f64> = losses.iter().map(|named| named.loss.weight()).collect();
        let before: Vec<f64> = losses.iter().map(|named| Self::get(memory, named.device)).collect();
        let moved: Vec<f64> =
            before.iter().zip(losses).map(|(before, named)| before + rate * named.loss.loss()).collect();
        let mass = before.iter().zip(&weights).map(|(before, weight)| before * weight).sum();
        let mut all = memory.vector(DENSITY[0]).map_or_else(Vec::new, |density| density.as_slice().to_vec());
        for (named, after) in losses.iter().zip(projected(&moved, &weights, mass)) {
            let place = named.device.place();
            all.resize(all.len().max(place + 1), 1.0);
            all[place] = after as f32;
        }
        memory.set_vector(DENSITY[1], all.into());
    }

    /// Replaces ρ by that of the next round.
    fn advance(memory: &mut AlgorithmState) {
        if let Some(next) = memory.vector(DENSITY[1]).cloned() {
            memory.set_vector(DENSITY[0], next);
            memory.forget(DENSITY[1]);
        }
    }
}

/// Returns the ρ ≥ 0 with Σ α ρ = mass that minimises Σ α (ρ − v)²: max(v − c, 0) for some c.
fn projected(values: &[f64], weights: &[f64], mass: f64) -> Vec<f64> {
    let mut order: Vec<usize> = (0..values.len()).collect();
    order.sort_by(|&a, &b| values[b].total_cmp(&values[a]));
    let (mut weight, mut sum, mut least) = (0.0, 0.0, 0.0);
    for k in order {
        let (w, s) = (weight + weights[k], sum + weights[k] * values[k]);
        if values[k] <= (s - mass) / w {
            break;
        }
        (weight, sum, least) = (w, s, (s - mass) / w);
    }
    values.iter().map(|value| (value - least).max(0.0)).collect()
}

/// Ascends λ.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Ascent {
    /// γ_λ.
    pub(super) rate: f64,
    /// How λ acts on the update.
    pub(super) sharing: Sharing,
}

/// How λ acts on the update.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sharing {
    /// λ_k is the weight of device k.
    Weights,
    /// As many devices as answer are drawn from λ with replacement. The share of a device is the
    /// number of its draws. With the weights α of the devices, λ is α times this share in
    /// expectation.
    Draws,
}

impl Sharing {
    fn shares(self, densities: Vec<f64>, cohort: &[CohortMember], stream: &mut Stream) -> Vec<f64> {
        if self == Self::Weights {
            return densities;
        }
        let density = |(density, drawn): (&f64, &CohortMember)| if drawn.dropped { 0.0 } else { *density };
        let densities: Vec<f64> = densities.iter().zip(cohort).map(density).collect();
        let total: f64 = densities.iter().sum();
        let mut shares = vec![0.0; cohort.len()];
        for _ in 0..cohort.iter().filter(|drawn| !drawn.dropped).count() {
            let mut rest = stream.unit() * total;
            let drawn = densities.iter().position(|density| {
                rest -= density;
                rest < 0.0
            });
            if let Some(place) = drawn {
                shares[place] += 1.0;
            }
        }
        shares
    }
}

impl Selection for Ascent {
    fn needs(&self, _round: u64, _memory: &AlgorithmState) -> Needs {
        Needs::NamedLosses
    }

    fn learn(&self, _round: u64, learned: Learned<'_>, memory: &mut AlgorithmState) {
        if let Learned::NamedLosses(losses) = learned {
            Density::ascend(self.rate, losses, memory);
        }
    }

    fn weighting(&self, _memory: &AlgorithmState) -> Weighting {
        Weighting::everyone()
    }

    fn named_shares(
        &self,
        cohort: &[CohortMember],
        stream: &mut Stream,
        memory: &AlgorithmState,
    ) -> Option<Vec<f64>> {
        let densities = cohort.iter().map(|drawn| Density::get(memory, drawn.device)).collect();
        Some(self.sharing.shares(densities, cohort, stream))
    }

    fn observe(&self, _summed: &SummedTail<'_>, memory: &mut AlgorithmState) {
        Density::advance(memory);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_projection_keeps_the_mass_and_leaves_a_point_of_the_simplex_in_place() {
        assert_eq!(projected(&[1.0, 1.0, 1.0], &[2.0, 3.0, 5.0], 10.0), [1.0, 1.0, 1.0]);
        assert_eq!(projected(&[3.0, 1.0], &[1.0, 1.0], 2.0), [2.0, 0.0]);
        assert_eq!(projected(&[2.0, 1.0, -5.0], &[1.0, 1.0, 1.0], 2.0), [1.5, 0.5, 0.0]);
        let found = projected(&[0.3, 2.0, 1.1, 0.9], &[1.0, 2.0, 3.0, 4.0], 4.0);
        let mass: f64 =
            found.iter().zip([1.0, 2.0, 3.0, 4.0]).map(|(density, weight)| density * weight).sum();
        assert!((mass - 4.0).abs() < 1e-12 && found.iter().all(|&density| density >= 0.0), "{found:?}");
    }
}
