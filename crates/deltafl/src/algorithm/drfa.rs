//! DRFA: devices are drawn by λ (Deng et al., "Distributionally Robust Federated Averaging",
//! NeurIPS 2020).
//!
//! ```text
//! m devices are drawn from λ_t with replacement; w_{t+1} is the mean of their updates
//! λ_{t+1} = projection of λ_t + γ_λ F(w_t) on the simplex
//! ```
//!
//! λ and its projection are those of AFL. Devices are drawn from the cohort of the round, which is
//! a uniform sample, so a cohort of all devices gives the rule of the paper. λ ascends along the
//! losses at w_t, where the paper uses the model of a random local step. The server knows λ and the
//! loss of each device by name, so only open simulations can use it.

use super::afl::{Ascent, LAMBDA_RATE, NAMED_LOSSES, Sharing};
use super::{Algorithm, AlgorithmParts};

/// DRFA.
pub static DRFA: Algorithm = Algorithm {
    kind: "drfa",
    title: "DRFA",
    about: "devices are drawn by weights that ascend along the losses",
    options: &[LAMBDA_RATE],
    build: |options| {
        let rate = options.real("lambda_rate")?;
        let selection = Box::new(Ascent { rate, sharing: Sharing::Draws });
        Ok(AlgorithmParts { selection, ..AlgorithmParts::default() })
    },
    weightings: &[],
    corrections: &[],
    requires: NAMED_LOSSES,
};
