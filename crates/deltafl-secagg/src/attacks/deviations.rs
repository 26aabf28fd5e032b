//! Random deviations of the server: messages that are omitted, repeated, reordered, replaced, or
//! different for each device. The server must never obtain t shares of both secrets of one device.
//!
//! Each run starts from a clone of honest devices after one of three stages, so that most runs need
//! no key set-up. Most messages are plausible, because implausible ones end a run early.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use chacha20::ChaCha20Rng;
use prost::bytes::Bytes;
use rand_core::{Rng, SeedableRng};

use super::{CONTEXT, LEN, Loot, SESSION, Scene, ZERO, truth};
use crate::defences::Defences;
use crate::device::{AdversaryModel, DevicePolicy, DeviceRound, Participant};
use crate::graph::{CollusionBound, GraphRule};
use crate::identity::{DeviceId, KeyRoster, SigningIdentity};
use crate::mask::MaskSuite;
use crate::message::{DeviceBody, DeviceSet, KeyBundle, SecretKind, ServerBody, ServerMessage};
use crate::params::{RoundId, RoundParams};
use crate::ring::Ring;
use crate::transcript::{RoundTranscript, Sha256Digest};

const N: u32 = 5;
const ROUND: RoundId = RoundId { session: SESSION, round: 1 };

/// Devices in progress, and the messages that each has received.
#[derive(Clone)]
struct Play {
    header: Sha256Digest,
    threshold: usize,
    devices: BTreeMap<DeviceId, DeviceRound>,
    identities: BTreeMap<DeviceId, Arc<SigningIdentity>>,
    bundles: BTreeMap<DeviceId, KeyBundle>,
    boxes: BTreeMap<DeviceId, BTreeMap<DeviceId, Bytes>>,
    shown_keys: BTreeMap<DeviceId, BTreeMap<DeviceId, KeyBundle>>,
    shown_active: BTreeMap<DeviceId, DeviceSet>,
}

fn ids() -> Vec<DeviceId> {
    (0..N).map(DeviceId).collect()
}

fn one_in(rng: &mut ChaCha20Rng, chance: u32) -> bool {
    rng.next_u32().is_multiple_of(chance)
}

fn pick<T: Copy>(rng: &mut ChaCha20Rng, from: &[T]) -> T {
    from[rng.next_u32() as usize % from.len()]
}

fn shuffled(rng: &mut ChaCha20Rng) -> Vec<DeviceId> {
    let mut order = ids();
    for last in (1..order.len()).rev() {
        order.swap(last, rng.next_u32() as usize % (last + 1));
    }
    order
}

/// Returns all devices except a few at random.
fn subset(rng: &mut ChaCha20Rng, of: &DeviceSet) -> DeviceSet {
    of.iter().filter(|_| !one_in(rng, 5)).collect()
}

impl Play {
    /// Creates devices that have advertised their keys.
    fn joined(rule: GraphRule, adversary: AdversaryModel) -> Self {
        let mut rng = ChaCha20Rng::seed_from_u64(3);
        let identities: BTreeMap<DeviceId, Arc<SigningIdentity>> =
            ids().into_iter().map(|id| (id, Arc::new(SigningIdentity::generate(id, &mut rng)))).collect();
        let mut roster = KeyRoster::new();
        for (&id, identity) in &identities {
            roster.add(id, &identity.public()).expect("distinct");
        }
        let roster = Arc::new(roster);
        let params = RoundParams {
            id: ROUND,
            suite: MaskSuite::default(),
            cohort: N,
            graph: rule,
            slots: 1,
            draw: None,
        };
        let policy = DevicePolicy {
            min_members: 2,
            adversary,
            max_len: LEN,
            patience: Duration::MAX,
            max_left_out: None,
            defences: Defences::default(),
        };
        let (mut devices, mut bundles) = (BTreeMap::new(), BTreeMap::new());
        for (&id, identity) in &identities {
            let mut participant =
                Participant::new(Arc::clone(identity), Arc::clone(&roster), SESSION, policy);
            let mut device = participant.join(&params, ZERO, &mut rng).expect("within the policy");
            let Some(DeviceBody::Advertise(bundle)) = device.poll_transmit().map(|message| message.body)
            else {
                panic!("a device advertises first");
            };
            bundles.insert(id, bundle);
            devices.insert(id, device);
        }
        Self {
            header: params.digest(),
            threshold: rule.full_threshold(N).expect("a full graph"),
            devices,
            identities,
            bundles,
            boxes: BTreeMap::new(),
            shown_keys: BTreeMap::new(),
            shown_active: BTreeMap::new(),
        }
    }

    fn tell(&mut self, to: DeviceId, body: ServerBody) -> Option<DeviceBody> {
        let device = self.devices.get_mut(&to)?;
        device.handle(ZERO, ServerMessage { round: ROUND, body }).ok()?;
        device.poll_transmit().map(|message| message.body)
    }

    fn show_keys(&mut self, rng: &mut ChaCha20Rng, honest: bool) {
        for to in shuffled(rng) {
            let mut keys = self.bundles.clone();
            if !honest && one_in(rng, 4) {
                let victim = pick(rng, &ids());
                if one_in(rng, 2) {
                    keys.remove(&victim);
                } else {
                    keys.insert(victim, self.bundles[&pick(rng, &ids())].clone());
                }
            }
            self.shown_keys.insert(to, keys.clone());
            if let Some(DeviceBody::Shares(boxes)) = self.tell(to, ServerBody::Keys(keys.clone())) {
                self.boxes.insert(to, boxes);
            }
            if !honest && one_in(rng, 12) {
                self.tell(to, ServerBody::Keys(keys));
            }
        }
    }

    fn hand_boxes(&mut self, rng: &mut ChaCha20Rng, honest: bool) {
        for to in shuffled(rng) {
            let sealed = self.boxes.iter().filter_map(|(&from, boxes)| Some((from, boxes.get(&to)?.clone())));
            let mut boxes: BTreeMap<DeviceId, Bytes> = sealed.collect();
            if !honest && one_in(rng, 3) {
                let victim = pick(rng, &ids());
                match boxes.remove(&victim) {
                    // In the name of another device.
                    Some(sealed) if one_in(rng, 2) => drop(boxes.insert(pick(rng, &ids()), sealed)),
                    _ => {}
                }
            }
            self.tell(to, ServerBody::Shares(boxes));
        }
    }

    fn open(&mut self, rng: &mut ChaCha20Rng, honest: bool) {
        let all: DeviceSet = ids().into_iter().collect();
        let views = [all.clone(), subset(rng, &all), subset(rng, &all)];
        for to in shuffled(rng) {
            let active = if honest || !one_in(rng, 3) {
                all.clone()
            } else {
                views[1 + rng.next_u32() as usize % 2].clone()
            };
            self.shown_active.insert(to, active.clone());
            self.tell(to, ServerBody::OpenSlot { slot: 0, ring: Ring::Z64, len: LEN, active });
            if let Some(device) = self.devices.get_mut(&to) {
                let context: &[u8] = if !honest && one_in(rng, 20) { b"another eta" } else { CONTEXT };
                let _not_asked = device.submit(context, truth(to));
                device.poll_transmit();
            }
        }
    }

    /// Shows different survivors to different devices with various signatures, and collects shares.
    fn unmask(&mut self, rng: &mut ChaCha20Rng, colluding: &BTreeSet<DeviceId>) -> Loot {
        let mut loot = Loot { threshold: self.threshold, ..Loot::default() };
        for &spy in colluding {
            for owner in ids() {
                if let Some([deposit_key, seed]) = self.devices[&spy].spill(owner) {
                    loot.take(owner, spy, SecretKind::DepositKey, deposit_key);
                    loot.take(owner, spy, SecretKind::Seed, seed);
                }
            }
        }
        let all: DeviceSet = ids().into_iter().collect();
        let views = [all.clone(), subset(rng, &all), subset(rng, &all)];
        let (mut told, mut signed) = (BTreeMap::new(), BTreeMap::new());
        for to in shuffled(rng).into_iter().filter(|id| !colluding.contains(id)) {
            for _ in 0..1 + usize::from(one_in(rng, 10)) {
                let survivors = views[rng.next_u32() as usize % views.len()].clone();
                let body = ServerBody::Survivors { slot: 0, survivors: survivors.clone() };
                if let Some(DeviceBody::Attest { signature, .. }) = self.tell(to, body) {
                    signed.insert(to, signature);
                    told.insert(to, survivors);
                }
            }
        }
        for to in shuffled(rng) {
            let Some(view) = told.get(&to).cloned() else { continue };
            for _ in 0..1 + usize::from(one_in(rng, 10)) {
                let mut signatures: BTreeMap<DeviceId, [u8; 64]> = signed
                    .iter()
                    .filter(|(id, _)| told.get(id) == Some(&view) && view.contains(**id))
                    .map(|(&id, &signature)| (id, signature))
                    .collect();
                for &spy in colluding.iter().filter(|spy| view.contains(**spy)) {
                    signatures.insert(spy, self.forge(spy, to, &view));
                }
                if one_in(rng, 6)
                    && let Some(&signature) = signed.get(&pick(rng, &ids()))
                {
                    signatures.insert(pick(rng, &ids()), signature);
                }
                if one_in(rng, 6) {
                    signatures.remove(&pick(rng, &ids()));
                }
                let (slot, masked) = (u32::from(one_in(rng, 30)), BTreeMap::new());
                let body = ServerBody::Attestations { slot, signatures, masked };
                if let Some(DeviceBody::Unmask { shares, .. }) = self.tell(to, body) {
                    loot.answered.insert(to);
                    for (owner, (kind, share)) in shares {
                        loot.take(owner, to, kind, share);
                    }
                }
            }
        }
        loot
    }

    /// A colluding device signs any view.
    fn forge(&self, spy: DeviceId, shown_to: DeviceId, view: &DeviceSet) -> [u8; 64] {
        let all: DeviceSet = ids().into_iter().collect();
        let keys = self.shown_keys.get(&shown_to).unwrap_or(&self.bundles);
        let active = self.shown_active.get(&shown_to).unwrap_or(&all);
        let transcript = RoundTranscript::new(&self.header, keys).with_slot(&Scene::spec(), active, view);
        self.identities[&spy].sign(&transcript.attestation())
    }
}

/// The numbers of runs that revealed shares and that opened a device.
#[derive(Debug, Default)]
struct DeviationCounts {
    answered: usize,
    opened: usize,
}

/// Of every 25 runs, one deviates from the keys on, four from the opening of the slot, and the
/// others from the survivors.
fn play(runs: u32, rule: GraphRule, adversary: AdversaryModel) -> DeviationCounts {
    let mut rng = ChaCha20Rng::seed_from_u64(77);
    let joined = Play::joined(rule, adversary);
    let mut shared = joined.clone();
    shared.show_keys(&mut rng, true);
    shared.hand_boxes(&mut rng, true);
    let mut masked = shared.clone();
    masked.open(&mut rng, true);
    let mut tally = DeviationCounts::default();
    for run in 0..runs {
        let mut play = match run % 25 {
            0 => {
                let mut play = joined.clone();
                play.show_keys(&mut rng, false);
                play.hand_boxes(&mut rng, false);
                play.open(&mut rng, false);
                play
            }
            1..5 => {
                let mut play = shared.clone();
                play.open(&mut rng, false);
                play
            }
            _ => masked.clone(),
        };
        let colluding =
            if one_in(&mut rng, 2) { BTreeSet::from([pick(&mut rng, &ids())]) } else { BTreeSet::new() };
        let loot = play.unmask(&mut rng, &colluding);
        tally.answered += usize::from(!loot.answered.is_empty());
        let honest = loot.owners().into_iter().filter(|owner| !colluding.contains(owner));
        tally.opened += usize::from(honest.into_iter().any(|owner| loot.opens(owner)));
    }
    tally
}

#[test]
fn ten_thousand_random_deviations_never_reveal_both_secrets_of_a_device() {
    let gamma = CollusionBound::Devices(1);
    let delta = crate::graph::Permille::default();
    let tally = play(10_000, GraphRule::Active { gamma, delta }, AdversaryModel::Active { gamma });
    assert_eq!(tally.opened, 0);
    assert!(tally.answered > 1000, "most deviations must be plausible: {tally:?}");
}

#[test]
fn the_same_deviations_open_devices_if_the_threshold_is_no_majority() {
    // The reason for the check of the threshold: with t = 2 of five, a split view suffices.
    let gamma = CollusionBound::Devices(1);
    let curious = AdversaryModel::HonestButCurious { gamma, delta: crate::graph::Permille::default() };
    let tally = play(500, GraphRule::Full { threshold: 2 }, curious);
    assert!(tally.opened > 50, "{tally:?}");
}
