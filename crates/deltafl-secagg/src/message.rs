//! The messages of a round, as the state machines see them.
//!
//! ```text
//! device                              server
//!    ◀───────── Invite ────────────────┤
//!    ├───────── Advertise ────────────▶│   public keys, signed
//!    ◀───────── Commitments ───────────┤ ┐
//!    ├───────── Reveal ───────────────▶│ │ where the graph is drawn
//!    ◀───────── Reveals ───────────────┤ ┘
//!    ◀───────── Keys ──────────────────┤   of the neighbours
//!    ├───────── Shares ───────────────▶│   per neighbour a ciphertext and a sealed box
//!    ◀───────── EarlyShares ───────────┤   in a large cohort: boxes as they come
//!    ◀───────── Shares ────────────────┤   the others
//!    ├───────── Confirm ──────────────▶│   whose boxes did not open; deposits
//!    ◀───────── OpenSlot ──────────────┤ ┐
//!    ├───────── MaskedInput ──────────▶│ │
//!    ◀───────── Survivors ─────────────┤ │ once per slot
//!    ├───────── Attest ───────────────▶│ │
//!    ◀───────── Attestations ──────────┤ │
//!    ├───────── Unmask ───────────────▶│ ┘
//! ```
//!
//! Sets of devices are sorted and free of duplicates by their types; [`wire`] turns all of this into bytes.

mod bundle;
mod device_set;
mod reveal;
pub mod wire;

use std::collections::BTreeMap;

use prost::bytes::Bytes;

pub use self::bundle::KeyBundle;
pub use self::device_set::{DeviceSet, UnsortedDevices};
pub(crate) use self::reveal::REVEAL_LEN;
pub use self::reveal::Reveal;
use crate::identity::{DeviceId, SIGNATURE_LEN};
use crate::params::{RoundId, RoundParams};
use crate::ring::Ring;
use crate::shamir::SecretShare;
use crate::transcript::Sha256Digest;

/// Bytes of a commitment in a list of members.
pub(crate) const NONCE_COMMITMENT_LEN: usize = 32;

/// A message from a device to the server.
#[derive(Debug, Clone)]
pub struct DeviceMessage {
    /// The round it belongs to.
    pub round: RoundId,
    /// What it says.
    pub body: DeviceBody,
}

/// What a device says.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum DeviceBody {
    /// The device's public keys and commitments, signed.
    Advertise(KeyBundle),
    /// The device's part of the graph's randomness.
    Reveal(Reveal),
    /// For each neighbour an ML-KEM ciphertext and a sealed box of shares.
    Shares(BTreeMap<DeviceId, Bytes>),
    /// The device has its shares.
    Confirm {
        /// The neighbours whose boxes did not open.
        complaints: DeviceSet,
        /// For each of the others, what the server needs about the pair should this device drop out, slot after
        /// slot: the pair's key under the device's deposit key, and a commitment to it.
        deposits: BTreeMap<DeviceId, Bytes>,
    },
    /// The masked vector of a slot, as little-endian ring elements.
    MaskedInput {
        /// The slot.
        slot: u32,
        /// The vector.
        input: Bytes,
        /// Ed25519, on the transcript up to the devices that it masked with.
        signature: [u8; SIGNATURE_LEN],
    },
    /// The device's signature on the transcript up to the survivors of a slot.
    Attest {
        /// The slot.
        slot: u32,
        /// Ed25519.
        signature: [u8; SIGNATURE_LEN],
    },
    /// For each neighbour, one share of one of its two secrets of a slot.
    Unmask {
        /// The slot.
        slot: u32,
        /// The shares.
        shares: BTreeMap<DeviceId, (SecretKind, SecretShare)>,
    },
}

/// Which of a device's two secrets of a slot a share is of. Both together would unmask the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SecretKind {
    /// The seed of its own mask, asked for when the device survived.
    Seed,
    /// The key of its deposits, and so of its pairwise masks, asked for when it dropped out.
    DepositKey,
}

/// A message from the server to devices.
#[derive(Debug, Clone)]
pub struct ServerMessage {
    /// The round it belongs to.
    pub round: RoundId,
    /// What it says.
    pub body: ServerBody,
}

/// What the server says.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum ServerBody {
    /// The parameters of a round that is about to begin.
    Invite(RoundParams),
    /// Every member's commitment to its part of the graph's randomness.
    Commitments(BTreeMap<DeviceId, Sha256Digest>),
    /// The parts of those members that draw the graph.
    Reveals(BTreeMap<DeviceId, Reveal>),
    /// The keys of all members (full graph) or of the neighbours.
    Keys(BTreeMap<DeviceId, KeyBundle>),
    /// Some of the sealed boxes that neighbours sent to this device; more are to come.
    EarlyShares(BTreeMap<DeviceId, Bytes>),
    /// The sealed boxes that neighbours sent to this device, or those that did not go before.
    Shares(BTreeMap<DeviceId, Bytes>),
    /// A slot begins, between the devices that are still there.
    OpenSlot {
        /// The slot.
        slot: u32,
        /// The ring of its sum.
        ring: Ring,
        /// The number of coordinates.
        len: u32,
        /// The devices whose masks the input takes.
        active: DeviceSet,
    },
    /// The devices whose inputs are in the sum.
    Survivors {
        /// The slot.
        slot: u32,
        /// Those devices.
        survivors: DeviceSet,
    },
    /// The signatures of neighbours on the transcript.
    Attestations {
        /// The slot.
        slot: u32,
        /// Ed25519, by device.
        signatures: BTreeMap<DeviceId, [u8; SIGNATURE_LEN]>,
        /// On a sparse graph, what the surviving neighbours that did not attest signed with their inputs.
        masked: BTreeMap<DeviceId, [u8; SIGNATURE_LEN]>,
    },
}
