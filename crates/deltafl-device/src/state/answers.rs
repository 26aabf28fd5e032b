//! The number of answers that a device has given, for the budgets of its owner.
//!
//! The numbers of an authority are its answers in total, a day, and the answers on that day. An
//! answer is a contribution to one sum. The device counts it on disk before it computes it. Days
//! are counted from 1970 in UTC. A clock that goes back does not renew the budget of a day.
//!
//! The numbers also name the newest answer in the ledger, so that a ledger whose end was lost is
//! recognised.

use super::StateError;
use super::by_authority::{AuthorityKey, ByAuthority, Entry};

/// The largest number of answers that an owner allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AnswerBudget {
    /// In total, under one authority.
    pub(crate) total: u64,
    /// On one day.
    pub(crate) per_day: u64,
}

/// The budget of answers is used up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BudgetSpent {
    /// All answers under an authority are given.
    #[error("this device has given all {0} answers that its owner allows under this authority")]
    Total(u64),
    /// All answers of a day are given.
    #[error("this device has given all {0} answers that its owner allows per day")]
    Day(u64),
}

/// The answers of a device under one authority.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AnswerCount {
    /// All answers.
    pub total: u64,
    /// The last day with an answer, counted from 1970.
    pub day: u64,
    /// The answers on that day.
    pub on_day: u64,
    /// The newest answer in the ledger.
    pub(super) newest: CountedRound,
}

/// A round and the number of its answers in the ledger. The default is contained in every ledger.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct CountedRound {
    pub(super) run: u64,
    pub(super) round: u64,
    pub(super) answers: u64,
}

impl Entry<6> for AnswerCount {
    const MAGIC: [u8; 8] = *b"dfl-ans2";

    fn to_numbers(self) -> [u64; 6] {
        let CountedRound { run, round, answers } = self.newest;
        [self.total, self.day, self.on_day, run, round, answers]
    }

    fn from_numbers([total, day, on_day, run, round, answers]: [u64; 6]) -> Self {
        Self { total, day, on_day, newest: CountedRound { run, round, answers } }
    }
}

/// The answers of a device, by authority.
pub(super) type AnswerCounts = ByAuthority<AnswerCount, 6>;

impl AnswerCounts {
    /// Checks that the budget allows one more answer on this day.
    pub(super) fn check(
        &self,
        authority: &AuthorityKey,
        budget: AnswerBudget,
        day: u64,
    ) -> Result<(), BudgetSpent> {
        let count = self.get(authority);
        if count.total >= budget.total {
            return Err(BudgetSpent::Total(budget.total));
        }
        if day <= count.day && count.on_day >= budget.per_day || budget.per_day == 0 {
            return Err(BudgetSpent::Day(budget.per_day));
        }
        Ok(())
    }

    /// Counts an answer, the newest in the ledger. It is on disk when this returns.
    pub(super) fn add(
        &mut self,
        authority: AuthorityKey,
        day: u64,
        newest: CountedRound,
    ) -> Result<(), StateError> {
        let count = self.get(&authority);
        let (day, on_day) = if day > count.day { (day, 1) } else { (count.day, count.on_day + 1) };
        self.set(authority, AnswerCount { total: count.total + 1, day, on_day, newest })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BUDGET: AnswerBudget = AnswerBudget { total: 5, per_day: 2 };
    const AUTHORITY: [u8; 32] = [7; 32];

    #[test]
    fn budgets_last_across_restarts_days_and_a_clock_that_goes_back() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("answers");
        let mut given = Vec::new();
        for day in [10, 10, 10, 9, 11, 11, 11, 12, 12, 13] {
            let mut answers = AnswerCounts::open(&path).unwrap();
            let allowed = answers.check(&AUTHORITY, BUDGET, day);
            if allowed.is_ok() {
                answers.add(AUTHORITY, day, CountedRound::default()).unwrap();
            }
            given.push(allowed);
        }
        let (day, total) = (Err(BudgetSpent::Day(2)), Err(BudgetSpent::Total(5)));
        assert_eq!(given, [Ok(()), Ok(()), day, day, Ok(()), Ok(()), day, Ok(()), total, total]);
        assert_eq!(
            AnswerCounts::open(&path).unwrap().check(&[8; 32], BUDGET, 13),
            Ok(()),
            "another authority"
        );
    }
}
