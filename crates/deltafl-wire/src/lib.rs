//! The messages between the server and the devices of a federation, and their identities.
//!
//! The messages are defined in `proto/deltafl/v1/federation.proto`. This crate parses them once,
//! into types that cannot hold an invalid value. It contains no database and no certificate
//! authority. `deltafl-device` and `deltafl-server` implement the two ends and re-export the types
//! in their interfaces.
//!
//! ```
//! use deltafl_wire::loopback;
//! use deltafl_wire::roster::{Roster, RosterVersion};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let version = RosterVersion { version: 1, expires: u64::MAX };
//! let signed = loopback::roster(version, ["anna", "ben"].into_iter(), |_| false)?;
//! let roster = Roster::decode(signed.bytes)?;
//! assert_eq!(roster.entries()[1].name, "ben");
//! # Ok(())
//! # }
//! ```
//!
//! | module | contents |
//! |---|---|
//! | [`proto`] and this module | messages and their limits |
//! | [`identity`] | names, certificates, signing keys, enrolment tokens |
//! | [`roster`] | the enrolled devices, signed by the enrolment authority |
//! | [`roster_log`] | the log of the signed rosters, as a file |
//! | [`enrolment`] | request and response of the enrolment endpoint |
//! | [`contract`] | shape and preprocessing of the examples |
//! | [`threat`] | the threat assumptions that a server offers and a device requires |
//! | [`card`], [`params_file`] | metadata of a model, and the file that contains it |
//! | [`environment`] | network, clock and random numbers of a server or device |
//! | [`loopback`] | a fleet with publicly derivable keys, for tests on one machine |

pub mod card;
mod codec;
pub mod enrolment;
pub mod environment;
mod fragments;
pub mod identity;
pub mod loopback;
mod maybe_tls;
pub mod params_file;
mod question;
pub mod roster;
pub mod roster_log;
pub mod threat;

/// Types generated from the `.proto`.
#[expect(missing_docs, reason = "generated: the .proto is the documentation")]
#[allow(clippy::all, rust_2018_idioms, reason = "generated")]
pub mod proto {
    tonic::include_proto!("deltafl.v1");
}

pub use deltafl::data::contract;

pub use codec::{Codec, Inward, Outward};
pub use fragments::{FragmentError, Fragments, Reassembly, fragments, fragments_from};
pub use maybe_tls::MaybeTls;
pub use question::{params_blob, params_blob_from_id, parse_question};

use std::error::Error;

use bytes::Bytes;

/// The version of the protocol.
pub const VERSION: u32 = 1;
/// The maximum size of a server's message in `Attend`, in bytes.
pub const MAX_MESSAGE: usize = 1 << 20;
/// The maximum size of a device's message, in bytes. The server has one read buffer per device.
pub const MAX_DEVICE_MESSAGE: usize = 64 << 10;
/// The size of a chunk of `Fetch`, in bytes.
pub const CHUNK: usize = 64 << 10;
/// The size of a message fragment, in bytes. Both ends of a stream keep a buffer of about this
/// size.
pub const FRAGMENT: usize = 4 << 10;
/// The maximum length of the name of a device, a federation or an experiment, in bytes.
pub const MAX_NAME: usize = 256;
/// The maximum number of queries in a question, and therefore of tracks in a federation.
pub const MAX_QUERIES: usize = deltafl::question::MAX_QUERIES;

/// The error of a message with a missing or invalid field.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("field `{field}` is missing or malformed")]
pub struct Malformed {
    /// The name of the field.
    pub field: &'static str,
}

impl From<contract::InvalidContract> for Malformed {
    fn from(_: contract::InvalidContract) -> Self {
        malformed("contract")
    }
}

/// Returns the error for a field.
pub fn malformed(field: &'static str) -> Malformed {
    Malformed { field }
}

/// The hash and length of a blob.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlobId {
    /// The BLAKE3 hash.
    pub hash: blake3::Hash,
    /// The length in bytes.
    pub len: u64,
}

impl BlobId {
    /// Computes the id of `bytes`.
    pub fn for_bytes(bytes: &[u8]) -> Self {
        Self { hash: blake3::hash(bytes), len: bytes.len() as u64 }
    }

    /// Converts the id to its protobuf message.
    pub fn to_wire(self) -> proto::Blob {
        proto::Blob { hash: Bytes::copy_from_slice(self.hash.as_bytes()), len: self.len }
    }

    /// Parses the id from its protobuf message.
    pub fn from_wire(blob: Option<proto::Blob>) -> Result<Self, Malformed> {
        let blob = blob.ok_or(malformed("blob"))?;
        Ok(Self { hash: hash(&blob.hash)?, len: blob.len })
    }
}

/// Parses a BLAKE3 hash.
pub fn hash(bytes: &[u8]) -> Result<blake3::Hash, Malformed> {
    Ok(blake3::Hash::from_bytes(array(bytes, "hash")?))
}

/// Parses a field of exactly `N` bytes.
pub fn array<const N: usize>(bytes: &[u8], field: &'static str) -> Result<[u8; N], Malformed> {
    bytes.try_into().map_err(|_| malformed(field))
}

/// Returns the message of an error and of its causes in one line, for logs.
pub fn chain(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(&format!(": {error}"));
        cause = error.source();
    }
    text
}

/// Checks the length of a name.
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
