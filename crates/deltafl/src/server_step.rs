//! The server step, the third part of an algorithm: it computes w_{t+1} from the sum of a round.
//!
//! [`Mean`] is Algorithm 2, line 9. A step with state ([`Momentum`], [`Adaptive`]) stores its
//! vectors in the track's [`AlgorithmState`].

mod adaptive;
mod momentum;

pub use adaptive::{Adaptive, SecondMoment};
pub use momentum::Momentum;

use crate::memory::AlgorithmState;
use crate::params::{Params, UpdateSum};
use crate::trainer::TrainerError;

/// The input of a server step, in addition to the sum.
#[derive(Clone, Copy, Debug)]
pub struct ServerStepInput<'a> {
    /// w_t.
    pub params: &'a Params,
    /// N, the number of training devices.
    pub devices: usize,
    /// γ_t, the learning rate of the devices.
    pub learning_rate: f64,
}

/// Computes w_{t+1} from the sum of a round.
pub trait ServerStep: Send + Sync {
    /// Returns w_{t+1}, or `None` if the sum contains no device. Then w stays.
    fn apply(&self, at: &ServerStepInput<'_>, sum: &UpdateSum, memory: &mut AlgorithmState)
    -> Option<Params>;

    /// Returns the error of the algorithm in this round, if the program that implements it failed.
    /// The round then fails.
    fn failure(&self) -> Option<TrainerError> {
        None
    }
}

/// Adds the weighted mean of the updates to w (Algorithm 2, line 9).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mean;

impl ServerStep for Mean {
    fn apply(
        &self,
        at: &ServerStepInput<'_>,
        sum: &UpdateSum,
        _memory: &mut AlgorithmState,
    ) -> Option<Params> {
        sum.applied_to(at.params)
    }
}
