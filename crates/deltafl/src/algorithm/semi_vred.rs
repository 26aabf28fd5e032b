//! SemiVRed: a penalty on the losses above their mean (Malekmohammadi et al., "Semi-Variance
//! Reduction for Fair Federated Learning", 2024).
//!
//! ```text
//! minimise    F̄ + β Σ_k p_k (F_k − F̄)₊²                      F̄ = Σ_k p_k F_k
//! ω_k       = 1 + 2β ((F_k(w_t) − F̄)₊ − Σ_j p_j (F_j − F̄)₊)
//! w_{t+1}   = w_t + Σ α_k ω_k (w_k − w_t) / Σ α_k ω_k
//! ```
//!
//! ω_k is the derivative of the objective with respect to F_k, and at least 0. F̄ and the mean of
//! (F_j − F̄)₊ are those of the previous round, from its reports, so that the first round is FedAvg
//! and the second one has no correction of the mean. The server sees sums only: SemiVRed works
//! under secure sums. β = 0 equals FedAvg to the bit.

use super::{Algorithm, AlgorithmParts, Requires};
use crate::options::{Interval, OptionSpec};
use crate::selection::{ByLoss, LARGEST_SHARE, LossMean, MEAN_LOSS, Weighting, WeightingKind};

/// SemiVRed.
pub static SEMI_VRED: Algorithm = Algorithm {
    kind: "semivred",
    title: "SemiVRed",
    about: "devices with a loss above the mean count more, in proportion to the excess",
    options: &[OptionSpec::real(
        "penalty",
        "β",
        Interval::NON_NEGATIVE,
        1.0,
        "the weight of the semi-variance of the losses in the objective",
    )
    .with_levels()
    .with_grid(&[0.1, 1.0, 5.0])],
    build: |options| {
        let penalty = options.real("penalty")?;
        let rule = move |losses: Option<LossMean>| {
            let LossMean { mean, excess } = losses?;
            Weighting::new(&SEMI_VARIANCE, &[penalty, mean, excess])
        };
        Ok(AlgorithmParts { selection: Box::new(ByLoss::new(rule)), ..AlgorithmParts::default() })
    },
    weightings: &[&SEMI_VARIANCE, &MEAN_LOSS],
    corrections: &[],
    requires: Requires::Sums,
};

/// 1 + 2β ((F − c)₊ − s).
static SEMI_VARIANCE: WeightingKind = WeightingKind {
    name: "semi-variance",
    numbers: &["beta", "mean", "excess"],
    needs_loss: true,
    is_valid: |numbers| numbers[0] >= 0.0,
    share: |numbers, device| 1.0 + 2.0 * numbers[0] * ((device.loss - numbers[1]).max(0.0) - numbers[2]),
    most: LARGEST_SHARE,
    reports: &LossMean::REPORTS,
    report: |numbers, update, report| {
        let loss = update.device.loss;
        report.copy_from_slice(&[1.0, loss, (loss - numbers[1]).max(0.0)]);
    },
};
