//! The revoked certificates, shared by all connections.

use std::collections::HashSet;
use std::sync::{Arc, PoisonError, RwLock};

use deltafl_wire::identity::Fingerprint;
use tokio::sync::watch;

/// The set of revoked certificates. Clones share it.
#[derive(Clone, Debug)]
pub struct Revocations {
    revoked: Arc<RwLock<HashSet<Fingerprint>>>,
    version: Arc<watch::Sender<u64>>,
}

impl Revocations {
    /// Creates an empty set.
    pub fn new() -> Self {
        Self { revoked: Arc::default(), version: Arc::new(watch::Sender::new(0)) }
    }

    /// Returns `true` if a certificate is revoked.
    pub fn contains(&self, fingerprint: &Fingerprint) -> bool {
        self.revoked.read().unwrap_or_else(PoisonError::into_inner).contains(fingerprint)
    }

    /// Replaces the set and notifies the connections if it differs.
    pub fn replace(&self, revoked: HashSet<Fingerprint>) {
        let mut current = self.revoked.write().unwrap_or_else(PoisonError::into_inner);
        if *current != revoked {
            *current = revoked;
            drop(current);
            self.version.send_modify(|version| *version += 1);
        }
    }

    /// Returns when the set changes. An open connection then calls [`Self::contains`] again.
    pub fn changed(&self) -> watch::Receiver<u64> {
        self.version.subscribe()
    }
}

impl Default for Revocations {
    fn default() -> Self {
        Self::new()
    }
}
