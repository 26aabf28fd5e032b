//! Fine-tuning: each device trains the shared model on its own examples before it is evaluated.
//!
//! ```text
//! shared:     FedAvg
//! device k:   v_k = LocalUpdate from w_t, at an evaluation
//! ```
//!
//! Nothing but the update leaves a device, so fine-tuning works under secure sums. The shared model
//! equals that of FedAvg to the bit. A device with test examples only is evaluated with the shared
//! model.

use super::ditto::{EVALUATE, PERSONAL_MODELS, personal};
use super::{Algorithm, AlgorithmParts};
use crate::trainer::PersonalMethod;

/// Fine-tuning.
pub static FINE_TUNING: Algorithm = Algorithm {
    kind: "fine-tuning",
    title: "Fine-tuning",
    about: "federated averaging, and a local update of each device before its evaluation",
    options: &[EVALUATE],
    build: |options| {
        let personal = personal(PersonalMethod::FineTuned, options)?;
        Ok(AlgorithmParts { personal: Some(personal), ..AlgorithmParts::default() })
    },
    weightings: &[],
    corrections: &[],
    requires: PERSONAL_MODELS,
};
