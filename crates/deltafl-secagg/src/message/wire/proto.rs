//! The protobuf messages of `proto/secagg.proto`, by hand, so that a build needs no protobuf compiler.

use prost::bytes::Bytes;
use prost::{Message, Oneof};

/// A message from a device.
#[derive(Clone, PartialEq, Message)]
pub(super) struct FromDevice {
    #[prost(uint32, tag = "1")]
    pub(super) version: u32,
    #[prost(bytes = "bytes", tag = "2")]
    pub(super) session: Bytes,
    #[prost(uint64, tag = "3")]
    pub(super) round: u64,
    #[prost(oneof = "from_device::Body", tags = "4, 5, 6, 7, 8, 9, 10")]
    pub(super) body: Option<from_device::Body>,
}

pub(super) mod from_device {
    use super::{Attest, Bytes, Confirm, MaskedInput, Oneof, Records, Unmask};

    #[derive(Clone, PartialEq, Oneof)]
    pub(in super::super) enum Body {
        #[prost(bytes = "bytes", tag = "4")]
        Advertise(Bytes),
        #[prost(bytes = "bytes", tag = "5")]
        Reveal(Bytes),
        #[prost(message, tag = "6")]
        Shares(Records),
        #[prost(message, tag = "7")]
        MaskedInput(MaskedInput),
        #[prost(message, tag = "8")]
        Attest(Attest),
        #[prost(message, tag = "9")]
        Unmask(Unmask),
        #[prost(message, tag = "10")]
        Confirm(Confirm),
    }
}

/// A message from the server.
#[derive(Clone, PartialEq, Message)]
pub(super) struct FromServer {
    #[prost(uint32, tag = "1")]
    pub(super) version: u32,
    #[prost(bytes = "bytes", tag = "2")]
    pub(super) session: Bytes,
    #[prost(uint64, tag = "3")]
    pub(super) round: u64,
    #[prost(oneof = "from_server::Body", tags = "4, 5, 6, 7, 8, 9, 10, 11, 12")]
    pub(super) body: Option<from_server::Body>,
}

pub(super) mod from_server {
    use super::{Attestations, Invite, Oneof, OpenSlot, Records, Survivors};

    /// The number of the field of [`Body::Keys`].
    pub(in super::super) const KEYS: u32 = 7;
    /// The number of the field of [`Body::Shares`].
    pub(in super::super) const SHARES: u32 = 8;
    /// The number of the field of [`Body::EarlyShares`].
    pub(in super::super) const EARLY_SHARES: u32 = 12;

    #[derive(Clone, PartialEq, Oneof)]
    pub(in super::super) enum Body {
        #[prost(message, tag = "4")]
        Invite(Invite),
        #[prost(message, tag = "5")]
        Commitments(Records),
        #[prost(message, tag = "6")]
        Reveals(Records),
        #[prost(message, tag = "7")]
        Keys(Records),
        #[prost(message, tag = "8")]
        Shares(Records),
        #[prost(message, tag = "9")]
        OpenSlot(OpenSlot),
        #[prost(message, tag = "10")]
        Survivors(Survivors),
        #[prost(message, tag = "11")]
        Attestations(Attestations),
        #[prost(message, tag = "12")]
        EarlyShares(Records),
    }
}

/// The number of the last field of [`Records`].
pub(super) const RECORDS: u32 = 2;

#[derive(Clone, PartialEq, Message)]
pub(super) struct Records {
    #[prost(bytes = "bytes", tag = "1")]
    pub(super) ids: Bytes,
    #[prost(bytes = "bytes", tag = "2")]
    pub(super) records: Bytes,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Confirm {
    #[prost(bytes = "bytes", tag = "1")]
    pub(super) complaints: Bytes,
    #[prost(message, optional, tag = "2")]
    pub(super) deposits: Option<Records>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Invite {
    #[prost(uint32, tag = "1")]
    pub(super) suite: u32,
    #[prost(uint32, tag = "2")]
    pub(super) cohort: u32,
    #[prost(uint32, tag = "3")]
    pub(super) slots: u32,
    #[prost(uint32, tag = "4")]
    pub(super) graph: u32,
    #[prost(uint32, tag = "5")]
    pub(super) threshold: u32,
    #[prost(uint32, tag = "6")]
    pub(super) gamma: u32,
    #[prost(uint32, tag = "7")]
    pub(super) colluding: u32,
    #[prost(uint32, tag = "8")]
    pub(super) delta: u32,
    #[prost(bytes = "bytes", tag = "9")]
    pub(super) draw: Bytes,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct OpenSlot {
    #[prost(uint32, tag = "1")]
    pub(super) slot: u32,
    #[prost(uint32, tag = "2")]
    pub(super) ring: u32,
    #[prost(uint32, tag = "3")]
    pub(super) len: u32,
    #[prost(bytes = "bytes", tag = "4")]
    pub(super) active: Bytes,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct MaskedInput {
    #[prost(uint32, tag = "1")]
    pub(super) slot: u32,
    #[prost(bytes = "bytes", tag = "2")]
    pub(super) input: Bytes,
    #[prost(bytes = "bytes", tag = "3")]
    pub(super) signature: Bytes,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Survivors {
    #[prost(uint32, tag = "1")]
    pub(super) slot: u32,
    #[prost(bytes = "bytes", tag = "2")]
    pub(super) survivors: Bytes,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Attest {
    #[prost(uint32, tag = "1")]
    pub(super) slot: u32,
    #[prost(bytes = "bytes", tag = "2")]
    pub(super) signature: Bytes,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Attestations {
    #[prost(uint32, tag = "1")]
    pub(super) slot: u32,
    #[prost(message, optional, tag = "2")]
    pub(super) signatures: Option<Records>,
    #[prost(message, optional, tag = "3")]
    pub(super) masked: Option<Records>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Unmask {
    #[prost(uint32, tag = "1")]
    pub(super) slot: u32,
    #[prost(message, optional, tag = "2")]
    pub(super) seeds: Option<Records>,
    #[prost(message, optional, tag = "3")]
    pub(super) deposit_keys: Option<Records>,
}
