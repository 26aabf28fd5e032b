//! Ditto: a personal model of each device near the shared one (Li et al., "Ditto: Fair and Robust
//! Federated Learning Through Personalization", ICML 2021).
//!
//! ```text
//! shared:     w_{t+1} = w_t + mean of (w_k − w_t), as in FedAvg
//! device k:   v_k ← LocalUpdate of  f_k(v) + (λ/2)‖v − w_t‖², from v_k
//! ```
//!
//! v_k stays on its device, and the server receives the sum of the updates only, so Ditto works
//! under secure sums. The shared model equals that of FedAvg to the bit. `evaluate = ["personal",
//! "shared"]` creates two tracks, one for each model.

use super::{Algorithm, AlgorithmParts, Requires};
use crate::options::{
    Interval, InvalidOption, OptionDefault, OptionKind, OptionSpec, OptionValue, OptionValues,
};
use crate::trainer::{Personal, PersonalMethod};

/// Ditto.
pub static DITTO: Algorithm = Algorithm {
    kind: "ditto",
    title: "Ditto",
    about: "federated averaging, and a personal model of each device near the shared one",
    options: &[
        OptionSpec::real(
            "personal_mu",
            "λ",
            Interval::NON_NEGATIVE,
            0.1,
            "weight of the term (λ/2)‖v − w_t‖² that holds personal models near the shared one",
        )
        .with_levels()
        .with_grid(&[0.01, 0.1, 1.0]),
        EVALUATE,
    ],
    build: |options| {
        let method = PersonalMethod::Regularised { proximal: options.real("personal_mu")? as f32 };
        Ok(AlgorithmParts { personal: Some(personal(method, options)?), ..AlgorithmParts::default() })
    },
    weightings: &[],
    corrections: &[],
    requires: PERSONAL_MODELS,
};

/// The evaluated model.
pub(super) const EVALUATE: OptionSpec = OptionSpec::new(
    "evaluate",
    OptionKind::Word(&["personal", "shared"]),
    OptionDefault::Value(OptionValue::Word("personal")),
    "the model of a device that evaluations use",
    OptionValue::Word("personal"),
)
.with_symbol("model")
.with_levels();
/// The reason for which personal models are not deployed.
pub(super) const PERSONAL_MODELS: Requires =
    Requires::Simulation("devices of a deployment do not train personal models");

/// Reads which model is evaluated.
pub(super) fn personal(method: PersonalMethod, options: &OptionValues) -> Result<Personal, InvalidOption> {
    Ok(Personal { method, is_evaluated: options.word("evaluate")? == "personal" })
}
