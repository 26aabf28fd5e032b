//! An actively malicious server against honest devices.
//!
//! Each test deviates from the protocol at one point and names the check that detects it.

#[path = "support/stage.rs"]
mod stage;

#[path = "malicious_server/sparse_graph.rs"]
mod sparse_graph;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use chacha20::ChaCha20Rng;
use deltafl_secagg::device::{Abort, AdversaryModel, DeviceEvent, DevicePolicy, Participant, RefusedRound};
use deltafl_secagg::graph::{GraphRule, Permille};
use deltafl_secagg::identity::{DeviceId, SigningIdentity};
use deltafl_secagg::mask::MaskSuite;
use deltafl_secagg::message::wire::{WireError, decode_server, encode_server};
use deltafl_secagg::message::{DeviceBody, DeviceSet, KeyBundle, SecretKind, ServerBody, ServerMessage};
use deltafl_secagg::params::{RoundId, RoundParams};
use deltafl_secagg::ring::Ring;
use ed25519_dalek::{Signer, SigningKey};
use rand_core::SeedableRng;
use stage::{Stage, policy, set};

const D0: DeviceId = DeviceId(0);
const D1: DeviceId = DeviceId(1);
const D4: DeviceId = DeviceId(4);

#[test]
fn an_honest_script_ends_with_one_share_of_each_device() {
    let mut stage = Stage::masked(5, 3);
    let survivors = set([0, 1, 2, 3]);
    let signatures = stage.attest_all(&survivors);
    let DeviceBody::Unmask { shares, .. } = stage.unmask(D0, signatures).expect("an honest round") else {
        panic!("expected shares");
    };
    let kinds: Vec<SecretKind> = shares.values().map(|(kind, _)| *kind).collect();
    let seed = SecretKind::Seed;
    assert_eq!(kinds, [seed, seed, seed, seed, SecretKind::DepositKey]);
}

#[test]
fn split_views_of_the_survivors_collect_no_valid_signatures() {
    let mut stage = Stage::masked(5, 3);
    // Devices 0 and 1 see device 4 as dropped out, the others see it as surviving. With shares of
    // both kinds the server would unmask it.
    let (without, with) = (set(0..4), set(0..5));
    let mut signatures = BTreeMap::new();
    for i in 0..4 {
        let told = if i < 2 { &without } else { &with };
        signatures
            .insert(DeviceId(i), stage.attest(DeviceId(i), told.clone()).expect("each view is plausible"));
    }
    assert_eq!(stage.unmask(D0, signatures.clone()).err(), Some(Abort::BadSignature(DeviceId(2))));
    assert_eq!(stage.unmask(DeviceId(3), signatures).err(), Some(Abort::BadSignature(D0)));
}

#[test]
fn a_device_with_too_few_signatures_reveals_no_shares() {
    let mut stage = Stage::masked(5, 3);
    let mut signatures = stage.attest_all(&set(0..5));
    while signatures.len() > 2 {
        signatures.pop_last();
    }
    assert_eq!(stage.unmask(D0, signatures).err(), Some(Abort::TooFew { have: 2, need: 3 }));
}

#[test]
fn signatures_of_non_survivors_do_not_count() {
    let mut stage = Stage::masked(5, 3);
    let signatures = stage.attest_all(&set(0..5));
    let mut other = Stage::masked(5, 3);
    let mut mixed = other.attest_all(&set(0..3));
    mixed.insert(D4, signatures[&D4]);
    assert_eq!(other.unmask(D0, mixed).err(), Some(Abort::UnknownDevice(D4)));
}

#[test]
fn a_forged_signature_is_detected() {
    let mut stage = Stage::masked(5, 3);
    let mut signatures = stage.attest_all(&set(0..5));
    signatures.insert(D4, signatures[&D1]);
    assert_eq!(stage.unmask(D0, signatures).err(), Some(Abort::BadSignature(D4)));
}

#[test]
fn a_device_signs_one_set_of_survivors_per_slot() {
    let mut stage = Stage::masked(5, 3);
    stage.attest(D0, set(0..5)).expect("the first");
    assert_eq!(stage.attest(D0, set(0..4)).err(), Some(Abort::Unexpected));
}

#[test]
fn both_shares_of_a_device_are_never_revealed() {
    let mut stage = Stage::masked(5, 3);
    let signatures = stage.attest_all(&set(0..5));
    stage.unmask(D0, signatures.clone()).expect("the seed's share");
    // The slot is over, so neither a repeated request nor one for the other share is answered.
    assert_eq!(stage.unmask(D0, signatures.clone()).err(), Some(Abort::Unexpected));
    stage.unmask(D1, signatures).expect("the seed's share");
    assert_eq!(stage.attest(D1, set(0..4)).err(), Some(Abort::Unexpected));
}

#[test]
fn slots_are_opened_once_and_in_order() {
    let mut stage = Stage::masked(5, 3);
    let signatures = stage.attest_all(&set(0..5));
    stage.unmask(D0, signatures).expect("slot 0 is done");
    assert_eq!(stage.ask(D0, 0, set(0..5), b"eta").err(), Some(Abort::WrongSlot { expected: 1, got: 0 }));
    let mut fresh = Stage::shared(5, 3);
    assert_eq!(fresh.ask(D0, 1, set(0..5), b"eta").err(), Some(Abort::WrongSlot { expected: 0, got: 1 }));
    let mut masked = Stage::masked(5, 3);
    let survivors = ServerBody::Survivors { slot: 1, survivors: set(0..5) };
    assert_eq!(masked.tell(D0, survivors).err(), Some(Abort::WrongSlot { expected: 0, got: 1 }));
}

#[test]
fn a_device_with_a_different_eta_finds_no_matching_signatures() {
    let mut stage = Stage::shared(5, 3);
    for id in stage.ids() {
        let eta: &[u8] = if id == D0 { b"a different eta" } else { b"eta" };
        stage.ask(id, 0, set(0..5), eta).expect("the device cannot detect it");
    }
    let signatures = stage.attest_all(&set(0..5));
    assert_eq!(stage.unmask(D0, signatures.clone()).err(), Some(Abort::BadSignature(D1)));
    assert_eq!(stage.unmask(D1, signatures).err(), Some(Abort::BadSignature(D0)));
}

#[test]
fn a_survivor_set_below_the_threshold_is_rejected() {
    let mut stage = Stage::masked(5, 4);
    assert_eq!(stage.attest(D0, set(0..3)).err(), Some(Abort::TooFew { have: 3, need: 4 }));
    assert_eq!(stage.attest(D1, set([1])).err(), Some(Abort::TooFew { have: 1, need: 4 }));
}

#[test]
fn a_survivor_set_below_the_policy_is_rejected() {
    // A low threshold does not help the server if the device's policy requires more members.
    let curious =
        AdversaryModel::HonestButCurious { gamma: Permille::default().into(), delta: Permille::default() };
    let policy = DevicePolicy { min_members: 4, adversary: curious, ..policy() };
    let mut stage = Stage::with(5, GraphRule::Full { threshold: 2 }, policy, 1);
    stage.share();
    for id in stage.ids() {
        stage.tell(id, ServerBody::Shares(stage.boxes_for(id))).expect("honest so far");
    }
    assert_eq!(stage.ask(D1, 0, set(0..3), b"eta").err(), Some(Abort::TooFew { have: 3, need: 4 }));
    stage.ask(D0, 0, set(0..5), b"eta").expect("enough");
    assert_eq!(stage.attest(D0, set(0..3)).err(), Some(Abort::TooFew { have: 3, need: 4 }));
}

#[test]
fn unknown_devices_among_the_survivors_are_detected() {
    let mut stage = Stage::masked(5, 3);
    assert_eq!(stage.attest(D0, set(0..6)).err(), Some(Abort::UnknownDevice(DeviceId(5))));
    let mut stage = Stage::shared(5, 3);
    assert_eq!(stage.ask(D0, 0, set(0..6), b"eta").err(), Some(Abort::UnknownDevice(DeviceId(5))));
}

#[test]
fn a_device_that_dropped_out_cannot_return() {
    let mut stage = Stage::shared(5, 3);
    for i in 0..4 {
        stage.ask(DeviceId(i), 0, set(0..4), b"eta").expect("device 4 is gone");
    }
    assert_eq!(stage.attest(D1, set(0..5)).err(), Some(Abort::Returned(D4)));
    // Dropped out in slot 0, listed again in slot 1.
    let signatures: BTreeMap<_, _> =
        [0, 2, 3].map(|i| (DeviceId(i), stage.attest(DeviceId(i), set([0, 2, 3])).expect("three"))).into();
    stage.unmask(D0, signatures).expect("three signatures");
    assert_eq!(stage.ask(D0, 1, set(0..4), b"eta").err(), Some(Abort::Returned(D1)));
}

#[test]
fn a_device_that_is_left_out_sends_nothing() {
    let mut stage = Stage::masked(5, 3);
    assert_eq!(stage.attest(D0, set(1..5)).err(), Some(Abort::LeftOut));
    let mut stage = Stage::shared(5, 3);
    assert_eq!(stage.ask(D0, 0, set(1..5), b"eta").err(), Some(Abort::LeftOut));
}

#[test]
fn replaced_keys_of_a_neighbour_are_detected() {
    let mut stage = Stage::new(5, 3);
    // The server signs keys that it generated with a key that it generated.
    let mut forged = Stage::with(5, GraphRule::Full { threshold: 3 }, policy(), 2).keys;
    let mut keys = stage.keys.clone();
    keys.insert(D4, forged.remove(&D4).expect("on stage"));
    assert_eq!(stage.tell(D0, ServerBody::Keys(keys)).err(), Some(Abort::BadSignature(D4)));
    // The server presents one device's keys as another's.
    let mut keys = stage.keys.clone();
    keys.insert(D4, keys[&DeviceId(3)].clone());
    assert_eq!(stage.tell(D1, ServerBody::Keys(keys)).err(), Some(Abort::BadSignature(D4)));
}

#[test]
fn replaced_keys_of_the_device_itself_are_detected() {
    let mut stage = Stage::new(5, 3);
    let mut keys = stage.keys.clone();
    // A bundle that the device signed in a different round.
    keys.insert(D0, Stage::with(5, GraphRule::Full { threshold: 3 }, policy(), 2).keys[&D0].clone());
    assert_eq!(stage.tell(D0, ServerBody::Keys(keys)).err(), Some(Abort::OwnKeys));
    let mut keys = stage.keys.clone();
    keys.remove(&D1);
    assert_eq!(stage.tell(D1, ServerBody::Keys(keys)).err(), Some(Abort::LeftOut));
}

#[test]
fn devices_invented_by_the_server_are_detected() {
    let mut stage = Stage::new(5, 3);
    let mut keys = stage.keys.clone();
    keys.remove(&D4);
    keys.insert(DeviceId(77), stage.keys[&D4].clone());
    assert_eq!(stage.tell(D0, ServerBody::Keys(keys)).err(), Some(Abort::UnknownDevice(DeviceId(77))));
    let mut keys = stage.keys.clone();
    keys.insert(DeviceId(5), stage.keys[&D4].clone());
    assert_eq!(stage.tell(D1, ServerBody::Keys(keys)).err(), Some(Abort::TooMany { have: 6, cohort: 5 }));
}

/// A bundle of device 4, which colludes: 32 bytes are replaced, and device 4 signs the result.
fn resigned(stage: &Stage, at: usize, replacement: [u8; 32]) -> KeyBundle {
    let params = stage.devices[&D4].params().digest();
    let mut bytes = stage.keys[&D4].as_bytes().to_vec();
    let contents = bytes.len() - 64;
    bytes[at..at + 32].copy_from_slice(&replacement);
    let signed =
        [b"deltafl-secagg/2/", &b"keys"[..], &params, &4u32.to_le_bytes(), &bytes[..contents]].concat();
    let signature = SigningKey::from_bytes(&[5; 32]).sign(&signed);
    bytes[contents..].copy_from_slice(&signature.to_bytes());
    KeyBundle::from_bytes(bytes.into()).expect("of the same length")
}

#[test]
fn signed_but_invalid_agreement_keys_are_rejected() {
    // X25519 of small order, and ML-KEM coefficients that are not below 3329.
    for (at, replacement) in [(0, [0; 32]), (32, [0xff; 32])] {
        let mut stage = Stage::new(5, 3);
        let mut keys = stage.keys.clone();
        keys.insert(D4, resigned(&stage, at, replacement));
        assert_eq!(stage.tell(D0, ServerBody::Keys(keys)).err(), Some(Abort::BadKey(D4)));
    }
}

#[test]
fn a_device_whose_box_did_not_open_cannot_be_active() {
    // The server spoils the box and still asks for an input. The two devices have no common mask.
    let mut stage = Stage::new(5, 3);
    stage.share();
    let mut boxes = stage.boxes_for(D0);
    let mut changed = boxes[&D1].to_vec();
    changed[0] ^= 1;
    boxes.insert(D1, changed.into());
    stage.tell(D0, ServerBody::Shares(boxes)).expect("a complaint");
    assert_eq!(stage.ask(D0, 0, set(0..5), b"eta").err(), Some(Abort::MissingShares(D1)));
}

#[test]
fn each_box_is_accepted_once_early_or_not() {
    let mut prepared = Stage::new(5, 3);
    prepared.share();
    let all = prepared.boxes_for(D0);
    let early = |from| ServerBody::EarlyShares(BTreeMap::from([(from, all[&D1].clone())]));
    let whole = || ServerBody::Shares(all.clone());
    // Returns a device's answer to the last of some messages.
    let answer = |script: Vec<ServerBody>| {
        let mut stage = Stage::new(5, 3);
        stage.share();
        script.into_iter().map(|body| stage.tell(D0, body)).last().expect("a message")
    };
    assert!(answer(vec![early(D1)]).expect("some").is_empty(), "more boxes follow");
    // A second box of the same device would replace the shares of the first one.
    assert_eq!(answer(vec![early(D1), early(D1)]).err(), Some(Abort::Unexpected));
    assert_eq!(answer(vec![early(D1), whole()]).err(), Some(Abort::Unexpected));
    // Messages without new boxes could continue forever while the device waits.
    let nothing = ServerBody::EarlyShares(BTreeMap::new());
    assert_eq!(answer(vec![nothing]).err(), Some(Abort::Unexpected));
    assert_eq!(answer(vec![early(DeviceId(9))]).err(), Some(Abort::UnknownDevice(DeviceId(9))));
    let mut rest = all.clone();
    rest.remove(&D1);
    let confirmed = |script| format!("{:?}", answer(script).expect("honest"));
    assert_eq!(confirmed(vec![early(D1), ServerBody::Shares(rest)]), confirmed(vec![whole()]));
}

#[test]
fn a_round_with_fewer_members_than_the_policy_allows_is_aborted() {
    // Three members meet the threshold, but the policy requires four.
    let policy = DevicePolicy { min_members: 4, ..policy() };
    let mut stage = Stage::with(5, GraphRule::Full { threshold: 3 }, policy, 1);
    let mut keys = stage.keys.clone();
    keys.retain(|&id, _| id < DeviceId(3));
    assert_eq!(stage.tell(D0, ServerBody::Keys(keys)).err(), Some(Abort::TooFew { have: 3, need: 4 }));
}

#[test]
fn fewer_members_than_the_threshold_get_no_shares() {
    let mut stage = Stage::new(5, 4);
    let mut keys = stage.keys.clone();
    keys.retain(|&id, _| id < DeviceId(3));
    assert_eq!(stage.tell(D0, ServerBody::Keys(keys)).err(), Some(Abort::TooFew { have: 3, need: 4 }));
}

#[test]
fn messages_of_a_different_round_or_session_are_rejected() {
    let mut stage = Stage::masked(5, 3);
    let survivors = || ServerBody::Survivors { slot: 0, survivors: set(0..5) };
    let stale = RoundId { round: 0, ..stage.round };
    assert_eq!(stage.tell_in(stale, D0, survivors()).err(), Some(Abort::WrongRound(stale)));
    let foreign = RoundId { session: [8; 16], ..stage.round };
    assert_eq!(stage.tell_in(foreign, D1, survivors()).err(), Some(Abort::WrongRound(foreign)));
}

#[test]
fn a_round_is_not_joined_twice() {
    let stage = Stage::new(5, 3);
    let identity = SigningIdentity::from_secret(D0, &[1; 32]);
    let mut participant = Participant::new(Arc::new(identity), Arc::clone(&stage.roster), [9; 16], policy());
    let graph = GraphRule::Full { threshold: 3 };
    let params =
        RoundParams { id: stage.round, suite: MaskSuite::default(), cohort: 5, graph, slots: 2, draw: None };
    let mut rng = ChaCha20Rng::seed_from_u64(1);
    participant.join(&params, Duration::ZERO, &mut rng).expect("the first time");
    let again = participant.join(&params, Duration::ZERO, &mut rng).err();
    assert_eq!(again, Some(RefusedRound::Stale { round: 1, last: 1 }));
}

#[test]
fn replayed_attestations_of_an_old_round_are_invalid() {
    let mut old = Stage::masked(5, 3);
    let replayed = old.attest_all(&set(0..5));
    let mut stage = Stage::with(5, GraphRule::Full { threshold: 3 }, policy(), 2);
    stage.share();
    for id in stage.ids() {
        stage.tell(id, ServerBody::Shares(stage.boxes_for(id))).expect("honest so far");
        stage.ask(id, 0, set(0..5), b"eta").expect("honest so far");
    }
    stage.attest(D0, set(0..5)).expect("honest so far");
    assert_eq!(stage.unmask(D0, replayed).err(), Some(Abort::BadSignature(D0)));
}

#[test]
fn modified_and_misattributed_shares_cause_complaints() {
    let complaints = |said: Result<Vec<DeviceBody>, Abort>| match said.expect("not the end").pop() {
        Some(DeviceBody::Confirm { complaints, .. }) => complaints,
        other => panic!("expected a confirmation, got {other:?}"),
    };
    let mut stage = Stage::new(5, 3);
    stage.share();
    let mut boxes = stage.boxes_for(D0);
    let mut changed = boxes[&D1].to_vec();
    changed[0] ^= 1;
    boxes.insert(D1, changed.into());
    assert_eq!(complaints(stage.tell(D0, ServerBody::Shares(boxes))), set([1]));
    let mut boxes = stage.boxes_for(D1);
    boxes.insert(D0, boxes[&D4].clone());
    assert_eq!(complaints(stage.tell(D1, ServerBody::Shares(boxes))), set([0]));
    // If too many boxes do not open, the device's own secrets are at risk, and it aborts.
    let closed = stage.boxes_for(DeviceId(2)).into_keys().map(|id| (id, vec![0; 176].into())).collect();
    let too_few = Abort::TooFew { have: 1, need: 3 };
    assert_eq!(stage.tell(DeviceId(2), ServerBody::Shares(closed)).err(), Some(too_few));
    let mut boxes = stage.boxes_for(D4);
    boxes.insert(DeviceId(5), boxes[&D0].clone());
    assert_eq!(stage.tell(D4, ServerBody::Shares(boxes)).err(), Some(Abort::UnknownDevice(DeviceId(5))));
    let own = DeviceId(3);
    let mut boxes = stage.boxes_for(own);
    boxes.insert(own, boxes[&D0].clone());
    assert_eq!(stage.tell(own, ServerBody::Shares(boxes)).err(), Some(Abort::UnknownDevice(own)));
}

#[test]
fn a_neighbour_whose_shares_are_withheld_cannot_be_active() {
    let mut stage = Stage::new(5, 3);
    stage.share();
    let mut boxes = stage.boxes_for(D0);
    boxes.remove(&D4);
    stage.tell(D0, ServerBody::Shares(boxes)).expect("device 4 may have dropped out");
    assert_eq!(stage.ask(D0, 0, set(0..5), b"eta").err(), Some(Abort::MissingShares(D4)));
    let few = stage.boxes_for(D1).into_iter().take(1).collect();
    assert_eq!(stage.tell(D1, ServerBody::Shares(few)).err(), Some(Abort::TooFew { have: 2, need: 3 }));
}

#[test]
fn a_vector_longer_than_the_policy_allows_is_rejected() {
    let mut stage = Stage::shared(5, 3);
    let open = ServerBody::OpenSlot { slot: 0, ring: Ring::Z64, len: 1001, active: set(0..5) };
    assert_eq!(stage.tell(D0, open).err(), Some(Abort::TooLong { len: 1001, limit: 1000 }));
}

#[test]
fn a_device_aborts_when_the_server_is_silent() {
    let mut stage = Stage::masked(5, 3);
    let device = stage.devices.get_mut(&D0).expect("on stage");
    let deadline = device.poll_timeout().expect("patience is finite");
    device.handle_timeout(deadline - Duration::from_nanos(1));
    assert_eq!(device.poll_timeout(), Some(deadline));
    device.handle_timeout(deadline);
    assert_eq!(
        std::iter::from_fn(|| device.poll_event()).last(),
        Some(DeviceEvent::Aborted(Abort::ServerSilent))
    );
    assert_eq!(stage.attest(D0, set(0..5)).err(), Some(Abort::Unexpected));
}

#[test]
fn duplicate_ids_are_rejected_by_the_decoder() {
    let round = RoundId { session: [9; 16], round: 1 };
    let message = |survivors| ServerMessage { round, body: ServerBody::Survivors { slot: 0, survivors } };
    let mut bytes = encode_server(&message(set([1, 2]))).to_vec();
    assert!(decode_server(bytes.clone().into(), 1000).is_ok());
    // The last id ends the message. Make it a second 1.
    let last = bytes.len() - 4;
    bytes[last] = 1;
    assert_eq!(decode_server(bytes.into(), 1000).err(), Some(WireError::Field("survivors")));
    assert!(DeviceSet::try_from(vec![D1, D1]).is_err());
}
