//! The open connections, from accept to close, so that a server can wait for them and close them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{Notify, watch};

use super::caller::ConnectionState;

/// The connections of one server.
#[derive(Debug, Default)]
pub(crate) struct OpenConnections {
    registry: Mutex<Registry>,
    /// Becomes true when the server stops accepting connections.
    closing: watch::Sender<bool>,
    /// Notified when the last connection is closed.
    emptied: Notify,
}

#[derive(Debug, Default)]
struct Registry {
    is_closing: bool,
    next: u64,
    open: HashMap<u64, Arc<ConnectionState>>,
}

/// A connection that counts as open until this is dropped.
#[derive(Debug)]
pub(crate) struct OpenConnection {
    id: u64,
    pub(super) state: Arc<ConnectionState>,
    all: Arc<OpenConnections>,
}

impl OpenConnections {
    /// Registers a connection. Returns `None` if the server no longer accepts connections.
    pub(super) fn register(self: &Arc<Self>) -> Option<OpenConnection> {
        let mut registry = self.registry();
        if registry.is_closing {
            return None;
        }
        let (id, state) = (registry.next, Arc::<ConnectionState>::default());
        registry.next += 1;
        registry.open.insert(id, Arc::clone(&state));
        Some(OpenConnection { id, state, all: Arc::clone(self) })
    }

    /// Ends the accept loop and every handshake. Established connections stay open.
    pub(crate) fn stop_accepting(&self) {
        self.registry().is_closing = true;
        self.closing.send_replace(true);
    }

    /// Returns when the server stops accepting connections.
    pub(super) async fn stops_accepting(&self) {
        // The sender is a field of `self`, so that the channel cannot be closed here.
        let _ = self.closing.subscribe().wait_for(|closing| *closing).await;
    }

    /// Stops accepting and closes every open connection. Returns their number.
    pub(crate) fn cut(&self) -> usize {
        self.stop_accepting();
        let open: Vec<_> = self.registry().open.values().cloned().collect();
        open.iter().for_each(|connection| connection.disconnect());
        open.len()
    }

    /// Returns when no connection is open.
    pub(crate) async fn all_closed(&self) {
        loop {
            let emptied = self.emptied.notified();
            if self.registry().open.is_empty() {
                return;
            }
            emptied.await;
        }
    }

    fn registry(&self) -> MutexGuard<'_, Registry> {
        self.registry.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        let mut registry = self.all.registry();
        registry.open.remove(&self.id);
        if registry.open.is_empty() {
            self.all.emptied.notify_waiters();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::timeout;

    use super::*;

    #[tokio::test]
    async fn a_server_that_stops_accepting_registers_no_connection_and_waits_for_those_that_are_open() {
        let all = Arc::<OpenConnections>::default();
        let connection = all.register().unwrap();
        all.stop_accepting();
        all.stops_accepting().await;
        assert!(all.register().is_none());
        assert!(timeout(Duration::from_millis(10), all.all_closed()).await.is_err());
        assert!(!connection.state.is_broken_off());
        assert_eq!(all.cut(), 1);
        assert!(connection.state.is_broken_off());
        let closed = tokio::spawn(async move { all.all_closed().await });
        drop(connection);
        timeout(Duration::from_secs(10), closed).await.unwrap().unwrap();
    }
}
