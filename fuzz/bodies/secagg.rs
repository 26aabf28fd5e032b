//! The bodies of the secagg fuzz targets. The ordinary tests of `deltafl-secagg` include this file.
//!
//! The bytes are a script for four honest devices and an honest server. Each byte decides the fate
//! of the next message: delivered, delivered twice, delayed, lost or changed. One value advances
//! the clock to the next deadline. Nothing may panic. If no message was changed, every sum must
//! equal the plain sum of its survivors.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use chacha20::ChaCha20Rng;
use prost::bytes::Bytes;
use rand_core::SeedableRng;

use deltafl_secagg::Defences;
use deltafl_secagg::device::{
    AdversaryModel, DeviceEvent, DevicePolicy, DeviceRound, Participant, SlotRequest,
};
use deltafl_secagg::graph::{GraphRule, Permille};
use deltafl_secagg::identity::{DeviceId, KeyRoster, SigningIdentity};
use deltafl_secagg::mask::MaskSuite;
use deltafl_secagg::message::DeviceSet;
use deltafl_secagg::message::wire::{decode_device, decode_server, encode_device, encode_server};
use deltafl_secagg::params::{RoundId, RoundParams};
use deltafl_secagg::ring::{Ring, RingVector};
use deltafl_secagg::server::{ServerRound, ServerRoundConfig, ServerRoundEvent, SlotSum};

const DEVICES: u32 = 4;
const LEN: u32 = 3;

/// The name of a target and its body.
pub(crate) type Target = (&'static str, fn(&[u8]));

/// The targets.
pub(crate) const TARGETS: &[Target] = &[
    ("secagg_device_message", device_message),
    ("secagg_device_sequence", |script| {
        sequence(script, Recipient::Devices);
    }),
    ("secagg_server_message", server_message),
    ("secagg_server_sequence", |script| {
        sequence(script, Recipient::Server);
    }),
];

/// The recipients whose messages the script may change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Recipient {
    /// Devices receive changed messages.
    Devices,
    /// The server receives changed messages.
    Server,
}

/// Decodes `data` as a device's message. A decoded message must survive another round trip.
pub(crate) fn device_message(data: &[u8]) {
    if let Ok(message) = decode_device(Bytes::copy_from_slice(data), 1 << 16) {
        let bytes = encode_device(&message);
        let again = decode_device(bytes.clone(), usize::MAX).expect("encoded above");
        assert_eq!(encode_device(&again), bytes);
    }
}

/// Decodes `data` as a server's message. A decoded message must survive another round trip.
pub(crate) fn server_message(data: &[u8]) {
    if let Ok(message) = decode_server(Bytes::copy_from_slice(data), 1 << 16) {
        let bytes = encode_server(&message);
        let again = decode_server(bytes.clone(), usize::MAX).expect("encoded above");
        assert_eq!(encode_server(&again), bytes);
    }
}

/// Plays a script and returns the number of sums that the server computed.
pub(crate) fn sequence(data: &[u8], target: Recipient) -> usize {
    let mut round = ScriptedRound::new(target);
    let mut script = data.iter().copied();
    while let Some(order) = script.next() {
        round.step(order, &mut script);
    }
    round.sums
}

/// Returns a message of each length that the server or a device receives in an honest round.
pub(crate) fn messages(to: Recipient) -> Vec<Vec<u8>> {
    let mut round = ScriptedRound::new(to);
    let mut messages = BTreeMap::new();
    while let Some(message) = round.in_transit.pop_front() {
        if message.to == to {
            messages.insert(message.bytes.len(), message.bytes.to_vec());
        }
        round.deliver(message);
        round.gather();
    }
    messages.into_values().collect()
}

/// A message in transit.
#[derive(Clone)]
struct MessageInTransit {
    device: DeviceId,
    to: Recipient,
    bytes: Bytes,
}

struct ScriptedRound {
    server: ServerRound,
    devices: BTreeMap<DeviceId, DeviceRound>,
    in_transit: VecDeque<MessageInTransit>,
    target: Recipient,
    changed: bool,
    sums: usize,
    now: Duration,
}

impl ScriptedRound {
    fn new(target: Recipient) -> Self {
        let identities = (0..DEVICES).map(|i| SigningIdentity::from_secret(DeviceId(i), &[i as u8 + 1; 32]));
        let identities: Vec<Arc<SigningIdentity>> = identities.map(Arc::new).collect();
        let mut roster = KeyRoster::new();
        for identity in &identities {
            roster.add(identity.id(), &identity.public()).expect("distinct and sound");
        }
        let roster = Arc::new(roster);
        let id = RoundId { session: [5; 16], round: 1 };
        let graph = GraphRule::Full { threshold: 3 };
        let params =
            RoundParams { id, suite: MaskSuite::default(), cohort: DEVICES, graph, slots: 2, draw: None };
        let policy = DevicePolicy {
            min_members: 2,
            adversary: AdversaryModel::Active { gamma: Permille::default().into() },
            max_len: 100,
            patience: Duration::from_secs(10),
            max_left_out: None,
            defences: Defences::default(),
        };
        let mut rng = ChaCha20Rng::seed_from_u64(1);
        let devices = identities.into_iter().map(|identity| {
            let mut participant =
                Participant::new(Arc::clone(&identity), Arc::clone(&roster), [5; 16], policy);
            let device = participant.join(&params, Duration::ZERO, &mut rng).expect("within the policy");
            (identity.id(), device)
        });
        let devices = devices.collect();
        let cohort = (0..DEVICES).map(DeviceId).collect();
        let config = ServerRoundConfig {
            params,
            cohort,
            roster: Arc::clone(&roster),
            min_members: 2,
            phase_timeout: Duration::from_secs(1),
        };
        let mut server = ServerRound::new(config, Duration::ZERO).expect("sound parameters");
        server.poll_transmit();
        let mut round = Self {
            server,
            devices,
            in_transit: VecDeque::new(),
            target,
            changed: false,
            sums: 0,
            now: Duration::ZERO,
        };
        round.gather();
        round
    }

    /// Applies one byte of the script to the next message.
    fn step(&mut self, order: u8, script: &mut impl Iterator<Item = u8>) {
        let Some(message) = self.in_transit.pop_front().filter(|_| order != u8::MAX) else {
            return self.pause();
        };
        match order % 16 {
            0 => {}
            1 => {
                self.deliver(message.clone());
                self.deliver(message);
            }
            2 => self.in_transit.push_back(message),
            3 if message.to == self.target => {
                let place = u16::from_le_bytes([script.next().unwrap_or(0), script.next().unwrap_or(0)]);
                self.deliver_changed(&message, place, script.next().unwrap_or(0));
            }
            _ => self.deliver(message),
        }
        self.gather();
    }

    /// Advances the clock to the earliest deadline of the server and the devices.
    fn pause(&mut self) {
        let deadlines = self.devices.values().filter_map(DeviceRound::poll_timeout);
        let Some(deadline) = deadlines.chain(self.server.poll_timeout()).min() else {
            return;
        };
        self.now = self.now.max(deadline);
        self.server.handle_timeout(self.now);
        self.devices.values_mut().for_each(|device| device.handle_timeout(self.now));
        self.gather();
    }

    fn deliver_changed(&mut self, message: &MessageInTransit, place: u16, value: u8) {
        let mut bytes = message.bytes.to_vec();
        let place = usize::from(place) % bytes.len().max(1);
        if let Some(byte) = bytes.get_mut(place) {
            *byte ^= value;
        }
        self.changed |= value != 0;
        self.deliver(MessageInTransit { bytes: bytes.into(), ..message.clone() });
    }

    fn deliver(&mut self, MessageInTransit { device, to, bytes }: MessageInTransit) {
        match to {
            Recipient::Server => {
                if let Ok(message) = decode_device(bytes, self.server.message_limit()) {
                    let _refused = self.server.handle(self.now, device, message);
                }
            }
            Recipient::Devices => {
                let Some(device) = self.devices.get_mut(&device) else { return };
                if let Ok(message) = decode_server(bytes, device.message_limit()) {
                    let _aborted = device.handle(self.now, message);
                }
            }
        }
    }

    /// Queues the messages of both sides and answers their events as an application would.
    fn gather(&mut self) {
        while let Some(event) = self.server.poll_event() {
            match event {
                ServerRoundEvent::Ready { .. } => {
                    let _ended = self.server.open_slot(self.now, Ring::Z64, LEN, b"context");
                }
                ServerRoundEvent::Sum(sum) => self.check(&sum),
                _ => {}
            }
        }
        while let Some(transmit) = self.server.poll_transmit() {
            let bytes = encode_server(&transmit.message);
            let to = Recipient::Devices;
            let in_transit =
                transmit.to.iter().map(|device| MessageInTransit { device, to, bytes: bytes.clone() });
            self.in_transit.extend(in_transit);
        }
        for (&id, device) in &mut self.devices {
            while let Some(event) = device.poll_event() {
                if let DeviceEvent::InputWanted(request) = event {
                    let _aborted = device.submit(b"context", input(id, request));
                }
            }
            while let Some(message) = device.poll_transmit() {
                self.in_transit.push_back(MessageInTransit {
                    device: id,
                    to: Recipient::Server,
                    bytes: encode_device(&message),
                });
            }
        }
    }

    fn check(&mut self, sum: &SlotSum) {
        self.sums += 1;
        let plain = |ids: &DeviceSet| ids.iter().map(|id| u64::from(id.0) + 1).sum::<u64>();
        let expected = RingVector::Z64(vec![plain(&sum.survivors); LEN as usize]);
        assert!(self.changed || sum.sum == expected, "the sum differs from the plain sum of its survivors");
    }
}

fn input(id: DeviceId, request: SlotRequest) -> RingVector {
    match request.ring {
        Ring::Z32 => RingVector::Z32(vec![id.0 + 1; request.len as usize]),
        Ring::Z64 => RingVector::Z64(vec![u64::from(id.0) + 1; request.len as usize]),
    }
}
