//! The queue in which returning devices fetch the newest params. It limits the load of a fleet that
//! connects at once.

use std::collections::HashMap;
use std::sync::PoisonError;
use std::time::Duration;

use tokio::sync::Mutex;
use tokio::time::{Instant, sleep_until};

/// How far granted bytes may run ahead of the clock. Timers have a resolution of a millisecond, for
/// which small models would otherwise wait.
const AHEAD: Duration = Duration::from_millis(100);

/// Grants bytes at a rate, in the order of requests.
#[derive(Debug)]
pub(super) struct Turns {
    /// Bytes per second.
    rate: u64,
    granted: Mutex<GrantedBytes>,
    /// The generation of the params of each device's last turn.
    last: std::sync::Mutex<HashMap<u32, u64>>,
}

/// The bytes granted so far.
#[derive(Clone, Copy, Debug, PartialEq)]
struct GrantedBytes {
    /// The time at which all of them have been sent at the rate.
    sent: Instant,
}

impl Turns {
    pub(super) fn new(rate: u64) -> Self {
        let granted = Mutex::new(GrantedBytes { sent: Instant::now() });
        Self { rate: rate.max(1), granted, last: std::sync::Mutex::default() }
    }

    /// Returns `true` if a device requests this generation of params for the first time, and
    /// records the request.
    pub(super) fn is_first(&self, device: u32, generation: u64) -> bool {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        last.insert(device, generation) != Some(generation)
    }

    /// Waits until this many bytes may be sent. A request that is cancelled while it waits uses no
    /// bytes.
    pub(super) async fn wait(&self, bytes: u64) {
        // Tokio's mutex is fair, so requests proceed in order.
        let mut granted = self.granted.lock().await;
        sleep_until(granted.next()).await;
        granted.grant(Instant::now(), bytes, self.rate);
    }
}

impl GrantedBytes {
    /// Returns the time at which more may be granted.
    fn next(&self) -> Instant {
        self.sent.checked_sub(AHEAD).unwrap_or(self.sent)
    }

    /// Grants this many more bytes.
    fn grant(&mut self, now: Instant, bytes: u64, rate: u64) {
        self.sent = self.sent.max(now) + Duration::from_secs_f64(bytes as f64 / rate as f64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_granted_at_the_rate() {
        let begun = Instant::now();
        let (mut granted, mut now) = (GrantedBytes { sent: begun }, begun);
        for device in 0..5 {
            now = now.max(granted.next());
            let expected = (Duration::from_millis(500) * device).saturating_sub(AHEAD);
            assert_eq!(
                now - begun,
                expected,
                "when the {device} before it have their bytes, or a little earlier"
            );
            granted.grant(now, 500, 1000);
        }
        // Unused bytes do not accumulate.
        let later = begun + Duration::from_secs(3600);
        granted.grant(later, 500, 1000);
        assert_eq!(granted.sent, later + Duration::from_millis(500));
    }

    #[test]
    fn a_device_has_one_turn_for_each_generation() {
        let turns = Turns::new(1);
        let asked = [(7, 1), (7, 1), (8, 1), (7, 2), (7, 2)];
        assert_eq!(
            asked.map(|(device, generation)| turns.is_first(device, generation)),
            [true, false, true, true, false]
        );
    }

    #[tokio::test]
    async fn whoever_gives_up_takes_nothing_from_the_others() {
        let turns = Turns::new(1);
        turns.wait(1 << 20).await;
        let before = *turns.granted.lock().await;
        let given_up = tokio::time::timeout(Duration::ZERO, turns.wait(1 << 20)).await;
        assert!(given_up.is_err());
        assert_eq!(*turns.granted.lock().await, before);
    }
}
