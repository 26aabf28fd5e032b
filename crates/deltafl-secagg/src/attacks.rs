//! Attacks on the protocol: a malicious server with and without accomplices against real devices.
//!
//! Devices can be cloned in tests, so that an attack is repeated many times after one key set-up.

mod deviations;
mod grinding;
mod partition;
mod split_invitation;
mod split_view;
mod survivors;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use chacha20::ChaCha20Rng;
use prost::bytes::Bytes;
use rand_core::SeedableRng;

use crate::defences::Defences;
use crate::device::{AdversaryModel, DeviceEvent, DevicePolicy, DeviceRound, Participant};
use crate::graph::{self, Graph, GraphRule, Permille};
use crate::identity::{DeviceId, KeyRoster, SigningIdentity};
use crate::keys::{
    Deposit, PairSlot, Secret, deposit_commitment, mask_sign, same, seed_commitment, self_mask_key,
};
use crate::mask::{self, MaskSign, MaskSuite};
use crate::message::{DeviceBody, DeviceSet, KeyBundle, SecretKind, ServerBody, ServerMessage};
use crate::params::{RoundId, RoundParams, SlotSpec};
use crate::ring::{Ring, RingVector};
use crate::server::{ServerRound, ServerRoundConfig, ServerRoundEvent};
use crate::shamir::{Interpolation, SecretShare};
use crate::transcript::{RoundTranscript, Sha256Digest};

pub(super) const ZERO: Duration = Duration::ZERO;
const LEN: u32 = 2;
const CONTEXT: &[u8] = b"eta";
const SESSION: [u8; 16] = [3; 16];

/// Devices that have sent their inputs of slot 0, and everything that their server has received.
#[derive(Clone)]
pub(super) struct Scene {
    pub(super) round: RoundId,
    pub(super) header: Sha256Digest,
    pub(super) devices: BTreeMap<DeviceId, DeviceRound>,
    pub(super) graph: Graph,
    pub(super) keys: BTreeMap<DeviceId, KeyBundle>,
    deposits: BTreeMap<DeviceId, BTreeMap<DeviceId, Bytes>>,
    pub(super) inputs: BTreeMap<DeviceId, RingVector>,
    /// The signatures that the devices sent with their inputs.
    pub(super) masked: BTreeMap<DeviceId, [u8; 64]>,
    pub(super) transcript: RoundTranscript,
    identities: BTreeMap<DeviceId, Arc<SigningIdentity>>,
}

/// Returns the true input of a device.
pub(super) fn truth(id: DeviceId) -> RingVector {
    RingVector::Z64(vec![u64::from(id.0) << 32 | 7, u64::from(id.0)])
}

pub(super) fn curious(gamma: u16, delta: u16) -> GraphRule {
    let share = |thousandths| Permille::new(thousandths).expect("at most one half");
    GraphRule::HonestButCurious { gamma: share(gamma).into(), delta: share(delta) }
}

/// Returns the members in ring order, starting at `first`.
pub(super) fn ring_from(graph: &Graph, first: DeviceId) -> Vec<DeviceId> {
    let ring = graph.ring();
    let place = ring.iter().position(|&id| id == first).expect("a member");
    ring[place..].iter().chain(&ring[..place]).copied().collect()
}

impl Scene {
    /// Runs n devices with an honest server up to their masked inputs.
    pub(super) fn new(n: u32, rule: GraphRule) -> Self {
        Self::with(n, rule, 3, Defences::default())
    }

    /// The same with devices that require this many members and have these defences.
    pub(super) fn with(n: u32, rule: GraphRule, min_members: usize, defences: Defences) -> Self {
        let mut rng = ChaCha20Rng::seed_from_u64(u64::from(n));
        let identities: BTreeMap<DeviceId, Arc<SigningIdentity>> = (0..n)
            .map(|i| (DeviceId(i), Arc::new(SigningIdentity::generate(DeviceId(i), &mut rng))))
            .collect();
        let mut roster = KeyRoster::new();
        for (&id, identity) in &identities {
            roster.add(id, &identity.public()).expect("distinct");
        }
        let roster = Arc::new(roster);
        let round = RoundId { session: SESSION, round: 1 };
        let params = RoundParams {
            id: round,
            suite: MaskSuite::default(),
            cohort: n,
            graph: rule,
            slots: 1,
            draw: None,
        };
        let adversary = match rule {
            GraphRule::Active { gamma, .. } => AdversaryModel::Active { gamma },
            GraphRule::HonestButCurious { gamma, delta } => AdversaryModel::HonestButCurious { gamma, delta },
            GraphRule::Full { .. } => AdversaryModel::default(),
        };
        let policy = DevicePolicy {
            min_members,
            adversary,
            max_len: LEN,
            patience: Duration::MAX,
            max_left_out: None,
            defences,
        };
        let config = ServerRoundConfig {
            params: params.clone(),
            cohort: identities.keys().copied().collect(),
            roster: Arc::clone(&roster),
            min_members: 3,
            phase_timeout: Duration::from_secs(1),
        };
        let join = |(&id, identity): (&DeviceId, &Arc<SigningIdentity>)| {
            let mut participant =
                Participant::new(Arc::clone(identity), Arc::clone(&roster), SESSION, policy);
            (id, participant.join(&params, ZERO, &mut rng).expect("within the policy"))
        };
        let devices = identities.iter().map(join).collect();
        let mut carrier = Carrier {
            devices,
            commitments: None,
            seed: None,
            keys: BTreeMap::new(),
            deposits: BTreeMap::new(),
            inputs: BTreeMap::new(),
            masked: BTreeMap::new(),
        };
        carrier.carry(ServerRound::new(config, ZERO).expect("sound parameters"));
        let Carrier { devices, commitments, seed, keys, deposits, inputs, masked } = carrier;
        let header = params.digest();
        let members: Vec<DeviceId> = keys.keys().copied().collect();
        let (graph, start) = match (&commitments, seed) {
            (Some(commitments), Some(reveals)) => {
                let drawers = rule.drawers(n, commitments);
                let seed = graph::seed(&graph::member_list(&header, commitments), &drawers, &reveals);
                (Graph::new(rule, n, &members, &seed), RoundTranscript::new(&seed, commitments))
            }
            _ => (Graph::new(rule, n, &members, &[0; 32]), RoundTranscript::new(&header, &keys)),
        };
        let transcript = start;
        Self { round, header, devices, graph, keys, deposits, inputs, masked, transcript, identities }
    }

    pub(super) fn members(&self) -> DeviceSet {
        self.keys.keys().copied().collect()
    }

    /// Returns a device and its neighbours.
    pub(super) fn circle(&self, id: DeviceId) -> DeviceSet {
        self.graph.neighbours(id).into_iter().chain([id]).collect()
    }

    pub(super) fn spec() -> SlotSpec {
        SlotSpec::new(0, Ring::Z64, LEN, CONTEXT)
    }

    /// Sends a message to a device and returns its answer, if any.
    pub(super) fn tell(&mut self, to: DeviceId, body: ServerBody) -> Option<DeviceBody> {
        let device = self.devices.get_mut(&to)?;
        device.handle(ZERO, ServerMessage { round: self.round, body }).ok()?;
        device.poll_transmit().map(|message| message.body)
    }

    /// Returns the bytes that a device signs with its input if these devices are active.
    pub(super) fn masked_between(&self, id: DeviceId, active: &DeviceSet) -> [u8; 64] {
        self.identities[&id].sign(&self.transcript.masked(&Self::spec(), active))
    }

    /// Returns a colluding device's signature on any view.
    pub(super) fn collude(&self, id: DeviceId, survivors: &DeviceSet) -> [u8; 64] {
        let transcript = self.transcript.with_slot(&Self::spec(), &self.members(), survivors);
        self.identities[&id].sign(&transcript.attestation())
    }

    /// Shows each honest device the survivors of its view and collects signatures. Shows each
    /// device the valid signatures of its circle and collects shares. Colluding devices sign every
    /// view and reveal everything.
    pub(super) fn play(&self, views: &BTreeMap<DeviceId, DeviceSet>, colluding: &BTreeSet<DeviceId>) -> Loot {
        let mut scene = self.clone();
        let mut signed: BTreeMap<DeviceId, [u8; 64]> = BTreeMap::new();
        for (&id, survivors) in views.iter().filter(|(id, _)| !colluding.contains(id)) {
            let body = ServerBody::Survivors { slot: 0, survivors: survivors.clone() };
            if let Some(DeviceBody::Attest { signature, .. }) = scene.tell(id, body) {
                signed.insert(id, signature);
            }
        }
        let mut loot = Loot { threshold: self.graph.threshold(), ..Loot::default() };
        for &to in signed.keys() {
            let view = &views[&to];
            let mut signatures = BTreeMap::new();
            for near in self.circle(to).iter().filter(|&near| view.contains(near)) {
                if colluding.contains(&near) {
                    signatures.insert(near, self.collude(near, view));
                } else if views.get(&near) == Some(view)
                    && let Some(&signature) = signed.get(&near)
                {
                    signatures.insert(near, signature);
                }
            }
            let near = |id: &DeviceId| self.circle(to).contains(*id) && view.contains(*id);
            let masked = self.masked.iter().filter(|(id, _)| near(id)).map(|(&id, &it)| (id, it)).collect();
            let body = ServerBody::Attestations { slot: 0, signatures, masked };
            if let Some(DeviceBody::Unmask { shares, .. }) = scene.tell(to, body) {
                loot.answered.insert(to);
                for (owner, (kind, share)) in shares {
                    loot.take(owner, to, kind, share);
                }
            }
        }
        for &spy in colluding {
            for owner in self.circle(spy).iter() {
                if let Some([deposit_key, seed]) = self.devices[&spy].spill(owner) {
                    loot.take(owner, spy, SecretKind::DepositKey, deposit_key);
                    loot.take(owner, spy, SecretKind::Seed, seed);
                }
            }
        }
        loot
    }

    /// Recovers the input of a device, if the server has enough shares of both secrets.
    pub(super) fn read(&self, victim: DeviceId, loot: &Loot) -> Option<RingVector> {
        let (key, seed) =
            (Secret(loot.secret(victim, SecretKind::DepositKey)?), loot.secret(victim, SecretKind::Seed)?);
        let bundle = &self.keys[&victim];
        let commitment = deposit_commitment(&self.header, victim, 0, &key.0);
        assert!(same(&commitment, &bundle.deposit_commitment(0)), "t shares recover the secret");
        assert!(same(&seed_commitment(&self.header, victim, 0, &seed), &bundle.seed_commitment(0)));
        let spec = Self::spec();
        let mut masks = vec![(MaskSign::Minus, self_mask_key(&seed, &self.header, &spec, victim))];
        for peer in self.graph.neighbours(victim) {
            let pair = (victim, peer);
            let place = PairSlot { params: &self.header, slot: 0, pair };
            let deposit = Deposit::for_slot(&self.deposits[&victim][&peer], 0).expect("one slot");
            let pair_key = deposit.open(&place, &key).expect("an honest deposit");
            masks.push((-mask_sign(victim, peer), pair_key.mask_key(&self.header, &spec, pair)));
        }
        let mut input = self.inputs[&victim].clone();
        mask::apply(&mut input, MaskSuite::default(), &masks);
        Some(input)
    }
}

/// The shares that the server has obtained.
#[derive(Default)]
pub(super) struct Loot {
    threshold: usize,
    /// Shares by owner, then by holder: deposit key and seed.
    shares: BTreeMap<DeviceId, [BTreeMap<DeviceId, SecretShare>; 2]>,
    /// The honest devices that revealed shares.
    pub(super) answered: BTreeSet<DeviceId>,
}

impl Loot {
    fn take(&mut self, owner: DeviceId, holder: DeviceId, kind: SecretKind, share: SecretShare) {
        self.shares.entry(owner).or_default()[usize::from(kind == SecretKind::Seed)].insert(holder, share);
    }

    /// Returns the shares of a device's deposit key and seed.
    fn count(&self, owner: DeviceId) -> [usize; 2] {
        self.shares.get(&owner).map_or([0; 2], |kinds| [kinds[0].len(), kinds[1].len()])
    }

    /// Returns true if both secrets of a device can be recovered.
    pub(super) fn opens(&self, owner: DeviceId) -> bool {
        self.count(owner).into_iter().all(|count| count >= self.threshold)
    }

    /// Returns the devices of which the server has shares.
    pub(super) fn owners(&self) -> Vec<DeviceId> {
        self.shares.keys().copied().collect()
    }

    fn secret(&self, owner: DeviceId, kind: SecretKind) -> Option<[u8; 32]> {
        let held = &self.shares.get(&owner)?[usize::from(kind == SecretKind::Seed)];
        let chosen: Vec<_> = held.iter().take(self.threshold).collect();
        if chosen.len() < self.threshold {
            return None;
        }
        let points = chosen.iter().map(|(holder, _)| holder.point()).collect();
        let interpolation = Interpolation::new(points).expect("distinct");
        interpolation.recover(chosen.into_iter().map(|(_, share)| share)).ok().map(|secret| *secret)
    }
}

/// Delivers the messages of an honest server until all inputs have arrived, and records them.
struct Carrier {
    devices: BTreeMap<DeviceId, DeviceRound>,
    commitments: Option<BTreeMap<DeviceId, Sha256Digest>>,
    seed: Option<BTreeMap<DeviceId, crate::message::Reveal>>,
    keys: BTreeMap<DeviceId, KeyBundle>,
    deposits: BTreeMap<DeviceId, BTreeMap<DeviceId, Bytes>>,
    inputs: BTreeMap<DeviceId, RingVector>,
    masked: BTreeMap<DeviceId, [u8; 64]>,
}

impl Carrier {
    fn carry(&mut self, mut server: ServerRound) {
        server.poll_transmit().expect("the invitation");
        while self.inputs.len() < self.devices.len() {
            let ids: Vec<DeviceId> = self.devices.keys().copied().collect();
            for id in ids {
                while let Some(message) = self.devices.get_mut(&id).and_then(DeviceRound::poll_transmit) {
                    self.note(id, &message.body);
                    server.handle(ZERO, id, message).expect("an honest device");
                }
            }
            while let Some(event) = server.poll_event() {
                if let ServerRoundEvent::Ready { .. } = event {
                    server.open_slot(ZERO, Ring::Z64, LEN, CONTEXT).expect("all are there");
                }
            }
            while let Some(transmit) = server.poll_transmit() {
                match &transmit.message.body {
                    ServerBody::Commitments(commitments) => self.commitments = Some(commitments.clone()),
                    ServerBody::Reveals(reveals) => self.seed = Some(reveals.clone()),
                    ServerBody::Survivors { .. } => continue,
                    _ => {}
                }
                for to in transmit.to.iter() {
                    let device = self.devices.get_mut(&to).expect("invited");
                    device.handle(ZERO, transmit.message.clone()).expect("an honest server");
                    while let Some(event) = device.poll_event() {
                        if let DeviceEvent::InputWanted(_) = event {
                            device.submit(CONTEXT, truth(to)).expect("asked for");
                        }
                    }
                }
            }
        }
    }

    fn note(&mut self, from: DeviceId, body: &DeviceBody) {
        match body {
            DeviceBody::Advertise(bundle) => drop(self.keys.insert(from, bundle.clone())),
            DeviceBody::Confirm { deposits, .. } => drop(self.deposits.insert(from, deposits.clone())),
            DeviceBody::MaskedInput { input, signature, .. } => {
                self.masked.insert(from, *signature);
                let mut masked = RingVector::zeros(Ring::Z64, LEN as usize);
                assert!(masked.add_le_bytes(input));
                self.inputs.insert(from, masked);
            }
            _ => {}
        }
    }
}
