//! Where the round loop stands, and by which phases it came there.

use std::time::Instant;

use serde::{Deserialize, Serialize};

/// Phases kept of a round: one that is tried again and again forgets how it began.
const MOST_PHASES: usize = 64;

/// What a phase is for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Purpose {
    /// The key set-up of secure aggregation.
    #[default]
    Keys,
    /// The losses, for η and for the model cards.
    Losses,
    /// The local updates.
    Updates,
}

/// A phase of a round that is over.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Phase {
    /// What it was for.
    pub purpose: Purpose,
    /// Its name.
    pub name: String,
    /// How long it took.
    pub seconds: f64,
    /// Devices that were asked in it.
    pub asked: u64,
    /// Devices that answered in it: the others dropped out, or were too late.
    pub answered: u64,
    /// Whether the round had to be begun anew after it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub failed: bool,
}

/// Where the round loop stands, for those who watch.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Status {
    /// The seed of the run.
    pub seed: u64,
    /// t, counted from 0.
    pub round: u64,
    /// Key set-ups so far: one per round, one more for each attempt.
    pub setups: u64,
    /// What the present phase is for.
    pub purpose: Purpose,
    /// The present phase; empty between rounds.
    pub phase: &'static str,
    /// Devices asked in it.
    pub asked: usize,
    /// Devices that have answered in it.
    pub answered: usize,
    /// The phases of this round that are over.
    pub phases: Vec<Phase>,
    since: Option<Instant>,
}

impl Status {
    /// What the next phases are for, and in which round: another one than before forgets the phases that are over.
    pub fn turn_to(&mut self, (seed, round): (u64, u64), purpose: Purpose) {
        self.rest();
        if (self.seed, self.round) != (seed, round) {
            self.phases.clear();
        }
        (self.seed, self.round, self.purpose) = (seed, round, purpose);
        self.setups += u64::from(purpose == Purpose::Keys);
    }

    /// A phase begins in which so many devices are asked.
    pub fn enter(&mut self, phase: &'static str, asked: usize) {
        self.rest();
        (self.phase, self.asked, self.answered) = (phase, asked, 0);
        self.since = Some(Instant::now());
    }

    /// A device has answered.
    pub fn heard(&mut self) {
        self.answered += 1;
    }

    /// The phase is over, and no other begins yet.
    pub fn rest(&mut self) {
        let Some(since) = self.since.take() else { return };
        if self.phases.len() == MOST_PHASES {
            self.phases.remove(0);
        }
        self.phases.push(Phase {
            purpose: self.purpose,
            name: self.phase.to_owned(),
            seconds: since.elapsed().as_secs_f64(),
            asked: self.asked as u64,
            answered: self.answered as u64,
            failed: false,
        });
        (self.phase, self.asked, self.answered) = ("", 0, 0);
    }

    /// The cohort came to no sum.
    pub fn fail(&mut self) {
        self.rest();
        if let Some(last) = self.phases.last_mut() {
            last.failed = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_round_that_is_begun_anew_keeps_the_phases_of_its_first_attempt_and_the_next_round_none() {
        let mut status = Status::default();
        status.turn_to((1, 7), Purpose::Keys);
        status.enter("advertise keys", 3);
        status.heard();
        status.fail();
        status.turn_to((1, 7), Purpose::Keys);
        status.enter("advertise keys", 2);
        status.turn_to((1, 7), Purpose::Updates);
        let told: Vec<_> = status.phases.iter().map(|p| (p.asked, p.answered, p.failed)).collect();
        assert_eq!((told, status.setups), (vec![(3, 1, true), (2, 0, false)], 2));
        status.turn_to((1, 8), Purpose::Keys);
        assert!(status.phases.is_empty() && status.phase.is_empty());
    }

    #[test]
    fn a_round_that_is_tried_for_ever_does_not_grow() {
        let mut status = Status::default();
        for _ in 0..1000 {
            status.turn_to((1, 0), Purpose::Keys);
            status.enter("advertise keys", 3);
        }
        assert_eq!(status.phases.len(), MOST_PHASES);
    }
}
