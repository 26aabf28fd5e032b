//! The server step, the third part of an algorithm: it computes w_{t+1} from the sum of a round.
//!
//! [`Mean`] is Algorithm 2, line 9. A step that remembers (momentum, Adam) keeps its vectors in the track's [`AlgorithmState`].

use crate::memory::AlgorithmState;
use crate::params::{Params, UpdateSum};

/// The input of a server step, in addition to the sum.
#[derive(Clone, Copy, Debug)]
pub struct ServerStepInput<'a> {
    /// w_t.
    pub params: &'a Params,
    /// N, the number of training devices.
    pub devices: usize,
}

/// Computes w_{t+1} from the sum of a round.
pub trait ServerStep: Send + Sync {
    /// w_{t+1}; `None` when the sum is over nobody and w stays.
    fn apply(&self, at: &ServerStepInput<'_>, sum: &UpdateSum, memory: &mut AlgorithmState)
    -> Option<Params>;
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
