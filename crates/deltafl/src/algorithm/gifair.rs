//! GIFAIR: devices count by the rank of their loss (Yue et al., "GIFAIR-FL: A Framework for Group
//! and Individual Fairness in Federated Learning", 2022, with each device as a group).
//!
//! ```text
//! minimise    Σ_k p_k F_k + λ Σ_{j<k} |F_j − F_k|
//! r_k       = Σ_j sign(F_k(w_t) − F_j(w_t))
//! w_{t+1}   = w_t + Σ_k (p_k + λ r_k) (w_k − w_t)
//! ```
//!
//! The sums are over the cohort, with p_k = α_k/Σ α. The weights are non-negative for λ up to
//! λ_max = min p_k/(m − 1). The option is λ/λ_max. The server compares the losses of individual
//! devices and returns a rank to each, so only open simulations can use it. 0 equals FedAvg to the
//! bit.

use super::{Algorithm, AlgorithmParts, Requires};
use crate::exchange::{CohortMember, NamedLoss};
use crate::memory::AlgorithmState;
use crate::options::{Interval, OptionSpec};
use crate::selection::{Learned, Needs, Selection, SummedTail, Weighting};
use crate::stream::Stream;

/// GIFAIR.
pub static GIFAIR: Algorithm = Algorithm {
    kind: "gifair",
    title: "GIFAIR",
    about: "devices count by the rank of their loss: penalises differences between the losses",
    options: &[OptionSpec::real(
        "rank_penalty",
        "λ",
        Interval::UNIT,
        0.5,
        "the weight of the differences of the losses, relative to the largest admissible one",
    )
    .with_levels()
    .with_grid(&[0.1, 0.5, 0.9])],
    build: |options| {
        let penalty = options.real("rank_penalty")?;
        Ok(AlgorithmParts { selection: Box::new(ByRank { penalty }), ..AlgorithmParts::default() })
    },
    weightings: &[],
    corrections: &[],
    requires: Requires::Open("the server ranks the losses of individual devices"),
};

/// The relative difference below which losses are equal up to rounding, as at w₀ = 0.
const ROUNDING: f64 = 1e-12;
/// The share of each device of the current cohort, by train index.
const SHARES: &str = "rank.shares";

/// Weighs devices by the rank of their loss.
#[derive(Clone, Copy, Debug, PartialEq)]
struct ByRank {
    penalty: f64,
}

impl ByRank {
    /// Returns 1 + λ r_k/p_k for each device.
    fn shares(&self, losses: &[NamedLoss]) -> Vec<f64> {
        let least = losses.iter().map(|named| named.loss.weight()).fold(f64::INFINITY, f64::min);
        let others = losses.len().saturating_sub(1).max(1) as f64;
        let share = |named: &NamedLoss| {
            let sign = |other: &NamedLoss| {
                let (own, other) = (named.loss.loss(), other.loss.loss());
                if (own - other).abs() <= ROUNDING * own.abs() { 0.0 } else { (own - other).signum() }
            };
            let rank: f64 = losses.iter().map(sign).sum();
            1.0 + self.penalty * (least / named.loss.weight()) * rank / others
        };
        losses.iter().map(share).collect()
    }
}

impl Selection for ByRank {
    fn needs(&self, _round: u64, _memory: &AlgorithmState) -> Needs {
        Needs::NamedLosses
    }

    fn learn(&self, _round: u64, learned: Learned<'_>, memory: &mut AlgorithmState) {
        let Learned::NamedLosses(losses) = learned else { return };
        let mut by_device = Vec::new();
        for (named, share) in losses.iter().zip(self.shares(losses)) {
            let place = named.device.place();
            by_device.resize(by_device.len().max(place + 1), 1.0);
            by_device[place] = share as f32;
        }
        memory.set_vector(SHARES, by_device.into());
    }

    fn weighting(&self, _memory: &AlgorithmState) -> Weighting {
        Weighting::everyone()
    }

    fn named_shares(
        &self,
        cohort: &[CohortMember],
        _stream: &mut Stream,
        memory: &AlgorithmState,
    ) -> Option<Vec<f64>> {
        let shares = memory.vector(SHARES)?.as_slice();
        let share =
            |drawn: &CohortMember| shares.get(drawn.device.place()).map_or(1.0, |&share| share.into());
        Some(cohort.iter().map(share).collect())
    }

    fn observe(&self, _summed: &SummedTail<'_>, memory: &mut AlgorithmState) {
        memory.forget(SHARES);
    }
}
