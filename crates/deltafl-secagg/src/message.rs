//! The messages of a round, as typed values.
//!
//! ```text
//! device                              server
//!    ◀───────── Invite ────────────────┤
//!    ├───────── Advertise ────────────▶│   public keys, signed
//!    ◀───────── Commitments ───────────┤ ┐
//!    ├───────── Reveal ───────────────▶│ │ if the graph is drawn
//!    ◀───────── Reveals ───────────────┤ ┘
//!    ◀───────── Keys ──────────────────┤   of the neighbours
//!    ├───────── Shares ───────────────▶│   per neighbour a ciphertext and a sealed box
//!    ◀───────── EarlyShares ───────────┤   in a large cohort: boxes as they arrive
//!    ◀───────── Shares ────────────────┤   the remaining boxes
//!    ├───────── Confirm ──────────────▶│   complaints about boxes, and deposits
//!    ◀───────── OpenSlot ──────────────┤ ┐
//!    ├───────── MaskedInput ──────────▶│ │
//!    ◀───────── Survivors ─────────────┤ │ once per slot
//!    ├───────── Attest ───────────────▶│ │
//!    ◀───────── Attestations ──────────┤ │
//!    ├───────── Unmask ───────────────▶│ ┘
//! ```
//!
//! The types guarantee that sets of devices are sorted and free of duplicates. [`wire`] encodes and
//! decodes the messages.

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

/// Length in bytes of a commitment in a list of members.
pub(crate) const NONCE_COMMITMENT_LEN: usize = 32;

/// A message from a device to the server.
#[derive(Debug, Clone)]
pub struct DeviceMessage {
    /// The round that the message belongs to.
    pub round: RoundId,
    /// The contents.
    pub body: DeviceBody,
}

/// The contents of a device's message.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum DeviceBody {
    /// The device's public keys and commitments, signed.
    Advertise(KeyBundle),
    /// The device's contribution to the graph's randomness.
    Reveal(Reveal),
    /// For each neighbour, an ML-KEM ciphertext and a sealed box of shares.
    Shares(BTreeMap<DeviceId, Bytes>),
    /// The device has received its shares.
    Confirm {
        /// The neighbours whose boxes did not open.
        complaints: DeviceSet,
        /// For each other neighbour, the data that the server needs if this device drops out. Per
        /// slot: the pair's key, encrypted under the device's deposit key, and a commitment to the
        /// pair's key.
        deposits: BTreeMap<DeviceId, Bytes>,
    },
    /// The masked vector of a slot, as little-endian ring elements.
    MaskedInput {
        /// The slot.
        slot: u32,
        /// The vector.
        input: Bytes,
        /// An Ed25519 signature on the transcript up to the devices whose masks the input contains.
        signature: [u8; SIGNATURE_LEN],
    },
    /// The device's signature on the transcript up to the survivors of a slot.
    Attest {
        /// The slot.
        slot: u32,
        /// The Ed25519 signature.
        signature: [u8; SIGNATURE_LEN],
    },
    /// For each neighbour, one share of one of its two secrets of a slot.
    Unmask {
        /// The slot.
        slot: u32,
        /// The shares.
        shares: BTreeMap<DeviceId, (SecretKind, SecretShare)>,
        /// The key that the device reveals for this number of survivors, if it has one.
        revealed: Option<[u8; REVEALED_LEN]>,
    },
}

/// The length of a key that a device reveals with its shares.
pub const REVEALED_LEN: usize = 32;

/// Identifies one of a device's two secrets of a slot. Both secrets together would unmask the
/// device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SecretKind {
    /// The seed of the device's self mask. The server requests it if the device survived.
    Seed,
    /// The key of the device's deposits, and thus of its pairwise masks. The server requests it if
    /// the device dropped out.
    DepositKey,
}

/// A message from the server to devices.
#[derive(Debug, Clone)]
pub struct ServerMessage {
    /// The round that the message belongs to.
    pub round: RoundId,
    /// The contents.
    pub body: ServerBody,
}

/// The contents of the server's message.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum ServerBody {
    /// The parameters of the round.
    Invite(RoundParams),
    /// Every member's commitment to its contribution to the graph's randomness.
    Commitments(BTreeMap<DeviceId, Sha256Digest>),
    /// The contributions of the members that determine the graph.
    Reveals(BTreeMap<DeviceId, Reveal>),
    /// The keys of all members (full graph) or of the neighbours.
    Keys(BTreeMap<DeviceId, KeyBundle>),
    /// Some of the sealed boxes from neighbours. The rest follow in `Shares`.
    EarlyShares(BTreeMap<DeviceId, Bytes>),
    /// The sealed boxes from neighbours, except those in earlier `EarlyShares`.
    Shares(BTreeMap<DeviceId, Bytes>),
    /// Opens a slot among the devices that are still active.
    OpenSlot {
        /// The slot.
        slot: u32,
        /// The ring of the sum.
        ring: Ring,
        /// The number of coordinates.
        len: u32,
        /// The devices whose masks the input contains.
        active: DeviceSet,
    },
    /// The devices whose inputs are in the sum.
    Survivors {
        /// The slot.
        slot: u32,
        /// The surviving devices.
        survivors: DeviceSet,
    },
    /// The neighbours' signatures on the transcript.
    Attestations {
        /// The slot.
        slot: u32,
        /// Ed25519 signatures by device.
        signatures: BTreeMap<DeviceId, [u8; SIGNATURE_LEN]>,
        /// On a sparse graph: the input signatures of the surviving neighbours that did not attest.
        masked: BTreeMap<DeviceId, [u8; SIGNATURE_LEN]>,
    },
}
