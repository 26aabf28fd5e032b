//! FedAvg: every device of the cohort participates (McMahan et al., 2017). This is Δ-FL at θ = 1
//! without the losses.

use super::{Algorithm, AlgorithmParts, Requires};
use crate::selection::EVERYONE;

/// Federated averaging, with the parts of which every other algorithm replaces some.
pub static FED_AVG: Algorithm = Algorithm {
    kind: "fedavg",
    title: "FedAvg",
    about: "federated averaging: every device of the cohort counts with its examples",
    options: &[],
    build: |_| Ok(AlgorithmParts::default()),
    weightings: &[&EVERYONE],
    corrections: &[],
    requires: Requires::Sums,
};
