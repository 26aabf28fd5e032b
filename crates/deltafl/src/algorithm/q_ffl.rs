//! q-FFL by q-FedAvg: devices count with a power of their loss (Li et al., "Fair Resource
//! Allocation in Federated Learning", ICLR 2020).
//!
//! ```text
//! minimise    Σ_k p_k F_k(w)^{q+1} / (q + 1)
//! Δ_k       = F_k^q L (w_t − w_k)
//! h_k       = q F_k^{q−1} ‖L (w_t − w_k)‖² + L F_k^q                L = 1/γ
//! w_{t+1}   = w_t − Σ α_k Δ_k / Σ α_k h_k
//! ```
//!
//! Both sums are divided by L c^q, where c is the mean loss of the previous round (1 in the first
//! round). With ω_k = (F_k/c)^q a device sends its update with the weight α_k ω_k, and one more
//! number α_k ω_k ‖w_k − w_t‖² / F_k:
//!
//! ```text
//! w_{t+1}   = w_t + Σ α_k ω_k (w_k − w_t) / (Σ α_k ω_k + q L Σ α_k ω_k ‖w_k − w_t‖² / F_k)
//! ```
//!
//! The server sees sums only: q-FFL works under secure sums. q = 0 equals FedAvg to the bit.

use super::{Algorithm, AlgorithmParts, Requires};
use crate::memory::AlgorithmState;
use crate::options::{Interval, OptionSpec};
use crate::params::{Params, UpdateSum};
use crate::selection::{ByLoss, LARGEST_SHARE, LossMean, MEAN_LOSS, Weighting, WeightingKind};
use crate::server_step::{ServerStep, ServerStepInput};

/// q-FFL.
pub static Q_FFL: Algorithm = Algorithm {
    kind: "q-ffl",
    title: "q-FFL",
    about: "devices count with a power of their loss, and the step shrinks with the power",
    options: &[OptionSpec::real(
        "q",
        "q",
        Interval::NON_NEGATIVE,
        1.0,
        "the power of the loss: 0 is federated averaging, large values approach the largest loss",
    )
    .with_levels()
    .with_grid(&[0.1, 1.0, 5.0])],
    build: |options| {
        let q = options.real("q")?;
        let rule = move |losses: Option<LossMean>| {
            let scale = losses.map(|losses| losses.mean).filter(|mean| *mean > 0.0);
            Weighting::new(&POWER, &[q, scale.unwrap_or(1.0)])
        };
        Ok(AlgorithmParts {
            selection: Box::new(ByLoss::new(rule)),
            server: Box::new(Normalised { q }),
            ..AlgorithmParts::default()
        })
    },
    weightings: &[&POWER, &MEAN_LOSS],
    corrections: &[],
    requires: Requires::Sums,
};

/// The place of the curvature among the reports.
const CURVATURE: usize = 2;

/// (F / c)^q.
static POWER: WeightingKind = WeightingKind {
    name: "power",
    numbers: &["q", "c"],
    needs_loss: true,
    is_valid: |numbers| numbers[0] >= 0.0 && numbers[1] > 0.0,
    share: |numbers, device| (device.loss.max(0.0) / numbers[1]).powf(numbers[0]),
    most: LARGEST_SHARE,
    reports: &["weight", "loss", "curvature"],
    report: |numbers, update, report| {
        // A device without loss and with q > 0 does not train.
        let curvature = update.share * update.squared_norm / update.device.loss.max(f64::MIN_POSITIVE);
        let curvature = if numbers[0] > 0.0 { curvature } else { 0.0 };
        report.copy_from_slice(&[1.0, update.device.loss, curvature]);
    },
};

/// The step of q-FedAvg.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Normalised {
    q: f64,
}

impl ServerStep for Normalised {
    fn apply(
        &self,
        at: &ServerStepInput<'_>,
        sum: &UpdateSum,
        _memory: &mut AlgorithmState,
    ) -> Option<Params> {
        let weight = sum.tail_weight();
        let curvature = self.q * sum.reports().get(CURVATURE).copied()? / at.learning_rate;
        let shrink = weight / (weight + curvature);
        let moved = at.params.as_slice().iter().zip(sum.mean()?);
        Some(moved.map(|(&w, mean)| (f64::from(w) + shrink * mean) as f32).collect::<Vec<f32>>().into())
    }
}
