//! A change to a device's local steps, made of what the device remembers and of what the server sends beside w.
//!
//! ```text
//! w ← w − γ (∇f(w; ξ) + λw + μ(w − w_t) + drift)        drift stays the same through a local update
//! ```
//!
//! Control variates are such a drift, and so is the linear term of a dynamic regulariser. Like a weighting, a correction has a
//! name: it travels in a question by it, and a device finds it in the table of algorithms. What it keeps in the device's
//! memory never leaves the device; what the server learns is the sum of the changes to the vectors that it sent.

use crate::memory::AlgorithmState;
use crate::params::Params;

/// How an algorithm corrects the local steps.
#[derive(Debug)]
pub struct Correction {
    /// Its name in a question, unique among all corrections.
    pub name: &'static str,
    /// The vectors of the track's memory that are sent beside w, each as long as w and zero until the server sets it. A
    /// device answers with a change to each of them.
    pub sent: &'static [&'static str],
    /// Writes the drift, from what was sent and what the device remembers.
    pub drift: fn(sent: &[Params], own: &AlgorithmState, drift: &mut [f32]),
    /// Lets the device remember its update, and writes the change to each vector sent, one behind the other.
    pub finish: fn(trained: &LocalResult<'_>, own: &mut AlgorithmState, changes: &mut [f32]),
}

/// Corrections are what they are called: there is one of each name.
impl PartialEq for Correction {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

/// A local update that has been made.
#[derive(Clone, Copy, Debug)]
pub struct LocalResult<'a> {
    /// w_t.
    pub params: &'a [f32],
    /// w_k.
    pub local: &'a [f32],
    /// What was sent beside w.
    pub sent: &'a [Params],
    /// K, the number of steps.
    pub steps: u64,
    /// γ_t.
    pub learning_rate: f32,
}
