//! Why a connection of a device ends.

use deltafl_secagg::message::wire::WireError;
use deltafl_wire::roster::RosterError;
use deltafl_wire::{FragmentError, Malformed};
use tonic::{Code, Status};

use crate::DialError;
use crate::consent::NotAllowed;
use crate::fetch::FetchError;
use crate::limits::TimedOut;
use crate::state::{RosterRefused, StateError};
use crate::workers::Failed;

/// Why a connection ended.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SessionError {
    /// There was none.
    #[error(transparent)]
    Dial(#[from] DialError),
    /// The server ended it, or the network did.
    #[error("the server said: {}", .0.message())]
    Status(#[from] Status),
    /// The server stops, and said so.
    #[error("the server stops; the device comes back within {within} seconds")]
    Drained {
        /// Seconds.
        within: u32,
    },
    /// The server closed the stream.
    #[error("the server closed the stream")]
    Closed,
    /// The server exceeded a time limit of the device.
    #[error(transparent)]
    TimedOut(#[from] TimedOut),
    /// The server said something that is not of the protocol.
    #[error(transparent)]
    Malformed(#[from] Malformed),
    /// A message that does not fit its parts.
    #[error(transparent)]
    Part(#[from] FragmentError),
    /// A message of secure aggregation that is not one.
    #[error(transparent)]
    Wire(#[from] WireError),
    /// The roster is not to be believed, or this device is not on it.
    #[error(transparent)]
    Roster(#[from] RosterError),
    /// The device cannot remember.
    #[error(transparent)]
    State(#[from] StateError),
    /// The roster has another key, or another place, for this device.
    #[error("the roster does not know this device as the server does")]
    NotOnRoster,
    /// A blob could not be fetched.
    #[error(transparent)]
    Fetch(#[from] FetchError),
    /// The owner did not agree.
    #[error(transparent)]
    NotAllowed(#[from] NotAllowed),
    /// The device cannot compute.
    #[error(transparent)]
    Failed(#[from] Failed),
    /// The device vanishes, as it was told to.
    #[error("vanished on purpose")]
    Vanished,
    /// No randomness for keys.
    #[error("the operating system gives no randomness")]
    Randomness,
}

impl SessionError {
    /// Whether the server exceeded a time limit of the device.
    pub fn is_timed_out(&self) -> bool {
        matches!(self, Self::TimedOut(_) | Self::Fetch(FetchError::TimedOut(_)))
    }

    /// Whether the server is unavailable for now: it exceeded a time limit, or it is shutting down.
    pub fn is_unavailable(&self) -> bool {
        let status = match self {
            Self::Status(status) | Self::Fetch(FetchError::Status(status)) => Some(status),
            _ => None,
        };
        self.is_timed_out() || status.is_some_and(|status| status.code() == Code::Unavailable)
    }
}

impl From<RosterRefused> for SessionError {
    fn from(refused: RosterRefused) -> Self {
        match refused {
            RosterRefused::Roster(error) => Self::Roster(error),
            RosterRefused::State(error) => Self::State(error),
        }
    }
}
