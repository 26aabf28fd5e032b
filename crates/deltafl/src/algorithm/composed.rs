//! Δ-FL with the local training or the server step of another algorithm.
//!
//! The selection is that of Δ-FL: the devices in the upper θ-tail of the losses count. The options
//! are those of both algorithms. A composition works under secure sums if both parts do.

use super::{Algorithm, DELTA_FL, DITTO, FED_ADAM, FED_PROX, Requires, SCAFFOLD};
use crate::options::OptionSpec;
use crate::selection::{SMOOTH_TAIL, TAIL};

/// Δ-FL whose server steps by Adam.
pub static DELTA_FL_FED_ADAM: Algorithm = Algorithm {
    kind: "delta-fl+fedadam",
    title: "Δ-FL + FedAdam",
    about: "the tail of Δ-FL trains, and the server steps by Adam",
    options: &joined::<9>(DELTA_FL.options, FED_ADAM.options),
    build: |options| Ok((DELTA_FL.build)(options)?.trained_by((FED_ADAM.build)(options)?)),
    weightings: &[&TAIL, &SMOOTH_TAIL],
    corrections: &[],
    requires: Requires::Sums,
};

/// Δ-FL with the proximal term of FedProx.
pub static DELTA_FL_FED_PROX: Algorithm = Algorithm {
    kind: "delta-fl+fedprox",
    title: "Δ-FL + FedProx",
    about: "the tail of Δ-FL trains with a term that holds each device near the model that it was sent",
    options: &joined::<6>(DELTA_FL.options, FED_PROX.options),
    build: |options| Ok((DELTA_FL.build)(options)?.trained_by((FED_PROX.build)(options)?)),
    weightings: &[&TAIL, &SMOOTH_TAIL],
    corrections: &[],
    requires: Requires::Sums,
};

/// Δ-FL with the control variates of SCAFFOLD.
pub static DELTA_FL_SCAFFOLD: Algorithm = Algorithm {
    kind: "delta-fl+scaffold",
    title: "Δ-FL + SCAFFOLD",
    about: "the tail of Δ-FL trains with control variates",
    options: &joined::<6>(DELTA_FL.options, SCAFFOLD.options),
    build: |options| Ok((DELTA_FL.build)(options)?.trained_by((SCAFFOLD.build)(options)?)),
    weightings: &[&TAIL, &SMOOTH_TAIL],
    corrections: SCAFFOLD.corrections,
    requires: Requires::Sums,
};

/// Δ-FL with the personal models of Ditto.
pub static DELTA_FL_DITTO: Algorithm = Algorithm {
    kind: "delta-fl+ditto",
    title: "Δ-FL + Ditto",
    about: "the tail of Δ-FL trains, and each of its devices has a personal model near the shared one",
    options: &joined::<7>(DELTA_FL.options, DITTO.options),
    build: |options| Ok((DELTA_FL.build)(options)?.trained_by((DITTO.build)(options)?)),
    weightings: &[&TAIL, &SMOOTH_TAIL],
    corrections: &[],
    requires: DITTO.requires,
};

/// Joins two lists of options.
const fn joined<const N: usize>(first: &[OptionSpec], second: &[OptionSpec]) -> [OptionSpec; N] {
    assert!(first.len() + second.len() == N, "N is the number of all options");
    let mut all = [first[0]; N];
    let mut i = 0;
    while i < N {
        all[i] = if i < first.len() { first[i] } else { second[i - first.len()] };
        i += 1;
    }
    all
}
