//! The network traffic of a round.

use std::collections::BTreeMap;

use crate::identity::DeviceId;

/// The messages and bytes of one device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DeviceTraffic {
    /// Messages to the server.
    pub messages_sent: u64,
    /// Bytes to the server.
    pub bytes_sent: u64,
    /// Messages from the server.
    pub messages_received: u64,
    /// Bytes from the server.
    pub bytes_received: u64,
}

/// The messages and bytes of a round by device.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RoundTraffic(BTreeMap<DeviceId, DeviceTraffic>);

impl RoundTraffic {
    /// Returns the traffic of each device in increasing order of ids.
    pub fn devices(&self) -> impl Iterator<Item = (DeviceId, DeviceTraffic)> + '_ {
        self.0.iter().map(|(&id, &traffic)| (id, traffic))
    }

    /// Returns the traffic of one device.
    pub fn device(&self, id: DeviceId) -> DeviceTraffic {
        self.0.get(&id).copied().unwrap_or_default()
    }

    /// Returns the total traffic of all devices.
    pub fn total(&self) -> DeviceTraffic {
        self.0.values().fold(DeviceTraffic::default(), |total, device| DeviceTraffic {
            messages_sent: total.messages_sent + device.messages_sent,
            bytes_sent: total.bytes_sent + device.bytes_sent,
            messages_received: total.messages_received + device.messages_received,
            bytes_received: total.bytes_received + device.bytes_received,
        })
    }

    pub(super) fn sent(&mut self, from: DeviceId, bytes: usize) {
        let device = self.0.entry(from).or_default();
        device.messages_sent += 1;
        device.bytes_sent += bytes as u64;
    }

    pub(super) fn received(&mut self, to: DeviceId, bytes: usize) {
        let device = self.0.entry(to).or_default();
        device.messages_received += 1;
        device.bytes_received += bytes as u64;
    }
}
