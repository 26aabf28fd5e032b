//! Peers that are threads of this process.

use std::sync::{Barrier, Mutex};

use deltafl::exchange::{ExchangeError, Peers};
use deltafl::model::Score;

/// A thread that is a rank: what each brings lies on a table until all have seen it.
pub(super) struct AtTable<'a> {
    pub(super) rank: usize,
    pub(super) table: &'a Table,
}

/// What the ranks have brought.
pub(super) struct Table {
    scores: Mutex<Vec<Vec<Score>>>,
    sums: Mutex<Vec<Vec<u64>>>,
    all: Barrier,
}

impl Table {
    pub(super) fn new(size: usize) -> Self {
        Self {
            scores: Mutex::new(vec![Vec::new(); size]),
            sums: Mutex::new(vec![Vec::new(); size]),
            all: Barrier::new(size),
        }
    }
}

impl AtTable<'_> {
    fn meet<T: Clone + Default>(&self, seats: &Mutex<Vec<T>>, mine: T) -> Vec<T> {
        seats.lock().unwrap()[self.rank] = mine;
        self.table.all.wait();
        let everyone = seats.lock().unwrap().clone();
        self.table.all.wait();
        everyone
    }
}

impl Peers for AtTable<'_> {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.table.sums.lock().unwrap().len()
    }

    fn compute<T>(&mut self, part: impl FnOnce() -> T) -> T {
        part()
    }

    fn gather(&mut self, part: Vec<Score>, lengths: &[usize]) -> Result<Vec<Score>, ExchangeError> {
        assert_eq!(part.len(), lengths[self.rank]);
        Ok(self.meet(&self.table.scores, part).concat())
    }

    fn sum(
        &mut self,
        values: Vec<u64>,
        meanwhile: &mut dyn FnMut() -> bool,
    ) -> Result<Vec<u64>, ExchangeError> {
        while meanwhile() {}
        let everyone = self.meet(&self.table.sums, values);
        let entry = |i: usize| everyone.iter().fold(0u64, |sum, values| sum.wrapping_add(values[i]));
        Ok((0..everyone[0].len()).map(entry).collect())
    }
}
