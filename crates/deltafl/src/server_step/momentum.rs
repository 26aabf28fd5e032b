//! A server step with momentum.

use super::{ServerStep, ServerStepInput};
use crate::memory::AlgorithmState;
use crate::params::{Params, UpdateSum};

/// The name of the velocity in the track's memory.
const VELOCITY: &str = "velocity";

/// v ← β v + Δ and w ← w + η v, from v = 0. With β = 0 and η = 1 this is [`Mean`](super::Mean).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Momentum {
    /// η, the learning rate of the server.
    pub rate: f64,
    /// β, the factor of the velocity.
    pub beta: f64,
}

impl ServerStep for Momentum {
    fn apply(
        &self,
        at: &ServerStepInput<'_>,
        sum: &UpdateSum,
        memory: &mut AlgorithmState,
    ) -> Option<Params> {
        let mean = sum.mean()?;
        let zero = || vec![0.0; at.params.len()].into();
        let mut velocity = memory.vector(VELOCITY).cloned().unwrap_or_else(zero).as_slice().to_vec();
        let mut moved = Vec::with_capacity(velocity.len());
        for ((&w, delta), v) in at.params.as_slice().iter().zip(mean).zip(&mut velocity) {
            let next = self.beta * f64::from(*v) + delta;
            *v = next as f32;
            moved.push((f64::from(w) + self.rate * next) as f32);
        }
        memory.set_vector(VELOCITY, velocity.into());
        Some(moved.into())
    }
}
