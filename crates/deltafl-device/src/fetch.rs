//! Downloads of blobs by hash, in chunks. A download resumes at the end of the last attempt.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use deltafl_wire::proto::federation_client::FederationClient;
use deltafl_wire::proto::{Chunk, FetchRequest};
use deltafl_wire::{BlobId, CHUNK};
use tokio::time::{Instant, timeout, timeout_at};
use tonic::transport::Channel;
use tonic::{Status, Streaming};

use crate::fault::Faults;
use crate::limits::{TimeLimits, TimedOut};

/// The reason for which a download failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FetchError {
    /// The server or the connection failed.
    #[error("the server failed to send the blob")]
    Status(#[from] Status),
    /// The blob exceeds the size limit.
    #[error("{len} bytes exceed the limit of {limit} bytes")]
    TooLong {
        /// The length of the blob.
        len: u64,
        /// The limit.
        limit: u64,
    },
    /// The server exceeded a time limit.
    #[error(transparent)]
    TimedOut(#[from] TimedOut),
    /// The bytes do not match the hash.
    #[error("the server sent other bytes than it announced")]
    OtherBytes,
}

/// The properties of a device's link that a fetch depends on.
#[derive(Clone, Copy)]
pub(super) struct Link<'d> {
    pub(super) limits: &'d TimeLimits,
    pub(super) faults: &'d Faults,
}

/// The chunks of a blob, within the time limits of the device.
struct Chunks {
    chunks: Streaming<Chunk>,
    /// The time limit between two chunks.
    pause: Duration,
    /// The time limit for the whole blob, and the instant at which it expires.
    whole: (Duration, Instant),
}

impl Chunks {
    /// Requests a blob of which this many bytes are missing.
    async fn open(
        client: &mut FederationClient<Channel>,
        request: FetchRequest,
        limits: &TimeLimits,
        missing: u64,
    ) -> Result<Self, FetchError> {
        let (pause, limit) = (limits.chunk, limits.blob(missing));
        let whole = (limit, Instant::now() + limit);
        match timeout(pause, client.fetch(request)).await {
            Ok(answer) => Ok(Self { chunks: answer?.into_inner(), pause, whole }),
            Err(_) => Err(TimedOut { what: "the answer to a fetch", limit: pause }.into()),
        }
    }

    /// Returns the next chunk, or `None` at the end.
    async fn next(&mut self) -> Result<Option<Chunk>, FetchError> {
        let (limit, end) = self.whole;
        let pause = Instant::now() + self.pause;
        let late = match timeout_at(pause.min(end), self.chunks.message()).await {
            Ok(chunk) => return Ok(chunk?),
            Err(_) if end <= pause => TimedOut { what: "a whole blob", limit },
            Err(_) => TimedOut { what: "the next chunk of a blob", limit: self.pause },
        };
        Err(late.into())
    }
}

/// The bytes of a blob received so far. They outlive the connection.
#[derive(Debug, Default)]
pub(super) struct PartialBlob {
    hash: Option<blake3::Hash>,
    bytes: BytesMut,
}

impl PartialBlob {
    /// Fetches the missing part of a blob. `limit` is the largest blob that is accepted, in bytes.
    pub(super) async fn fetch(
        &mut self,
        client: &mut FederationClient<Channel>,
        id: BlobId,
        limit: u64,
        Link { limits, faults }: Link<'_>,
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
        let mut chunks =
            Chunks::open(client, request, limits, id.len.saturating_sub(self.bytes.len() as u64)).await?;
        while let Some(chunk) = chunks.next().await? {
            faults.transfer(chunk.data.len()).await;
            if self.bytes.len() as u64 + chunk.data.len() as u64 > id.len || chunk.data.len() > 4 * CHUNK {
                *self = Self::default();
                return Err(FetchError::OtherBytes);
            }
            self.bytes.extend_from_slice(&chunk.data);
        }
        if (self.bytes.len() as u64) < id.len {
            return Err(Status::unavailable("the transfer ended early").into());
        }
        let bytes = std::mem::take(self).bytes.freeze();
        if blake3::hash(&bytes) == id.hash { Ok(bytes) } else { Err(FetchError::OtherBytes) }
    }
}

/// Fetches a known blob and discards it. A device of a swarm thus transfers the bytes that it would
/// transfer alone.
pub(super) async fn fetch_again(
    client: &mut FederationClient<Channel>,
    id: BlobId,
    Link { limits, faults }: Link<'_>,
) -> Result<(), FetchError> {
    let request = FetchRequest { hash: Bytes::copy_from_slice(id.hash.as_bytes()), offset: 0 };
    let mut chunks = Chunks::open(client, request, limits, id.len).await?;
    let mut hasher = blake3::Hasher::new();
    while let Some(chunk) = chunks.next().await? {
        faults.transfer(chunk.data.len()).await;
        hasher.update(&chunk.data);
    }
    if hasher.finalize() == id.hash { Ok(()) } else { Err(FetchError::OtherBytes) }
}
