//! Why a device leaves a round.

use thiserror::Error;

use crate::draw::LeftOut;
use crate::identity::DeviceId;
use crate::params::RoundId;
use crate::ring::Ring;

/// What the server did that an honest server does not do, or that the device's policy does not allow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Abort {
    /// A message of another round, replayed or confused.
    #[error("a message of round {} of another time or session", .0.round)]
    WrongRound(RoundId),
    /// A message that this phase does not expect, such as a second set of survivors.
    #[error("a message that does not belong in this phase")]
    Unexpected,
    /// A device that is not on the roster, not a member, or not a neighbour.
    #[error("device {0} does not belong here")]
    UnknownDevice(DeviceId),
    /// A device that had dropped out is said to be back.
    #[error("device {0} had dropped out and cannot return")]
    Returned(DeviceId),
    /// This device is not in the set, so it has nothing to say.
    #[error("this device was left out")]
    LeftOut,
    /// A set smaller than the threshold or the policy allows.
    #[error("{have} devices are fewer than the {need} required")]
    TooFew {
        /// The devices in the set.
        have: usize,
        /// The fewest allowed.
        need: usize,
    },
    /// More devices than were invited.
    #[error("{have} devices are more than the cohort of {cohort}")]
    TooMany {
        /// The devices in the set.
        have: usize,
        /// The cohort.
        cohort: usize,
    },
    /// More of the drawn were left out than the policy allows, or nothing tells how many.
    #[error("the members are not those that were drawn: {0:?}")]
    NotDrawn(Option<LeftOut>),
    /// Keys of this device that it did not send.
    #[error("the server substituted this device's keys")]
    OwnKeys,
    /// A signature that does not hold: forged keys, or a device that was shown another transcript.
    #[error("the signature of device {0} does not hold")]
    BadSignature(DeviceId),
    /// A public key of small order.
    #[error("the public key of device {0} is unsound")]
    BadKey(DeviceId),
    /// A revealed value or a key that does not match its commitment.
    #[error("device {0} is not bound by what was committed")]
    BadCommitment(DeviceId),
    /// A member that draws the graph did not reveal its part, or the server holds it back.
    #[error("the part of device {0} in the graph's randomness is missing")]
    Withheld(DeviceId),
    /// Keys that are missing, although the graph makes the device a neighbour.
    #[error("the keys of neighbour {0} are missing")]
    MissingKeys(DeviceId),
    /// A neighbour is said to be active, but its shares never came.
    #[error("the shares of neighbour {0} are missing")]
    MissingShares(DeviceId),
    /// A slot out of turn.
    #[error("slot {got} in place of slot {expected}")]
    WrongSlot {
        /// The slot whose turn it is.
        expected: u32,
        /// The slot asked for.
        got: u32,
    },
    /// A vector longer than the policy allows.
    #[error("{len} coordinates are over the limit of {limit}")]
    TooLong {
        /// The coordinates asked for.
        len: u32,
        /// The most allowed.
        limit: u32,
    },
    /// The server has been silent for longer than the policy's patience.
    #[error("the server has been silent for too long")]
    ServerSilent,
}

/// Why an input was not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum SubmitError {
    /// No slot is open.
    #[error("no slot is open")]
    NotAsked,
    /// The input has another shape than the slot. The device still waits for it.
    #[error("an input of {got_len} coordinates in {got_ring:?} in place of {len} in {ring:?}")]
    Shape {
        /// The ring of the slot.
        ring: Ring,
        /// The coordinates of the slot.
        len: u32,
        /// The ring of the input.
        got_ring: Ring,
        /// The coordinates of the input.
        got_len: usize,
    },
}
