//! What the server makes of the sum of a round: the third part of an algorithm.
//!
//! [`Mean`] is Algorithm 2, line 9. A step that remembers (momentum, Adam) keeps its vectors in the track's [`AlgorithmState`].

use crate::memory::AlgorithmState;
use crate::params::{Params, UpdateSum};

/// Where a sum is applied.
#[derive(Clone, Copy, Debug)]
pub struct ServerStepInput<'a> {
    /// w_t.
    pub params: &'a Params,
    /// N, the devices that train.
    pub devices: usize,
}

/// What the server makes of the sum of a round.
pub trait ServerStep: Send + Sync {
    /// w_{t+1}; `None` when the sum is over nobody and w stays.
    fn apply(&self, at: &ServerStepInput<'_>, sum: &UpdateSum, memory: &mut AlgorithmState)
    -> Option<Params>;
}

/// w moves by the weighted mean of the updates (Algorithm 2, line 9).
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
