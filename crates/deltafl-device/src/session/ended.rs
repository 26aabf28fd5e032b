//! The reasons for which a device's connection ends.

use deltafl_secagg::message::wire::WireError;
use deltafl_wire::roster::RosterError;
use deltafl_wire::{FragmentError, Malformed};
use tonic::{Code, Status};

use crate::DialError;
use crate::consent::NotAllowed;
use crate::fetch::FetchError;
use crate::limits::TimedOut;
use crate::state::{RosterRefused, StateError};
use crate::workers::ComputationFailed;

/// The reason for which a connection ended.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SessionError {
    /// The connection failed.
    #[error(transparent)]
    Dial(#[from] DialError),
    /// The server or the network ended the connection.
    #[error("the server said: {}", .0.message())]
    Status(#[from] Status),
    /// The server announced that it is shutting down.
    #[error("the server is shutting down; the device reconnects within {within} seconds")]
    Drained {
        /// The time until reconnection, in seconds.
        within: u32,
    },
    /// The server closed the stream.
    #[error("the server closed the stream")]
    Closed,
    /// The server exceeded a time limit of the device.
    #[error(transparent)]
    TimedOut(#[from] TimedOut),
    /// The server violated the protocol.
    #[error(transparent)]
    Malformed(#[from] Malformed),
    /// A message does not match its parts.
    #[error(transparent)]
    Part(#[from] FragmentError),
    /// An invalid secure aggregation message.
    #[error(transparent)]
    Wire(#[from] WireError),
    /// The roster is not trustworthy or does not contain this device.
    #[error(transparent)]
    Roster(#[from] RosterError),
    /// The device's state could not be stored.
    #[error(transparent)]
    State(#[from] StateError),
    /// The roster contains a different key or number for this device.
    #[error("the roster and the server disagree about this device")]
    NotOnRoster,
    /// A blob could not be fetched.
    #[error(transparent)]
    Fetch(#[from] FetchError),
    /// The owner did not agree.
    #[error(transparent)]
    NotAllowed(#[from] NotAllowed),
    /// The computation failed.
    #[error(transparent)]
    Failed(#[from] ComputationFailed),
    /// The device disappears because of an injected fault.
    #[error("disconnected by an injected fault")]
    Vanished,
    /// The operating system provides no randomness for keys.
    #[error("the operating system provides no randomness")]
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
