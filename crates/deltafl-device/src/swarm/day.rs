//! A simulated day of a fleet: devices connect and disconnect, and more of them are online at night
//! than at noon.

use std::convert::Infallible;
use std::f64::consts::TAU;
use std::time::Duration;

use deltafl::cohort::Probability;
use deltafl::stream::{Purpose, Stream};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

/// The fraction of a day between the first and the last time zone of a fleet.
const ZONES: f64 = 0.25;

/// A shortened day. Device k is online with a probability between `low` (its noon) and 1 (its
/// midnight):
///
/// ```text
/// P(k online at time t) = low + (1 − low)·(1 + cos 2π(t/length − zone_k))/2
/// ```
///
/// The device draws again after every `stay`, at its own times. A device that leaves disconnects
/// immediately.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Day {
    /// The length of a day.
    pub length: Duration,
    /// The minimum time for which a device is online or offline.
    pub stay: Duration,
    /// The probability at noon.
    pub low: Probability,
}

/// The day of one device.
#[derive(Clone, Copy, Debug)]
pub(super) struct DeviceDay {
    day: Day,
    seed: u64,
    device: u64,
    zone: f64,
    /// The offset of its draws as a fraction of a stay.
    shift: f64,
}

impl Day {
    pub(super) fn for_device(self, seed: u64, device: u64) -> DeviceDay {
        // The two draws do not depend on the time, because stay u64::MAX is never reached.
        let mut stream = Stream::new(seed, Purpose::Availability, u64::MAX, device);
        let (zone, shift) = (ZONES * stream.unit(), stream.unit());
        DeviceDay { day: self, seed, device, zone, shift }
    }
}

impl DeviceDay {
    /// Returns the number of the stay at a time since the start.
    fn stay(&self, time: Duration) -> u64 {
        (time.as_secs_f64() / self.day.stay.as_secs_f64() + self.shift) as u64
    }

    /// Returns the end of a stay.
    fn end_of(&self, stay: u64) -> Duration {
        let stays = (stay + 1) as f64 - self.shift;
        Duration::from_secs_f64(stays * self.day.stay.as_secs_f64())
    }

    /// Returns `true` if the device is online during a stay.
    fn is_online(&self, stay: u64) -> bool {
        let days = self.end_of(stay).as_secs_f64() / self.day.length.as_secs_f64();
        let low = self.day.low.get();
        let probability = low + (1.0 - low) * (1.0 + (TAU * (days - self.zone)).cos()) / 2.0;
        Stream::new(self.seed, Purpose::Availability, stay, self.device).unit() < probability
    }

    /// Publishes whether the device is online, starting at midnight.
    pub(super) async fn follow(self, midnight: Instant, tell: watch::Sender<bool>) -> Infallible {
        loop {
            let stay = self.stay(midnight.elapsed());
            tell.send_replace(self.is_online(stay));
            // Slightly after the end, so that rounding does not return the same stay again.
            sleep_until(midnight + self.end_of(stay) + Duration::from_millis(1)).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn most_devices_are_online_at_night_and_few_at_noon() {
        let low = Probability::try_from(0.1).unwrap();
        let day = Day { length: Duration::from_secs(2400), stay: Duration::from_secs(50), low };
        let online = |seconds: u64| {
            let at = Duration::from_secs(seconds);
            (0..2000).map(|k| day.for_device(1, k)).filter(|k| k.is_online(k.stay(at))).count()
        };
        // The middle of the zones is an eighth of a day after the first.
        let (night, noon) = (online(300), online(1500));
        assert!((1700..2000).contains(&night), "{night}");
        assert!((200..480).contains(&noon), "{noon}");
        assert!(online(300 + 2400) > 1700, "and again the next night");
    }

    #[test]
    fn stays_follow_each_other() {
        let low = Probability::try_from(0.5).unwrap();
        let day = Day { length: Duration::from_secs(240), stay: Duration::from_secs(5), low };
        for device in 0..50 {
            let device = day.for_device(3, device);
            for stay in 0..50 {
                let end = device.end_of(stay);
                let millisecond = Duration::from_millis(1);
                assert_eq!(device.stay(end.saturating_sub(millisecond)), stay);
                assert_eq!(device.stay(end + millisecond), stay + 1);
            }
        }
    }
}
