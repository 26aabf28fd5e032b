//! State that a device keeps between connections.

use std::collections::VecDeque;
use std::fmt::Display;

use deltafl_wire::MAX_QUERIES;

use super::divided::DividedRound;
use crate::answer::DeviceLosses;
use crate::cache::BlobCache;
use crate::consent::ComputeTimeBudget;
use crate::fetch::PartialBlob;

/// State that outlives a connection.
#[derive(Default)]
pub(crate) struct ConnectionCache {
    pub(super) partial: PartialBlob,
    pub(super) ledger: ComputeTimeBudget,
    pub(super) losses: DeviceLosses,
    /// The last round whose cohort was divided among tracks.
    pub(super) divided: Option<DividedRound>,
    /// The hashes of the parameters fetched last. Each device of a shared cache fetches for itself.
    fetched: VecDeque<blake3::Hash>,
    pub(super) opened: bool,
    /// The reason for which the device last refused to participate.
    refused: String,
}

impl ConnectionCache {
    /// Whether the device has opened a session since the flag was last read. A welcome is not
    /// sufficient, because the device may refuse the roster after it.
    pub(crate) fn take_opened(&mut self) -> bool {
        std::mem::take(&mut self.opened)
    }

    /// Logs the reason for which the device does not participate. It is a warning only if the
    /// reason has changed, not for every invitation.
    pub(super) fn log_refusal(&mut self, refused: &dyn Display, what: &str) {
        let refused = refused.to_string();
        if refused == self.refused {
            tracing::debug!(%refused, "{what}");
        } else {
            tracing::warn!(%refused, "{what}");
            self.refused = refused;
        }
    }

    /// Returns the cached params that this device has fetched.
    pub(super) fn held<'m>(&'m self, cache: &'m BlobCache) -> impl Iterator<Item = &'m blake3::Hash> {
        self.fetched.iter().filter(|hash| cache.holds(hash))
    }

    /// Returns `true` if this device fetches this hash for the first time, and marks it as fetched.
    pub(super) fn is_new(&mut self, hash: &blake3::Hash) -> bool {
        if self.fetched.contains(hash) {
            return false;
        }
        self.fetched.push_back(*hash);
        if self.fetched.len() > MAX_QUERIES {
            self.fetched.pop_front();
        }
        true
    }
}
