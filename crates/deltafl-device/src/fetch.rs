//! Fetching bytes by their hash, in chunks, from where the last attempt ended.

use bytes::{Bytes, BytesMut};
use deltafl_wire::proto::FetchRequest;
use deltafl_wire::proto::federation_client::FederationClient;
use deltafl_wire::{BlobId, CHUNK};
use tonic::Status;
use tonic::transport::Channel;

use crate::fault::Faults;

/// Why a blob was not fetched.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FetchError {
    /// The server or the connection failed.
    #[error("the server did not send what it asks about")]
    Status(#[from] Status),
    /// The blob is larger than the device takes.
    #[error("{len} bytes are more than the {limit} that this device takes")]
    TooLong {
        /// Its length.
        len: u64,
        /// The most.
        limit: u64,
    },
    /// The bytes are not those of the hash.
    #[error("the server sent other bytes than it announced")]
    OtherBytes,
}

/// What has come of a blob so far; it outlives the connection.
#[derive(Debug, Default)]
pub(super) struct Partial {
    hash: Option<blake3::Hash>,
    bytes: BytesMut,
}

impl Partial {
    /// Fetches what is missing of a blob.
    pub(super) async fn fetch(
        &mut self,
        client: &mut FederationClient<Channel>,
        id: BlobId,
        limit: u64,
        faults: &Faults,
    ) -> Result<Bytes, FetchError> {
        if id.len > limit {
            return Err(FetchError::TooLong { len: id.len, limit });
        }
        if self.hash != Some(id.hash) {
            *self = Self { hash: Some(id.hash), bytes: BytesMut::new() };
        }
        let request = FetchRequest {
            hash: Bytes::copy_from_slice(id.hash.as_bytes()),
            offset: self.bytes.len() as u64,
        };
        let mut chunks = client.fetch(request).await?.into_inner();
        while let Some(chunk) = chunks.message().await? {
            faults.transfer(chunk.data.len()).await;
            if self.bytes.len() as u64 + chunk.data.len() as u64 > id.len || chunk.data.len() > 4 * CHUNK {
                *self = Self::default();
                return Err(FetchError::OtherBytes);
            }
            self.bytes.extend_from_slice(&chunk.data);
        }
        if (self.bytes.len() as u64) < id.len {
            return Err(Status::unavailable("the transfer broke off").into());
        }
        let bytes = std::mem::take(self).bytes.freeze();
        if blake3::hash(&bytes) == id.hash { Ok(bytes) } else { Err(FetchError::OtherBytes) }
    }
}

/// Fetches a blob that is known already, and throws it away: a device of a swarm moves the bytes that it would move alone.
pub(super) async fn fetch_again(
    client: &mut FederationClient<Channel>,
    id: BlobId,
    faults: &Faults,
) -> Result<(), FetchError> {
    let request = FetchRequest { hash: Bytes::copy_from_slice(id.hash.as_bytes()), offset: 0 };
    let mut chunks = client.fetch(request).await?.into_inner();
    let mut hasher = blake3::Hasher::new();
    while let Some(chunk) = chunks.message().await? {
        faults.transfer(chunk.data.len()).await;
        hasher.update(&chunk.data);
    }
    if hasher.finalize() == id.hash { Ok(()) } else { Err(FetchError::OtherBytes) }
}
