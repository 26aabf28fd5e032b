//! FedAdam: the server uses the mean update as a gradient for an Adam step (Reddi et al., 2021).
//!
//! ```text
//! Δ_t     = Σ α_k (w_k − w_t) / Σ α_k
//! m_t     = β₁ m_{t−1} + (1 − β₁) Δ_t
//! v_t     = β₂ v_{t−1} + (1 − β₂) Δ_t²
//! w_{t+1} = w_t + η m_t / (√v_t + τ)
//! ```
//!
//! As published, there is no bias correction in the first rounds, with m₀ = 0 and v₀ = τ². The
//! track's memory contains the moments as `adam.m` and `adam.v`, so they are part of every
//! checkpoint.

use super::{Algorithm, AlgorithmParts};
use crate::memory::AlgorithmState;
use crate::options::{
    Interval, InvalidOption, OptionDefault, OptionKind, OptionSpec, OptionValue, OptionValues,
};
use crate::params::{Params, UpdateSum};
use crate::server_step::{ServerStep, ServerStepInput};

/// FedAdam.
pub static FED_ADAM: Algorithm = Algorithm {
    kind: "fedadam",
    title: "FedAdam",
    about: "the server uses the mean update as the gradient of Adam",
    options: &[
        real("server_rate", "η_s", Interval::POSITIVE, 0.01, "learning rate of the server"),
        real("beta1", "β₁", DECAY, 0.9, "decay of the first moment per round"),
        real("beta2", "β₂", DECAY, 0.99, "decay of the second moment per round"),
        real(
            "tau",
            "τ",
            Interval::POSITIVE,
            1e-3,
            "constant added to the root of the second moment, which limits the adaptation",
        ),
    ],
    build: |options| {
        Ok(AlgorithmParts { server: Box::new(Adam::from_options(options)?), ..AlgorithmParts::default() })
    },
    weightings: &[],
    corrections: &[],
};

/// β ∈ [0, 1).
const DECAY: Interval = Interval { least: 0.0, open: false, most: 1.0 - f64::EPSILON };
/// The names of the moments.
const MOMENTS: [&str; 2] = ["adam.m", "adam.v"];

const fn real(
    name: &'static str,
    symbol: &'static str,
    interval: Interval,
    default: f64,
    about: &'static str,
) -> OptionSpec {
    let (kind, value) = (OptionKind::Real(interval), OptionValue::Real(default));
    OptionSpec {
        name,
        symbol,
        kind,
        default: OptionDefault::Value(value),
        levels: false,
        about,
        example: value,
    }
}

/// The Adam step on the server.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Adam {
    rate: f64,
    beta: [f64; 2],
    tau: f64,
}

impl Adam {
    fn from_options(options: &OptionValues) -> Result<Self, InvalidOption> {
        let beta = [options.real("beta1")?, options.real("beta2")?];
        Ok(Self { rate: options.real("server_rate")?, beta, tau: options.real("tau")? })
    }
}

impl ServerStep for Adam {
    fn apply(
        &self,
        at: &ServerStepInput<'_>,
        sum: &UpdateSum,
        memory: &mut AlgorithmState,
    ) -> Option<Params> {
        let params = at.params;
        let mean = sum.mean()?;
        let start = [0.0, (self.tau * self.tau) as f32];
        let mut moments: [Vec<f32>; 2] = std::array::from_fn(|i| match memory.vector(MOMENTS[i]) {
            Some(moment) => moment.as_slice().to_vec(),
            None => vec![start[i]; params.len()],
        });
        let [first, second] = &mut moments;
        let mut moved = Vec::with_capacity(params.len());
        for (((&w, delta), m), v) in params.as_slice().iter().zip(mean).zip(first).zip(second) {
            *m = (self.beta[0] * f64::from(*m) + (1.0 - self.beta[0]) * delta) as f32;
            *v = (self.beta[1] * f64::from(*v) + (1.0 - self.beta[1]) * delta * delta) as f32;
            let step = self.rate * f64::from(*m) / (f64::from(*v).sqrt() + self.tau);
            moved.push((f64::from(w) + step) as f32);
        }
        for (name, moment) in MOMENTS.into_iter().zip(moments) {
            memory.set_vector(name, moment.into());
        }
        Some(moved.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::params::UpdateCode;

    fn at(params: &Params) -> ServerStepInput<'_> {
        ServerStepInput { params, devices: 10 }
    }

    fn sum(params: &Params, local: &[f32]) -> UpdateSum {
        let mut sum = vec![0; UpdateCode::len(params.len())];
        UpdateCode::new(1).add(params.as_slice(), local, 1.0, &mut sum).unwrap();
        UpdateSum::new(sum, params.len()).unwrap()
    }

    #[test]
    fn two_steps_are_those_of_the_formula() {
        let adam = Adam { rate: 0.1, beta: [0.5, 0.75], tau: 0.5 };
        let (start, mut memory) = (Params::from(vec![1.0]), AlgorithmState::default());
        let once = adam.apply(&at(&start), &sum(&start, &[2.0]), &mut memory).unwrap();
        // Δ = 1: m = 0.5, v = 0.75·0.25 + 0.25·1 = 0.4375.
        let expected = 1.0 + 0.1 * 0.5 / (0.4375_f64.sqrt() + 0.5);
        assert!((f64::from(once.as_slice()[0]) - expected).abs() < 1e-6, "{once:?}");
        let twice = adam.apply(&at(&once), &sum(&once, once.as_slice()), &mut memory).unwrap();
        // Δ = 0: m = 0.25, v = 0.328125.
        let expected = expected + 0.1 * 0.25 / (0.328_125_f64.sqrt() + 0.5);
        assert!((f64::from(twice.as_slice()[0]) - expected).abs() < 1e-6, "{twice:?}");
        assert_eq!(memory.vectors().map(|(name, _)| name).collect::<Vec<_>>(), MOMENTS);
    }

    #[test]
    fn a_sum_over_nobody_moves_nothing_and_forgets_nothing() {
        let adam = Adam { rate: 0.1, beta: [0.9, 0.99], tau: 1e-3 };
        let (params, mut memory) = (Params::from(vec![1.0]), AlgorithmState::default());
        let nobody = UpdateSum::new(vec![0; UpdateCode::len(1)], 1).unwrap();
        assert_eq!(adam.apply(&at(&params), &nobody, &mut memory), None);
        assert_eq!(memory, AlgorithmState::default());
    }
}
