//! Adaptive server steps: the mean update is the gradient of Adam, Yogi or Adagrad (Reddi et al.,
//! "Adaptive Federated Optimization", ICLR 2021, Algorithm 2).
//!
//! ```text
//! Δ_t     = Σ α_k (w_k − w_t) / Σ α_k
//! m_t     = β₁ m_{t−1} + (1 − β₁) Δ_t
//! v_t     = β₂ v_{t−1} + (1 − β₂) Δ_t²                           Adam
//!           v_{t−1} − (1 − β₂) Δ_t² sign(v_{t−1} − Δ_t²)         Yogi
//!           v_{t−1} + Δ_t²                                       Adagrad
//! w_{t+1} = w_t + η m_t / (√v_t + τ)
//! ```
//!
//! As published, there is no bias correction in the first rounds, with m₀ = 0 and v₀ = τ². The
//! track's memory contains both moments, so they are part of every checkpoint.

use super::{ServerStep, ServerStepInput};
use crate::memory::AlgorithmState;
use crate::options::{InvalidOption, OptionValues};
use crate::params::{Params, UpdateSum};

/// The rule for the second moment v.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SecondMoment {
    /// v moves towards Δ² at a rate proportional to the difference.
    Adam,
    /// v moves towards Δ² by at most (1 − β₂) Δ².
    Yogi,
    /// v is the sum of all Δ².
    Adagrad,
}

impl SecondMoment {
    /// Returns the names of m and v in the track's memory.
    pub fn names(self) -> [&'static str; 2] {
        match self {
            Self::Adam => ["adam.m", "adam.v"],
            Self::Yogi => ["yogi.m", "yogi.v"],
            Self::Adagrad => ["adagrad.m", "adagrad.v"],
        }
    }

    /// Returns v_t.
    fn next(self, v: f64, beta: f64, delta: f64) -> f64 {
        let square = delta * delta;
        match self {
            Self::Adam => beta * v + (1.0 - beta) * delta * delta,
            Self::Yogi if v > square => v - (1.0 - beta) * square,
            Self::Yogi if v < square => v + (1.0 - beta) * square,
            Self::Yogi => v,
            Self::Adagrad => v + square,
        }
    }
}

/// An adaptive step on the server.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Adaptive {
    /// The rule for v.
    pub rule: SecondMoment,
    /// η, the learning rate of the server.
    pub rate: f64,
    /// β₁ and β₂. Adagrad does not use β₂.
    pub beta: [f64; 2],
    /// τ, which is added to √v.
    pub tau: f64,
}

impl Adaptive {
    /// Reads `server_rate`, `beta1`, `beta2` (unless the rule is Adagrad) and `tau`.
    ///
    /// # Errors
    ///
    /// Fails if an option is missing.
    pub fn from_options(rule: SecondMoment, options: &OptionValues) -> Result<Self, InvalidOption> {
        let second = if rule == SecondMoment::Adagrad { 0.0 } else { options.real("beta2")? };
        let beta = [options.real("beta1")?, second];
        Ok(Self { rule, rate: options.real("server_rate")?, beta, tau: options.real("tau")? })
    }
}

impl ServerStep for Adaptive {
    fn apply(
        &self,
        at: &ServerStepInput<'_>,
        sum: &UpdateSum,
        memory: &mut AlgorithmState,
    ) -> Option<Params> {
        let params = at.params;
        let mean = sum.mean()?;
        let (names, start) = (self.rule.names(), [0.0, (self.tau * self.tau) as f32]);
        let mut moments: [Vec<f32>; 2] = std::array::from_fn(|i| match memory.vector(names[i]) {
            Some(moment) => moment.as_slice().to_vec(),
            None => vec![start[i]; params.len()],
        });
        let [first, second] = &mut moments;
        let mut moved = Vec::with_capacity(params.len());
        for (((&w, delta), m), v) in params.as_slice().iter().zip(mean).zip(first).zip(second) {
            *m = (self.beta[0] * f64::from(*m) + (1.0 - self.beta[0]) * delta) as f32;
            *v = self.rule.next(f64::from(*v), self.beta[1], delta) as f32;
            let step = self.rate * f64::from(*m) / (f64::from(*v).sqrt() + self.tau);
            moved.push((f64::from(w) + step) as f32);
        }
        for (name, moment) in names.into_iter().zip(moments) {
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
        ServerStepInput { params, devices: 10, learning_rate: 0.1 }
    }

    fn sum(params: &Params, local: &[f32]) -> UpdateSum {
        let mut sum = vec![0; UpdateCode::len(params.len())];
        UpdateCode::new(1).add(params.as_slice(), local, 1.0, &mut sum).unwrap();
        UpdateSum::new(sum, params.len()).unwrap()
    }

    /// The params after a step with Δ = 1 and a step with Δ = 0, from w = 1.
    fn two_steps(rule: SecondMoment) -> [f64; 2] {
        let step = Adaptive { rule, rate: 0.1, beta: [0.5, 0.75], tau: 0.5 };
        let (start, mut memory) = (Params::from(vec![1.0]), AlgorithmState::default());
        let once = step.apply(&at(&start), &sum(&start, &[2.0]), &mut memory).unwrap();
        let twice = step.apply(&at(&once), &sum(&once, once.as_slice()), &mut memory).unwrap();
        assert_eq!(memory.vectors().map(|(name, _)| name).collect::<Vec<_>>(), rule.names());
        [once, twice].map(|params| f64::from(params.as_slice()[0]))
    }

    #[test]
    fn two_steps_are_those_of_the_formula() {
        // v₀ = 0.25 and m = 0.5, 0.25. The table lists v after each step.
        for (rule, v) in [
            (SecondMoment::Adam, [0.4375, 0.328_125]),
            (SecondMoment::Yogi, [0.5, 0.5]),
            (SecondMoment::Adagrad, [1.25, 1.25]),
        ] {
            let first = 1.0 + 0.1 * 0.5 / (f64::sqrt(v[0]) + 0.5);
            let second = first + 0.1 * 0.25 / (f64::sqrt(v[1]) + 0.5);
            let found = two_steps(rule);
            assert!(
                (found[0] - first).abs() < 1e-6 && (found[1] - second).abs() < 1e-6,
                "{rule:?} {found:?}"
            );
        }
    }

    #[test]
    fn a_sum_over_nobody_moves_nothing_and_forgets_nothing() {
        let adam = Adaptive { rule: SecondMoment::Adam, rate: 0.1, beta: [0.9, 0.99], tau: 1e-3 };
        let (params, mut memory) = (Params::from(vec![1.0]), AlgorithmState::default());
        let nobody = UpdateSum::new(vec![0; UpdateCode::len(1)], 1).unwrap();
        assert_eq!(adam.apply(&at(&params), &nobody, &mut memory), None);
        assert_eq!(memory, AlgorithmState::default());
    }
}
