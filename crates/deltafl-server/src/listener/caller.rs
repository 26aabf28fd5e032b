//! What the service knows about the connection of a request.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::{Context, Waker};

/// The other end of a connection.
#[derive(Clone, Debug)]
pub(crate) struct Caller {
    /// The name in its certificate.
    certified: Option<Arc<str>>,
    state: Arc<ConnectionState>,
}

/// What the service knows of the connection.
#[derive(Debug, Default)]
pub(super) struct ConnectionState {
    /// The device that it said it is, by its place on the roster.
    device: OnceLock<u32>,
    disconnected: AtomicBool,
    /// The task that reads from the connection, to be woken when the caller is disconnected.
    reader: Mutex<Option<Waker>>,
}

impl Caller {
    pub(super) fn new(certified: Option<Arc<str>>, state: Arc<ConnectionState>) -> Self {
        Self { certified, state }
    }

    /// The name in its certificate, where there is one.
    pub(crate) fn certified(&self) -> Option<&str> {
        self.certified.as_deref()
    }

    /// Notes that the device said who it is; until then the connection has a deadline.
    pub(crate) fn set_identified(&self, device: u32) {
        // On a connection whose certificate names it, a device has one name.
        let _ = self.state.device.set(device);
    }

    /// The device, once it said who it is.
    pub(crate) fn identified(&self) -> Option<u32> {
        self.state.device.get().copied()
    }

    /// Breaks the connection off, with every call on it.
    pub(crate) fn disconnect(&self) {
        self.state.disconnect();
    }

    /// Whether the connection is broken off. The task that asks is woken when it is.
    pub(super) fn is_disconnected(&self, context: &Context<'_>) -> bool {
        let mut reader = self.state.reader();
        if !reader.as_ref().is_some_and(|known| known.will_wake(context.waker())) {
            *reader = Some(context.waker().clone());
        }
        self.state.is_broken_off()
    }

    /// Fails once the connection is broken off.
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
