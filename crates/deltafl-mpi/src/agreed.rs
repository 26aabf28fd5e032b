//! An observer on rank 0 whose wish to stop is heard by all.

use std::ops::ControlFlow;

use deltafl::engine::SplitEvaluation;
use deltafl::training::{Observer, ObserverError, RoundRecord, State};
use mpi::traits::{Communicator, Root};

use crate::world::World;

/// The observer of every rank: rank 0 passes on what it hears and decides whether to stop; the others follow.
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
        let mut stop = u8::from(flow.is_break());
        self.world.communicator().process_at_rank(0).broadcast_into(&mut stop);
        Ok(if stop == 0 { ControlFlow::Continue(()) } else { ControlFlow::Break(()) })
    }

    fn evaluation(&mut self, round: u64, splits: &[SplitEvaluation]) -> Result<(), ObserverError> {
        self.observer.as_mut().map_or(Ok(()), |observer| observer.evaluation(round, splits))
    }

    /// A checkpoint is written only once all ranks have come to the same parameters: faulty memory on one
    /// node must not go unnoticed.
    fn checkpoint(&mut self, state: &State) -> Result<(), ObserverError> {
        let hashes: Vec<String> = state.tracks.iter().map(|track| track.params.hash().to_string()).collect();
        self.world.same("the state of the run", &(state.round, hashes))?;
        self.observer.as_mut().map_or(Ok(()), |observer| observer.checkpoint(state))
    }
}
