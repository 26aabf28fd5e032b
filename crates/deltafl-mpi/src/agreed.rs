//! The observer of all ranks: rank 0 decides whether the run stops.

use std::ops::ControlFlow;

use deltafl::training::{Event, Observer, ObserverResult, TrackState};

use crate::world::World;

/// The observer of every rank. Rank 0 forwards events to the caller's observer, whose decision to
/// stop holds on all ranks.
pub struct Agreed<'a, O> {
    world: &'a World,
    observer: Option<O>,
}

impl<'a, O> Agreed<'a, O> {
    pub(crate) fn new(world: &'a World, observer: Option<O>) -> Self {
        Self { world, observer }
    }
}

impl<'e, O: Observer<Event<'e>>> Observer<Event<'e>> for Agreed<'_, O> {
    fn handle(&mut self, event: Event<'e>) -> ObserverResult {
        // A checkpoint is only written if all ranks have the same params, so that faulty memory of
        // one node is detected.
        if let Event::Checkpoint { state } = event {
            let hash = |track: &TrackState| track.params.hash().to_string();
            let hashes: Vec<String> = state.tracks.iter().map(hash).collect();
            self.world.same("the state of the run", &(state.round, hashes))?;
        }
        let flow = match &mut self.observer {
            Some(observer) => observer.handle(event)?,
            None => ControlFlow::Continue(()),
        };
        let stop = self.world.number_of_root(u8::from(flow.is_break()));
        Ok(if stop == 0 { ControlFlow::Continue(()) } else { ControlFlow::Break(()) })
    }
}
