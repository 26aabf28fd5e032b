//! FedAdam: the server uses the mean update as a gradient for an Adam step (Reddi et al., 2021).
//!
//! [`Adaptive`] contains the rule. It uses the mean update only and works under secure sums.

use super::{Algorithm, AlgorithmParts, Requires};
use crate::options::{Interval, OptionSpec};
use crate::server_step::{Adaptive, SecondMoment};

/// FedAdam.
pub static FED_ADAM: Algorithm = Algorithm {
    kind: "fedadam",
    title: "FedAdam",
    about: "the server uses the mean update as the gradient of Adam",
    options: &[SERVER_RATE, BETA1, BETA2, TAU],
    build: |options| {
        let server = Box::new(Adaptive::from_options(SecondMoment::Adam, options)?);
        Ok(AlgorithmParts { server, ..AlgorithmParts::default() })
    },
    weightings: &[],
    corrections: &[],
    requires: Requires::Sums,
};

/// η_s.
pub(super) const SERVER_RATE: OptionSpec =
    OptionSpec::real("server_rate", "η_s", Interval::POSITIVE, 0.01, "learning rate of the server")
        .with_grid(&[0.001, 0.01, 0.1]);
/// β₁.
pub(super) const BETA1: OptionSpec =
    OptionSpec::real("beta1", "β₁", Interval::DECAY, 0.9, "decay of the first moment per round");
/// β₂.
pub(super) const BETA2: OptionSpec =
    OptionSpec::real("beta2", "β₂", Interval::DECAY, 0.99, "decay of the second moment per round");
/// τ.
pub(super) const TAU: OptionSpec = OptionSpec::real(
    "tau",
    "τ",
    Interval::POSITIVE,
    1e-3,
    "constant added to the root of the second moment, which limits the adaptation",
);
