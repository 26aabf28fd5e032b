//! What the fuzz targets run, in reach of ordinary tests.
//!
//! The bytes are a script: each says what becomes of the next message between four honest devices and an
//! honest server. It arrives, arrives twice, is lost, is changed on the way, or everything pauses until the
//! server's deadline. Nothing may panic, and if no message was changed, a sum must be the plain sum of its
//! survivors.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use chacha20::ChaCha20Rng;
use prost::bytes::Bytes;
use rand_core::SeedableRng;

use crate::device::{Adversary, Device, DeviceEvent, Enrolment, Policy, SlotRequest};
use crate::graph::{GraphRule, Permille};
use crate::identity::{DeviceId, Identity, Roster};
use crate::mask::Suite;
use crate::message::DeviceSet;
use crate::message::wire::{decode_device, decode_server, encode_device, encode_server};
use crate::params::{RoundId, RoundParams};
use crate::ring::{Ring, RingVector};
use crate::server::{Server, ServerConfig, ServerEvent, SlotSum};

const DEVICES: u32 = 4;
const LEN: u32 = 3;

/// Whose messages the script may change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target {
    /// Those that devices receive.
    Devices,
    /// Those that the server receives.
    Server,
}

/// Decodes anything as a device's message; what is read must encode to something that reads the same.
pub fn device_message(data: &[u8]) {
    if let Ok(message) = decode_device(Bytes::copy_from_slice(data), 1 << 16) {
        let bytes = encode_device(&message);
        let again = decode_device(bytes.clone(), usize::MAX).expect("encoded by us");
        assert_eq!(encode_device(&again), bytes);
    }
}

/// Decodes anything as a server's message; what is read must encode to something that reads the same.
pub fn server_message(data: &[u8]) {
    if let Ok(message) = decode_server(Bytes::copy_from_slice(data), 1 << 16) {
        let bytes = encode_server(&message);
        let again = decode_server(bytes.clone(), usize::MAX).expect("encoded by us");
        assert_eq!(encode_server(&again), bytes);
    }
}

/// Plays a script, and says how many sums came of it.
pub fn sequence(data: &[u8], target: Target) -> usize {
    let mut play = Play::new(target);
    let mut script = data.iter().copied();
    while let Some(order) = script.next() {
        play.step(order, &mut script);
    }
    play.sums
}

/// A message on its way.
#[derive(Clone)]
struct Flight {
    device: DeviceId,
    to: Target,
    bytes: Bytes,
}

struct Play {
    server: Server,
    devices: BTreeMap<DeviceId, Device>,
    flights: VecDeque<Flight>,
    target: Target,
    changed: bool,
    sums: usize,
    now: Duration,
}

impl Play {
    fn new(target: Target) -> Self {
        let identities = (0..DEVICES).map(|i| Identity::from_secret(DeviceId(i), &[i as u8 + 1; 32]));
        let identities: Vec<Arc<Identity>> = identities.map(Arc::new).collect();
        let mut roster = Roster::new();
        for identity in &identities {
            roster.add(identity.id(), &identity.public()).expect("distinct and sound");
        }
        let roster = Arc::new(roster);
        let id = RoundId { session: [5; 16], round: 1 };
        let graph = GraphRule::Full { threshold: 3 };
        let params =
            RoundParams { id, suite: Suite::default(), cohort: DEVICES, graph, slots: 2, draw: None };
        let policy = Policy {
            min_members: 2,
            adversary: Adversary::Active { gamma: Permille::default().into() },
            max_len: 100,
            patience: Duration::from_secs(10),
            max_left_out: None,
        };
        let mut rng = ChaCha20Rng::seed_from_u64(1);
        let devices = identities.into_iter().map(|identity| {
            let mut enrolment = Enrolment::new(Arc::clone(&identity), Arc::clone(&roster), [5; 16], policy);
            let device = enrolment.join(&params, Duration::ZERO, &mut rng).expect("within the policy");
            (identity.id(), device)
        });
        let devices = devices.collect();
        let cohort = (0..DEVICES).map(DeviceId).collect();
        let config = ServerConfig {
            params,
            cohort,
            roster: Arc::clone(&roster),
            min_members: 2,
            phase_timeout: Duration::from_secs(1),
        };
        let mut server = Server::new(config, Duration::ZERO).expect("sound parameters");
        server.poll_transmit();
        let mut play = Self {
            server,
            devices,
            flights: VecDeque::new(),
            target,
            changed: false,
            sums: 0,
            now: Duration::ZERO,
        };
        play.gather();
        play
    }

    /// What becomes of the next message.
    fn step(&mut self, order: u8, script: &mut impl Iterator<Item = u8>) {
        let Some(flight) = self.flights.pop_front().filter(|_| order != u8::MAX) else {
            return self.pause();
        };
        match order % 16 {
            0 => {}
            1 => {
                self.land(flight.clone());
                self.land(flight);
            }
            2 => self.flights.push_back(flight),
            3 if flight.to == self.target => {
                let place = u16::from_le_bytes([script.next().unwrap_or(0), script.next().unwrap_or(0)]);
                self.land_changed(&flight, place, script.next().unwrap_or(0));
            }
            _ => self.land(flight),
        }
        self.gather();
    }

    /// Until the server's deadline or a device's, whichever is first.
    fn pause(&mut self) {
        let deadlines = self.devices.values().filter_map(Device::poll_timeout);
        let Some(deadline) = deadlines.chain(self.server.poll_timeout()).min() else {
            return;
        };
        self.now = self.now.max(deadline);
        self.server.handle_timeout(self.now);
        self.devices.values_mut().for_each(|device| device.handle_timeout(self.now));
        self.gather();
    }

    fn land_changed(&mut self, flight: &Flight, place: u16, value: u8) {
        let mut bytes = flight.bytes.to_vec();
        let place = usize::from(place) % bytes.len().max(1);
        if let Some(byte) = bytes.get_mut(place) {
            *byte ^= value;
        }
        self.changed |= value != 0;
        self.land(Flight { bytes: bytes.into(), ..flight.clone() });
    }

    fn land(&mut self, flight: Flight) {
        match flight.to {
            Target::Server => {
                if let Ok(message) = decode_device(flight.bytes, self.server.message_limit()) {
                    let _refused = self.server.handle(self.now, flight.device, message);
                }
            }
            Target::Devices => {
                let Some(device) = self.devices.get_mut(&flight.device) else { return };
                if let Ok(message) = decode_server(flight.bytes, device.message_limit()) {
                    let _aborted = device.handle(self.now, message);
                }
            }
        }
    }

    /// Puts what both sides have to say on its way, and does what their programs would.
    fn gather(&mut self) {
        while let Some(event) = self.server.poll_event() {
            match event {
                ServerEvent::Ready { .. } => {
                    let _ended = self.server.open_slot(self.now, Ring::Z64, LEN, b"context");
                }
                ServerEvent::Sum(sum) => self.check(&sum),
                ServerEvent::Ended(_) | ServerEvent::Caught { .. } | ServerEvent::Disputed { .. } => {}
            }
        }
        while let Some(transmit) = self.server.poll_transmit() {
            let bytes = encode_server(&transmit.message);
            let to = Target::Devices;
            let flights = transmit.to.iter().map(|device| Flight { device, to, bytes: bytes.clone() });
            self.flights.extend(flights);
        }
        for (&id, device) in &mut self.devices {
            while let Some(event) = device.poll_event() {
                if let DeviceEvent::InputWanted(request) = event {
                    let _aborted = device.submit(b"context", input(id, request));
                }
            }
            while let Some(message) = device.poll_transmit() {
                self.flights.push_back(Flight {
                    device: id,
                    to: Target::Server,
                    bytes: encode_device(&message),
                });
            }
        }
    }

    fn check(&mut self, sum: &SlotSum) {
        self.sums += 1;
        let plain = |ids: &DeviceSet| ids.iter().map(|id| u64::from(id.0) + 1).sum::<u64>();
        let expected = RingVector::Z64(vec![plain(&sum.survivors); LEN as usize]);
        assert!(self.changed || sum.sum == expected, "a sum that is not that of its survivors");
    }
}

fn input(id: DeviceId, request: SlotRequest) -> RingVector {
    match request.ring {
        Ring::Z32 => RingVector::Z32(vec![id.0 + 1; request.len as usize]),
        Ring::Z64 => RingVector::Z64(vec![u64::from(id.0) + 1; request.len as usize]),
    }
}
