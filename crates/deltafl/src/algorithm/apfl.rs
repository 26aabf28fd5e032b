//! APFL: a personal model that is a mixture of a local and the shared model (Deng et al., "Adaptive
//! Personalized Federated Learning", 2020, with a constant mixing weight).
//!
//! ```text
//! shared:     w_{t+1} = w_t + mean of (w_k − w_t), as in FedAvg
//! device k:   v_k ← v_k − γ a ∇f_k(a v_k + (1 − a) w; ξ)     along the local steps of w, on the same batches
//!             its model is a v_k + (1 − a) w
//! ```
//!
//! v_k stays on its device, and the server receives the sum of the updates only, so APFL works
//! under secure sums. The shared model equals that of FedAvg to the bit.

use super::ditto::{EVALUATE, PERSONAL_MODELS, personal};
use super::{Algorithm, AlgorithmParts};
use crate::options::{Interval, OptionSpec};
use crate::trainer::PersonalMethod;

/// APFL.
pub static APFL: Algorithm = Algorithm {
    kind: "apfl",
    title: "APFL",
    about: "federated averaging, and a personal model that is a mixture of a local and the shared one",
    options: &[
        OptionSpec::real(
            "mixing",
            "a",
            Interval::UNIT,
            0.5,
            "the share of the local model in the personal one",
        )
        .with_levels()
        .with_grid(&[0.25, 0.5, 0.75]),
        EVALUATE,
    ],
    build: |options| {
        let method = PersonalMethod::Mixed { share: options.real("mixing")? as f32 };
        Ok(AlgorithmParts { personal: Some(personal(method, options)?), ..AlgorithmParts::default() })
    },
    weightings: &[],
    corrections: &[],
    requires: PERSONAL_MODELS,
};
