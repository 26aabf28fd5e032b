//! The server step, the third part of an algorithm: it computes w_{t+1} from the sum of a round.
//!
//! [`Mean`] is Algorithm 2, line 9. A step with state (momentum, Adam) stores its vectors in the
//! track's [`Memory`].

use crate::memory::Memory;
use crate::params::{Params, UpdateSum};

/// The input of a server step, in addition to the sum.
#[derive(Clone, Copy, Debug)]
pub struct Applied<'a> {
    /// w_t.
    pub params: &'a Params,
    /// N, the number of training devices.
    pub devices: usize,
}

/// Computes w_{t+1} from the sum of a round.
pub trait ServerStep: Send + Sync {
    /// Returns w_{t+1}, or `None` if the sum contains no device and w is unchanged.
    fn apply(&self, at: &Applied<'_>, sum: &UpdateSum, memory: &mut Memory) -> Option<Params>;
}

/// Adds the weighted mean of the updates to w (Algorithm 2, line 9).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mean;

impl ServerStep for Mean {
    fn apply(&self, at: &Applied<'_>, sum: &UpdateSum, _memory: &mut Memory) -> Option<Params> {
        sum.applied_to(at.params)
    }
}
