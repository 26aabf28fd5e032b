//! The smallest observer: it keeps the records and the last state.

use std::ops::ControlFlow;

use super::{Observer, ObserverError, RoundRecord, State, Survey};
use crate::exchange::SplitEvaluation;
use crate::superquantile::LossDistribution;

/// Keeps the records of a run, its evaluations and its last checkpoint in memory.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Records {
    /// A record per track and round, in order.
    pub rounds: Vec<RoundRecord>,
    /// Rounds done, and what the devices made of each track.
    pub evaluations: Vec<(u64, Vec<SplitEvaluation>)>,
    /// The last state from which the run can go on.
    pub checkpoint: Option<State>,
    /// Rounds after which the run ends, if it is to end early.
    pub stop_after: Option<u64>,
}

impl Observer for Records {
    fn round(&mut self, records: &[RoundRecord]) -> Result<ControlFlow<()>, ObserverError> {
        self.rounds.extend_from_slice(records);
        let done = records.first().map_or(0, |record| record.round + 1);
        let stop = self.stop_after.is_some_and(|rounds| done >= rounds);
        Ok(if stop { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
    }

    fn evaluation(&mut self, round: u64, splits: &[SplitEvaluation]) -> Result<(), ObserverError> {
        self.evaluations.push((round, splits.to_vec()));
        Ok(())
    }

    fn checkpoint(&mut self, state: &State) -> Result<(), ObserverError> {
        self.checkpoint = Some(state.clone());
        Ok(())
    }

    fn every_round(&self) -> bool {
        false
    }

    fn survey(&self, _round: u64) -> Survey {
        Survey::None
    }

    fn losses(&mut self, _round: u64, _tracks: &[Option<LossDistribution>]) -> Result<(), ObserverError> {
        Ok(())
    }
}
