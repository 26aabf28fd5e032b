//! TERM: devices count with the exponential of their loss (Li et al., "Tilted Empirical Risk
//! Minimization", ICLR 2021, with devices as groups).
//!
//! ```text
//! minimise    (1/t) log Σ_k p_k e^{t F_k(w)}
//! ω_k       = e^{t (F_k(w_t) − c)}         c: the mean loss of the previous round, public
//! w_{t+1}   = w_t + Σ α_k ω_k (w_k − w_t) / Σ α_k ω_k
//! ```
//!
//! c cancels in w_{t+1}. It keeps the weights near 1, so that they fit into a sum. It follows from
//! the reports of the previous round, so that the first round is FedAvg. The server sees sums only:
//! TERM works under secure sums. t = 0 equals FedAvg to the bit.

use super::{Algorithm, AlgorithmParts, Requires};
use crate::options::{Interval, OptionSpec};
use crate::selection::{ByLoss, LARGEST_SHARE, LossMean, MEAN_LOSS, Weighting, WeightingKind};

/// TERM.
pub static TERM: Algorithm = Algorithm {
    kind: "term",
    title: "TERM",
    about: "devices count with the exponential of their loss",
    options: &[OptionSpec::real(
        "tilt",
        "t",
        Interval::NON_NEGATIVE,
        1.0,
        "how far the weights follow the losses: 0 is the mean, large values approach the largest loss",
    )
    .with_levels()
    .with_grid(&[0.1, 1.0, 5.0])],
    build: |options| {
        let tilt = options.real("tilt")?;
        let rule = move |losses: Option<LossMean>| Weighting::new(&TILTED, &[tilt, losses?.mean]);
        Ok(AlgorithmParts { selection: Box::new(ByLoss::new(rule)), ..AlgorithmParts::default() })
    },
    weightings: &[&TILTED, &MEAN_LOSS],
    corrections: &[],
    requires: Requires::Sums,
};

/// e^{t (F − c)}.
static TILTED: WeightingKind = WeightingKind {
    name: "tilted",
    numbers: &["t", "c"],
    needs_loss: true,
    is_valid: |numbers| numbers[0] >= 0.0,
    share: |numbers, device| (numbers[0] * (device.loss - numbers[1])).exp(),
    most: LARGEST_SHARE,
    reports: &["weight", "loss"],
    report: |_, update, report| report.copy_from_slice(&[1.0, update.device.loss]),
};
