//! Conversion of questions between the core's canonical bytes and the protocol's messages.

use deltafl::params::{Params, ParamsId};
use deltafl::question::Question;

use super::{BlobId, Malformed, malformed, proto};

/// Returns the id of the blob that contains `params` as little-endian `f32`.
pub fn params_blob(params: &Params) -> BlobId {
    params_blob_from_id(&params.id())
}

/// Returns the id of the blob that contains the params with this id.
pub fn params_blob_from_id(id: &ParamsId) -> BlobId {
    BlobId { hash: id.hash, len: id.len.saturating_mul(4) }
}

/// Parses and checks a question. Its params are still to be fetched.
///
/// # Errors
/// Fails if the canonical bytes are malformed.
pub fn parse_question(wire: &proto::Question) -> Result<Question<ParamsId>, Malformed> {
    Question::from_bytes(&wire.canonical).map_err(|e| malformed(e.field))
}
