//! What the server and the devices of a federation say to each other: the messages of
//! `proto/deltafl/v1/federation.proto`, what they mean, and who is who.
//!
//! What comes from the other side is parsed here once, into types that cannot hold a wrong value; nothing behind has to
//! look at a field again. Here is no socket to listen on, no database and no certificate authority: `deltafl-device` and
//! `deltafl-server` are the two ends.
//!
//! | module | holds |
//! |---|---|
//! | [`proto`] and this module | messages and their limits |
//! | [`identity`] | names, certificates, signing keys, enrolment tokens |
//! | [`roster`] | who may take part, vouched for by the enrolment authority |
//! | [`enrolment`] | what a new device posts, and what it is answered |
//! | [`contract`] | what examples are, and what is done to them before a model sees them |
//! | [`guard`] | against whom a round protects: what servers offer and devices insist on |
//! | [`card`], [`params_file`] | what is known of a model, and the file that holds it |
//! | [`loopback`] | a fleet whose keys anybody can compute, for one machine |

pub mod card;
mod codec;
pub mod contract;
pub mod enrolment;
pub mod guard;
pub mod identity;
pub mod loopback;
mod maybe_tls;
pub mod params_file;
mod parts;
mod question;
pub mod roster;

/// Generated from the `.proto`.
#[expect(missing_docs, reason = "generated: the .proto is the documentation")]
#[allow(clippy::all, rust_2018_idioms, reason = "generated")]
pub mod proto {
    tonic::include_proto!("deltafl.v1");
}

pub use codec::{Codec, Inward, Outward};
pub use maybe_tls::MaybeTls;
pub use parts::{Assembly, PartError, Parts, parts, parts_of};
pub use question::{blob_of, blob_of_id, question};

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

/// The error of a field.
pub fn malformed(field: &'static str) -> Malformed {
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

    /// The id as a message carries it.
    pub fn to_wire(self) -> proto::Blob {
        proto::Blob { hash: Bytes::copy_from_slice(self.hash.as_bytes()), len: self.len }
    }

    /// The id that a message carries.
    pub fn from_wire(blob: Option<proto::Blob>) -> Result<Self, Malformed> {
        let blob = blob.ok_or(malformed("blob"))?;
        Ok(Self { hash: hash(&blob.hash)?, len: blob.len })
    }
}

/// A BLAKE3 hash.
pub fn hash(bytes: &[u8]) -> Result<blake3::Hash, Malformed> {
    Ok(blake3::Hash::from_bytes(array(bytes, "hash")?))
}

/// Bytes of a field whose length is known.
pub fn array<const N: usize>(bytes: &[u8], field: &'static str) -> Result<[u8; N], Malformed> {
    bytes.try_into().map_err(|_| malformed(field))
}

/// A name of a sensible length.
pub(crate) fn name(name: String, field: &'static str) -> Result<String, Malformed> {
    if name.is_empty() || name.len() > MAX_NAME { Err(malformed(field)) } else { Ok(name) }
}

#[cfg(test)]
mod tests {
    #[test]
    fn every_message_and_every_field_of_the_protocol_has_a_comment() {
        let text = include_str!("../proto/deltafl/v1/federation.proto");
        let lines: Vec<&str> = text.lines().map(str::trim).collect();
        let (mut declared, mut bare) = (0, Vec::new());
        for pair in lines.windows(2) {
            let begins = |word: &str| pair[1].starts_with(word);
            let field = pair[1].contains(" = ") && pair[1].ends_with(';') && !begins("syntax");
            if field || begins("message ") || begins("rpc ") {
                declared += 1;
                if !pair[0].starts_with("//") {
                    bare.push(pair[1]);
                }
            }
        }
        assert!(declared > 60, "{declared}");
        assert_eq!(bare, Vec::<&str>::new());
    }
}
