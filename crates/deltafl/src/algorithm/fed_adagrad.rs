//! FedAdagrad: the server uses the mean update as a gradient for an Adagrad step (Reddi et al.,
//! 2021).
//!
//! [`Adaptive`] contains the rule. It uses the mean update only and works under secure sums.

use super::fed_adam::{BETA1, SERVER_RATE, TAU};
use super::{Algorithm, AlgorithmParts, Requires};
use crate::options::{OptionDefault, OptionSpec, OptionValue};
use crate::server_step::{Adaptive, SecondMoment};

/// FedAdagrad.
pub static FED_ADAGRAD: Algorithm = Algorithm {
    kind: "fedadagrad",
    title: "FedAdagrad",
    about: "the server takes the mean update for a gradient and steps by Adagrad",
    options: &[
        OptionSpec { default: OptionDefault::Value(OptionValue::Real(0.1)), ..SERVER_RATE },
        OptionSpec { default: OptionDefault::Value(OptionValue::Real(0.0)), ..BETA1 },
        TAU,
    ],
    build: |options| {
        let server = Box::new(Adaptive::from_options(SecondMoment::Adagrad, options)?);
        Ok(AlgorithmParts { server, ..AlgorithmParts::default() })
    },
    weightings: &[],
    corrections: &[],
    requires: Requires::Sums,
};
