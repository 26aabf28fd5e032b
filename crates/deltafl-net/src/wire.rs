//! The messages of `proto/deltafl/v1/federation.proto`, and what they mean.
//!
//! What comes from the other side is parsed here once, into types that cannot hold a wrong value; nothing behind has to
//! look at a field again.

mod codec;
mod framed;
mod parts;
mod question;

/// Generated from the `.proto`.
#[expect(missing_docs, reason = "generated: the .proto is the documentation")]
#[allow(clippy::all, rust_2018_idioms, reason = "generated")]
pub mod proto {
    tonic::include_proto!("deltafl.v1");
}

pub(crate) use codec::Codec;
pub(crate) use framed::Framed;
pub use parts::{Assembly, PartError, parts};
pub use question::question;
pub(crate) use question::{blob_of, blob_of_id};

use bytes::Bytes;

/// The version of the protocol.
pub const VERSION: u32 = 1;
/// The longest message of a server in `Attend`, in bytes.
pub const MAX_MESSAGE: usize = 1 << 20;
/// The longest message of a device, in bytes: the server reads it into a buffer of its own for each device.
pub const MAX_SAID: usize = 64 << 10;
/// Bytes of a chunk of `Fetch`.
pub const CHUNK: usize = 64 << 10;
/// Bytes of a part of a message: both ends of a long-lived stream keep a buffer of about this size.
pub const PART: usize = 4 << 10;
/// The longest name of a device, a federation or an experiment, in bytes.
pub const MAX_NAME: usize = 256;
/// The most queries in a question, and so the most tracks of a federation.
pub const MAX_QUERIES: usize = deltafl::question::MAX_QUERIES;

/// A message that does not say what it should.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("field `{field}` is missing or malformed")]
pub struct Malformed {
    /// The field.
    pub field: &'static str,
}

pub(crate) fn malformed(field: &'static str) -> Malformed {
    Malformed { field }
}

/// Bytes of a known hash and length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlobId {
    /// BLAKE3.
    pub hash: blake3::Hash,
    /// Bytes.
    pub len: u64,
}

impl BlobId {
    /// The id of these bytes.
    pub fn of(bytes: &[u8]) -> Self {
        Self { hash: blake3::hash(bytes), len: bytes.len() as u64 }
    }

    pub(crate) fn to_wire(self) -> proto::Blob {
        proto::Blob { hash: Bytes::copy_from_slice(self.hash.as_bytes()), len: self.len }
    }

    pub(crate) fn from_wire(blob: Option<proto::Blob>) -> Result<Self, Malformed> {
        let blob = blob.ok_or(malformed("blob"))?;
        Ok(Self { hash: hash(&blob.hash)?, len: blob.len })
    }
}

/// A BLAKE3 hash.
pub(crate) fn hash(bytes: &[u8]) -> Result<blake3::Hash, Malformed> {
    Ok(blake3::Hash::from_bytes(array(bytes, "hash")?))
}

pub(crate) fn array<const N: usize>(bytes: &[u8], field: &'static str) -> Result<[u8; N], Malformed> {
    bytes.try_into().map_err(|_| malformed(field))
}

/// A name of a sensible length.
pub(crate) fn name(name: String, field: &'static str) -> Result<String, Malformed> {
    if name.is_empty() || name.len() > MAX_NAME { Err(malformed(field)) } else { Ok(name) }
}
