//! Attacks of a malicious server, which devices reject. docs/src/reference/threat-tests.md lists the tests.

#![allow(clippy::unwrap_used, missing_docs)]

#[path = "field/fleet.rs"]
#[allow(dead_code, unreachable_pub, reason = "shared by several tests")]
mod fleet;
#[path = "field/hostile.rs"]
#[allow(dead_code, unreachable_pub, reason = "shared by several tests")]
mod hostile;
#[path = "field/watchdog.rs"]
#[allow(dead_code, unreachable_pub, reason = "shared by several tests")]
mod watchdog;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use chacha20::ChaCha20Rng;
use deltafl::data::FederationIndex;
use deltafl::exchange::{CohortMember, Exchange as _, Reachable, Round, TrainIndex};
use deltafl::params::Params;
use deltafl::question::{Ask, Query};
use deltafl::selection::Weighting;
use deltafl::terms::Terms;
use deltafl::trainer::{LocalPlan, Work};
use deltafl_device::swarm::{Swarm, SwarmOptions};
use deltafl_device::{Consent, Device, DeviceData, DeviceState, Transcript, TranscriptEvent, conflicts};
use deltafl_device::{ServerEndpoint, ServerTrust};
use deltafl_secagg::defences::Defences;
use deltafl_secagg::device::{self as secagg, Abort, DevicePolicy, DeviceRound, Participant};
use deltafl_secagg::device::{SeenRound, SeenRounds};
use deltafl_secagg::graph::{GraphRule, Permille};
use deltafl_secagg::identity::{DeviceId, SigningIdentity};
use deltafl_secagg::mask::MaskSuite;
use deltafl_secagg::message::wire::encode_server;
use deltafl_secagg::message::{DeviceBody, DeviceMessage, KeyBundle, ServerBody, ServerMessage};
use deltafl_secagg::params::{RoundId, RoundParams};
use deltafl_server::Deadlines;
use deltafl_server::exchange::{DrawChain, NetworkExchange, Rules};
use deltafl_wire::proto::{from_device, from_server};
use deltafl_wire::roster::{Roster, RosterEntry, RosterVersion, SignedRoster, session_under};
use deltafl_wire::threat::{ServerBehaviour, ThreatAssumptions};
use deltafl_wire::{BlobId, fragments, loopback, proto};
use ed25519_dalek::{Signer as _, SigningKey};
use fleet::{Records, TestFederation, TestHost, never, start_host};
use hostile::{Heard, Hostile};
use rand_core::SeedableRng as _;
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
    let options = options();
    let device = Device::new(
        ServerEndpoint { address, trust: ServerTrust::Loopback },
        test.credentials(k),
        options.consent,
    )
    .with_backoff(options.backoff)
    .with_state(state);
    let (trainer, data) = (test.trainer(), DeviceData::new(Arc::clone(&test.federation), k));
    tokio::spawn(async move { device.run(trainer, data).await.unwrap() })
}

fn hash(roster: &SignedRoster) -> Vec<u8> {
    blake3::hash(&roster.bytes).as_bytes().to_vec()
}

#[tokio::test]
async fn a_roster_that_was_in_force_before_is_not_taken_again() {
    let _limit = watchdog::start();
    let test = TestFederation::new(EXPERIMENT);
    let victim = test.devices()[0];
    // Version 4 held a device that the authority has since struck off, or a fleet in which the server had accomplices.
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

/// A server that shows a device of the test a roster, and knows no newest params yet.
async fn alone(test: &TestFederation) -> Hostile {
    Hostile::start(experiment(test), roster(test, later(4), 10)).await
}

/// Params of a model of the test, as the newest that a server names.
fn newest(test: &TestFederation, value: f32) -> (blake3::Hash, Bytes, proto::Blob) {
    let bytes: Bytes = value.to_le_bytes().repeat(test.model.num_params()).into();
    let id = BlobId::for_bytes(&bytes);
    (id.hash, bytes, id.to_wire())
}

#[tokio::test]
async fn a_device_fetches_the_newest_params_before_it_is_ready() {
    let _limit = watchdog::start();
    let test = TestFederation::new(EXPERIMENT);
    let mut server = alone(&test).await;
    let (hash, bytes, blob) = newest(&test, 0.5);
    server.hand_out(hash, bytes);
    server.say_newest(vec![blob]);
    let _running = device(&test, test.devices()[0], &server, DeviceState::default());
    loop {
        match server.next().await {
            Heard::Fetched(fetched) if fetched == hash => break,
            Heard::Said(from_device::Body::Ready(_)) => panic!("it is ready without them"),
            _ => {}
        }
    }
    assert!(server.ready().await.is_some());
}

#[tokio::test]
async fn newest_params_that_are_too_many_of_another_size_or_other_bytes_send_a_device_away() {
    let _limit = watchdog::start();
    let test = TestFederation::new(EXPERIMENT);
    let (hash, bytes, blob) = newest(&test, 0.5);
    let huge = proto::Blob { len: u64::MAX, ..blob.clone() };
    let short = proto::Blob { len: blob.len - 4, ..blob.clone() };
    let nameless = proto::Blob { hash: Bytes::from_static(b"short"), ..blob.clone() };
    for told in [vec![blob.clone(); 65], vec![huge], vec![short], vec![nameless]] {
        let mut server = alone(&test).await;
        server.hand_out(hash, bytes.clone());
        server.say_newest(told);
        let _running = device(&test, test.devices()[0], &server, DeviceState::default());
        assert_eq!(server.ready().await, None);
    }
    let mut server = alone(&test).await;
    server.hand_out(hash, newest(&test, 0.25).1);
    server.say_newest(vec![blob]);
    let _running = device(&test, test.devices()[0], &server, DeviceState::default());
    assert_eq!(server.ready().await, None, "other bytes than the hash says");
}

#[tokio::test]
async fn newest_params_that_are_never_there_do_not_keep_a_device_for_ever() {
    let _limit = watchdog::start();
    let test = TestFederation::new(EXPERIMENT);
    let mut server = alone(&test).await;
    server.say_newest(vec![newest(&test, 0.5).2]);
    let _running = device(&test, test.devices()[0], &server, DeviceState::default());
    assert!(server.ready().await.is_some(), "it goes on without them");
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

/// Asks ten devices for a sum of their updates under these rules; how many answered.
async fn asked(rules: impl FnOnce(Rules) -> Rules, plan: impl FnOnce(LocalPlan) -> LocalPlan) -> Option<u64> {
    let test = TestFederation::new(EXPERIMENT);
    let mut host = test.host().await;
    let _swarm = test.swarm(host.address(), &options());
    let second = Duration::from_secs(1);
    let deadlines = Deadlines { setup: 20 * second, input: 20 * second, unmask: 20 * second };
    let mut exchange = host.exchange(rules(Rules { deadlines, cohort: 10, ..test.rules() }), never());
    let whole = test.experiment.plan();
    let plan = plan(whole.local().plan(0, &whole.tracks()[0]));
    let summed = tokio::task::spawn_blocking(move || {
        exchange.reachable().unwrap();
        let cohort: Vec<CohortMember> = (0..10)
            .map(|device| CohortMember { device: TrainIndex(device), times: 1, dropped: false })
            .collect();
        let round = Round { seed: 1, index: 0, cohort: &cohort, terms: Terms::PRIVATE, own: &[] };
        let params = Params::from(vec![0.0; test.model.num_params()]);
        let query = Query::new(params, Ask::Update { weighting: Weighting::everyone(), plan });
        exchange.secure_sum(&round, &[query]).ok().map(|sums| sums[0].answered)
    });
    let answered = summed.await.unwrap();
    host.shut_down().await;
    answered
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn devices_stay_away_from_rounds_that_do_not_hold_against_a_server_that_lies() {
    let _limit = watchdog::start();
    let offered = |guard: ThreatAssumptions| asked(move |rules| Rules { guard, ..rules }, |plan| plan);
    assert_eq!(offered(ThreatAssumptions::default()).await, Some(10));
    assert_eq!(
        offered(ThreatAssumptions { adversary: ServerBehaviour::Curious, ..ThreatAssumptions::default() })
            .await,
        None
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_question_without_end_is_not_begun() {
    let _limit = watchdog::start();
    let endless = |plan| LocalPlan { work: Work::Epochs(u32::MAX), ..plan };
    assert_eq!(asked(|rules| rules, endless).await, None);
    let vast = |plan| LocalPlan { batch: 1 << 20, ..plan };
    assert_eq!(asked(|rules| rules, vast).await, None);
}

/// Devices of an honest fleet, asked by a server that can ask anything.
struct Asking {
    test: TestFederation,
    host: Option<TestHost>,
    exchange: Option<NetworkExchange>,
    _swarm: Swarm,
}

impl Asking {
    async fn start() -> Self {
        let test = TestFederation::new(EXPERIMENT);
        let mut host = test.host().await;
        let swarm = test.swarm(host.address(), &options());
        let exchange = host.exchange(Rules { cohort: 10, ..test.rules() }, never());
        Self { test, host: Some(host), exchange: Some(exchange), _swarm: swarm }
    }

    /// The sum over these devices of their updates at w = 0 in a round, under each of these thresholds; how many answered.
    async fn updates(&mut self, round: u64, devices: std::ops::Range<u32>, etas: &[f64]) -> Option<u64> {
        // An honest engine would not ask anybody twice: this one does not ask it whom to ask.
        let host = self.host.as_ref().unwrap();
        while host.presence().1 < self.test.devices().len() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let mut exchange = self.exchange.take().unwrap();
        let params = Params::from(vec![0.0; self.test.model.num_params()]);
        let whole = self.test.experiment.plan();
        let plan = whole.local().plan(0, &whole.tracks()[0]);
        let etas = etas.to_vec();
        let summed = tokio::task::spawn_blocking(move || {
            let cohort: Vec<CohortMember> = devices
                .map(|device| CohortMember { device: TrainIndex(device), times: 1, dropped: false })
                .collect();
            let round = Round { seed: 1, index: round, cohort: &cohort, terms: Terms::PRIVATE, own: &[] };
            let query = |&eta: &f64| {
                let ask = Ask::Update { weighting: Weighting::tail(eta), plan };
                Query::new(params.clone(), ask)
            };
            let queries: Vec<Query> = etas.iter().map(query).collect();
            let answered = exchange.secure_sum(&round, &queries).ok().map(|sums| sums[0].answered);
            (exchange, answered)
        });
        let (exchange, answered) = summed.await.unwrap();
        self.exchange = Some(exchange);
        answered
    }

    async fn stop(mut self) {
        self.host.take().unwrap().shut_down().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_same_question_again_without_one_device_gets_no_answer() {
    let _limit = watchdog::start();
    let mut server = Asking::start().await;
    assert_eq!(server.updates(0, 0..10, &[0.0]).await, Some(10));
    // Answered, the difference of the two sums would be the update of the last device.
    assert_eq!(server.updates(0, 0..9, &[0.0]).await, None);
    // Nor under another threshold, which would tell the devices between the two.
    assert_eq!(server.updates(0, 0..10, &[0.5]).await, None);
    assert_eq!(server.updates(1, 0..10, &[0.0]).await, Some(10), "the next round is another question");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cohort_is_not_taken_apart_by_many_thresholds_in_one_question() {
    let _limit = watchdog::start();
    let mut server = Asking::start().await;
    let many: Vec<f64> = (0..64).map(|n| f64::from(n) / 16.0).collect();
    assert_eq!(server.updates(0, 0..10, &many).await, None);
    assert_eq!(server.updates(0, 0..10, &many[..2]).await, None);
    assert_eq!(server.updates(0, 0..10, &many[..1]).await, Some(10));
    server.stop().await;
}

/// A roster of a test that says how cohorts are drawn, and the chain that draws them.
fn drawn_roster(test: &TestFederation) -> (SignedRoster, DrawChain) {
    let chain = DrawChain::new([6; 32]);
    let signed = roster(test, later(4), test.devices().len());
    let roster = Roster::decode(signed.bytes).unwrap().with_draws(Some(chain.commitment()));
    (loopback::signed(&roster), chain)
}

/// Asks eight devices for their updates, under a roster that says that cohorts are drawn, by a server that draws or chooses. What
/// the devices wrote down, and how many answered.
async fn run_drawn(chain: impl FnOnce(DrawChain) -> Option<DrawChain>) -> (Vec<TranscriptEvent>, usize) {
    let test = TestFederation::new(EXPERIMENT);
    let (roster, honest) = drawn_roster(&test);
    let mut host = start_host(test.setup(), &roster).await;
    let folders: Vec<_> = test.devices().iter().map(|_| tempfile::tempdir().unwrap()).collect();
    let devices: Vec<_> = test
        .devices()
        .into_iter()
        .zip(&folders)
        .map(|(k, folder)| {
            spawn(&test, k, host.address().to_string(), DeviceState::open(folder.path()).unwrap())
        })
        .collect();
    let mut rules = Rules { attempts: 1, ..test.rules() };
    rules.present = test.devices().len();
    rules.deadlines.setup = Duration::from_secs(5);
    let exchange = host.exchange(rules, never());
    let mut exchange = match chain(honest) {
        Some(chain) => exchange.drawing_by(chain),
        None => exchange,
    };
    let params = Params::from(vec![0.0; test.model.num_params()]);
    let sums = tokio::task::spawn_blocking(move || {
        // What the round loop does: draw among those that can be reached.
        let Reachable::Some(reachable) = exchange.reachable().unwrap() else { panic!("devices come and go") };
        let cohort: Vec<CohortMember> = (0..)
            .zip(reachable)
            .filter(|(_, reachable)| *reachable)
            .take(8)
            .map(|(device, _)| CohortMember { device: TrainIndex(device), times: 1, dropped: false })
            .collect();
        let round = Round { seed: 1, index: 0, cohort: &cohort, terms: Terms::PRIVATE, own: &[] };
        let plan = LocalPlan {
            work: Work::Steps(1),
            batch: 10,
            learning_rate: 0.1,
            l2: 0.0,
            proximal: 0.0,
            correction: None,
        };
        let ask = Ask::Update { weighting: Weighting::everyone(), plan };
        exchange.secure_sum(&round, &[Query::new(params, ask)]).map_or(0, |sums| sums[0].answered as usize)
    });
    let answered = sums.await.unwrap();
    let events = folders.iter().flat_map(|folder| transcript(folder.path())).collect();
    devices.iter().for_each(JoinHandle::abort);
    (events, answered)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cohort_that_was_drawn_comes_to_a_sum_and_one_that_the_server_chose_does_not() {
    let _limit = watchdog::start();
    let (events, answered) = run_drawn(Some).await;
    assert_eq!(answered, 8);
    let left_out = |event: &TranscriptEvent| match event {
        TranscriptEvent::Drawn { drawn, left_out, members, .. } => Some((members.0, *drawn, *left_out)),
        _ => None,
    };
    let noted: Vec<_> = events.iter().filter_map(left_out).collect();
    assert_eq!(noted.len(), 8, "every member notes who was left out");
    assert!(noted.iter().all(|(members, drawn, left_out)| *members == 8 && drawn - left_out == 8));

    // The same server without the chain: it asks whom it likes, and opens no draw.
    let (events, answered) = run_drawn(|_| None).await;
    assert_eq!(answered, 0);
    assert!(!events.iter().any(|event| matches!(event, TranscriptEvent::Joined { .. })), "nobody joins");

    // A chain of its own, made after the roster was signed.
    let (_, answered) = run_drawn(|_| Some(DrawChain::new([9; 32]))).await;
    assert_eq!(answered, 0);
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

#[tokio::test]
async fn a_server_that_announces_private_mode_gets_no_loss() {
    let _limit = watchdog::start();
    let test = TestFederation::new(EXPERIMENT);
    let honest = roster(&test, later(4), 10);
    let mut server = Hostile::start(experiment(&test), honest.clone()).await;
    let _running = device(&test, test.devices()[0], &server, DeviceState::default());
    server.ready().await.unwrap();
    let params: Vec<u8> = vec![0; 4 * test.model.num_params()];
    let blob = server.offer(params.into());
    server.say(from_server::Body::LossQuestion(proto::LossQuestion { id: 1, params: vec![blob] }));
    // Its next message declines, and it is ready again. A device that answers would send its losses first.
    match server.said().await {
        from_device::Body::Decline(_) => {}
        other => panic!("{other:?}"),
    }
    server.ready().await.unwrap();
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
    let seen = SeenRounds::from_bytes(&std::fs::read(folder.path().join("rounds")).unwrap()).unwrap();
    let authority = test.credentials(test.devices()[0]).authority;
    assert_eq!(seen.last(&authority), Some(SeenRound { round: 3, roster: 4 }));
}
