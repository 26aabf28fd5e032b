//! A lying server, its devices, and the channel between them that drops, delays, repeats and alters
//! messages.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use chacha20::ChaCha20Rng;
use deltafl::params::Params;
use deltafl::question::Question;
use deltafl_device::{Backoff, Consent, Defences, Device, DeviceData, ServerEndpoint, ServerTrust, Workers};
use deltafl_secagg::identity::DeviceId;
use deltafl_secagg::message::wire::{decode_server, encode_server};
use deltafl_secagg::message::{DeviceBody, ServerBody, ServerMessage};
use deltafl_secagg::params::{RoundId, RoundParams};
use deltafl_wire::environment::Environment;
use deltafl_wire::proto::{self, from_server};
use deltafl_wire::roster::{PreviousRoster, Roster, RosterVersion, SignedRoster};
use deltafl_wire::{fragments, loopback};
use ed25519_dalek::{Signer as _, SigningKey};
use rand_core::{Rng as _, SeedableRng as _};
use tokio::task::JoinHandle;

use super::even_trainer::{EvenTrainer, FixedDate, SeededRandom};
use super::liar::{Liar, Received};
use super::reading::Haul;
use super::{DEVICES, MIN_COHORT, PARAMS, name};

/// The rosters of a scenario: two of the authority, and one that the server signed.
fn rosters() -> [SignedRoster; 3] {
    let version = |version| RosterVersion { version, expires: u64::MAX };
    let names: Vec<String> = (0..DEVICES).map(name).collect();
    let first = loopback::roster(version(1), names.iter().map(String::as_str), |_| false).unwrap();
    let previous = Some(PreviousRoster { version: 1, hash: blake3::hash(&first.bytes) });
    let entries = Roster::decode(first.bytes.clone()).unwrap().entries().to_vec();
    let of = |edition| Roster::new(edition, entries.clone()).unwrap().with_previous(previous);
    let forger = SigningKey::from_bytes(&[99; 32]);
    let forged = SignedRoster::new(&of(version(9)).with_runs(9), |message| forger.sign(message).to_bytes());
    [first, loopback::signed(&of(version(2))), forged]
}

/// A lying server and its devices.
pub(super) struct Scenario {
    pub(super) rng: ChaCha20Rng,
    /// One message in this many deviates.
    pub(super) rarity: u32,
    pub(super) liar: Liar,
    running: Vec<JoinHandle<()>>,
    pub(super) rosters: [SignedRoster; 3],
    /// The roster of each device, and its session.
    pub(super) shown: [usize; DEVICES as usize],
    pub(super) sessions: [[u8; 16]; DEVICES as usize],
    /// All messages so far. A long one has several parts.
    sent: Vec<Vec<from_server::Body>>,
    held: HashMap<u32, Vec<Vec<from_server::Body>>>,
    /// The last question that each device received, and those that it was asked to answer.
    received: HashMap<u32, Question>,
    asked: HashMap<u32, VecDeque<Question>>,
    /// All w, by their hashes.
    pub(super) models: HashMap<blake3::Hash, Params>,
    pub(super) haul: Haul,
    pub(super) losses: usize,
}

/// A key set-up, as the server sees it.
pub(super) struct SetUp {
    pub(super) params: RoundParams,
    /// The devices that confirmed their shares.
    pub(super) active: Vec<u32>,
}

impl Scenario {
    pub(super) fn new(seed: u64, defences: Defences) -> Self {
        let mut rng = ChaCha20Rng::seed_from_u64(seed);
        let rosters = rosters();
        let experiment = proto::Experiment {
            name: "deviations".to_owned(),
            model: "{}".to_owned(),
            params: PARAMS as u64,
            open: false,
            contract: None,
        };
        let (liar, network) = Liar::start(experiment, rosters[0].clone());
        let environment = Environment {
            network: Arc::new(network),
            clock: Arc::new(FixedDate),
            random: Arc::new(SeededRandom(Mutex::new(ChaCha20Rng::seed_from_u64(!seed)))),
        };
        let workers = Arc::new(Workers::new(2));
        let device = |k| {
            let server = ServerEndpoint { address: "liar:1".to_owned(), trust: ServerTrust::Loopback };
            let consent = Consent { min_cohort: MIN_COHORT, ..Consent::default() };
            let soon = Duration::from_millis(1);
            let device = Device::new(server, loopback::credentials(&name(k)), consent)
                .sharing(Arc::clone(&workers), Arc::default())
                .with_backoff(Backoff { first: soon, longest: soon })
                .with_environment(environment.clone())
                .with_defences(defences);
            let data = DeviceData::held_by_trainer(&name(k), 8).unwrap();
            tokio::spawn(async move { drop(device.run(Arc::new(EvenTrainer(k)), data).await) })
        };
        let running = (0..DEVICES).map(device).collect();
        let rarity = [30, 100, 400][(rng.next_u32() % 3) as usize];
        Self {
            rng,
            rarity,
            liar,
            running,
            rosters,
            shown: [0; DEVICES as usize],
            sessions: [[0; 16]; DEVICES as usize],
            sent: Vec::new(),
            held: HashMap::new(),
            received: HashMap::new(),
            asked: HashMap::new(),
            models: HashMap::new(),
            haul: Haul::default(),
            losses: 0,
        }
    }

    pub(super) fn one_in(&mut self, chance: u32) -> bool {
        self.rng.next_u32().is_multiple_of(chance)
    }

    pub(super) fn below(&mut self, bound: usize) -> usize {
        self.rng.next_u32() as usize % bound
    }

    pub(super) fn shuffled(&mut self, devices: &[u32]) -> Vec<u32> {
        let mut order = devices.to_vec();
        for last in (1..order.len()).rev() {
            let with = self.below(last + 1);
            order.swap(last, with);
        }
        order
    }

    /// Returns all devices except a few.
    pub(super) fn most_of(&mut self, devices: &[u32]) -> Vec<u32> {
        devices.iter().copied().filter(|_| !self.one_in(6)).collect()
    }

    /// Delivers a message and records its effect on the device.
    fn deliver(&mut self, to: u32, body: from_server::Body) {
        match &body {
            from_server::Body::Question(question) => {
                self.received.remove(&to);
                let parsed = Question::from_bytes(&question.canonical).ok();
                let known = parsed.and_then(|question| {
                    let models: Option<Vec<Params>> =
                        question.named().map(|id| self.models.get(&id.hash).cloned()).collect();
                    question.with_params(&models?)
                });
                self.received.extend(known.map(|question| (to, question)));
            }
            from_server::Body::Part(part) => match decode_server(part.data.clone(), usize::MAX) {
                // A device forgets the question and the round before.
                Ok(ServerMessage { body: ServerBody::Invite(params), .. }) => {
                    self.haul.invitations.push(params);
                    self.received.remove(&to);
                    self.asked.remove(&to);
                }
                Ok(ServerMessage { body: ServerBody::OpenSlot { .. }, .. }) => {
                    let question = self.received.remove(&to);
                    self.asked.entry(to).or_default().extend(question);
                }
                _ => {}
            },
            _ => {}
        }
        self.liar.send(to, body);
    }

    /// Sends a message in one part, or deviates from it.
    pub(super) fn post(&mut self, to: u32, body: from_server::Body) {
        self.post_parts(to, vec![body]);
    }

    fn post_parts(&mut self, to: u32, parts: Vec<from_server::Body>) {
        let mut messages = vec![parts];
        if self.one_in(self.rarity) {
            match self.below(5) {
                0 => messages.clear(),
                1 => messages.push(messages[0].clone()),
                2 => return self.held.entry(to).or_default().append(&mut messages),
                3 if !self.sent.is_empty() => {
                    let replayed = self.below(self.sent.len());
                    messages.insert(0, self.sent[replayed].clone());
                }
                _ => {
                    let part = self.below(messages[0].len());
                    messages[0][part] = self.altered(messages[0][part].clone());
                }
            }
        }
        messages.extend(self.held.remove(&to).unwrap_or_default());
        for parts in messages {
            self.sent.push(parts.clone());
            parts.into_iter().for_each(|part| self.deliver(to, part));
        }
    }

    /// Changes a byte.
    fn altered(&mut self, body: from_server::Body) -> from_server::Body {
        let bytes = |scenario: &mut Self, bytes: &Bytes| {
            let mut changed = bytes.to_vec();
            let at = scenario.below(changed.len().max(1));
            let bit = 1 << scenario.below(8);
            changed.get_mut(at).into_iter().for_each(|byte| *byte ^= bit);
            Bytes::from(changed)
        };
        match body {
            from_server::Body::Part(part) => {
                from_server::Body::Part(proto::Part { data: bytes(self, &part.data), ..part })
            }
            from_server::Body::Question(question) => {
                let canonical = bytes(self, &question.canonical);
                from_server::Body::Question(proto::Question { canonical })
            }
            other => other,
        }
    }

    /// Sends a message of secure aggregation.
    pub(super) fn say(&mut self, to: u32, round: RoundId, body: ServerBody) {
        let parts = fragments(encode_server(&ServerMessage { round, body }));
        self.post_parts(to, parts.map(from_server::Body::Part).collect());
    }

    /// Waits until all devices are idle. Returns their messages.
    pub(super) async fn settle(&mut self) -> Vec<(DeviceId, RoundId, DeviceBody)> {
        // Time passes only when no task can run.
        tokio::time::sleep(Duration::from_millis(5)).await;
        let mut messages = Vec::new();
        for (from, received) in self.liar.take() {
            match received {
                Received::Loss => self.losses += 1,
                Received::Protocol(message) => {
                    let question = match &message.body {
                        DeviceBody::MaskedInput { .. } => {
                            self.asked.get_mut(&from).and_then(VecDeque::pop_front)
                        }
                        _ => None,
                    };
                    self.haul.take(DeviceId(from), &message, question);
                    messages.push((DeviceId(from), message.round, message.body));
                }
            }
        }
        messages
    }
}

impl Drop for Scenario {
    fn drop(&mut self) {
        self.running.iter().for_each(JoinHandle::abort);
    }
}
