//! The events of a participating device, for its owner.

use std::ops::ControlFlow;
use std::sync::Arc;

use crate::session::SessionError;

/// A change in the participation of a device.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum SessionEvent<'a> {
    /// The server welcomed the device.
    Connected,
    /// The device sent an answer to a question of a round. A round may have several questions.
    Answered {
        /// The round, from 0.
        round: u64,
    },
    /// The device evaluated params on its held-out examples, in a sum without other questions.
    Evaluated,
    /// The server plans no further round.
    Finished,
    /// The connection ended. The device connects again, unless the observer stops it.
    Ended {
        /// The reason.
        error: &'a SessionError,
    },
}

/// Handles the events of a device. If it breaks at [`SessionEvent::Ended`], the device stops.
pub type SessionObserver = Arc<dyn Fn(SessionEvent<'_>) -> ControlFlow<()> + Send + Sync>;
