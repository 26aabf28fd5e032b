//! The current round: the devices it has asked, and the sums that a previous server has received.
//!
//! After a crash the next server reads the questions of the round from the store. If the last of
//! them has a sum, the round resumes with the same cohort, the known sums, and the next question
//! under new keys. If a question was sent and has no sum, its devices do not answer it again. The
//! round then restarts with devices that it has not asked. The same applies when the aggregation of
//! a cohort fails on a running server. No device receives the same question of secure aggregation
//! twice.

use std::collections::{BTreeSet, VecDeque};

use deltafl::exchange::CohortSum;

use crate::round::LoopRuntime;
use crate::store::{Fence, Lease, SlotKey, Store, StoreError, StoredQuestion};

/// Stores the questions of the current round and their sums as soon as they are known.
#[derive(Clone, Debug)]
pub struct RoundJournal {
    store: Store,
    fence: Fence,
}

impl RoundJournal {
    /// Creates the store for the holder of this lease. Once another server has taken over, writes
    /// are refused.
    pub fn new(store: Store, lease: &Lease) -> Self {
        Self { store, fence: lease.to_fence() }
    }

    pub(super) fn slots(
        &self,
        runtime: &LoopRuntime,
        seed: u64,
        round: u64,
    ) -> Result<Vec<StoredQuestion>, StoreError> {
        runtime.block_on(self.store.slots(self.fence.federation(), seed, round))
    }

    /// Reserves numbers of key set-ups. Returns the last number before them.
    pub(super) fn reserve_setups(&self, runtime: &LoopRuntime, count: u64) -> Result<u64, StoreError> {
        runtime.block_on(self.store.reserve_setups(&self.fence, count))
    }

    pub(super) fn asked(
        &self,
        runtime: &LoopRuntime,
        key: SlotKey,
        slot: &StoredQuestion,
    ) -> Result<(), StoreError> {
        runtime.block_on(self.store.keep_asked(&self.fence, key, slot))
    }

    pub(super) fn summed(
        &self,
        runtime: &LoopRuntime,
        key: SlotKey,
        sums: &[CohortSum],
    ) -> Result<(), StoreError> {
        runtime.block_on(self.store.keep_sums(&self.fence, key, sums))
    }
}

/// The previous server sent this cohort or this round a different question, because the experiment
/// or the options have changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the round was started with a different cohort or different questions")]
pub(super) struct QuestionMismatch;

/// The known state of the current round.
#[derive(Debug, Default)]
pub(super) struct RoundInProgress {
    /// The seed and t.
    round: (u64, u64),
    /// The number of questions so far, over all cohorts.
    questions: u64,
    /// The devices that received any of them.
    asked: BTreeSet<u32>,
    /// The remaining questions of a previous server.
    left: Option<UnfinishedRound>,
    /// Whether the next cohort is a retry of the same round.
    again: bool,
}

/// The questions of a round left by a previous server.
#[derive(Debug)]
struct UnfinishedRound {
    cohort: BTreeSet<u32>,
    sums: VecDeque<(blake3::Hash, Vec<CohortSum>)>,
}

impl RoundInProgress {
    /// Restores the round of which a previous server sent these questions.
    pub(super) fn resumed(round: (u64, u64), slots: Vec<StoredQuestion>) -> Self {
        let questions = slots.len() as u64;
        let asked = slots.iter().flat_map(|slot| slot.asked.iter().copied()).collect();
        let last = slots.last().map(|slot| (slot.cohort.clone(), slot.sums.is_some()));
        let left = match &last {
            Some((cohort, true)) => {
                let sums = slots.into_iter().filter(|slot| slot.cohort == *cohort);
                let sums = sums.filter_map(|slot| Some((slot.question, slot.sums?))).collect();
                Some(UnfinishedRound { cohort: cohort.clone(), sums })
            }
            _ => None,
        };
        let again = last.is_some_and(|(_, summed)| !summed);
        Self { round, questions, asked, left, again }
    }

    /// Selects a round. Resets the state if the round is new.
    pub(super) fn turn_to(&mut self, round: (u64, u64)) {
        if self.round != round {
            *self = Self { round, ..Self::default() };
        }
    }

    /// Returns the seed and t.
    pub(super) fn round(&self) -> (u64, u64) {
        self.round
    }

    /// Returns the cohort of a previous server while some of its sums are unused.
    pub(super) fn left_cohort(&self) -> Option<&BTreeSet<u32>> {
        self.left.as_ref().map(|left| &left.cohort)
    }

    /// Marks the next cohort as a retry of this round.
    pub(super) fn begin_anew(&mut self) {
        (self.left, self.again) = (None, true);
    }

    /// Returns `true` if the next cohort is a retry of this round, and clears the mark.
    pub(super) fn take_again(&mut self) -> bool {
        std::mem::take(&mut self.again)
    }

    /// Returns `true` if no device has received a question.
    pub(super) fn is_untouched(&self) -> bool {
        self.asked.is_empty()
    }

    /// Returns `true` if a device has received a question in this round.
    pub(super) fn has_asked(&self, device: u32) -> bool {
        self.asked.contains(&device)
    }

    /// Returns the sums of a question that a previous server sent to this cohort, or `None` for a
    /// new question.
    pub(super) fn known(
        &mut self,
        cohort: &BTreeSet<u32>,
        question: &blake3::Hash,
    ) -> Result<Option<Vec<CohortSum>>, QuestionMismatch> {
        let Some(left) = &mut self.left else { return Ok(None) };
        let next = left.sums.pop_front().filter(|(known, _)| known == question && left.cohort == *cohort);
        if left.sums.is_empty() || next.is_none() {
            self.left = None;
        }
        next.map(|(_, sums)| Some(sums)).ok_or(QuestionMismatch)
    }

    /// Records that these devices receive a question, and returns its key in the store.
    pub(super) fn ask(&mut self, devices: impl IntoIterator<Item = u32>) -> SlotKey {
        let (seed, round) = self.round;
        let key = SlotKey { seed, round, number: self.questions };
        self.questions += 1;
        self.asked.extend(devices);
        key
    }
}

#[cfg(test)]
mod tests {
    use deltafl::exchange::Traffic;

    use super::*;

    fn question(n: u8) -> blake3::Hash {
        blake3::hash(&[n])
    }

    fn sums(n: u64) -> Vec<CohortSum> {
        vec![CohortSum { values: vec![n], answered: 3, traffic: Traffic::default(), remembered: Vec::new() }]
    }

    fn slot(n: u8, cohort: [u32; 3], summed: bool) -> StoredQuestion {
        let cohort = BTreeSet::from(cohort);
        StoredQuestion {
            question: question(n),
            asked: cohort.clone(),
            cohort,
            sums: summed.then(|| sums(n.into())),
        }
    }

    #[test]
    fn a_round_whose_last_question_has_its_sum_goes_on_with_its_cohort() {
        let slots = vec![slot(0, [1, 2, 3], false), slot(0, [4, 5, 6], true), slot(1, [4, 5, 6], true)];
        let mut round = RoundInProgress::resumed((1, 7), slots);
        let cohort = BTreeSet::from([4, 5, 6]);
        assert_eq!(round.left_cohort(), Some(&cohort));
        assert!(!round.take_again());
        round.turn_to((1, 7));
        assert_eq!(round.known(&cohort, &question(0)), Ok(Some(sums(0))));
        assert_eq!(round.known(&cohort, &question(1)), Ok(Some(sums(1))));
        assert_eq!(round.left_cohort(), None);
        assert_eq!(round.known(&cohort, &question(2)), Ok(None));
        assert_eq!(round.ask([4, 5]), SlotKey { seed: 1, round: 7, number: 3 });
        assert!([1, 2, 3, 4, 5, 6].iter().all(|&device| round.has_asked(device)));
    }

    #[test]
    fn a_round_whose_last_question_has_no_sum_is_begun_anew_without_its_devices() {
        let slots = vec![slot(0, [1, 2, 3], true), slot(1, [1, 2, 3], false)];
        let mut round = RoundInProgress::resumed((1, 7), slots);
        assert_eq!(round.left_cohort(), None);
        assert!(round.take_again() && !round.take_again());
        assert_eq!((round.has_asked(3), round.has_asked(4)), (true, false));
        assert_eq!(round.known(&BTreeSet::from([7, 8, 9]), &question(0)), Ok(None));
        round.turn_to((1, 8));
        assert!(round.is_untouched(), "the next round may ask everybody");
    }

    #[test]
    fn sums_are_not_taken_for_those_of_another_cohort_or_question() {
        let cohort = BTreeSet::from([1, 2, 3]);
        let round =
            || RoundInProgress::resumed((1, 7), vec![slot(0, [1, 2, 3], true), slot(1, [1, 2, 3], true)]);
        assert_eq!(round().known(&BTreeSet::from([1, 2, 4]), &question(0)), Err(QuestionMismatch));
        let mut other = round();
        assert_eq!(other.known(&cohort, &question(1)), Err(QuestionMismatch));
        assert_eq!(other.left_cohort(), None);
    }
}
