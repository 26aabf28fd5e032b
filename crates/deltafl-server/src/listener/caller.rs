//! The connection of a request, as the service sees it.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::{Context, Waker};

/// The peer of a connection.
#[derive(Clone, Debug)]
pub(crate) struct Caller {
    /// The name in its certificate.
    certified: Option<Arc<str>>,
    state: Arc<ConnectionState>,
}

/// The connection state that the service needs.
#[derive(Debug, Default)]
pub(super) struct ConnectionState {
    /// The device of the Hello, by its position on the roster.
    device: OnceLock<u32>,
    disconnected: AtomicBool,
    /// The task that reads from the connection. It is woken when the caller is disconnected.
    reader: Mutex<Option<Waker>>,
}

impl Caller {
    pub(super) fn new(certified: Option<Arc<str>>, state: Arc<ConnectionState>) -> Self {
        Self { certified, state }
    }

    /// Returns the name in its certificate, if any.
    pub(crate) fn certified(&self) -> Option<&str> {
        self.certified.as_deref()
    }

    /// Records the Hello of the device. Until then the connection has a deadline.
    pub(crate) fn set_identified(&self, device: u32) {
        // On a connection with a device certificate, a device has one name.
        let _ = self.state.device.set(device);
    }

    /// Returns the device after its Hello.
    pub(crate) fn identified(&self) -> Option<u32> {
        self.state.device.get().copied()
    }

    /// Closes the connection with all its calls.
    pub(crate) fn disconnect(&self) {
        self.state.disconnect();
    }

    /// Returns `true` if the connection was closed. The calling task is woken when it is.
    pub(super) fn is_disconnected(&self, context: &Context<'_>) -> bool {
        let mut reader = self.state.reader();
        if !reader.as_ref().is_some_and(|known| known.will_wake(context.waker())) {
            *reader = Some(context.waker().clone());
        }
        self.state.is_broken_off()
    }

    /// Fails if the connection was closed.
    pub(super) fn check_connected(&self) -> io::Result<()> {
        if self.state.is_broken_off() { Err(io::ErrorKind::ConnectionAborted.into()) } else { Ok(()) }
    }
}

impl ConnectionState {
    pub(super) fn disconnect(&self) {
        self.disconnected.store(true, Ordering::Release);
        if let Some(reader) = self.reader().take() {
            reader.wake();
        }
    }

    pub(super) fn is_broken_off(&self) -> bool {
        self.disconnected.load(Ordering::Acquire)
    }

    fn reader(&self) -> MutexGuard<'_, Option<Waker>> {
        self.reader.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
