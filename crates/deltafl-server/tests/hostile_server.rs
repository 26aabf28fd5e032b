//! Attacks of a malicious server, which devices reject. docs/src/reference/threat-tests.md lists
//! the tests.

#![allow(clippy::unwrap_used, missing_docs)]

#[path = "hostile_server/deviations.rs"]
mod deviations;
#[path = "hostile_server/drawn.rs"]
mod drawn;
#[path = "field/fleet.rs"]
#[allow(dead_code, unreachable_pub, reason = "shared by several tests")]
mod fleet;
#[path = "field/hostile.rs"]
#[allow(dead_code, unreachable_pub, reason = "shared by several tests")]
mod hostile;
#[path = "hostile_server/questions.rs"]
mod questions;
#[path = "hostile_server/rosters.rs"]
mod rosters;
#[path = "field/watchdog.rs"]
#[allow(dead_code, unreachable_pub, reason = "shared by several tests")]
mod watchdog;

use std::path::Path;
use std::sync::Arc;

use deltafl::data::FederationIndex;
use deltafl_device::swarm::SwarmOptions;
use deltafl_device::{
    Consent, Device, DeviceData, DeviceState, PrivacyLimit, ServerEndpoint, ServerTrust, Transcript,
    TranscriptEvent, conflicts,
};
use deltafl_secagg::device::{SeenRound, SeenRounds};
use deltafl_secagg::graph::Permille;
use deltafl_secagg::mask::MaskSuite;
use deltafl_secagg::message::wire::encode_server;
use deltafl_secagg::message::{ServerBody, ServerMessage};
use deltafl_secagg::params::{RoundId, RoundParams};
use deltafl_wire::proto::{from_device, from_server};
use deltafl_wire::roster::{RosterVersion, SignedRoster, session_under};
use deltafl_wire::threat::ThreatAssumptions;
use deltafl_wire::{fragments, loopback, proto};
use fleet::{Records, TestFederation, never};
use hostile::Hostile;
use tempfile::TempDir;
use tokio::task::JoinHandle;

const EXPERIMENT: &str = r#"
    name = "hostile"
    rounds = 2
    cohort = 8
    data = { source = { kind = "glyphs", devices = 20, seed = 3 } }
    model = { kind = "linear" }
    local = { steps = 1, batch = 10, learning_rate = 0.1 }
    algorithm = [{ kind = "fedavg" }, { kind = "delta-fl", theta = 0.5, quantile = "histogram" }]
"#;

/// Devices with the default consent of an owner, in small cohorts.
fn options() -> SwarmOptions {
    SwarmOptions { consent: Consent { min_cohort: 3, ..Consent::default() }, ..fleet::options() }
}

/// A roster of the first devices of a test, as its authority signs it.
fn roster(test: &TestFederation, edition: RosterVersion, devices: usize) -> SignedRoster {
    let all = test.devices();
    let names = all[..devices].iter().map(|&k| test.federation.id(k));
    loopback::roster(edition, names, |_| false).unwrap()
}

fn later(version: u64) -> RosterVersion {
    RosterVersion { version, expires: u64::MAX }
}

fn experiment(test: &TestFederation) -> proto::Experiment {
    proto::Experiment {
        name: test.experiment.name().to_owned(),
        model: serde_json::to_string(&test.experiment.model().spec()).unwrap(),
        params: test.model.num_params() as u64,
        open: false,
        contract: None,
    }
}

/// A device of a test that remembers in a folder.
fn device(test: &TestFederation, k: FederationIndex, server: &Hostile, state: DeviceState) -> JoinHandle<()> {
    let address = server.address.to_string();
    spawn(test, k, address, state)
}

fn spawn(test: &TestFederation, k: FederationIndex, address: String, state: DeviceState) -> JoinHandle<()> {
    spawn_with(test, k, address, state, options().consent)
}

fn spawn_with(
    test: &TestFederation,
    k: FederationIndex,
    address: String,
    state: DeviceState,
    consent: Consent,
) -> JoinHandle<()> {
    let server = ServerEndpoint { address, trust: ServerTrust::Loopback };
    let device =
        Device::new(server, test.credentials(k), consent).with_backoff(options().backoff).with_state(state);
    let (trainer, data) = (test.trainer(), DeviceData::new(Arc::clone(&test.federation), k));
    tokio::spawn(async move { device.run(trainer, data).await.unwrap() })
}

fn hash(roster: &SignedRoster) -> Vec<u8> {
    blake3::hash(&roster.bytes).as_bytes().to_vec()
}

fn transcript(folder: &Path) -> Vec<TranscriptEvent> {
    Transcript::read(&folder.join("transcript.jsonl")).unwrap().1
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_devices_of_an_honest_server_have_the_same_transcript() {
    let _limit = watchdog::start();
    let test = TestFederation::new(&EXPERIMENT.replace("cohort = 8", "cohort = 10"));
    let mut host = test.host().await;
    let folders: Vec<_> = test.devices().iter().map(|_| tempfile::tempdir().unwrap()).collect();
    let running: Vec<_> = test
        .devices()
        .iter()
        .zip(&folders)
        .map(|(&k, folder)| {
            let state = DeviceState::open(folder.path()).unwrap();
            spawn(&test, k, host.address().to_string(), state)
        })
        .collect();
    let mut exchange = host.exchange(test.rules(), never());
    let trained =
        tokio::task::spawn_blocking(move || test.train(&mut exchange, &mut Records::default()).map(|_| ()));
    trained.await.unwrap().unwrap();
    host.shut_down().await;
    running.iter().for_each(JoinHandle::abort);
    for task in running {
        let _ = task.await;
    }
    let [one, other] = [0, 1].map(|i| transcript(folders[i].path()));
    let (common, found) = conflicts(&one, &other);
    assert_eq!(found, vec![]);
    // A roster, two set-ups, and in each at least a histogram and an update with their survivors.
    assert!(common >= 1 + 2 + 2 * 2 * 3, "{common}");
    // A server that had told one of them of other survivors would show.
    let tampered: Vec<TranscriptEvent> = other
        .into_iter()
        .map(|event| match event {
            TranscriptEvent::Survivors { setup, slot, survivors: (devices, digest) } => {
                TranscriptEvent::Survivors { setup, slot, survivors: (devices - 1, digest) }
            }
            event => event,
        })
        .collect();
    assert!(!conflicts(&one, &tampered).1.is_empty());
}

#[tokio::test]
async fn a_server_that_announces_private_mode_gets_no_loss() {
    let _limit = watchdog::start();
    let (mut server, _) = asked_for_a_loss(options().consent).await;
    // Its next message declines, and it is ready again. A device that answers would send its losses
    // first.
    assert!(matches!(server.said().await, from_device::Body::Decline(_)));
    server.ready().await.unwrap();
}

#[tokio::test]
async fn a_loss_exceeds_every_limit_on_epsilon_also_in_open_mode() {
    let _limit = watchdog::start();
    let open = Consent { open: true, ..options().consent };
    let (mut server, folder) = asked_for_a_loss(open.clone()).await;
    assert!(matches!(server.said().await, from_device::Body::Losses(_)));
    let spent = DeviceState::read_privacy(folder.path()).unwrap();
    assert_eq!(spent.values().map(|spent| spent.exact).collect::<Vec<_>>(), [1]);
    let limit = PrivacyLimit { max_epsilon: Some(100.0), ..open.privacy };
    let (mut server, folder) = asked_for_a_loss(Consent { privacy: limit, ..open }).await;
    assert!(matches!(server.said().await, from_device::Body::Decline(_)));
    assert!(DeviceState::read_privacy(folder.path()).unwrap().is_empty());
}

/// A device of this consent that a server asks for its loss, and the folder of its state.
async fn asked_for_a_loss(consent: Consent) -> (Hostile, TempDir) {
    let test = TestFederation::new(EXPERIMENT);
    let honest = roster(&test, later(4), 10);
    let mut server = Hostile::start(experiment(&test), honest.clone()).await;
    let folder = tempfile::tempdir().unwrap();
    let state = DeviceState::open(folder.path()).unwrap();
    spawn_with(&test, test.devices()[0], server.address.to_string(), state, consent);
    server.ready().await.unwrap();
    let params: Vec<u8> = vec![0; 4 * test.model.num_params()];
    let blob = server.offer(params.into());
    server.say(from_server::Body::LossQuestion(proto::LossQuestion { id: 1, params: vec![blob] }));
    (server, folder)
}

#[tokio::test]
async fn a_joined_round_is_on_disk_before_the_first_message_of_the_round() {
    let _limit = watchdog::start();
    let test = TestFederation::new(EXPERIMENT);
    let honest = roster(&test, later(4), 10);
    let folder = tempfile::tempdir().unwrap();
    let mut server = Hostile::start(experiment(&test), honest.clone()).await;
    let _running = device(&test, test.devices()[0], &server, DeviceState::open(folder.path()).unwrap());
    server.ready().await.unwrap();
    let id = RoundId { session: session_under(&[7; 16], &blake3::hash(&honest.bytes)), round: 3 };
    let graph = ThreatAssumptions::default().graph(10, Permille::new(200).unwrap());
    let params = RoundParams { id, suite: MaskSuite::default(), cohort: 10, graph, slots: 1, draw: None };
    let invite = ServerMessage { round: id, body: ServerBody::Invite(params) };
    for part in fragments(encode_server(&invite)) {
        server.say(from_server::Body::Part(part));
    }
    assert!(matches!(server.said().await, from_device::Body::Part(_)), "its keys");
    let stored = std::fs::read(folder.path().join("rounds")).unwrap();
    // Its BLAKE3 hash follows.
    let seen = SeenRounds::from_bytes(&stored[..stored.len() - 32]).unwrap();
    let authority = test.credentials(test.devices()[0]).authority;
    assert_eq!(seen.last(&authority), Some(SeenRound { round: 3, roster: 4 }));
}
