//! The reasons for which a device aborts a round.

use thiserror::Error;

use crate::draw::LeftOut;
use crate::identity::DeviceId;
use crate::params::RoundId;
use crate::ring::Ring;

/// A deviation of the server from the protocol, or a violation of the device's policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Abort {
    /// The message belongs to a different round or session.
    #[error("the message belongs to round {} of a different time or session", .0.round)]
    WrongRound(RoundId),
    /// The message is not expected in this phase, for example a second set of survivors.
    #[error("the message does not belong to this phase")]
    Unexpected,
    /// The device is not on the roster, not a member, or not a neighbour.
    #[error("device {0} is not a valid member or neighbour")]
    UnknownDevice(DeviceId),
    /// A device that had dropped out is listed again.
    #[error("device {0} has dropped out and cannot return")]
    Returned(DeviceId),
    /// The set does not contain this device.
    #[error("the set does not contain this device")]
    LeftOut,
    /// The set is smaller than the threshold or the policy allows.
    #[error("{have} devices are fewer than the {need} required")]
    TooFew {
        /// The devices in the set.
        have: usize,
        /// The smallest allowed number.
        need: usize,
    },
    /// The set is larger than the cohort.
    #[error("{have} devices are more than the cohort of {cohort}")]
    TooMany {
        /// The devices in the set.
        have: usize,
        /// The size of the cohort.
        cohort: usize,
    },
    /// More drawn devices were left out than the policy allows, or their number is unknown.
    #[error("the members are not the drawn devices: {0:?}")]
    NotDrawn(Option<LeftOut>),
    /// The server listed keys for this device that the device did not send.
    #[error("the server replaced this device's keys")]
    OwnKeys,
    /// The signature is invalid: the keys are forged, or the device saw a different transcript.
    #[error("the signature of device {0} is invalid")]
    BadSignature(DeviceId),
    /// The public key has small order.
    #[error("the public key of device {0} is invalid")]
    BadKey(DeviceId),
    /// A revealed value or key does not match its commitment.
    #[error("a value of device {0} does not match its commitment")]
    BadCommitment(DeviceId),
    /// A member that determines the graph did not reveal its nonce, or the server withholds it.
    #[error("the graph nonce of device {0} is missing")]
    Withheld(DeviceId),
    /// The keys of a neighbour are missing.
    #[error("the keys of neighbour {0} are missing")]
    MissingKeys(DeviceId),
    /// A neighbour is listed as active, but its shares are missing.
    #[error("the shares of neighbour {0} are missing")]
    MissingShares(DeviceId),
    /// The slot is out of order.
    #[error("expected slot {expected}, got slot {got}")]
    WrongSlot {
        /// The expected slot.
        expected: u32,
        /// The received slot.
        got: u32,
    },
    /// The vector is longer than the policy allows.
    #[error("{len} coordinates exceed the limit of {limit}")]
    TooLong {
        /// The requested number of coordinates.
        len: u32,
        /// The largest allowed number.
        limit: u32,
    },
    /// The server has been silent for longer than [`DevicePolicy::patience`](super::DevicePolicy).
    #[error("the server has been silent for too long")]
    ServerSilent,
}

/// An error from [`DeviceRound::submit`](super::DeviceRound::submit).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum SubmitError {
    /// No slot is open.
    #[error("no slot is open")]
    NotAsked,
    /// The input does not match the slot. The device still waits for the input.
    #[error("expected {len} coordinates in {ring:?}, got {got_len} in {got_ring:?}")]
    Shape {
        /// The ring of the slot.
        ring: Ring,
        /// The number of coordinates of the slot.
        len: u32,
        /// The ring of the input.
        got_ring: Ring,
        /// The number of coordinates of the input.
        got_len: usize,
    },
}
