//! What the service knows about the connection of a request.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The other end of a connection.
#[derive(Clone, Debug)]
pub(crate) struct Caller {
    /// The name in its certificate.
    certified: Option<Arc<str>>,
    greeted: Arc<AtomicBool>,
}

impl Caller {
    pub(super) fn new(certified: Option<Arc<str>>) -> Self {
        Self { certified, greeted: Arc::default() }
    }

    /// The name in its certificate, where there is one.
    pub(crate) fn certified(&self) -> Option<&str> {
        self.certified.as_deref()
    }

    /// Notes that the device said who it is; until then the connection is on borrowed time.
    pub(crate) fn greet(&self) {
        self.greeted.store(true, Ordering::Relaxed);
    }

    /// Whether the device said who it is.
    pub(crate) fn is_greeted(&self) -> bool {
        self.greeted.load(Ordering::Relaxed)
    }
}
