//! Corrections of a device's local steps, based on the device's memory and on vectors that the
//! server sends with w.
//!
//! ```text
//! w ← w − γ (∇f(w; ξ) + λw + μ(w − w_t) + drift)        drift stays the same through a local update
//! ```
//!
//! Control variates are such a drift, and so is the linear term of a dynamic regulariser. Like a
//! weighting, a correction has a name. A question contains the name, and a device looks it up in
//! the table of algorithms. Its state in the device's memory never leaves the device. The server
//! learns only the sum of the changes to the vectors that it sent.

use super::{LocalPlan, LocalTask};
use crate::memory::AlgorithmState;
use crate::params::Params;

/// A correction of the local steps.
#[derive(Debug)]
pub struct Correction {
    /// Its name in a question, unique among all corrections.
    pub name: &'static str,
    /// The vectors of the track's memory that are sent with w, each as long as w and zero until the
    /// server sets it. A device answers with a change to each of them.
    pub sent: &'static [&'static str],
    /// Computes the drift from the vectors sent and the state of the device.
    pub drift: fn(sent: &[Params], own: &AlgorithmState, drift: &mut [f32]),
    /// Stores the new state of the device, and writes the change to each vector sent, one after the
    /// other.
    pub finish: fn(trained: &LocalResult<'_>, own: &mut AlgorithmState, changes: &mut [f32]),
}

impl Correction {
    /// Stores the new state of a device after its local update, and appends the change of each vector
    /// that was sent with w to `local`, which is w_k.
    pub fn append_changes(&self, task: &LocalTask<'_>, own: &mut AlgorithmState, local: &mut Vec<f32>) {
        let LocalTask { params, sent, examples, plan } = *task;
        local.resize(params.len() * (1 + plan.sent()), 0.0);
        let (local, changes) = local.split_at_mut(params.len());
        let steps = plan.steps(examples.len() as u64);
        let LocalPlan { learning_rate, proximal, .. } = *plan;
        (self.finish)(&LocalResult { params, local, sent, steps, learning_rate, proximal }, own, changes);
    }
}

/// Two corrections are equal if their names are equal. Each name is unique.
impl PartialEq for Correction {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

/// A completed local update.
#[derive(Clone, Copy, Debug)]
pub struct LocalResult<'a> {
    /// w_t.
    pub params: &'a [f32],
    /// w_k.
    pub local: &'a [f32],
    /// The vectors sent with w.
    pub sent: &'a [Params],
    /// K, the number of steps.
    pub steps: u64,
    /// γ_t.
    pub learning_rate: f32,
    /// μ, the weight of the proximal term.
    pub proximal: f32,
}
