//! A returning device fetches the newest params before it can be drawn.
//!
//! This happens once after each absence. A connected device fetches the params of a round when a
//! question refers to them.

use bytes::Bytes;
use deltafl_wire::{BlobId, MAX_QUERIES, malformed, proto};
use tokio::time::timeout;
use tonic::Code;

use super::{Session, SessionError};
use crate::cache::KEPT;
use crate::fetch::FetchError;
use crate::limits::TimedOut;

/// The number of retries if a round finishes before the device has fetched the listed params.
const TRIES: u32 = 3;

impl Session<'_> {
    /// Fetches the newest params that are not in the cache. If rounds are shorter than a fetch, or
    /// if the server does not support the call, the device fetches params with each question.
    pub(super) async fn learn_newest(&mut self) -> Result<(), SessionError> {
        for _ in 0..TRIES {
            let Some(missing) = self.missing().await? else { return Ok(()) };
            match self.fetch_params(&missing).await {
                Err(SessionError::Fetch(FetchError::Status(status))) if status.code() == Code::NotFound => {}
                fetched => return fetched.map(drop),
            }
        }
        Ok(())
    }

    /// Returns the newest params that are not in the cache, up to its capacity. Returns `None` if
    /// the server does not support the call.
    async fn missing(&mut self) -> Result<Option<Vec<BlobId>>, SessionError> {
        let held = self.memory.held(&self.device.cache);
        let held = held.map(|hash| Bytes::copy_from_slice(hash.as_bytes())).collect();
        let (mut client, request) = (self.client.clone(), proto::NewestRequest { held });
        let limit = self.device.limits.newest;
        let told = self.while_listening(timeout(limit, client.newest(request))).await?;
        let missing = match told.map_err(|_| TimedOut { what: "the list of the newest params", limit })? {
            Ok(told) => told.into_inner().missing,
            Err(status) if status.code() == Code::Unimplemented => return Ok(None),
            Err(status) => return Err(status.into()),
        };
        if missing.len() > MAX_QUERIES {
            return Err(malformed("missing").into());
        }
        let missing = missing.into_iter().take(KEPT).map(|blob| BlobId::from_wire(Some(blob)));
        Ok(Some(missing.collect::<Result<_, _>>()?))
    }
}
