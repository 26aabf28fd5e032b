//! A server that chooses its cohort, and devices that verify the draw.

#[path = "support/stage.rs"]
#[allow(dead_code, reason = "shared by several tests")]
mod stage;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use chacha20::ChaCha20Rng;
use deltafl_secagg::device::{Abort, DevicePolicy, Participant, RefusedRound};
use deltafl_secagg::draw::{DrawChain, DrawCommitment, LeftOut};
use deltafl_secagg::graph::{GraphRule, Permille};
use deltafl_secagg::identity::{DeviceId, KeyRoster, SigningIdentity};
use deltafl_secagg::mask::MaskSuite;
use deltafl_secagg::message::{DeviceBody, ServerBody, ServerMessage};
use deltafl_secagg::params::{RoundId, RoundParams};
use rand_core::SeedableRng;
use stage::{Stage, policy};

/// Devices on a roster of sixty with a draw commitment. The server has invited some of them.
fn drawn(members: impl FnOnce(&[DeviceId]) -> Vec<DeviceId>, opened: u64) -> Result<(), Abort> {
    let (round, third) = (3, Permille::new(334).expect("a third"));
    let identity = |i: u32| SigningIdentity::from_secret(DeviceId(i), &[i as u8 + 1; 32]);
    let mut roster = KeyRoster::new();
    for i in 0..60 {
        roster.add(DeviceId(i), &identity(i).public()).expect("distinct devices");
    }
    let chain = DrawChain::new([8; 32]);
    let draws = DrawCommitment { commitment: chain.commitment(), salt: [9; 32] };
    let roster = Arc::new(roster.with_draws(draws));
    let opening = chain.opening(opened).expect("not the last");
    let members = members(&draws.order(round, &opening, roster.ids()));
    let id = RoundId { session: [9; 16], round };
    let (cohort, graph) = (members.len() as u32, GraphRule::Full { threshold: 8 });
    let params =
        RoundParams { id, suite: MaskSuite::default(), cohort, graph, slots: 1, draw: Some(opening) };
    let policy = DevicePolicy { max_left_out: Some(third), ..policy() };
    let mut rng = ChaCha20Rng::seed_from_u64(5);
    let (mut keys, mut devices) = (BTreeMap::new(), Vec::new());
    for member in members {
        let mut participant =
            Participant::new(Arc::new(identity(member.0)), Arc::clone(&roster), [9; 16], policy);
        let refused = participant.join(&params, Duration::ZERO, &mut rng);
        let Ok(mut device) = refused else {
            assert_eq!(refused.err(), Some(RefusedRound::NotDrawn));
            return Err(Abort::NotDrawn(None));
        };
        let Some(DeviceBody::Advertise(bundle)) = device.poll_transmit().map(|message| message.body) else {
            panic!("a device advertises first");
        };
        keys.insert(member, bundle);
        devices.push(device);
    }
    devices[0].handle(Duration::ZERO, ServerMessage { round: id, body: ServerBody::Keys(keys) })
}

#[test]
fn choosing_the_members_is_detected_and_skipping_a_few_is_allowed() {
    assert_eq!(drawn(|order| order[..12].to_vec(), 3), Ok(()));
    assert_eq!(drawn(|order| order[4..12].to_vec(), 3), Ok(()), "a third may be unreachable");
    let left_out = LeftOut { drawn: 13, left_out: 5 };
    assert_eq!(drawn(|order| order[5..13].to_vec(), 3), Err(Abort::NotDrawn(Some(left_out))));
    let picked = drawn(|_| (0..12).map(DeviceId).collect(), 3);
    assert!(matches!(picked, Err(Abort::NotDrawn(Some(_)))), "{picked:?}");
}

#[test]
fn the_opening_of_a_different_round_is_rejected() {
    assert_eq!(drawn(|order| order[..12].to_vec(), 4), Err(Abort::NotDrawn(None)));
    // A device that requires a draw rejects a round without one.
    let stage = Stage::new(5, 3);
    let first = DeviceId(0);
    let policy = DevicePolicy { max_left_out: Permille::new(500), ..policy() };
    let identity = Arc::new(SigningIdentity::from_secret(first, &[1; 32]));
    let mut participant = Participant::new(identity, Arc::clone(&stage.roster), [9; 16], policy);
    let params = stage.devices[&first].params().clone();
    let refused = participant.join(&params, Duration::ZERO, &mut ChaCha20Rng::seed_from_u64(1)).err();
    assert_eq!(refused, Some(RefusedRound::NotDrawn));
}
