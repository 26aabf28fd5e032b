//! Retries: transient failures and the delays between attempts.

use std::time::Duration;

use deltafl_wire::chain;
use tokio::time::Instant;

use super::StoreError;

const FIRST_PAUSE: Duration = Duration::from_millis(25);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// Retries a store operation until it succeeds, fails permanently, or the time limit expires.
macro_rules! patiently {
    ($store:expr, $operation:expr) => {{
        let mut backoff = $store.backoff();
        loop {
            match $operation.await {
                Ok(done) => break Ok(done),
                Err(error) => {
                    if let Err(error) = backoff.pause(error).await {
                        break Err(error);
                    }
                }
            }
        }
    }};
}
pub(super) use patiently;

/// Delays that double up to one second.
pub(super) struct RetryBackoff {
    until: Instant,
    next: Duration,
}

impl RetryBackoff {
    pub(super) fn new(patience: Duration) -> Self {
        Self { until: Instant::now() + patience, next: FIRST_PAUSE }
    }

    /// Sleeps before the next attempt. Returns the error if there is none.
    pub(super) async fn pause(&mut self, error: StoreError) -> Result<(), StoreError> {
        if !passes(&error) || Instant::now() >= self.until {
            return Err(error);
        }
        let pause_ms = self.next.as_millis() as u64;
        tracing::warn!(error = chain(&error), pause_ms, "the store failed; retrying");
        tokio::time::sleep(self.next).await;
        self.next = (self.next * 2).min(LONGEST_PAUSE);
        Ok(())
    }
}

/// Returns `true` if a failure may be transient: a lock, a restart, or a full disk.
fn passes(error: &StoreError) -> bool {
    match error {
        StoreError::Database(error) => error.downcast_ref().is_some_and(database_passes),
        StoreError::BlobStorage(error) => {
            matches!(error.downcast_ref(), Some(object_store::Error::Generic { .. }))
        }
        _ => false,
    }
}

fn database_passes(error: &sqlx::Error) -> bool {
    match error {
        sqlx::Error::Io(_) | sqlx::Error::PoolTimedOut | sqlx::Error::WorkerCrashed => true,
        // A server that crashes during a message.
        sqlx::Error::Protocol(_) | sqlx::Error::BeginFailed => true,
        sqlx::Error::Database(error) => error.code().is_some_and(|code| code_passes(&code)),
        _ => false,
    }
}

/// SQLite returns decimal result codes with the kind in the lowest byte. Postgres returns five
/// characters.
fn code_passes(code: &str) -> bool {
    if code.len() == 5 {
        // Connection lost, out of resources, shutting down or starting up, serialisation, deadlock,
        // lock.
        return ["08", "53", "57P"].iter().any(|class| code.starts_with(class))
            || ["40001", "40P01", "55P03"].contains(&code);
    }
    // Busy, locked, I/O error, full, cannot open.
    code.parse::<u32>().is_ok_and(|code| [5, 6, 10, 13, 14].contains(&(code & 0xff)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locks_and_restarts_pass_and_mistakes_do_not() {
        for code in ["5", "517", "6", "13", "10", "57P01", "57P03", "08006", "40001", "53300"] {
            assert!(code_passes(code), "{code}");
        }
        // A unique constraint, a syntax error, a missing table.
        for code in ["2067", "1", "19", "23505", "42601", "42P01", ""] {
            assert!(!code_passes(code), "{code}");
        }
    }

    #[tokio::test]
    async fn patience_ends() {
        let mut backoff = RetryBackoff::new(Duration::ZERO);
        assert!(backoff.pause(sqlx::Error::PoolTimedOut.into()).await.is_err());
        let mut backoff = RetryBackoff::new(Duration::from_secs(60));
        assert!(backoff.pause(sqlx::Error::PoolTimedOut.into()).await.is_ok());
        assert!(backoff.pause(StoreError::TokenRefused).await.is_err());
    }
}
