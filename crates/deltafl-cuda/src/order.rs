//! The order in which a device passes over its examples: the draws of the CPU, from the same keyed stream.

use deltafl::device::update_stream;
use deltafl::question::RoundKey;
use deltafl::trainer::{LocalPlan, Work};

/// A device's draws in a round.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Draws {
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
        Work::Steps(steps) => (steps.saturating_mul(u32::try_from(plan.batch).unwrap_or(u32::MAX)), 1),
    }
}

impl Draws {
    /// Entries in all.
    pub(crate) fn len(&self, plan: &LocalPlan) -> usize {
        let (draws, passes) = passes(plan, self.examples);
        draws as usize * passes as usize
    }

    /// Writes the places of the examples in the columns, in the order of `trainer::Sgd`.
    pub(crate) fn write(&self, round: &RoundKey, plan: &LocalPlan, order: &mut [u32]) {
        let mut stream = update_stream(round, self.key);
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

#[cfg(test)]
mod tests {
    use super::*;

    const ROUND: RoundKey = RoundKey { seed: 5, round: 9, members: 3, terms: deltafl::terms::Terms::OPEN };

    fn plan(work: Work) -> LocalPlan {
        LocalPlan { work, batch: 4, learning_rate: 0.1, l2: 0.0, proximal: 0.0, correction: None }
    }

    fn drawn(work: Work, offset: u32) -> Vec<u32> {
        let draws = Draws { key: 77, examples: 10, offset };
        let mut order = vec![u32::MAX; draws.len(&plan(work))];
        draws.write(&ROUND, &plan(work), &mut order);
        order
    }

    #[test]
    fn epochs_are_the_shuffles_of_the_cpu() {
        let (mut stream, mut expected) = (update_stream(&ROUND, 77), Vec::new());
        for _ in 0..3 {
            let mut order: Vec<u32> = (0..10).collect();
            stream.shuffle(&mut order);
            expected.extend(order);
        }
        assert_eq!(drawn(Work::Epochs(3), 0), expected);
        assert_eq!(drawn(Work::Epochs(3), 100), expected.iter().map(|i| i + 100).collect::<Vec<_>>());
    }

    #[test]
    fn steps_are_the_draws_of_the_cpu() {
        let mut stream = update_stream(&ROUND, 77);
        let expected: Vec<u32> = (0..8).map(|_| stream.below(10) as u32 + 3).collect();
        assert_eq!(drawn(Work::Steps(2), 3), expected);
    }
}
