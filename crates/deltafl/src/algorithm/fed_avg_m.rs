//! FedAvgM: the server adds momentum to the mean update (Hsu et al., "Measuring the Effects of
//! Non-Identical Data Distribution for Federated Visual Classification", 2019).
//!
//! ```text
//! v       ← β v + Σ α_k (w_k − w_t) / Σ α_k
//! w_{t+1} = w_t + η_s v
//! ```
//!
//! It uses the mean update only and works under secure sums. β = 0 and η_s = 1 equal FedAvg to the
//! bit.

use super::fed_adam::SERVER_RATE;
use super::{Algorithm, AlgorithmParts, Requires};
use crate::options::{Interval, OptionDefault, OptionSpec, OptionValue};
use crate::server_step::Momentum;

/// FedAvgM.
pub static FED_AVG_M: Algorithm = Algorithm {
    kind: "fedavgm",
    title: "FedAvgM",
    about: "federated averaging with momentum on the server",
    options: &[
        OptionSpec { default: OptionDefault::Value(OptionValue::Real(1.0)), grid: &[], ..SERVER_RATE },
        OptionSpec::real(
            "momentum",
            "β",
            Interval::DECAY,
            0.9,
            "share of the previous step of the server that is added to the next one",
        )
        .with_grid(&[0.3, 0.6, 0.9]),
    ],
    build: |options| {
        let server = Momentum { rate: options.real("server_rate")?, beta: options.real("momentum")? };
        Ok(AlgorithmParts { server: Box::new(server), ..AlgorithmParts::default() })
    },
    weightings: &[],
    corrections: &[],
    requires: Requires::Sums,
};
