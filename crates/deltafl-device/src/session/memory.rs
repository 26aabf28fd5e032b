//! What a device remembers from one connection to the next.

use std::collections::VecDeque;
use std::fmt::Display;

use deltafl_wire::MAX_QUERIES;

use crate::answer::Losses;
use crate::cache::BlobCache;
use crate::consent::Ledger;
use crate::fetch::Partial;

/// What outlives a connection.
#[derive(Default)]
pub(crate) struct Memory {
    pub(super) partial: Partial,
    pub(super) ledger: Ledger,
    pub(super) losses: Losses,
    /// The parameters fetched last, by hash: in a shared cache others may have been first, but each fetches for itself.
    fetched: VecDeque<blake3::Hash>,
    pub(super) welcomed: bool,
    /// Why the device stayed away last.
    refused: String,
}

impl Memory {
    /// Whether a server welcomed the device since this was last asked.
    pub(crate) fn take_welcomed(&mut self) -> bool {
        std::mem::take(&mut self.welcomed)
    }

    /// Logs why the device stays away: as a warning when the reason is another than the last one, not at every invitation.
    pub(super) fn log_refusal(&mut self, refused: &dyn Display, what: &str) {
        let refused = refused.to_string();
        if refused == self.refused {
            tracing::debug!(%refused, "{what}");
        } else {
            tracing::warn!(%refused, "{what}");
            self.refused = refused;
        }
    }

    /// The params that this device has fetched and that are still kept.
    pub(super) fn held<'m>(&'m self, cache: &'m BlobCache) -> impl Iterator<Item = &'m blake3::Hash> {
        self.fetched.iter().filter(|hash| cache.holds(hash))
    }

    /// Whether this device has not fetched this hash before; it counts as fetched from now on.
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
