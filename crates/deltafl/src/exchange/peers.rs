//! The processes among which a fleet distributes its devices.
//!
//! Every process runs the same round loop on the same state, so all of them ask the same questions
//! in the same order. Each computes its part of an answer. The combination does not affect the
//! bits: sums are integers, and scores are restored to the order of a single process.

use std::ops::Range;

use super::ExchangeError;
use crate::model::Score;

/// The processes that share the work. All of them call each method.
pub trait Peers {
    /// Returns the rank of this process, below [`Peers::size`].
    fn rank(&self) -> usize;

    /// Returns the number of processes.
    fn size(&self) -> usize;

    /// Runs the part of the computation that belongs to this process. An implementation may measure
    /// its duration.
    fn compute<T>(&mut self, part: impl FnOnce() -> T) -> T;

    /// Returns the concatenated parts of all processes, whose lengths are `lengths`.
    fn gather(&mut self, part: Vec<Score>, lengths: &[usize]) -> Result<Vec<Score>, ExchangeError>;

    /// Computes the sum over all processes, entry by entry modulo 2^64. During the transfer it
    /// calls `meanwhile` until that returns `false`. It may call it fewer times, or never.
    fn sum(
        &mut self,
        values: Vec<u64>,
        meanwhile: &mut dyn FnMut() -> bool,
    ) -> Result<Vec<u64>, ExchangeError>;
}

/// A single process without peers.
#[derive(Clone, Copy, Debug, Default)]
pub struct Alone;

impl Peers for Alone {
    fn rank(&self) -> usize {
        0
    }

    fn size(&self) -> usize {
        1
    }

    fn compute<T>(&mut self, part: impl FnOnce() -> T) -> T {
        part()
    }

    fn gather(&mut self, part: Vec<Score>, _: &[usize]) -> Result<Vec<Score>, ExchangeError> {
        Ok(part)
    }

    fn sum(&mut self, values: Vec<u64>, _: &mut dyn FnMut() -> bool) -> Result<Vec<u64>, ExchangeError> {
        Ok(values)
    }
}

/// The work that one process has done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WorkDone {
    /// Local updates.
    pub updates: u64,
    /// Examples evaluated or trained on.
    pub examples: u64,
}

/// Divides a sequence of tasks into consecutive parts of about equal cost, one per process.
pub(super) fn cut(costs: impl Iterator<Item = u64> + Clone, parts: usize) -> Vec<Range<usize>> {
    let total: u128 = costs.clone().map(u128::from).sum::<u128>().max(1);
    let mut ends = vec![0; parts];
    let mut before = 0;
    for (i, cost) in costs.enumerate() {
        // A task belongs to the part that contains its midpoint.
        let owner = (2 * before + u128::from(cost)) * parts as u128 / (2 * total);
        ends[(owner as usize).min(parts - 1)] = i + 1;
        before += u128::from(cost);
    }
    let mut start = 0;
    let range = |end: usize| {
        let range = start..end.max(start);
        start = range.end;
        range
    };
    ends.into_iter().map(range).collect()
}

/// Assigns tasks to processes: the largest first, each to the process with the smallest load.
/// `costs` must be decreasing. The result is deterministic, so no communication is needed.
pub(super) fn owners(costs: &[u64], parts: usize) -> Vec<usize> {
    use std::cmp::Reverse;
    let mut loads: std::collections::BinaryHeap<_> = (0..parts).map(|part| Reverse((0u64, part))).collect();
    let owner = |cost: &u64| {
        let Reverse((load, part)) = loads.pop().expect("there is at least one process");
        loads.push(Reverse((load + cost.max(&1), part)));
        part
    };
    costs.iter().map(owner).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_cut_covers_every_task_once_and_no_part_is_off_by_more_than_a_task(
            costs in prop::collection::vec(0u64..1000, 0..200), parts in 1usize..9,
        ) {
            let ranges = cut(costs.iter().copied(), parts);
            let covered: Vec<usize> = ranges.iter().cloned().flatten().collect();
            prop_assert_eq!(covered, (0..costs.len()).collect::<Vec<_>>());
            let fair = costs.iter().sum::<u64>() / parts as u64;
            let largest = costs.iter().copied().max().unwrap_or(0);
            for range in ranges {
                prop_assert!(costs[range].iter().sum::<u64>() <= fair + largest + 1);
            }
        }

        #[test]
        fn owners_are_within_a_task_of_each_other(
            mut costs in prop::collection::vec(1u64..1000, 1..200), parts in 1usize..9,
        ) {
            costs.sort_unstable_by(|a, b| b.cmp(a));
            let mut loads = vec![0; parts];
            owners(&costs, parts).iter().zip(&costs).for_each(|(&part, cost)| loads[part] += cost);
            let (most, least) = (loads.iter().max().unwrap(), loads.iter().min().unwrap());
            prop_assert!(most - least <= costs[0]);
        }
    }

    #[test]
    fn nothing_to_do_is_an_empty_part_for_everyone() {
        assert_eq!(cut([].into_iter(), 3), [0..0, 0..0, 0..0]);
        assert!(owners(&[], 3).is_empty());
    }
}
