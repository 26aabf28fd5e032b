//! FedYogi: the server uses the mean update as a gradient for a Yogi step (Reddi et al., 2021).
//!
//! [`Adaptive`] contains the rule. It uses the mean update only and works under secure sums.

use super::fed_adam::{BETA1, BETA2, SERVER_RATE, TAU};
use super::{Algorithm, AlgorithmParts, Requires};
use crate::server_step::{Adaptive, SecondMoment};

/// FedYogi.
pub static FED_YOGI: Algorithm = Algorithm {
    kind: "fedyogi",
    title: "FedYogi",
    about: "the server takes the mean update for a gradient and steps by Yogi",
    options: &[SERVER_RATE, BETA1, BETA2, TAU],
    build: |options| {
        let server = Box::new(Adaptive::from_options(SecondMoment::Yogi, options)?);
        Ok(AlgorithmParts { server, ..AlgorithmParts::default() })
    },
    weightings: &[],
    corrections: &[],
    requires: Requires::Sums,
};
