//! What the service knows about the connection of a request.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
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
struct ConnectionState {
    /// The device that it said it is, by its place on the roster.
    device: OnceLock<u32>,
    disconnected: AtomicBool,
    /// Whoever reads from the connection, to be woken when the caller is disconnected.
    reader: Mutex<Option<Waker>>,
}

impl Caller {
    pub(super) fn new(certified: Option<Arc<str>>) -> Self {
        Self { certified, state: Arc::default() }
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
        self.state.disconnected.store(true, Ordering::Release);
        if let Some(reader) = self.reader().take() {
            reader.wake();
        }
    }

    /// Whether the connection is broken off; the reader who asks is woken when it is.
    pub(super) fn is_disconnected(&self, context: &Context<'_>) -> bool {
        let mut reader = self.reader();
        if !reader.as_ref().is_some_and(|known| known.will_wake(context.waker())) {
            *reader = Some(context.waker().clone());
        }
        self.state.disconnected.load(Ordering::Acquire)
    }

    fn reader(&self) -> std::sync::MutexGuard<'_, Option<Waker>> {
        self.state.reader.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
