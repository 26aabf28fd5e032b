//! What a cohort is asked: the library's canonical bytes, as the protocol carries them.

use deltafl::params::{Params, ParamsId};
use deltafl::question::Question;

use super::{BlobId, Malformed, malformed, proto};

/// The id of params as they travel: little-endian `f32`.
pub fn blob_of(params: &Params) -> BlobId {
    blob_of_id(&params.id())
}

/// The bytes that hold params of this id.
pub fn blob_of_id(id: &ParamsId) -> BlobId {
    BlobId { hash: id.hash, len: id.len.saturating_mul(4) }
}

/// A question as a device takes it in: checked, its params still to be fetched.
pub fn question(wire: &proto::Question) -> Result<Question<ParamsId>, Malformed> {
    Question::from_bytes(&wire.canonical).map_err(|e| malformed(e.field))
}
