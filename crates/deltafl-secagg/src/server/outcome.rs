//! The reasons for which a round fails or a message is rejected.

use thiserror::Error;

use crate::identity::DeviceId;

/// A phase of a round, named after the message that the server waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PhaseName {
    /// Devices advertise keys.
    Advertise,
    /// Devices reveal their contributions to the graph's randomness.
    Reveal,
    /// Devices share secrets.
    Share,
    /// Devices confirm the shares of their neighbours.
    Confirm,
    /// Devices send the masked input of a slot.
    MaskedInput(u32),
    /// Devices attest the survivors of a slot.
    Consistency(u32),
    /// Devices reveal shares to unmask a slot.
    Unmask(u32),
}

/// The reason for which a round failed.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum RoundFailure {
    /// Too few devices completed a phase.
    #[error("{have} devices completed {phase:?}, {need} are required")]
    TooFew {
        /// The phase.
        phase: PhaseName,
        /// The number of devices that completed the phase.
        have: usize,
        /// The required number.
        need: usize,
    },
    /// A device that determines the graph committed to a nonce and did not reveal it. It cannot be
    /// replaced, because a choice among graphs would allow a bad choice.
    #[error("device {device} committed to a graph nonce and did not reveal it")]
    Withheld {
        /// The device.
        device: DeviceId,
    },
    /// A secret of a device cannot be recovered, because too few of its neighbours are left.
    #[error("{have} shares of a secret of device {device} are left, {need} are required")]
    TooFewShares {
        /// The device.
        device: DeviceId,
        /// The number of shares received.
        have: usize,
        /// The threshold.
        need: usize,
    },
    /// The recovered secret does not match its commitment. The device shared or deposited a wrong
    /// value, or too many of its neighbours misbehaved to identify them.
    #[error("the recovered secret of device {device} does not match its commitment")]
    WrongSecret {
        /// The device.
        device: DeviceId,
    },
}

/// The reason for which a message was rejected. The round continues without it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum RefusedMessage {
    /// The message belongs to a different round.
    #[error("the message belongs to a different round")]
    WrongRound,
    /// The current phase does not accept the message.
    #[error("the message does not belong to this phase")]
    WrongPhase,
    /// The device is not, or no longer, in the round.
    #[error("device {0} is not in this phase")]
    UnknownDevice(DeviceId),
    /// The device has already answered in this phase.
    #[error("device {0} has already answered")]
    Duplicate(DeviceId),
    /// The signature is invalid.
    #[error("the signature of device {0} is invalid")]
    BadSignature(DeviceId),
    /// The value does not match its commitment.
    #[error("the value of device {0} does not match its commitment")]
    BadCommitment(DeviceId),
    /// The X25519 key has small order, or the ML-KEM key is invalid.
    #[error("a public key of device {0} is invalid")]
    BadKey(DeviceId),
    /// The message belongs to a different slot.
    #[error("expected slot {expected}, got slot {got}")]
    WrongSlot {
        /// The open slot.
        expected: u32,
        /// The slot of the message.
        got: u32,
    },
    /// A vector, a list of boxes or a list of shares has the wrong shape.
    #[error("the message of device {0} has the wrong shape")]
    Shape(DeviceId),
}

/// Misbehaviour that was detected without ending the round.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Misbehaviour {
    /// More neighbours than may collude reported that the device's boxes do not open. It was left
    /// out.
    SealedBoxes,
    /// The device reported boxes of more neighbours than may misbehave. It was left out.
    Accusations,
    /// The device's deposits disagree with more neighbours than may misbehave. It was left out.
    Deposits,
    /// The device revealed false shares of the secrets of more devices than may misbehave.
    FalseShares,
    /// The device dealt false shares to more neighbours than may misbehave.
    DealtShares,
}

/// An error from [`ServerRound::open_slot`](super::ServerRound::open_slot).
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum OpenSlotError {
    /// Keys are not set up yet, a slot is open, or the round is over.
    #[error("no slot can be opened now")]
    NotReady,
    /// Too few devices are left.
    #[error("the round failed: {0}")]
    Ended(#[source] RoundFailure),
}
