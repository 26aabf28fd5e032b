//! An observer on rank 0 whose decision to stop applies to all ranks.

use std::ops::ControlFlow;

use deltafl::exchange::SplitEvaluation;
use deltafl::superquantile::LossDistribution;
use deltafl::training::{Observer, ObserverError, RoundRecord, State, Survey};

use crate::world::World;

/// The observer of every rank. Rank 0 forwards the calls and decides whether to stop. The others
/// follow.
pub struct Agreed<'a, O> {
    world: &'a World,
    observer: Option<O>,
}

impl<'a, O: Observer> Agreed<'a, O> {
    pub(crate) fn new(world: &'a World, observer: Option<O>) -> Self {
        Self { world, observer }
    }
}

impl<O: Observer> Observer for Agreed<'_, O> {
    fn round(&mut self, records: &[RoundRecord]) -> Result<ControlFlow<()>, ObserverError> {
        let flow = match &mut self.observer {
            Some(observer) => observer.round(records)?,
            None => ControlFlow::Continue(()),
        };
        let stop = self.world.number_of_root(u8::from(flow.is_break()));
        Ok(if stop == 0 { ControlFlow::Continue(()) } else { ControlFlow::Break(()) })
    }

    fn evaluation(&mut self, round: u64, splits: &[SplitEvaluation]) -> Result<(), ObserverError> {
        self.observer.as_mut().map_or(Ok(()), |observer| observer.evaluation(round, splits))
    }

    /// Writes a checkpoint only if all ranks have the same parameters, so that faulty memory on a
    /// node is detected.
    fn checkpoint(&mut self, state: &State) -> Result<(), ObserverError> {
        let hashes: Vec<String> = state.tracks.iter().map(|track| track.params.hash().to_string()).collect();
        self.world.same("the state of the run", &(state.round, hashes))?;
        self.observer.as_mut().map_or(Ok(()), |observer| observer.checkpoint(state))
    }

    fn every_round(&self) -> bool {
        let wanted = self.observer.as_ref().is_some_and(Observer::every_round);
        self.world.number_of_root(u8::from(wanted)) == 1
    }

    /// Returns the wishes of rank 0, because every rank must ask the same questions.
    fn survey(&self, round: u64) -> Survey {
        let all = [Survey::None, Survey::Known, Survey::All];
        let wanted = self.observer.as_ref().map_or(Survey::None, |observer| observer.survey(round));
        let place = all.iter().position(|survey| *survey == wanted).unwrap_or(0) as u8;
        all[usize::from(self.world.number_of_root(place)) % all.len()]
    }

    fn losses(&mut self, round: u64, tracks: &[Option<LossDistribution>]) -> Result<(), ObserverError> {
        self.observer.as_mut().map_or(Ok(()), |observer| observer.losses(round, tracks))
    }
}
