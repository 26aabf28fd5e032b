//! The progress of the round loop and the phases of the current round.

use tokio::time::Instant;

use serde::{Deserialize, Serialize};

/// The number of stored phases of a round. A round with many retries drops its first phases.
const MOST_PHASES: usize = 64;

/// The purpose of a phase.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PhasePurpose {
    /// The key set-up of secure aggregation.
    #[default]
    Keys,
    /// The losses, for η and for the model cards.
    Losses,
    /// The local updates.
    Updates,
}

/// A completed phase of a round.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Phase {
    /// The purpose of the phase.
    pub purpose: PhasePurpose,
    /// The name of the phase.
    pub name: String,
    /// The duration of the phase.
    pub seconds: f64,
    /// The number of devices that were asked.
    pub asked: u64,
    /// The number of devices that answered. The others dropped out or were too late.
    pub answered: u64,
    /// Whether the round had to restart after the phase.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub failed: bool,
}

/// The progress of the round loop, for observers.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Status {
    /// The seed of the run.
    pub seed: u64,
    /// t, starting at 0.
    pub round: u64,
    /// The number of key set-ups so far: one per round and one for each retry.
    pub setups: u64,
    /// The purpose of the current phase.
    pub purpose: PhasePurpose,
    /// The current phase, empty between rounds.
    pub phase: &'static str,
    /// The number of devices asked in it.
    pub asked: usize,
    /// The number of devices that have answered in it.
    pub answered: usize,
    /// The completed phases of this round.
    pub phases: Vec<Phase>,
    since: Option<Instant>,
}

impl Status {
    /// Sets the round and the purpose of the next phases. A new round clears the completed phases.
    pub fn turn_to(&mut self, (seed, round): (u64, u64), purpose: PhasePurpose) {
        self.rest();
        if (self.seed, self.round) != (seed, round) {
            self.phases.clear();
        }
        (self.seed, self.round, self.purpose) = (seed, round, purpose);
        self.setups += u64::from(purpose == PhasePurpose::Keys);
    }

    /// Starts a phase in which this many devices are asked.
    pub fn enter(&mut self, phase: &'static str, asked: usize) {
        self.rest();
        (self.phase, self.asked, self.answered) = (phase, asked, 0);
        self.since = Some(Instant::now());
    }

    /// Counts an answer.
    pub fn count_answer(&mut self) {
        self.answered += 1;
    }

    /// Ends the phase without starting another.
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

    /// Records that the aggregation of the cohort failed.
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
        status.turn_to((1, 7), PhasePurpose::Keys);
        status.enter("advertise keys", 3);
        status.count_answer();
        status.fail();
        status.turn_to((1, 7), PhasePurpose::Keys);
        status.enter("advertise keys", 2);
        status.turn_to((1, 7), PhasePurpose::Updates);
        let told: Vec<_> = status.phases.iter().map(|p| (p.asked, p.answered, p.failed)).collect();
        assert_eq!((told, status.setups), (vec![(3, 1, true), (2, 0, false)], 2));
        status.turn_to((1, 8), PhasePurpose::Keys);
        assert!(status.phases.is_empty() && status.phase.is_empty());
    }

    #[test]
    fn a_round_that_is_tried_for_ever_does_not_grow() {
        let mut status = Status::default();
        for _ in 0..1000 {
            status.turn_to((1, 0), PhasePurpose::Keys);
            status.enter("advertise keys", 3);
        }
        assert_eq!(status.phases.len(), MOST_PHASES);
    }
}
