//! Rosters that devices do not accept.

use std::sync::Arc;
use std::time::Duration;

use chacha20::ChaCha20Rng;
use deltafl_device::DeviceState;
use deltafl_secagg::defences::Defences;
use deltafl_secagg::device::{self as secagg, Abort, DevicePolicy, DeviceRound, Participant};
use deltafl_secagg::graph::{GraphRule, Permille};
use deltafl_secagg::identity::{DeviceId, SigningIdentity};
use deltafl_secagg::mask::MaskSuite;
use deltafl_secagg::message::{DeviceBody, DeviceMessage, KeyBundle, ServerBody, ServerMessage};
use deltafl_secagg::params::{RoundId, RoundParams};
use deltafl_wire::loopback;
use deltafl_wire::roster::{PreviousRoster, Roster, RosterEntry, RosterVersion, SignedRoster, session_under};
use deltafl_wire::roster_log::{LoggedRoster, ROSTER_LOG};
use ed25519_dalek::{Signer as _, SigningKey};
use rand_core::SeedableRng as _;

use super::fleet::TestFederation;
use super::hostile::{Heard, Hostile};
use super::{EXPERIMENT, device, experiment, hash, later, roster, watchdog};

#[tokio::test]
async fn a_roster_that_was_in_force_before_is_not_taken_again() {
    let _limit = watchdog::start();
    let test = TestFederation::new(EXPERIMENT);
    let victim = test.devices()[0];
    // Version 4 held a device that the authority has since struck off, or a fleet in which the
    // server had accomplices.
    let (old, new) = (roster(&test, later(4), 3), roster(&test, later(5), 10));
    let folder = tempfile::tempdir().unwrap();
    let mut server = Hostile::start(experiment(&test), new.clone()).await;
    let running = device(&test, victim, &server, DeviceState::open(folder.path()).unwrap());
    assert_eq!(server.ready().await.unwrap(), hash(&new));

    server.show(old.clone());
    while !matches!(server.next().await, Heard::Greeted(4)) {}
    assert_eq!(server.ready().await, None, "it leaves");
    server.show(new.clone());
    while !matches!(server.next().await, Heard::Greeted(5)) {}
    assert_eq!(server.ready().await.unwrap(), hash(&new));
    server.push(old.clone());
    assert_eq!(server.ready().await, None, "nor is it taken in the middle of a connection");

    // A device that was started anew has not forgotten.
    running.abort();
    let _ = running.await;
    server.show(old);
    let _running = device(&test, victim, &server, DeviceState::open(folder.path()).unwrap());
    while !matches!(server.next().await, Heard::Greeted(4)) {}
    assert_eq!(server.ready().await, None);
}

#[tokio::test]
async fn an_expired_roster_is_not_taken() {
    let _limit = watchdog::start();
    let test = TestFederation::new(EXPERIMENT);
    let expired = roster(&test, RosterVersion { version: 4, expires: 1_700_000_000 }, 10);
    let mut server = Hostile::start(experiment(&test), expired).await;
    let _running = device(&test, test.devices()[0], &server, DeviceState::default());
    assert_eq!(server.ready().await, None);
}

#[tokio::test]
async fn another_roster_of_the_same_version_is_not_taken() {
    let _limit = watchdog::start();
    let test = TestFederation::new(EXPERIMENT);
    let (one, other) = (roster(&test, later(4), 10), roster(&test, later(4), 3));
    let mut server = Hostile::start(experiment(&test), one.clone()).await;
    let _running = device(&test, test.devices()[0], &server, DeviceState::default());
    assert_eq!(server.ready().await.unwrap(), hash(&one));
    server.push(other);
    assert_eq!(server.ready().await, None);
}

/// A device that joins round 0 of a session under a roster, and the keys that it signs for it.
fn joined(roster: &Roster, device: u32) -> (DeviceRound, KeyBundle) {
    let hash = blake3::hash(&roster.encode());
    let session = session_under(&[7; 16], &hash);
    let params = RoundParams {
        id: RoundId { session, round: 0 },
        suite: MaskSuite::default(),
        cohort: roster.entries().len() as u32,
        graph: GraphRule::Full { threshold: 2 },
        slots: 1,
        draw: None,
    };
    let none = Permille::default();
    let policy = DevicePolicy {
        min_members: 2,
        adversary: secagg::AdversaryModel::HonestButCurious { gamma: none.into(), delta: none },
        max_len: 1,
        patience: Duration::MAX,
        max_left_out: None,
        defences: Defences::default(),
    };
    let keys = Arc::new(roster.keys(&hash, &[0; 64]).unwrap());
    let identity = Arc::new(identity_of(device));
    let mut rng = ChaCha20Rng::seed_from_u64(device.into());
    let mut enrolment = Participant::new(identity, keys, session, policy);
    let mut member = enrolment.join(&params, Duration::ZERO, &mut rng).unwrap();
    let Some(DeviceMessage { body: DeviceBody::Advertise(bundle), .. }) = member.poll_transmit() else {
        panic!("a device that joins says its keys");
    };
    (member, bundle)
}

fn identity_of(device: u32) -> SigningIdentity {
    SigningIdentity::from_secret(DeviceId(device), &[1 + device as u8; 32])
}

#[test]
fn keys_that_were_signed_under_one_roster_are_refused_under_another() {
    let _limit = watchdog::start();
    let entry = |device| RosterEntry {
        name: format!("d{device}"),
        key: identity_of(device).public(),
        revoked: false,
    };
    let edition = |version| Roster::new(later(version), (0..3).map(entry).collect()).unwrap();
    let (first, second) = (edition(1), edition(2));
    let told = |replayed: Option<u32>| {
        let of = |device| if replayed == Some(device) { &first } else { &second };
        let keys = (0..3).map(|device| (DeviceId(device), joined(of(device), device).1)).collect();
        let (mut victim, _) = joined(&second, 0);
        let round = RoundId { session: session_under(&[7; 16], &blake3::hash(&second.encode())), round: 0 };
        victim.handle(Duration::ZERO, ServerMessage { round, body: ServerBody::Keys(keys) })
    };
    told(None).unwrap();
    assert!(matches!(told(Some(1)), Err(Abort::BadSignature(DeviceId(1)))));
}

/// The authority signed both rosters, but they belong to two logs.
#[tokio::test]
async fn a_roster_of_another_log_is_not_taken() {
    let _limit = watchdog::start();
    let test = TestFederation::new(EXPERIMENT);
    let after = |edition, previous: &SignedRoster| {
        let roster = Roster::decode(roster(&test, edition, 10).bytes).unwrap();
        let version = Roster::decode(previous.bytes.clone()).unwrap().edition().version;
        let hash = blake3::hash(&previous.bytes);
        loopback::signed(&roster.with_previous(Some(PreviousRoster { version, hash })))
    };
    let (first, other) = (roster(&test, later(3), 10), roster(&test, later(3), 9));
    let (one, fork) = (after(later(4), &first), after(later(4), &other));
    let next = after(later(5), &one);
    let mut server = Hostile::start(experiment(&test), one.clone()).await;
    let running = device(&test, test.devices()[0], &server, DeviceState::default());
    assert_eq!(server.ready().await.unwrap(), hash(&one));
    server.push(after(later(5), &fork));
    assert_eq!(server.ready().await, None);
    running.abort();

    // A device with a folder has a log of the rosters that it accepted.
    let folder = tempfile::tempdir().unwrap();
    let state = DeviceState::open(folder.path()).unwrap();
    let mut server = Hostile::start(experiment(&test), one.clone()).await;
    let _running = device(&test, test.devices()[0], &server, state);
    assert_eq!(server.ready().await.unwrap(), hash(&one));
    server.push(next.clone());
    assert_eq!(server.ready().await.unwrap(), hash(&next));
    let log = LoggedRoster::read(&folder.path().join(ROSTER_LOG)).unwrap();
    assert_eq!(log.iter().map(|roster| roster.version).collect::<Vec<_>>(), [4, 5]);
}

/// A roster of these devices, signed by another key than the authority's.
fn forged(roster: &SignedRoster) -> SignedRoster {
    let roster = Roster::decode(roster.bytes.clone()).unwrap();
    let forger = SigningKey::from_bytes(&[99; 32]);
    SignedRoster::new(&roster, |message| forger.sign(message).to_bytes())
}

#[tokio::test]
async fn a_roster_that_the_authority_did_not_sign_is_not_taken() {
    let _limit = watchdog::start();
    let test = TestFederation::new(EXPERIMENT);
    let honest = roster(&test, later(4), 10);
    let mut server = Hostile::start(experiment(&test), forged(&honest)).await;
    let _running = device(&test, test.devices()[0], &server, DeviceState::default());
    while !matches!(server.next().await, Heard::Greeted(4)) {}
    assert_eq!(server.ready().await, None, "it leaves");
    server.show(honest.clone());
    assert_eq!(server.ready_again().await.unwrap(), hash(&honest));
    server.push(forged(&roster(&test, later(5), 3)));
    assert_eq!(server.ready().await, None, "nor is it taken in the middle of a connection");
}

#[tokio::test]
async fn a_device_is_not_given_the_number_of_another() {
    let _limit = watchdog::start();
    let test = TestFederation::new(EXPERIMENT);
    let honest = roster(&test, later(4), 10);
    let mut server = Hostile::start(experiment(&test), honest.clone()).await;
    server.number_as(7);
    let _running = device(&test, test.devices()[0], &server, DeviceState::default());
    while !matches!(server.next().await, Heard::Greeted(4)) {}
    assert_eq!(server.ready().await, None, "it leaves");
}
