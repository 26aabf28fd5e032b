//! The number of answers that a device has given, for the budgets of its owner.
//!
//! ```text
//! answers    magic · for each authority: its key, answers in total u64, a day u64, answers on that day u64 · BLAKE3
//! ```
//!
//! An answer is a contribution to one sum. The device counts it on disk before it computes it. Days
//! are counted from 1970 in UTC. A clock that goes back does not renew the budget of a day.

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use super::{StateError, io_error, replace};

const MAGIC: &[u8; 8] = b"dfl-ans1";
const ENTRY: usize = 32 + 3 * 8;

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
}

/// The answers of a device, on disk or in memory.
#[derive(Debug, Default)]
pub(super) struct AnswerCounts {
    path: Option<PathBuf>,
    counts: BTreeMap<[u8; 32], AnswerCount>,
}

impl AnswerCounts {
    /// Opens the counts in a file. A missing file contains no answers.
    pub(super) fn open(path: &Path) -> Result<Self, StateError> {
        let counts = match fs::read(path) {
            Ok(bytes) => parse(&bytes).ok_or_else(|| StateError::Damaged { path: path.to_owned() })?,
            Err(error) if error.kind() == ErrorKind::NotFound => BTreeMap::new(),
            Err(source) => return Err(io_error(path)(source)),
        };
        Ok(Self { path: Some(path.to_owned()), counts })
    }

    /// Returns the answers under an authority.
    pub(super) fn count(&self, authority: &[u8; 32]) -> AnswerCount {
        self.counts.get(authority).copied().unwrap_or_default()
    }

    /// Checks that the budget allows one more answer on this day.
    pub(super) fn check(
        &self,
        authority: &[u8; 32],
        budget: AnswerBudget,
        day: u64,
    ) -> Result<(), BudgetSpent> {
        let count = self.count(authority);
        if count.total >= budget.total {
            return Err(BudgetSpent::Total(budget.total));
        }
        if day <= count.day && count.on_day >= budget.per_day || budget.per_day == 0 {
            return Err(BudgetSpent::Day(budget.per_day));
        }
        Ok(())
    }

    /// Counts an answer. It is on disk when this returns.
    pub(super) fn add(&mut self, authority: [u8; 32], day: u64) -> Result<(), StateError> {
        let count = self.counts.entry(authority).or_default();
        count.total += 1;
        (count.day, count.on_day) = if day > count.day { (day, 1) } else { (count.day, count.on_day + 1) };
        match &self.path {
            Some(path) => replace(path, &to_bytes(&self.counts)),
            None => Ok(()),
        }
    }
}

/// Reads the answers of a device by authority, without a lock on its folder.
pub(super) fn read(path: &Path) -> Result<BTreeMap<[u8; 32], AnswerCount>, StateError> {
    AnswerCounts::open(path).map(|answers| answers.counts)
}

fn to_bytes(counts: &BTreeMap<[u8; 32], AnswerCount>) -> Vec<u8> {
    let mut bytes = MAGIC.to_vec();
    for (authority, count) in counts {
        bytes.extend_from_slice(authority);
        for number in [count.total, count.day, count.on_day] {
            bytes.extend_from_slice(&number.to_le_bytes());
        }
    }
    let hash = blake3::hash(&bytes);
    bytes.extend_from_slice(hash.as_bytes());
    bytes
}

fn parse(bytes: &[u8]) -> Option<BTreeMap<[u8; 32], AnswerCount>> {
    let (body, hash) = bytes.split_last_chunk::<32>()?;
    if blake3::hash(body) != blake3::Hash::from_bytes(*hash) {
        return None;
    }
    let (entries, cut) = body.strip_prefix(MAGIC)?.as_chunks::<ENTRY>();
    let entry = |entry: &[u8; ENTRY]| {
        let (authority, rest) = entry.split_first_chunk::<32>()?;
        let (numbers, _) = rest.as_chunks::<8>();
        let [total, day, on_day] = *numbers else { return None };
        let [total, day, on_day] = [total, day, on_day].map(u64::from_le_bytes);
        Some((*authority, AnswerCount { total, day, on_day }))
    };
    if cut.is_empty() { entries.iter().map(entry).collect() } else { None }
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
                answers.add(AUTHORITY, day).unwrap();
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

    #[test]
    fn a_damaged_count_is_not_taken_for_none() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("answers");
        let mut answers = AnswerCounts::open(&path).unwrap();
        answers.add(AUTHORITY, 3).unwrap();
        let bytes = fs::read(&path).unwrap();
        for cut in 0..bytes.len() {
            fs::write(&path, &bytes[..cut]).unwrap();
            assert!(matches!(AnswerCounts::open(&path), Err(StateError::Damaged { .. })), "{cut}");
        }
    }
}
