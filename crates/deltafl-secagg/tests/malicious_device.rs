//! Devices that deviate from the protocol: their messages are rejected, or the round fails without
//! a sum.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use chacha20::ChaCha20Rng;
use deltafl_secagg::defences::Defences;
use deltafl_secagg::device::{AdversaryModel, DeviceEvent, DevicePolicy, DeviceRound, Participant};
use deltafl_secagg::graph::{GraphRule, Permille};
use deltafl_secagg::identity::{DeviceId, KeyRoster, SigningIdentity};
use deltafl_secagg::mask::MaskSuite;
use deltafl_secagg::message::{DeviceBody, DeviceMessage, DeviceSet, KeyBundle, SecretKind};
use deltafl_secagg::params::{RoundId, RoundParams};
use deltafl_secagg::ring::{Ring, RingVector};
use deltafl_secagg::server::{
    Misbehaviour, OpenSlotError, PhaseName, RefusedMessage, RoundFailure, ServerRound, ServerRoundConfig,
    ServerRoundEvent, SlotSum,
};
use deltafl_secagg::shamir::SecretShare;
use ed25519_dalek::{Signer, SigningKey};
use rand_core::SeedableRng;

const N: u32 = 4;
const LIAR: DeviceId = DeviceId(2);
const ZERO: Duration = Duration::ZERO;

/// The outcome of a round in which some messages of devices were modified.
struct Outcome {
    refusals: Vec<RefusedMessage>,
    /// Misbehaviour that was detected without ending the round.
    found: Vec<ServerRoundEvent>,
    end: Result<SlotSum, RoundFailure>,
}

fn secret(id: DeviceId) -> [u8; 32] {
    [id.0 as u8 + 1; 32]
}

fn params(n: u32, threshold: u32) -> RoundParams {
    let id = RoundId { session: [1; 16], round: 1 };
    let graph = GraphRule::Full { threshold };
    RoundParams { id, suite: MaskSuite::default(), cohort: n, graph, slots: 1, draw: None }
}

/// Runs a server and four devices. `lie` modifies the messages of one device. If `twice` is set,
/// its messages are sent twice.
fn play(threshold: u32, mut misbehaviour: impl FnMut(DeviceBody) -> DeviceBody, twice: bool) -> Outcome {
    play_all(N, threshold, |id, body| if id == LIAR { misbehaviour(body) } else { body }, twice)
}

/// Runs a server and n devices. `lie` modifies their messages.
fn play_all(
    n: u32,
    threshold: u32,
    mut misbehaviour: impl FnMut(DeviceId, DeviceBody) -> DeviceBody,
    twice: bool,
) -> Outcome {
    let mut rng = ChaCha20Rng::seed_from_u64(8);
    let mut roster = KeyRoster::new();
    let identities: Vec<SigningIdentity> =
        (0..n).map(|i| SigningIdentity::from_secret(DeviceId(i), &secret(DeviceId(i)))).collect();
    for identity in &identities {
        roster.add(identity.id(), &identity.public()).expect("distinct");
    }
    let roster = Arc::new(roster);
    let params = params(n, threshold);
    let cohort: DeviceSet = (0..n).map(DeviceId).collect();
    let phase_timeout = Duration::from_secs(1);
    let config = ServerRoundConfig {
        params: params.clone(),
        cohort,
        roster: roster.clone(),
        min_members: 2,
        phase_timeout,
    };
    let mut server = ServerRound::new(config, ZERO).expect("sound parameters");
    server.poll_transmit().expect("the invitation");
    let policy = DevicePolicy {
        min_members: 2,
        adversary: AdversaryModel::HonestButCurious {
            gamma: Permille::default().into(),
            delta: Permille::default(),
        },
        max_len: 10,
        patience: Duration::MAX,
        max_left_out: None,
        defences: Defences::default(),
    };
    let mut devices: BTreeMap<DeviceId, DeviceRound> = BTreeMap::new();
    for identity in identities {
        let id = identity.id();
        let mut participant = Participant::new(Arc::new(identity), roster.clone(), [1; 16], policy);
        devices.insert(id, participant.join(&params, ZERO, &mut rng).expect("within the policy"));
    }

    let mut found = Vec::new();
    let mut refusals = Vec::new();
    loop {
        for (&id, device) in &mut devices {
            while let Some(DeviceMessage { round, body }) = device.poll_transmit() {
                let message = DeviceMessage { round, body: misbehaviour(id, body) };
                let again = (twice && id == LIAR).then(|| message.clone());
                refusals.extend(server.handle(ZERO, id, message).err());
                refusals.extend(again.and_then(|again| server.handle(ZERO, id, again).err()));
            }
        }
        match server.poll_event() {
            Some(ServerRoundEvent::Sum(sum)) => return Outcome { refusals, found, end: Ok(sum) },
            Some(ServerRoundEvent::Ended(failure)) => return Outcome { refusals, found, end: Err(failure) },
            Some(event @ (ServerRoundEvent::Caught { .. } | ServerRoundEvent::Disputed { .. })) => {
                found.push(event);
                continue;
            }
            Some(ServerRoundEvent::Ready { .. }) => {
                server.open_slot(ZERO, Ring::Z64, 2, b"").expect("enough are left");
                assert_eq!(server.open_slot(ZERO, Ring::Z64, 2, b""), Err(OpenSlotError::NotReady));
            }
            _ => {}
        }
        let mut quiet = true;
        while let Some(transmit) = server.poll_transmit() {
            quiet = false;
            for to in transmit.to.iter() {
                let device = devices.get_mut(&to).expect("invited");
                // A device that aborted does not answer, and the server treats it as dropped out.
                if device.handle(ZERO, transmit.message.clone()).is_ok() {
                    while let Some(event) = device.poll_event() {
                        if let DeviceEvent::InputWanted(_) = event {
                            let input = RingVector::Z64(vec![u64::from(to.0), 1]);
                            device.submit(b"", input).expect("asked for");
                        }
                    }
                }
            }
        }
        if quiet && let Some(deadline) = server.poll_timeout() {
            server.handle_timeout(deadline);
        }
    }
}

fn sum_without_the_liar(outcome: &Outcome) {
    let sum = outcome.end.as_ref().expect("the other devices continue");
    assert_eq!(sum.sum, RingVector::Z64(vec![4, 3]));
    assert!(!sum.survivors.contains(LIAR));
}

#[test]
fn honest_devices_are_not_rejected() {
    let outcome = play(3, |body| body, false);
    assert_eq!(outcome.refusals, []);
    assert_eq!(outcome.end.expect("a sum").sum, RingVector::Z64(vec![6, 4]));
}

#[test]
fn keys_without_the_devices_signature_are_rejected() {
    let misbehaviour = |body| match body {
        DeviceBody::Advertise(bundle) => {
            let mut bytes = bundle.as_bytes().to_vec();
            bytes[0] ^= 1;
            DeviceBody::Advertise(KeyBundle::from_bytes(bytes.into()).expect("as long as before"))
        }
        body => body,
    };
    let outcome = play(3, misbehaviour, false);
    assert_eq!(outcome.refusals, [RefusedMessage::BadSignature(LIAR)]);
    sum_without_the_liar(&outcome);
}

#[test]
fn an_answer_counts_once() {
    let outcome = play(3, |body| body, true);
    assert_eq!(outcome.end.expect("a sum").sum, RingVector::Z64(vec![6, 4]));
    // Device 2 is not the last to answer, so each of its six messages is repeated within its phase.
    assert_eq!(outcome.refusals, [RefusedMessage::Duplicate(LIAR); 6]);
}

#[test]
fn an_input_of_the_wrong_length_is_rejected() {
    let misbehaviour = |body| match body {
        DeviceBody::MaskedInput { slot, input, signature } => {
            DeviceBody::MaskedInput { slot, input: input.slice(1..), signature }
        }
        body => body,
    };
    let outcome = play(3, misbehaviour, false);
    assert_eq!(outcome.refusals, [RefusedMessage::Shape(LIAR)]);
    sum_without_the_liar(&outcome);
}

#[test]
fn an_input_for_a_different_slot_is_rejected() {
    let misbehaviour = |body| match body {
        DeviceBody::MaskedInput { input, signature, .. } => {
            DeviceBody::MaskedInput { slot: 1, input, signature }
        }
        body => body,
    };
    let outcome = play(3, misbehaviour, false);
    assert_eq!(outcome.refusals, [RefusedMessage::WrongSlot { expected: 0, got: 1 }]);
    sum_without_the_liar(&outcome);
}

#[test]
fn a_signature_on_a_different_message_is_rejected() {
    let misbehaviour = |body| match body {
        DeviceBody::Attest { slot, mut signature } => {
            signature[0] ^= 1;
            DeviceBody::Attest { slot, signature }
        }
        body => body,
    };
    let outcome = play(3, misbehaviour, false);
    assert_eq!(outcome.refusals, [RefusedMessage::BadSignature(LIAR)]);
    // Its input is still in the sum, because the others can remove its mask.
    assert_eq!(outcome.end.expect("three signatures").sum, RingVector::Z64(vec![6, 4]));
}

#[test]
fn a_false_share_gives_a_secret_that_does_not_match_its_commitment() {
    let misbehaviour = |body| match body {
        DeviceBody::Unmask { slot, mut shares, revealed } => {
            let (_, share) = shares.get_mut(&DeviceId(0)).expect("in its circle");
            let mut bytes = share.to_bytes();
            bytes[0] ^= 1;
            *share = SecretShare::from_bytes(&bytes).expect("still below p");
            DeviceBody::Unmask { slot, shares, revealed }
        }
        body => body,
    };
    // One spare share shows that a share is false. If all four are needed, only the commitment
    // does.
    for threshold in [3, 4] {
        let end = play(threshold, misbehaviour, false).end;
        assert_eq!(end, Err(RoundFailure::WrongSecret { device: DeviceId(0) }), "threshold {threshold}");
    }
}

#[test]
fn shares_of_the_wrong_kind_or_number_are_rejected() {
    let wrong_kind = |body| match body {
        DeviceBody::Unmask { slot, mut shares, revealed } => {
            shares.get_mut(&DeviceId(0)).expect("in its circle").0 = SecretKind::DepositKey;
            DeviceBody::Unmask { slot, shares, revealed }
        }
        body => body,
    };
    let missing = |body| match body {
        DeviceBody::Unmask { slot, mut shares, revealed } => {
            shares.pop_first();
            DeviceBody::Unmask { slot, shares, revealed }
        }
        body => body,
    };
    for outcome in [play(3, wrong_kind, false), play(3, missing, false)] {
        assert_eq!(outcome.refusals, [RefusedMessage::Shape(LIAR)]);
        assert!(outcome.end.is_ok(), "three others answer");
    }
    let failure = RoundFailure::TooFew { phase: PhaseName::Unmask(0), have: 3, need: 4 };
    assert_eq!(play(4, missing, false).end, Err(failure));
}

#[test]
fn boxes_for_the_wrong_devices_are_rejected() {
    let misbehaviour = |body| match body {
        DeviceBody::Shares(mut boxes) => {
            boxes.pop_first();
            DeviceBody::Shares(boxes)
        }
        body => body,
    };
    let outcome = play(3, misbehaviour, false);
    assert_eq!(outcome.refusals, [RefusedMessage::Shape(LIAR)]);
    sum_without_the_liar(&outcome);
}

#[test]
fn a_message_in_the_wrong_phase_is_rejected() {
    let misbehaviour = |body| match body {
        DeviceBody::Shares(_) => DeviceBody::Attest { slot: 0, signature: [0; 64] },
        body => body,
    };
    let outcome = play(3, misbehaviour, false);
    assert_eq!(outcome.refusals, [RefusedMessage::WrongPhase]);
    sum_without_the_liar(&outcome);
}

/// The misbehaving device's keys with 32 bytes replaced, under a valid signature.
fn resigned(bundle: &KeyBundle, at: usize, replacement: [u8; 32]) -> KeyBundle {
    let mut bytes = bundle.as_bytes().to_vec();
    let contents = bytes.len() - 64;
    bytes[at..at + 32].copy_from_slice(&replacement);
    let (params, id) = (params(N, 3).digest(), LIAR.0.to_le_bytes());
    let signed = [b"deltafl-secagg/2/", &b"keys"[..], &params, &id, &bytes[..contents]].concat();
    let signature = SigningKey::from_bytes(&secret(LIAR)).sign(&signed);
    bytes[contents..].copy_from_slice(&signature.to_bytes());
    KeyBundle::from_bytes(bytes.into()).expect("of the same length")
}

#[test]
fn an_invalid_agreement_key_excludes_only_its_owner() {
    // The X25519 points 0 and 1, and an invalid ML-KEM key.
    let mut one = [0; 32];
    one[0] = 1;
    for (at, bad) in [(0, [0; 32]), (0, one), (32, [0xff; 32])] {
        let misbehaviour = |body| match body {
            DeviceBody::Advertise(bundle) => DeviceBody::Advertise(resigned(&bundle, at, bad)),
            body => body,
        };
        let outcome = play(3, misbehaviour, false);
        assert_eq!(outcome.refusals, [RefusedMessage::BadKey(LIAR)]);
        sum_without_the_liar(&outcome);
    }
}

/// Length in bytes of the ML-KEM-768 ciphertext before a box.
const CIPHERTEXT_LEN: usize = 1088;

fn spoilt(sealed: &prost::bytes::Bytes, at: usize) -> prost::bytes::Bytes {
    let mut bytes = sealed.to_vec();
    bytes[at] ^= 1;
    bytes.into()
}

#[test]
fn boxes_that_do_not_open_exclude_only_their_sender() {
    let misbehaviour = |body| match body {
        DeviceBody::Shares(boxes) => {
            DeviceBody::Shares(boxes.iter().map(|(&to, sealed)| (to, spoilt(sealed, 0))).collect())
        }
        body => body,
    };
    let outcome = play(3, misbehaviour, false);
    assert_eq!(
        outcome.found,
        [ServerRoundEvent::Caught { device: LIAR, misbehaviour: Misbehaviour::SealedBoxes }]
    );
    sum_without_the_liar(&outcome);
}

#[test]
fn a_single_box_that_does_not_open_excludes_sender_and_recipient() {
    for at in [0, CIPHERTEXT_LEN] {
        let misbehaviour = |body| match body {
            DeviceBody::Shares(mut boxes) => {
                let sealed = boxes.get_mut(&DeviceId(0)).expect("a neighbour");
                *sealed = spoilt(sealed, at);
                DeviceBody::Shares(boxes)
            }
            body => body,
        };
        let outcome = play(2, misbehaviour, false);
        assert_eq!(outcome.found, [ServerRoundEvent::Disputed { owner: LIAR, holder: DeviceId(0) }]);
        assert_eq!(outcome.end.expect("the two other devices continue").sum, RingVector::Z64(vec![1 + 3, 2]));
    }
}

#[test]
fn every_misbehaving_device_excludes_at_most_one_honest_device() {
    // Devices 0 and 1 each spoil one box. With c = 1, neither is identified by its number of
    // disputes.
    let misbehaviour = |id: DeviceId, body| match body {
        DeviceBody::Shares(mut boxes) if id.0 < 2 => {
            let sealed = boxes.get_mut(&DeviceId(id.0 + 5)).expect("a neighbour");
            *sealed = spoilt(sealed, 0);
            DeviceBody::Shares(boxes)
        }
        body => body,
    };
    let outcome = play_all(10, 6, misbehaviour, false);
    let disputed = |i| ServerRoundEvent::Disputed { owner: DeviceId(i), holder: DeviceId(i + 5) };
    assert_eq!(outcome.found, [disputed(0), disputed(1)]);
    assert_eq!(outcome.end.expect("six are left").sum, RingVector::Z64(vec![45 - 1 - 5 - 6, 6]));
}

#[test]
fn a_device_that_accuses_all_neighbours_is_left_out() {
    let misbehaviour = |body| match body {
        DeviceBody::Confirm { .. } => {
            let complaints = [0, 1, 3].into_iter().map(DeviceId).collect();
            DeviceBody::Confirm { complaints, deposits: BTreeMap::new() }
        }
        body => body,
    };
    let outcome = play(3, misbehaviour, false);
    assert_eq!(
        outcome.found,
        [ServerRoundEvent::Caught { device: LIAR, misbehaviour: Misbehaviour::Accusations }]
    );
    sum_without_the_liar(&outcome);
    let stranger = |body| match body {
        DeviceBody::Confirm { deposits, .. } => {
            DeviceBody::Confirm { complaints: DeviceSet::from_iter([LIAR]), deposits }
        }
        body => body,
    };
    assert_eq!(play(3, stranger, false).refusals, [RefusedMessage::Shape(LIAR)]);
}

#[test]
fn missing_and_truncated_deposits_are_rejected() {
    let missing = |body| match body {
        DeviceBody::Confirm { complaints, mut deposits } => {
            deposits.pop_first();
            DeviceBody::Confirm { complaints, deposits }
        }
        body => body,
    };
    let short = |body| match body {
        DeviceBody::Confirm { complaints, mut deposits } => {
            deposits.values_mut().for_each(|left| *left = left.slice(1..));
            DeviceBody::Confirm { complaints, deposits }
        }
        body => body,
    };
    for outcome in [play(3, missing, false), play(3, short, false)] {
        assert_eq!(outcome.refusals, [RefusedMessage::Shape(LIAR)]);
        sum_without_the_liar(&outcome);
    }
}

/// The misbehaving device's deposits about the selected neighbours, with one byte changed.
fn false_deposits(at: usize, of: impl Fn(DeviceId) -> bool) -> impl FnMut(DeviceBody) -> DeviceBody {
    move |body| match body {
        DeviceBody::Confirm { complaints, mut deposits } => {
            for (_, left) in deposits.iter_mut().filter(|(about, _)| of(**about)) {
                *left = spoilt(left, at);
            }
            DeviceBody::Confirm { complaints, deposits }
        }
        body => body,
    }
}

#[test]
fn a_device_that_commits_to_wrong_keys_is_left_out_before_masking() {
    let outcome = play(3, false_deposits(32, |_| true), false);
    assert_eq!(
        outcome.found,
        [ServerRoundEvent::Caught { device: LIAR, misbehaviour: Misbehaviour::Deposits }]
    );
    sum_without_the_liar(&outcome);
    let outcome = play(2, false_deposits(32, |about| about == DeviceId(3)), false);
    assert_eq!(outcome.found, [ServerRoundEvent::Disputed { owner: LIAR, holder: DeviceId(3) }]);
    assert_eq!(outcome.end.expect("the two other devices continue").sum, RingVector::Z64(vec![1, 2]));
}

#[test]
fn a_device_with_a_false_deposit_that_drops_out_is_named_in_the_failure() {
    let mut misbehaviour = false_deposits(0, |about| about == DeviceId(3));
    // A message in the wrong phase is rejected, so the device never submits an input.
    let drop_out = move |body| match misbehaviour(body) {
        DeviceBody::MaskedInput { .. } => DeviceBody::Attest { slot: 0, signature: [0; 64] },
        body => body,
    };
    assert_eq!(play(3, drop_out, false).end, Err(RoundFailure::WrongSecret { device: LIAR }));
    // The deposit is not used unless the device drops out.
    let outcome = play(3, false_deposits(0, |_| true), false);
    assert_eq!(outcome.end.expect("a sum").sum, RingVector::Z64(vec![6, 4]));
}

/// The first devices reveal shares with one bit flipped, for the selected owners.
fn false_shares(liars: u32, of: impl Fn(DeviceId) -> bool) -> Outcome {
    let misbehaviour = |id: DeviceId, body| match body {
        DeviceBody::Unmask { slot, mut shares, revealed } if id.0 < liars => {
            for (_, (_, share)) in shares.iter_mut().filter(|(owner, _)| of(**owner)) {
                let mut bytes = share.to_bytes();
                bytes[8] ^= 1;
                *share = SecretShare::from_bytes(&bytes).expect("still below p");
            }
            DeviceBody::Unmask { slot, shares, revealed }
        }
        body => body,
    };
    play_all(10, 6, misbehaviour, false)
}

#[test]
fn false_shares_up_to_half_of_the_spare_ones_are_corrected_and_their_senders_named() {
    // Ten devices answer and six are needed, so two false shares can be identified.
    for liars in 1..=2 {
        let outcome = false_shares(liars, |_| true);
        assert_eq!(outcome.end.expect("corrected").sum, RingVector::Z64(vec![45, 10]));
        let caught =
            |i| ServerRoundEvent::Caught { device: DeviceId(i), misbehaviour: Misbehaviour::FalseShares };
        assert_eq!(outcome.found, (0..liars).map(caught).collect::<Vec<_>>());
    }
    let outcome = false_shares(3, |_| true);
    assert_eq!(outcome.end, Err(RoundFailure::WrongSecret { device: DeviceId(0) }));
}

#[test]
fn a_single_false_share_is_corrected_and_names_both_suspects() {
    let outcome = false_shares(1, |owner| owner == DeviceId(7));
    assert_eq!(outcome.end.expect("corrected").sum, RingVector::Z64(vec![45, 10]));
    assert_eq!(outcome.found, [ServerRoundEvent::Disputed { owner: DeviceId(7), holder: DeviceId(0) }]);
}
