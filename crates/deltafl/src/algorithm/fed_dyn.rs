//! FedDyn: a dynamic regulariser on each device (Acar et al., "Federated Learning Based on Dynamic
//! Regularization", ICLR 2021).
//!
//! ```text
//! device k:   w_k = LocalUpdate of  f_k(w) − ⟨g_k, w⟩ + (a/2)‖w − w_t‖²
//!             g_k ← g_k − a (w_k − w_t)
//! server:     h ← h − a |S_t|/N · mean of (w_k − w_t)
//!             w_{t+1} = w_t + mean of (w_k − w_t) − h/a
//! ```
//!
//! g_k stays on its device, and the server receives the sum of the updates only, so FedDyn works
//! under secure sums. Means use the weights of the devices, and equal those of the paper with
//! `weights = "uniform"`.

use super::{Algorithm, AlgorithmParts, Requires};
use crate::memory::AlgorithmState;
use crate::options::{Interval, OptionSpec};
use crate::params::{Params, UpdateSum};
use crate::selection::EVERYONE;
use crate::server_step::{ServerStep, ServerStepInput};
use crate::trainer::{Correction, LocalResult};

/// FedDyn.
pub static FED_DYN: Algorithm = Algorithm {
    kind: "feddyn",
    title: "FedDyn",
    about: "federated averaging with a regulariser on each device that aligns local and global minima",
    options: &[OptionSpec::real(
        "regularisation",
        "a",
        Interval::POSITIVE,
        0.1,
        "the weight of the dynamic regulariser",
    )
    .with_levels()
    .with_grid(&[0.01, 0.1, 1.0])],
    build: |options| {
        let a = options.real("regularisation")?;
        Ok(AlgorithmParts {
            proximal: a as f32,
            correction: Some(&DYNAMIC_REGULARISER),
            server: Box::new(Dynamic { a: f64::from(a as f32) }),
            ..AlgorithmParts::default()
        })
    },
    weightings: &[&EVERYONE],
    corrections: &[&DYNAMIC_REGULARISER],
    requires: Requires::Sums,
};

/// The name of g_k in the device's memory.
const GRADIENT: &str = "gradient";
/// The name of h in the track's memory.
const STATE: &str = "dynamic.h";

/// −g_k is added to every gradient.
pub static DYNAMIC_REGULARISER: Correction = Correction {
    name: "dynamic-regulariser",
    sent: &[],
    drift: |_, own, drift| match own.vector(GRADIENT) {
        Some(gradient) => drift.iter_mut().zip(gradient.as_slice()).for_each(|(drift, g)| *drift = -g),
        None => drift.fill(0.0),
    },
    finish: |trained, own, _| {
        let LocalResult { params, local, proximal, .. } = *trained;
        let moved = params.iter().zip(local).map(|(&from, &to)| f64::from(to) - f64::from(from));
        let moved = moved.map(|moved| f64::from(proximal) * moved);
        let next: Vec<f32> = match own.vector(GRADIENT) {
            Some(g) => {
                g.as_slice().iter().zip(moved).map(|(&g, moved)| (f64::from(g) - moved) as f32).collect()
            }
            None => moved.map(|moved| -moved as f32).collect(),
        };
        own.set_vector(GRADIENT, next.into());
    },
};

/// The server step.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Dynamic {
    a: f64,
}

impl ServerStep for Dynamic {
    fn apply(
        &self,
        at: &ServerStepInput<'_>,
        sum: &UpdateSum,
        memory: &mut AlgorithmState,
    ) -> Option<Params> {
        let share = sum.tail() as f64 / at.devices as f64;
        let zero = || vec![0.0; at.params.len()].into();
        let mut state = memory.vector(STATE).cloned().unwrap_or_else(zero).as_slice().to_vec();
        let mut moved = Vec::with_capacity(state.len());
        for ((&w, mean), h) in at.params.as_slice().iter().zip(sum.mean()?).zip(&mut state) {
            *h = (f64::from(*h) - self.a * share * mean) as f32;
            moved.push((f64::from(w) + mean - f64::from(*h) / self.a) as f32);
        }
        memory.set_vector(STATE, state.into());
        Some(moved.into())
    }
}
