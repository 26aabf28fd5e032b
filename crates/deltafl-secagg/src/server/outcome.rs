//! How a round can end without a sum, and why a message is not taken.

use thiserror::Error;

use crate::identity::DeviceId;

/// A phase of a round, by the message that the server waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PhaseName {
    /// Advertise keys.
    Advertise,
    /// Reveal the parts of the graph's randomness.
    Reveal,
    /// Share keys.
    Share,
    /// Confirm the shares of the neighbours.
    Confirm,
    /// Masked input of a slot.
    MaskedInput(u32),
    /// Consistency check of a slot.
    Consistency(u32),
    /// Unmask a slot.
    Unmask(u32),
}

/// Why a round ended without a sum.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum RoundFailure {
    /// Too few devices came through a phase.
    #[error("{have} devices came through {phase:?}, {need} were needed")]
    TooFew {
        /// The phase.
        phase: PhaseName,
        /// The devices that came through.
        have: usize,
        /// The devices needed.
        need: usize,
    },
    /// A device that was to draw the graph fell silent after it had committed. No other may take its part:
    /// whoever chose among graphs could choose a bad one.
    #[error("device {device} committed to a part of the graph's randomness and did not reveal it")]
    Withheld {
        /// The device.
        device: DeviceId,
    },
    /// A secret of a device cannot be recovered: too few of its neighbours are left.
    #[error("{have} shares of a secret of device {device} are left, {need} are needed")]
    TooFewShares {
        /// The device.
        device: DeviceId,
        /// The shares received.
        have: usize,
        /// The threshold.
        need: usize,
    },
    /// The shares of a device's secret combine to something that its commitment does not match: the device
    /// shared or deposited something else, or more of its neighbours lied than can be told from the others.
    #[error("the recovered secret of device {device} does not match its commitment")]
    WrongSecret {
        /// The device.
        device: DeviceId,
    },
}

/// Why a message was not taken. The round goes on without it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum RefusedMessage {
    /// Another round.
    #[error("the message belongs to another round")]
    WrongRound,
    /// A message that the present phase does not take: too late, or too early.
    #[error("the message does not belong in this phase")]
    WrongPhase,
    /// A device that is not, or no longer, in the round.
    #[error("device {0} is not in this phase")]
    UnknownDevice(DeviceId),
    /// A second message of the same phase.
    #[error("device {0} has answered already")]
    Duplicate(DeviceId),
    /// A signature that does not hold.
    #[error("the signature of device {0} does not hold")]
    BadSignature(DeviceId),
    /// A value that does not match its commitment.
    #[error("device {0} is not bound by what it committed to")]
    BadCommitment(DeviceId),
    /// A public key of small order, or none of ML-KEM, with which nobody could agree.
    #[error("a public key of device {0} is unsound")]
    BadKey(DeviceId),
    /// Another slot.
    #[error("slot {got} in place of slot {expected}")]
    WrongSlot {
        /// The open slot.
        expected: u32,
        /// The slot of the message.
        got: u32,
    },
    /// A vector, a list of boxes or a list of shares of the wrong shape.
    #[error("the message of device {0} has the wrong shape")]
    Shape(DeviceId),
}

/// A lie that was found without ending the round.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Misbehaviour {
    /// More neighbours than can be in league found the device's boxes unreadable. It was left out.
    SealedBoxes,
    /// The device called the boxes of more neighbours unreadable than can have lied. It was left out.
    Accusations,
    /// The device committed to other keys than more neighbours than can have lied. It was left out.
    Deposits,
    /// The device gave false shares of the secrets of more devices than can have dealt them.
    FalseShares,
    /// The device dealt false shares to more neighbours than can have changed them.
    DealtShares,
}

/// Why a slot was not opened.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum OpenSlotError {
    /// Keys are not set up yet, a slot is open, or the round is over.
    #[error("no slot can be opened now")]
    NotReady,
    /// Too few devices are left.
    #[error("the round has ended: {0}")]
    Ended(#[source] RoundFailure),
}
