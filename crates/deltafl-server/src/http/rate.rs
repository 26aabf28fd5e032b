//! The request rate of one address: a token bucket.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};
use tokio::time::Instant;

use crate::quota::NetworkPrefix;

/// The number of stored addresses. Beyond it, full buckets are removed, which has no effect on
/// their addresses.
const REMEMBERED: usize = 10_000;

/// The token buckets by address.
#[derive(Debug)]
pub(super) struct RateLimiter {
    per_second: f64,
    burst: f64,
    buckets: Mutex<HashMap<NetworkPrefix, Bucket>>,
}

#[derive(Debug)]
struct Bucket {
    tokens: f64,
    at: Instant,
}

impl RateLimiter {
    pub(super) fn new(per_second: f64, burst: f64) -> Self {
        Self { per_second, burst, buckets: Mutex::default() }
    }

    /// Takes a token. Returns `false` if the bucket is empty.
    pub(super) fn allows(&self, address: IpAddr, now: Instant) -> bool {
        let mut buckets = self.buckets.lock().unwrap_or_else(PoisonError::into_inner);
        if buckets.len() >= REMEMBERED {
            buckets.retain(|_, bucket| self.level(bucket, now) < self.burst);
        }
        let fresh = Bucket { tokens: self.burst, at: now };
        let bucket = buckets.entry(NetworkPrefix::from(address)).or_insert(fresh);
        *bucket = Bucket { tokens: self.level(bucket, now), at: now };
        let allowed = bucket.tokens >= 1.0;
        if allowed {
            bucket.tokens -= 1.0;
        }
        allowed
    }

    fn level(&self, bucket: &Bucket, now: Instant) -> f64 {
        let passed = now.saturating_duration_since(bucket.at).as_secs_f64();
        (bucket.tokens + passed * self.per_second).min(self.burst)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn an_address_gets_its_burst_and_then_its_rate() {
        let rate = RateLimiter::new(2.0, 3.0);
        let (one, other) = (IpAddr::from([10, 0, 0, 1]), IpAddr::from([10, 0, 0, 2]));
        let start = Instant::now();
        let allowed = |address, ms| rate.allows(address, start + Duration::from_millis(ms));
        assert_eq!([0, 0, 0, 0].map(|ms| allowed(one, ms)), [true, true, true, false]);
        assert!(allowed(other, 0), "another address has its own bucket");
        assert_eq!([400, 500, 600].map(|ms| allowed(one, ms)), [false, true, false]);
    }
}
