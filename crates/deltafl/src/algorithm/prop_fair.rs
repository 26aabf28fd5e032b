//! PropFair: proportional fairness of the utilities M − F_k (Zhang et al., "Proportional Fairness
//! in Federated Learning", TMLR 2023).
//!
//! ```text
//! minimise    − Σ_k p_k log(1 − F_k(w) / M)          extended linearly where M − F_k < ε
//! ω_k       = M / max(M − F_k(w_t), ε)
//! w_{t+1}   = w_t + Σ α_k ω_k (w_k − w_t) / Σ α_k ω_k
//! ```
//!
//! The weight is the derivative of the objective at the received model. The paper differentiates
//! the logarithm of each batch instead. A device needs its own loss and the constants M and ε only,
//! so PropFair works under secure sums.

use super::{Algorithm, AlgorithmParts, Requires};
use crate::options::{Interval, InvalidOption, OptionSpec};
use crate::selection::{ByLoss, LARGEST_SHARE, MEAN_LOSS, Weighting, WeightingKind, no_report};

/// PropFair.
pub static PROP_FAIR: Algorithm = Algorithm {
    kind: "propfair",
    title: "PropFair",
    about: "devices count with the inverse of their utility, a baseline minus their loss",
    options: &[
        OptionSpec::real(
            "baseline",
            "M",
            Interval::POSITIVE,
            5.0,
            "the loss at which the utility of a device is zero; above usual losses",
        )
        .with_levels()
        .with_grid(&[3.0, 5.0, 10.0]),
        OptionSpec::real(
            "utility_floor",
            "ε",
            Interval::POSITIVE,
            0.2,
            "the least utility; losses above M − ε count with M/ε",
        ),
    ],
    build: |options| {
        let numbers = [options.real("baseline")?, options.real("utility_floor")?];
        if numbers[1] > numbers[0] {
            return Err(InvalidOption::new("utility_floor", "must not exceed the baseline"));
        }
        let rule = move |_| Weighting::new(&PROPORTIONAL, &numbers);
        Ok(AlgorithmParts { selection: Box::new(ByLoss::new(rule)), ..AlgorithmParts::default() })
    },
    weightings: &[&PROPORTIONAL, &MEAN_LOSS],
    corrections: &[],
    requires: Requires::Sums,
};

/// M / max(M − F, ε).
static PROPORTIONAL: WeightingKind = WeightingKind {
    name: "proportional",
    numbers: &["M", "epsilon"],
    needs_loss: true,
    is_valid: |numbers| numbers[1] > 0.0 && numbers[0] >= numbers[1],
    share: |numbers, device| numbers[0] / (numbers[0] - device.loss).max(numbers[1]),
    most: LARGEST_SHARE,
    reports: &[],
    report: no_report,
};
