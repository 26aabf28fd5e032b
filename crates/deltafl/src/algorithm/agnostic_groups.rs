//! Agnostic federated learning over declared groups: the worst mixture of groups (Mohri et al.,
//! "Agnostic Federated Learning", ICML 2019, with exponentiated gradient as in Sagawa et al.,
//! "Distributionally Robust Neural Networks for Group Shifts", ICLR 2020).
//!
//! ```text
//! minimise over w, maximise over λ in the simplex    Σ_g λ_g F_g(w)       F_g: mean loss of group g
//! λ_{t+1,g} ∝ λ_{t,g} e^{γ_λ F_g(w_t)}
//! w_{t+1}   = w_t + Σ_k α_k ρ_g(k) (w_k − w_t) / Σ_k α_k ρ_g(k)           ρ_g = λ_g/p_g, with λ_t
//! ```
//!
//! p_g is the share of group g in the weights of all rounds so far, and ρ starts at 1. A device
//! adds α_k and α_k F_k to the two numbers of its group, next to its update. The server thus learns
//! group sums only: the algorithm works under secure sums. A group of which no device is in the
//! cohort keeps its ρ up to the common factor. γ_λ = 0 equals FedAvg to the bit.

use super::{Algorithm, AlgorithmParts, Requires};
use crate::data::MAX_GROUPS;
use crate::memory::AlgorithmState;
use crate::options::{Interval, OptionSpec};
use crate::selection::{LARGEST_SHARE, Learned, Needs, Selection, SummedTail, Weighting, WeightingKind};

/// Agnostic federated learning over declared groups.
pub static AGNOSTIC_GROUPS: Algorithm = Algorithm {
    kind: "agnostic-groups",
    title: "Agnostic over groups",
    about: "the weights of declared groups of devices ascend along their losses: minimises the worst mixture of groups",
    options: &[OptionSpec::real(
        "lambda_rate",
        "γ_λ",
        Interval::NON_NEGATIVE,
        0.1,
        "the step of the ascent of the group weights",
    )
    .with_levels()
    .with_grid(&[0.01, 0.1, 1.0])],
    build: |options| {
        let selection = Box::new(GroupAscent { rate: options.real("lambda_rate")? });
        Ok(AlgorithmParts { selection, ..AlgorithmParts::default() })
    },
    weightings: &[&BY_GROUP],
    corrections: &[],
    requires: Requires::Simulation("deployed devices do not declare a group"),
};

/// ρ_g, by the group of the device.
static BY_GROUP: WeightingKind = WeightingKind {
    name: "by-group",
    numbers: &["rho.0", "rho.1", "rho.2", "rho.3", "rho.4", "rho.5", "rho.6", "rho.7"],
    needs_loss: true,
    is_valid: |numbers| numbers.iter().all(|density| *density >= 0.0),
    share: |numbers, device| numbers[device.group],
    most: LARGEST_SHARE,
    reports: &[
        "weight.0", "loss.0", "weight.1", "loss.1", "weight.2", "loss.2", "weight.3", "loss.3", "weight.4",
        "loss.4", "weight.5", "loss.5", "weight.6", "loss.6", "weight.7", "loss.7",
    ],
    report: |_, update, report| {
        let group = update.device.group;
        (report[2 * group], report[2 * group + 1]) = (1.0, update.device.loss);
    },
};

/// The bounds of ρ, so that a group can recover and a weight fits into a sum.
const DENSITIES: [f64; 2] = [1e-4, 1e4];

/// Ascends λ over groups.
#[derive(Clone, Copy, Debug, PartialEq)]
struct GroupAscent {
    rate: f64,
}

impl GroupAscent {
    fn density(memory: &AlgorithmState, group: usize) -> f64 {
        memory.number(&format!("group.{group}.density")).unwrap_or(1.0)
    }

    /// Returns Σ α over the devices of a group in all rounds so far.
    fn weight(memory: &AlgorithmState, group: usize) -> f64 {
        memory.number(&format!("group.{group}.weight")).unwrap_or(0.0)
    }
}

impl Selection for GroupAscent {
    fn needs(&self, _round: u64, _memory: &AlgorithmState) -> Needs {
        Needs::Nothing
    }

    fn learn(&self, _round: u64, _learned: Learned<'_>, _memory: &mut AlgorithmState) {}

    fn weighting(&self, memory: &AlgorithmState) -> Weighting {
        let densities: Vec<f64> = (0..MAX_GROUPS).map(|group| Self::density(memory, group)).collect();
        Weighting::new(&BY_GROUP, &densities).unwrap_or_else(Weighting::everyone)
    }

    fn observe(&self, summed: &SummedTail<'_>, memory: &mut AlgorithmState) {
        let sums: Vec<(f64, f64)> = summed.reports.chunks_exact(2).map(|pair| (pair[0], pair[1])).collect();
        let seen: Vec<usize> = (0..sums.len()).filter(|&group| sums[group].0 > 0.0).collect();
        for &group in &seen {
            let (weight, loss) = sums[group];
            let ascended = Self::density(memory, group) * (self.rate * loss / weight).exp();
            memory.set_number(&format!("group.{group}.density"), ascended);
            memory.set_number(&format!("group.{group}.weight"), Self::weight(memory, group) + weight);
        }
        // Σ p_g ρ_g = 1.
        let known: Vec<usize> = (0..MAX_GROUPS).filter(|&group| Self::weight(memory, group) > 0.0).collect();
        let total: f64 = known.iter().map(|&group| Self::weight(memory, group)).sum();
        let mass: f64 =
            known.iter().map(|&group| Self::weight(memory, group) * Self::density(memory, group)).sum();
        for &group in &known {
            let density = (Self::density(memory, group) * (total / mass)).clamp(DENSITIES[0], DENSITIES[1]);
            memory.set_number(&format!("group.{group}.density"), density);
        }
    }
}
