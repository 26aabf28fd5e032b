//! An observer that stores events in memory.

use std::ops::ControlFlow;

use super::{Event, Observer, ObserverResult, RoundRecord, State};
use crate::exchange::SplitEvaluation;

/// Stores the records of a run, its evaluations and its last checkpoint in memory.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Records {
    /// One record per track and round, in order.
    pub rounds: Vec<RoundRecord>,
    /// The number of finished rounds and the evaluations at that time.
    pub evaluations: Vec<(u64, Vec<SplitEvaluation>)>,
    /// The last state from which the run can resume.
    pub checkpoint: Option<State>,
    /// Ends the run after this many rounds.
    pub stop_after: Option<u64>,
}

impl Observer<Event<'_>> for Records {
    fn handle(&mut self, event: Event<'_>) -> ObserverResult {
        match event {
            Event::RoundFinished { records } => {
                self.rounds.extend_from_slice(records);
                let done = records.first().map_or(0, |record| record.round + 1);
                if self.stop_after.is_some_and(|rounds| done >= rounds) {
                    return Ok(ControlFlow::Break(()));
                }
            }
            Event::Evaluated { round, splits } => self.evaluations.push((round, splits.to_vec())),
            Event::Checkpoint { state } => self.checkpoint = Some(state.clone()),
            Event::Losses { .. } => {}
        }
        Ok(ControlFlow::Continue(()))
    }
}
