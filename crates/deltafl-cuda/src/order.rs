//! The order in which a device passes over its examples: the draws of the CPU, from the same keyed stream.

use deltafl::device::{LocalPlan, Work};
use deltafl::stream::{Purpose, Stream};

/// A device's draws in a round.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Draws {
    pub(crate) seed: u64,
    pub(crate) round: u64,
    /// What the stream depends on beside them: `device::stream_key` of the device.
    pub(crate) key: u64,
    /// n_k.
    pub(crate) examples: u32,
    /// Where the examples begin in the columns of the GPU.
    pub(crate) offset: u32,
}

/// Entries of a pass, and passes. A run of steps is one pass over all their draws.
pub(crate) fn passes(plan: &LocalPlan, examples: u32) -> (u32, u32) {
    match plan.work {
        Work::Epochs(epochs) => (examples, epochs),
        Work::Steps(steps) => (steps * plan.batch as u32, 1),
    }
}

impl Draws {
    /// Entries in all.
    pub(crate) fn len(&self, plan: &LocalPlan) -> usize {
        let (draws, passes) = passes(plan, self.examples);
        draws as usize * passes as usize
    }

    /// Writes the places of the examples in the columns, in the order of `device::Workspace`.
    pub(crate) fn write(&self, plan: &LocalPlan, order: &mut [u32]) {
        let mut stream = Stream::new(self.seed, Purpose::LocalUpdate, self.round, self.key);
        match plan.work {
            Work::Epochs(_) => {
                for pass in order.chunks_exact_mut(self.examples.max(1) as usize) {
                    // A shuffle of 0..n shifted by the offset is the shuffle of the shifted numbers.
                    pass.iter_mut().zip(self.offset..).for_each(|(entry, i)| *entry = i);
                    stream.shuffle(pass);
                }
            }
            Work::Steps(_) => {
                let draw = || self.offset + stream.below(u64::from(self.examples)) as u32;
                order.fill_with(draw);
            }
        }
    }
}
