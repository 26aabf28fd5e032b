//! Other survivors for every device, and devices that return after they dropped out.
//!
//! t shares of both secrets of a device do not exist on a full graph. Signatures on the survivors
//! prevent two further attacks: a sum over fewer devices than any device accepts, and two sums that
//! differ in one device.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use chacha20::ChaCha20Rng;
use prost::bytes::Bytes;
use rand_core::SeedableRng;

use super::{CONTEXT, LEN, Loot, SESSION, Scene, ZERO, truth};
use crate::defences::{Defence, Defences};
use crate::device::{AdversaryModel, DevicePolicy, DeviceRound, Participant};
use crate::graph::{CollusionBound, GraphRule, Permille};
use crate::identity::{DeviceId, KeyRoster, SigningIdentity};
use crate::known_masks::MaskOwner;
use crate::mask::MaskSuite;
use crate::message::{DeviceBody, DeviceSet, KeyBundle, SecretKind, ServerBody, ServerMessage};
use crate::params::{RoundId, RoundParams, SlotSpec};
use crate::ring::{Ring, RingVector};
use crate::shamir::SecretShare;

const N: u32 = 6;
const MIN_MEMBERS: usize = 4;

fn rule() -> GraphRule {
    let delta = Permille::new(400).expect("at most one half");
    GraphRule::Active { gamma: CollusionBound::Devices(1), delta }
}

fn all() -> DeviceSet {
    (0..N).map(DeviceId).collect()
}

fn without(gone: &[u32]) -> DeviceSet {
    (0..N).filter(|id| !gone.contains(id)).map(DeviceId).collect()
}

/// Each of four devices sees devices 0, 1 and 2 as dropped out, and no device sees all three.
fn views() -> BTreeMap<DeviceId, DeviceSet> {
    let gone = [[1, 2], [0, 2], [0, 1], [0, 1], [1, 2], [0, 2]];
    (0..N).zip(gone).map(|(id, gone)| (DeviceId(id), without(&gone))).collect()
}

/// Returns the sum of the inputs of some devices if the server knows all other masks in it.
fn read_sum(scene: &Scene, summed: &DeviceSet, loot: &Loot) -> Option<RingVector> {
    let mut sum = RingVector::zeros(Ring::Z64, LEN as usize);
    let mut add = |vector: &RingVector, sign: u64| {
        let (RingVector::Z64(sum), RingVector::Z64(vector)) = (&mut sum, vector) else { panic!("Z64") };
        sum.iter_mut().zip(vector).for_each(|(sum, x)| *sum = sum.wrapping_add(x.wrapping_mul(sign)));
    };
    for id in scene.members().iter() {
        let owner = MaskOwner { params: scene.devices[&id].params(), bundle: &scene.keys[&id], id, slot: 0 };
        if summed.contains(id) {
            add(&scene.inputs[&id], 1);
            let seed = loot.secret(id, SecretKind::Seed)?;
            add(&owner.self_mask(&Scene::spec(), &seed), u64::MAX);
        } else {
            let key = loot.secret(id, SecretKind::DepositKey)?;
            for peer in summed.iter() {
                let mask = owner.pair_mask(&Scene::spec(), peer, &scene.deposits[&id][&peer], &key)?;
                // The peer adds the opposite mask.
                add(&mask, 1);
            }
        }
    }
    Some(sum)
}

/// Every device accepts at least four survivors. The server reads a sum over three.
#[test]
fn other_survivors_for_every_device_give_no_sum_below_the_minimum() {
    let attack = |defences| {
        let scene = Scene::with(N, rule(), MIN_MEMBERS, defences);
        assert_eq!(scene.graph.threshold(), MIN_MEMBERS);
        assert!(views().values().all(|view| view.len() == MIN_MEMBERS));
        read_sum(&scene, &without(&[0, 1, 2]), &scene.play(&views(), &BTreeSet::new()))
    };
    let RingVector::Z64(expected) = truth(DeviceId(3 + 4 + 5)) else { panic!("Z64") };
    let expected = RingVector::Z64(vec![expected[0] + 2 * 7, expected[1]]);
    assert_eq!(attack(Defences::default().without(Defence::Attestations)), Some(expected), "without it");
    assert_eq!(attack(Defences::default()), None);
}

/// Devices of a round with two slots in which the server asks the same question.
struct TwoSlots {
    params: RoundParams,
    devices: BTreeMap<DeviceId, DeviceRound>,
    bundles: BTreeMap<DeviceId, KeyBundle>,
    deposits: BTreeMap<DeviceId, BTreeMap<DeviceId, Bytes>>,
}

/// A slot with the inputs of some devices, and the shares of a secret of each device.
struct PlayedSlot {
    inputs: BTreeMap<DeviceId, RingVector>,
    shares: BTreeMap<DeviceId, Vec<(DeviceId, SecretShare)>>,
}

impl TwoSlots {
    fn new(defences: Defences) -> Self {
        let mut rng = ChaCha20Rng::seed_from_u64(8);
        let identity = |id: DeviceId| Arc::new(SigningIdentity::from_secret(id, &[id.0 as u8 + 1; 32]));
        let mut roster = KeyRoster::new();
        all().iter().for_each(|id| roster.add(id, &identity(id).public()).expect("distinct"));
        let roster = Arc::new(roster);
        let params = RoundParams {
            id: RoundId { session: SESSION, round: 1 },
            suite: MaskSuite::default(),
            cohort: N,
            graph: rule(),
            slots: 2,
            draw: None,
        };
        let policy = DevicePolicy {
            min_members: MIN_MEMBERS,
            adversary: AdversaryModel::Active { gamma: CollusionBound::Devices(1) },
            max_len: LEN,
            patience: Duration::MAX,
            max_left_out: None,
            defences,
        };
        let join = |id: DeviceId| {
            let mut participant = Participant::new(identity(id), Arc::clone(&roster), SESSION, policy);
            (id, participant.join(&params, ZERO, &mut rng).expect("within the policy"))
        };
        let devices = all().iter().map(join).collect();
        let (bundles, deposits) = (BTreeMap::new(), BTreeMap::new());
        let mut round = Self { params, devices, bundles, deposits };
        round.set_up();
        round
    }

    fn set_up(&mut self) {
        for id in all().iter() {
            if let Some(DeviceBody::Advertise(bundle)) = self.heard(id) {
                self.bundles.insert(id, bundle);
            }
        }
        let mut boxes: BTreeMap<DeviceId, BTreeMap<DeviceId, Bytes>> = BTreeMap::new();
        for from in all().iter() {
            let Some(DeviceBody::Shares(sealed)) = self.tell(from, ServerBody::Keys(self.bundles.clone()))
            else {
                panic!("honest so far");
            };
            for (to, sealed) in sealed {
                boxes.entry(to).or_default().insert(from, sealed);
            }
        }
        for id in all().iter() {
            let shares = ServerBody::Shares(boxes.remove(&id).expect("of all others"));
            let Some(DeviceBody::Confirm { deposits, .. }) = self.tell(id, shares) else {
                panic!("honest so far")
            };
            self.deposits.insert(id, deposits);
        }
    }

    fn heard(&mut self, id: DeviceId) -> Option<DeviceBody> {
        self.devices.get_mut(&id)?.poll_transmit().map(|message| message.body)
    }

    fn tell(&mut self, to: DeviceId, body: ServerBody) -> Option<DeviceBody> {
        let round = self.params.id;
        self.devices.get_mut(&to)?.handle(ZERO, ServerMessage { round, body }).ok()?;
        self.heard(to)
    }

    /// Plays a slot. Device 0 is among the survivors in its own view. Without signatures of others
    /// on this view it reveals its own shares only if it accepts too few signatures.
    fn play(&mut self, slot: u32, survivors: &DeviceSet) -> PlayedSlot {
        let (mut inputs, mut signed) = (BTreeMap::new(), BTreeMap::new());
        let view = |id: DeviceId| if id.0 == 0 { all() } else { survivors.clone() };
        for id in all().iter() {
            self.tell(id, ServerBody::OpenSlot { slot, ring: Ring::Z64, len: LEN, active: all() });
            let device = self.devices.get_mut(&id).expect("all");
            let _not_asked = device.submit(CONTEXT, truth(id));
            if let Some(DeviceBody::MaskedInput { input, .. }) = self.heard(id) {
                let mut masked = RingVector::zeros(Ring::Z64, LEN as usize);
                assert!(masked.add_le_bytes(&input));
                inputs.insert(id, masked);
            }
            let told = ServerBody::Survivors { slot, survivors: view(id) };
            if let Some(DeviceBody::Attest { signature, .. }) = self.tell(id, told) {
                signed.insert(id, signature);
            }
        }
        let mut shares: BTreeMap<DeviceId, Vec<(DeviceId, SecretShare)>> = BTreeMap::new();
        for id in all().iter() {
            // The transcripts of device 0 and of the others differ from the first slot on.
            let signatures = signed.iter().filter(|(other, _)| (other.0 == 0) == (id.0 == 0));
            let signatures = signatures.map(|(&other, &signature)| (other, signature)).collect();
            let body = ServerBody::Attestations { slot, signatures, masked: BTreeMap::new() };
            if let Some(DeviceBody::Unmask { shares: revealed, .. }) = self.tell(id, body) {
                for (owner, (kind, share)) in revealed {
                    let expected = survivors.contains(owner) == (kind == SecretKind::Seed);
                    if expected {
                        shares.entry(owner).or_default().push((id, share));
                    }
                }
            }
        }
        PlayedSlot { inputs, shares }
    }

    /// Returns the sum over the survivors.
    fn sum(&self, slot: u32, survivors: &DeviceSet, played: &PlayedSlot) -> Option<Vec<u64>> {
        let spec = SlotSpec::new(slot, Ring::Z64, LEN, CONTEXT);
        let mut sum = vec![0u64; LEN as usize];
        let mut add = |vector: &RingVector, sign: u64| {
            let RingVector::Z64(vector) = vector else { panic!("Z64") };
            sum.iter_mut().zip(vector).for_each(|(sum, x)| *sum = sum.wrapping_add(x.wrapping_mul(sign)));
        };
        for id in all().iter() {
            let owner = MaskOwner { params: &self.params, bundle: &self.bundles[&id], id, slot };
            let shares = played.shares.get(&id)?;
            if survivors.contains(id) {
                add(played.inputs.get(&id)?, 1);
                add(&owner.self_mask(&spec, &owner.recover(SecretKind::Seed, shares)?), u64::MAX);
            } else {
                let key = owner.recover(SecretKind::DepositKey, shares)?;
                for peer in survivors.iter() {
                    add(&owner.pair_mask(&spec, peer, &self.deposits[&id][&peer], &key)?, 1);
                }
            }
        }
        Some(sum)
    }
}

/// The server declares that device 0 dropped out of the first slot, and asks the same question
/// again with it. Returns the difference of the two sums.
fn two_sums_that_differ_in_one_device(defences: Defences) -> Option<RingVector> {
    let mut round = TwoSlots::new(defences);
    let (others, everyone) = (without(&[0]), all());
    let played = round.play(0, &others);
    let first = round.sum(0, &others, &played)?;
    let played = round.play(1, &everyone);
    let second = round.sum(1, &everyone, &played)?;
    Some(RingVector::Z64(second.iter().zip(first).map(|(a, b)| a.wrapping_sub(b)).collect()))
}

/// Two defences prevent this attack. The others refuse the return of the device. The device itself
/// does not leave the first slot, because too few devices sign that it survived.
#[test]
fn a_device_that_dropped_out_is_not_read_by_its_return() {
    let read = two_sums_that_differ_in_one_device;
    let (no_return, attestations) = (Defence::NoReturn, Defence::Attestations);
    let neither = Defences::default().without(no_return).without(attestations);
    assert_eq!(read(neither), Some(truth(DeviceId(0))), "without both defences");
    assert_eq!(read(Defences::ALL.without(attestations)), None);
    assert_eq!(read(Defences::ALL.without(no_return)), None);
    assert_eq!(read(Defences::default()), None);
}
