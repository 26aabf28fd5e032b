//! Rounds that did not change the params, by cause.

use std::fmt;

use serde::{Deserialize, Serialize};

use deltafl::training::RoundRecord;

/// Rounds of a track that did not change its params, by cause.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct IdleRounds {
    /// Rounds trained, over all seeds.
    pub rounds: u64,
    /// Devices answered, but no loss reached η.
    pub empty_tail: u64,
    /// No device of the cohort trained the track, which has no η. With `tracks = "apart"`, no
    /// device drew the track.
    #[serde(default)]
    pub unserved: u64,
    /// Every update of the tail was dropped because it was not finite.
    pub refused: u64,
    /// No device was drawn, or most of the cohort dropped out and no sum was computed.
    pub no_sum: u64,
}

/// The reason why a round did not change the params.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum IdleCause {
    /// No loss reached η.
    EmptyTail,
    /// No device trained the track, and no η excluded it.
    Unserved,
    /// No update was finite.
    Refused,
    /// Too few devices answered.
    NoSum,
}

impl IdleCause {
    /// Returns the reason why a round did not change the params; `None` if it changed them.
    pub fn from_record(record: &RoundRecord) -> Option<Self> {
        match record {
            record if record.tail > 0 => None,
            record if record.refused > 0 => Some(Self::Refused),
            record if 2 * record.dropped > record.cohort || record.cohort == 0 => Some(Self::NoSum),
            record if record.eta.is_none() => Some(Self::Unserved),
            _ => Some(Self::EmptyTail),
        }
    }
}

impl IdleRounds {
    /// Counts the records of one track.
    pub fn count<'a>(records: impl IntoIterator<Item = &'a RoundRecord>) -> Self {
        let mut idle = Self::default();
        records.into_iter().for_each(|record| idle.add(record));
        idle
    }

    /// Counts the records of every track of a run.
    pub fn per_track<'a>(records: impl IntoIterator<Item = &'a RoundRecord>, tracks: usize) -> Vec<Self> {
        let mut idle = vec![Self::default(); tracks];
        for record in records {
            if let Some(idle) = idle.get_mut(record.track) {
                idle.add(record);
            }
        }
        idle
    }

    fn add(&mut self, record: &RoundRecord) {
        self.rounds += 1;
        match IdleCause::from_record(record) {
            None => {}
            Some(IdleCause::EmptyTail) => self.empty_tail += 1,
            Some(IdleCause::Unserved) => self.unserved += 1,
            Some(IdleCause::Refused) => self.refused += 1,
            Some(IdleCause::NoSum) => self.no_sum += 1,
        }
    }

    /// Returns the number of rounds that did not change the params.
    pub fn idle(&self) -> u64 {
        self.empty_tail + self.unserved + self.refused + self.no_sum
    }

    /// Returns the most frequent cause if more than half of the rounds did not change the params.
    pub fn cause_of_most(&self) -> Option<IdleCause> {
        let causes = [
            (self.refused, IdleCause::Refused),
            (self.empty_tail, IdleCause::EmptyTail),
            (self.unserved, IdleCause::Unserved),
            (self.no_sum, IdleCause::NoSum),
        ];
        let most = causes.into_iter().max_by_key(|(rounds, _)| *rounds).map(|(_, cause)| cause);
        most.filter(|_| 2 * self.idle() > self.rounds)
    }
}

impl std::ops::AddAssign for IdleRounds {
    fn add_assign(&mut self, other: Self) {
        self.rounds += other.rounds;
        self.empty_tail += other.empty_tail;
        self.unserved += other.unserved;
        self.refused += other.refused;
        self.no_sum += other.no_sum;
    }
}

/// "28 of 40 rounds moved nothing: the tail was empty in 28".
impl fmt::Display for IdleRounds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {} rounds moved nothing", self.idle(), self.rounds)?;
        let causes = [
            (self.empty_tail, "the tail was empty"),
            (self.unserved, "no device trained the track"),
            (self.refused, "no update was finite"),
            (self.no_sum, "too few devices answered"),
        ];
        let causes = causes.into_iter().filter(|(rounds, _)| *rounds > 0);
        for (i, (rounds, cause)) in causes.enumerate() {
            write!(f, "{} {cause} in {rounds}", if i == 0 { ":" } else { "," })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(track: usize, cohort: u64, dropped: u64, tail: u64, refused: u64) -> RoundRecord {
        RoundRecord {
            seed: 1,
            track,
            name: "Δ-FL".into(),
            eta_age: None,
            round: 0,
            eta: Some(1.5),
            loss: None,
            cohort,
            dropped,
            tail,
            tail_weight: tail as f64,
            refused,
            sums: 1,
            messages: 0,
            bytes_up: 0,
            bytes_down: 0,
            evaluations: Vec::new(),
            privacy: None,
        }
    }

    #[test]
    fn every_cause_is_counted_where_it_belongs() {
        let records = [
            record(0, 10, 0, 3, 2),
            record(0, 10, 1, 0, 0),
            record(0, 10, 0, 0, 4),
            record(0, 10, 9, 0, 0),
            record(0, 0, 0, 0, 0),
            RoundRecord { eta: None, ..record(0, 10, 0, 0, 0) },
            record(1, 10, 0, 1, 0),
        ];
        let idle = IdleRounds::per_track(&records, 2);
        assert_eq!(idle[0], IdleRounds { rounds: 6, empty_tail: 1, unserved: 1, refused: 1, no_sum: 2 });
        assert_eq!((idle[1].idle(), idle[1].cause_of_most()), (0, None));
        assert_eq!(idle[0].cause_of_most(), Some(IdleCause::NoSum));
        assert_eq!(
            idle[0].to_string(),
            "5 of 6 rounds moved nothing: the tail was empty in 1, no device trained the track in 1, \
             no update was finite in 1, too few devices answered in 2"
        );
        assert_eq!(IdleRounds::count(&records[..2]).cause_of_most(), None, "half is not most");
    }
}
