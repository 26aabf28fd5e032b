//! A cache of the parameters of current questions and of the roster.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use deltafl::params::Params;
use deltafl_secagg::identity::KeyRoster;
use deltafl_wire::roster::Roster;

/// The number of cached parameter vectors, usually one for each track of a question.
pub(super) const KEPT: usize = 8;

/// A roster signed by the authority.
#[derive(Debug)]
pub(super) struct Verified {
    pub(super) hash: blake3::Hash,
    pub(super) roster: Roster,
    pub(super) keys: Arc<KeyRoster>,
}

/// Fetched blobs by hash. The devices of a process may share one cache.
#[derive(Debug, Default)]
pub struct BlobCache {
    params: Mutex<VecDeque<Params>>,
    roster: Mutex<Option<Arc<Verified>>>,
}

impl BlobCache {
    /// Returns `true` if the cache contains the parameters with this hash.
    pub fn holds(&self, hash: &blake3::Hash) -> bool {
        self.params(hash).is_some()
    }

    /// Returns the parameters with this hash.
    pub(super) fn params(&self, hash: &blake3::Hash) -> Option<Params> {
        let params = self.params.lock().unwrap_or_else(PoisonError::into_inner);
        params.iter().find(|params| params.hash() == *hash).cloned()
    }

    /// Stores parameters. If the cache already contains them, returns the shared vector.
    pub(super) fn keep_params(&self, new: Params) -> Params {
        let mut params = self.params.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = params.iter().find(|known| known.hash() == new.hash()) {
            return known.clone();
        }
        params.push_back(new.clone());
        if params.len() > KEPT {
            params.pop_front();
        }
        new
    }

    /// Returns the roster with this hash.
    pub(super) fn roster(&self, hash: &blake3::Hash) -> Option<Arc<Verified>> {
        let roster = self.roster.lock().unwrap_or_else(PoisonError::into_inner);
        roster.as_ref().filter(|roster| roster.hash == *hash).cloned()
    }

    /// Replaces the cached roster.
    pub(super) fn keep_roster(&self, roster: Verified) -> Arc<Verified> {
        let roster = Arc::new(roster);
        *self.roster.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::clone(&roster));
        roster
    }
}
