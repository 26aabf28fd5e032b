//! FedProx: a proximal term limits the distance of a device from the received model (Li et al.,
//! 2020).
//!
//! ```text
//! w_k = LocalUpdate of  f_k(w) + (μ/2)‖w − w_t‖²
//! ```
//!
//! Every device of the cohort counts, and the server averages as in FedAvg. Only the local step
//! differs. μ = 0 equals FedAvg to the bit.

use super::{Algorithm, AlgorithmParts, Requires};
use crate::options::{Interval, OptionDefault, OptionKind, OptionSpec, OptionValue};

/// FedProx.
pub static FED_PROX: Algorithm = Algorithm {
    kind: "fedprox",
    title: "FedProx",
    about: "federated averaging with a proximal term, which keeps each device near the model of the server",
    options: &[OptionSpec {
        name: "mu",
        symbol: "μ",
        kind: OptionKind::Real(Interval::NON_NEGATIVE),
        default: OptionDefault::Required,
        usual: None,
        levels: true,
        about: "weight of the proximal term (μ/2)‖w − w_t‖² in the local loss",
        example: OptionValue::Real(0.01),
        grid: &[0.001, 0.01, 0.1],
    }],
    build: |options| Ok(AlgorithmParts { proximal: options.real("mu")? as f32, ..AlgorithmParts::default() }),
    weightings: &[],
    corrections: &[],
    requires: Requires::Sums,
};
