//! What devices have fetched: the parameters of the present questions, and the roster.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use deltafl::params::Params;
use deltafl_secagg::identity::KeyRoster;
use deltafl_wire::roster::Roster;

/// Parameter vectors that are kept: those of the tracks of a question, usually.
pub(super) const KEPT: usize = 8;

/// A roster that the authority signed.
#[derive(Debug)]
pub(super) struct Verified {
    pub(super) hash: blake3::Hash,
    pub(super) roster: Roster,
    pub(super) keys: Arc<KeyRoster>,
}

/// What devices have fetched, by its hash; the devices of a process may share it.
#[derive(Debug, Default)]
pub struct BlobCache {
    params: Mutex<VecDeque<Params>>,
    roster: Mutex<Option<Arc<Verified>>>,
}

impl BlobCache {
    /// Whether the parameters of this hash are kept.
    pub fn holds(&self, hash: &blake3::Hash) -> bool {
        self.params(hash).is_some()
    }

    /// The parameters of this hash.
    pub(super) fn params(&self, hash: &blake3::Hash) -> Option<Params> {
        let params = self.params.lock().unwrap_or_else(PoisonError::into_inner);
        params.iter().find(|params| params.hash() == *hash).cloned()
    }

    /// Keeps parameters; the same vector as others keep, if they do.
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

    /// The roster of this hash.
    pub(super) fn roster(&self, hash: &blake3::Hash) -> Option<Arc<Verified>> {
        let roster = self.roster.lock().unwrap_or_else(PoisonError::into_inner);
        roster.as_ref().filter(|roster| roster.hash == *hash).cloned()
    }

    /// Keeps a roster in place of the one before.
    pub(super) fn keep_roster(&self, roster: Verified) -> Arc<Verified> {
        let roster = Arc::new(roster);
        *self.roster.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::clone(&roster));
        roster
    }
}
