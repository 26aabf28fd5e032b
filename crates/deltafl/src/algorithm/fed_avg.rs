//! FedAvg: every device of the cohort takes part (McMahan et al., 2017). Δ-FL at θ = 1, without looking at the losses.

use super::{Algorithm, AlgorithmParts};
use crate::selection::EVERYONE;

/// Federated averaging: the parts that every other algorithm changes one of.
pub static FED_AVG: Algorithm = Algorithm {
    kind: "fedavg",
    title: "FedAvg",
    about: "federated averaging: every device of the cohort counts with its examples",
    options: &[],
    build: |_| Ok(AlgorithmParts::default()),
    weightings: &[&EVERYONE],
    corrections: &[],
};
