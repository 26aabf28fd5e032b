//! Time limits of a device for its server.

use std::time::Duration;

use tokio::time::timeout;

use crate::session::SessionError;

/// Time limits of a device for its server. A session that exceeds a limit ends, and the device
/// reconnects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimeLimits {
    /// From dialling to the Welcome message.
    pub welcome: Duration,
    /// For the list of the newest params. The server queues these requests.
    pub newest: Duration,
    /// Between two chunks of a blob, for example of the roster or of params.
    pub chunk: Duration,
    /// The minimum throughput of a whole blob in bytes per second, in addition to one `chunk`.
    pub min_rate: u32,
    /// Until the server accepts a message or a part of one.
    pub send: Duration,
}

impl Default for TimeLimits {
    fn default() -> Self {
        let minute = Duration::from_secs(60);
        Self { welcome: minute, newest: 15 * minute, chunk: minute, min_rate: 1 << 10, send: 15 * minute }
    }
}

/// The server exceeded a time limit of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the server exceeded the time limit for {what}: {} s", limit.as_secs_f64())]
pub struct TimedOut {
    /// The operation that timed out.
    pub what: &'static str,
    /// The time limit.
    pub limit: Duration,
}

impl TimeLimits {
    /// The time limit for a blob of this length.
    pub(crate) fn blob(&self, bytes: u64) -> Duration {
        self.chunk + Duration::from_secs_f64(bytes as f64 / f64::from(self.min_rate.max(1)))
    }
}

/// Awaits a future with a time limit.
pub(crate) async fn within<T, E: Into<SessionError>>(
    limit: Duration,
    what: &'static str,
    future: impl Future<Output = Result<T, E>>,
) -> Result<T, SessionError> {
    match timeout(limit, future).await {
        Ok(result) => result.map_err(Into::into),
        Err(_) => Err(TimedOut { what, limit }.into()),
    }
}
