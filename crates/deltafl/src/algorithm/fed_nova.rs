//! FedNova: updates are divided by the number of local steps (Wang et al., "Tackling the Objective
//! Inconsistency Problem in Heterogeneous Federated Optimization", NeurIPS 2020).
//!
//! ```text
//! d_k       = (w_k − w_t) / τ_k                   τ_k: the number of local steps of plain SGD
//! τ         = Σ α_k τ_k / Σ α_k
//! w_{t+1}   = w_t + τ Σ α_k d_k / Σ α_k
//! ```
//!
//! A device sends its update with the weight α_k/τ_k and the numbers α_k and α_k τ_k. The server
//! sees sums only: FedNova works under secure sums. It differs from FedAvg only if devices take
//! different numbers of steps, thus with `epochs` and not with `steps`.

use super::{Algorithm, AlgorithmParts, Requires};
use crate::memory::AlgorithmState;
use crate::params::{Params, UpdateSum};
use crate::selection::{Learned, Needs, Selection, SummedTail, Weighting, WeightingKind};
use crate::server_step::{ServerStep, ServerStepInput};

/// FedNova.
pub static FED_NOVA: Algorithm = Algorithm {
    kind: "fednova",
    title: "FedNova",
    about: "federated averaging of updates per local step, so that long training does not count more",
    options: &[],
    build: |_| {
        Ok(AlgorithmParts {
            selection: Box::new(Normalised),
            server: Box::new(Normalised),
            ..AlgorithmParts::default()
        })
    },
    weightings: &[&PER_STEP],
    corrections: &[],
    requires: Requires::Sums,
};

/// 1/τ.
static PER_STEP: WeightingKind = WeightingKind {
    name: "per-step",
    numbers: &[],
    needs_loss: false,
    is_valid: |_| true,
    share: |_, device| 1.0 / device.steps.max(1) as f64,
    most: 1.0,
    reports: &["weight", "steps"],
    report: |_, update, report| report.copy_from_slice(&[1.0, update.device.steps.max(1) as f64]),
};

/// The selection and the server step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Normalised;

impl Selection for Normalised {
    fn needs(&self, _round: u64, _memory: &AlgorithmState) -> Needs {
        Needs::Nothing
    }

    fn learn(&self, _round: u64, _learned: Learned<'_>, _memory: &mut AlgorithmState) {}

    fn weighting(&self, _memory: &AlgorithmState) -> Weighting {
        Weighting::new(&PER_STEP, &[]).unwrap_or_else(Weighting::everyone)
    }

    fn observe(&self, _summed: &SummedTail<'_>, _memory: &mut AlgorithmState) {}
}

impl ServerStep for Normalised {
    fn apply(
        &self,
        at: &ServerStepInput<'_>,
        sum: &UpdateSum,
        _memory: &mut AlgorithmState,
    ) -> Option<Params> {
        let [weight, steps] = sum.reports()[..] else { return None };
        let mean = sum.mean()?;
        // The mean is divided by Σ α_k/τ_k, and the rule requires Σ α_k.
        let scale = sum.tail_weight() / weight * (steps / weight);
        let moved = at.params.as_slice().iter().zip(mean);
        Some(moved.map(|(&w, mean)| (f64::from(w) + scale * mean) as f32).collect::<Vec<f32>>().into())
    }
}
