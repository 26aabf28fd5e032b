//! Devices that fail on purpose, for tests, demonstrations and load.

use std::num::NonZeroU64;
use std::time::Duration;

use deltafl::stream::{Purpose, Stream};
use serde::{Deserialize, Serialize};
use tokio::time::sleep;

/// The approximate number of messages that a device sends in a round. A fault affects one of them.
const MESSAGES: u64 = 8;

/// The faults of a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Misconduct {
    /// The probability that the device disappears at a random phase of a round.
    pub drop_out: f64,
    /// The probability that the device replaces one message of a round by noise.
    pub garbage: f64,
    /// The maximum delay of an answer in milliseconds. The delay is drawn uniformly.
    pub delay_ms: u64,
    /// The bandwidth in bytes per second for sending and receiving; unlimited if `None`.
    pub bandwidth: Option<NonZeroU64>,
}

/// The faults of one device, drawn from its own stream.
#[derive(Clone, Debug)]
pub struct Faults {
    misconduct: Misconduct,
    stream: Stream,
    round: RoundFaults,
}

/// The faults of a round, by the number of the message.
#[derive(Clone, Copy, Debug, Default)]
struct RoundFaults {
    sent: u64,
    vanishes: Option<u64>,
    garbles: Option<u64>,
}

/// The outcome for a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    Sent,
    /// The device disappears before it sends the message.
    Vanishes,
    /// The device sends noise instead of the message.
    Garbled,
}

impl Faults {
    /// Creates a device without faults.
    pub fn none() -> Self {
        Self::new(Misconduct::default(), 0, 0)
    }

    /// Creates the faults of device `device` under this seed.
    pub fn new(misconduct: Misconduct, seed: u64, device: u64) -> Self {
        Self {
            misconduct,
            stream: Stream::new(seed, Purpose::Faults, 0, device),
            round: RoundFaults::default(),
        }
    }

    /// Draws the faults of a new round.
    pub(crate) fn begin_round(&mut self) {
        let Misconduct { drop_out, garbage, .. } = self.misconduct;
        let mut draw = |probability| {
            let at = self.stream.below(MESSAGES);
            (self.stream.unit() < probability).then_some(at)
        };
        self.round = RoundFaults { sent: 0, vanishes: draw(drop_out), garbles: draw(garbage) };
    }

    /// Returns the outcome for the next message of the round, after the device's delay.
    pub(crate) async fn next_message(&mut self) -> Turn {
        if self.misconduct.delay_ms > 0 {
            sleep(Duration::from_millis(self.stream.below(self.misconduct.delay_ms + 1))).await;
        }
        let at = Some(self.round.sent);
        self.round.sent += 1;
        match at {
            at if at == self.round.vanishes => Turn::Vanishes,
            at if at == self.round.garbles => Turn::Garbled,
            _ => Turn::Sent,
        }
    }

    /// Returns meaningless bytes.
    pub(crate) fn noise(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| self.stream.next_u64() as u8).collect()
    }

    /// Waits for the time that this many bytes take on the device's link.
    pub(crate) async fn transfer(&self, bytes: usize) {
        if let Some(bandwidth) = self.misconduct.bandwidth {
            sleep(Duration::from_secs_f64(bytes as f64 / bandwidth.get() as f64)).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn devices_vanish_as_often_as_asked() {
        let misconduct = Misconduct { drop_out: 0.3, ..Misconduct::default() };
        let mut faults = Faults::new(misconduct, 1, 2);
        let mut vanished = 0;
        for _ in 0..1000 {
            faults.begin_round();
            for _ in 0..MESSAGES {
                vanished += u32::from(faults.next_message().await == Turn::Vanishes);
            }
        }
        assert!((250..350).contains(&vanished), "{vanished}");
    }
}
