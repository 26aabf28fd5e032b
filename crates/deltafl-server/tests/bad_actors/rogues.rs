//! Devices that are enrolled, take part in a round, and lie in it.

use std::net::SocketAddr;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use chacha20::ChaCha20Rng;
use deltafl::data::FederationIndex;
use deltafl::exchange::{CohortMember, Exchange as _, ExchangeError, Round, TrainIndex};
use deltafl::params::Params;
use deltafl::question::{Ask, Query};
use deltafl::selection::Weighting;
use deltafl::terms::Terms;
use deltafl_secagg::defences::Defences;
use deltafl_secagg::device::{AdversaryModel, DeviceEvent, DevicePolicy, Participant};
use deltafl_secagg::graph::Permille;
use deltafl_secagg::identity::{DeviceId, SigningIdentity};
use deltafl_secagg::message::ServerBody;
use deltafl_secagg::message::wire::{decode_server, encode_device};
use deltafl_secagg::ring::RingVector;
use deltafl_server::Deadlines;
use deltafl_server::exchange::{NetworkExchange, Rules};
use deltafl_server::refusal::Refusal;
use deltafl_server::serve::{CONCURRENT, Limits, Setup};
use deltafl_wire::proto::{FromDevice, Part, Ready, from_device, from_server};
use deltafl_wire::roster::{Roster, SignedRoster, session_under};
use deltafl_wire::{FRAGMENT, Reassembly, fragments};
use rand_core::SeedableRng as _;

use super::fleet::{Records, TestFederation, TestHost, never, options, start_host};
use super::watchdog;
use super::{EXPERIMENT, Line};

/// What a rogue does that is otherwise as good as any device.
#[derive(Clone, Copy, PartialEq)]
enum Rogue {
    /// Says everything twice.
    Repeats,
    /// Sends its answer a byte at a time.
    Dawdles,
    /// Hands in numbers that no update has.
    Lies,
}

impl Rogue {
    /// Takes the place of a device, until the server cuts it off.
    async fn take_part(
        self,
        address: SocketAddr,
        test: &TestFederation,
        device: FederationIndex,
        index: u32,
    ) {
        let (mut line, mut enrolment) = enrolled(address, test, device, index).await;
        let (mut assembly, mut protocol, mut bound) = (Reassembly::default(), None, Vec::new());
        while let Ok(Some(message)) = line.incoming.message().await {
            let part = match message.body {
                Some(from_server::Body::Part(part)) => part,
                Some(from_server::Body::Question(question)) => {
                    bound = blake3::hash(&question.canonical).as_bytes().to_vec();
                    continue;
                }
                _ => continue,
            };
            let Some(bytes) = assembly.take(part, 1 << 20).unwrap() else { continue };
            let message = decode_server(bytes, 1 << 20).unwrap();
            if let ServerBody::Invite(params) = &message.body {
                let mut rng = ChaCha20Rng::from_seed([1; 32]);
                protocol = Some(enrolment.join(params, Duration::ZERO, &mut rng).unwrap());
            } else {
                protocol.as_mut().unwrap().handle(Duration::ZERO, message).unwrap();
            }
            let protocol = protocol.as_mut().unwrap();
            let mut answers = false;
            while let Some(event) = protocol.poll_event() {
                if let DeviceEvent::InputWanted(request) = event {
                    let numbers = RingVector::Z64(vec![u64::MAX / 3; request.len as usize]);
                    protocol.submit(&bound, numbers).unwrap();
                    answers = true;
                }
            }
            while let Some(message) = protocol.poll_transmit() {
                let bytes = encode_device(&message);
                if answers && self == Self::Dawdles {
                    return drip(&line, &bytes).await;
                }
                let times = if self == Self::Repeats { 2 } else { 1 };
                for part in (0..times).flat_map(|_| fragments(bytes.clone())) {
                    line.say(from_device::Body::Part(part)).await;
                }
            }
        }
    }
}

/// The connection of a device that is ready, and what it joins rounds with.
async fn enrolled(
    address: SocketAddr,
    test: &TestFederation,
    device: FederationIndex,
    index: u32,
) -> (Line, Participant) {
    let credentials = test.credentials(device);
    let identity = Arc::new(SigningIdentity::from_secret(DeviceId(index), &credentials.signing));
    let SignedRoster { bytes, .. } = test.roster(&[]);
    let hash = blake3::hash(&bytes);
    let keys = Roster::decode(bytes.clone()).unwrap().keys(&hash, &[0; 64]).unwrap();
    let mut line = Line::hello(address, &credentials.name).await.unwrap();
    let from_server::Body::Welcome(welcome) = line.next().await else { panic!("a welcome comes first") };
    let session = session_under(&welcome.session.as_ref().try_into().unwrap(), &hash);
    let share = Permille::new(50).unwrap();
    let adversary = AdversaryModel::HonestButCurious { gamma: share.into(), delta: share };
    let policy = DevicePolicy {
        min_members: 2,
        adversary,
        max_len: u32::MAX,
        patience: Duration::MAX,
        max_left_out: None,
        defences: Defences::default(),
    };
    line.say(from_device::Body::Ready(Ready { roster: Bytes::copy_from_slice(hash.as_bytes()) })).await;
    (line, Participant::new(identity, Arc::new(keys), session, policy))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_said_twice_is_refused_and_the_round_goes_on() {
    let _limit = watchdog::start();
    let test = Arc::new(TestFederation::new(EXPERIMENT));
    let mut host = test.host().await;
    let address = host.address();
    let second = Duration::from_secs(1);
    let deadlines = Deadlines { setup: second, ..Deadlines::default() };
    let mut exchange = host.exchange(Rules { deadlines, ..test.rules() }, never());
    let mut devices = test.devices();
    let replayed = engine_first_drawn(&test);
    let rogue = devices.remove(replayed.place());
    let _swarm = test.swarm_of(&devices, address, &options());
    let other = Arc::clone(&test);
    tokio::spawn(async move {
        loop {
            Rogue::Repeats.take_part(address, &other, rogue, replayed.0).await; // cut off, it comes back
        }
    });
    let trained = tokio::task::spawn_blocking(move || {
        let mut diary = Records::default();
        test.train(&mut exchange, &mut diary).map(|_| diary).unwrap()
    });
    let diary = trained.await.unwrap();
    assert_eq!(diary.states.len(), 2);
    // A repetition within the phase is dishonest, one behind it is late.
    assert!(host.refused(Refusal::Dishonest) + host.refused(Refusal::Late) > 0);
    host.shut_down().await;
}

/// Sends a message a byte at a time, never as slowly as the server's patience between two parts.
async fn drip(line: &Line, bytes: &[u8]) {
    for byte in bytes {
        let part = Part { total: bytes.len() as u32, data: Bytes::copy_from_slice(&[*byte]) };
        if line.outgoing.send(FromDevice { body: Some(from_device::Body::Part(part)) }).await.is_err() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// The sum of the updates of these devices in a round of its own; how many are in it.
fn sum_of(
    test: &TestFederation,
    exchange: &mut NetworkExchange,
    index: u64,
    devices: Range<u32>,
) -> Result<u64, ExchangeError> {
    let drawn = |device| CohortMember { device: TrainIndex(device), times: 1, dropped: false };
    let cohort: Vec<CohortMember> = devices.map(drawn).collect();
    let round = Round { seed: 1, index, cohort: &cohort, terms: Terms::PRIVATE, own: &[] };
    // Another w in every round, as in a run: a device answers once at one w.
    let params = Params::from(vec![index as f32; test.model.num_params()]);
    let whole = test.experiment.plan();
    let plan = whole.local().plan(index, &whole.tracks()[0]);
    let query = Query::new(params, Ask::Update { weighting: Weighting::everyone(), plan });
    exchange.secure_sum(&round, &[query]).map(|sums| sums[0].answered)
}

/// The sum of the updates at w = 0 of eight devices, of which the first two are rogues; how many
/// are in it, and the server.
async fn sum_with_two(conduct_of: Rogue) -> (Result<u64, ExchangeError>, TestHost) {
    let test = Arc::new(TestFederation::new(EXPERIMENT));
    let devices: Vec<FederationIndex> = test.devices()[..8].to_vec();
    let answer = 8 * (test.model.num_params() + 3);
    // Room for two answers: where two can hold it, nobody else comes in.
    let patience = Duration::from_millis(500);
    let limits =
        Limits { incoming_bytes: 2 * answer + 4096, patience, min_rate: 1 << 20, ..Limits::default() };
    let mut host = start_host(Setup { limits, ..test.setup() }, &test.roster(&[])).await;
    let address = host.address();
    let second = Duration::from_secs(1);
    let deadlines = Deadlines { setup: 5 * second, input: 15 * second, unmask: 5 * second };
    let rules = Rules { deadlines, present: 8, quorum: 3, ..test.rules() };
    let mut exchange = host.exchange(rules, never());
    for index in [0, 1] {
        let (test, device) = (Arc::clone(&test), devices[index as usize]);
        tokio::spawn(async move { conduct_of.take_part(address, &test, device, index).await });
    }
    let swarm = test.swarm_of(&devices[2..], address, &options());
    let summed = tokio::task::spawn_blocking(move || {
        exchange.reachable().unwrap();
        sum_of(&test, &mut exchange, 0, 0..8)
    });
    let summed = summed.await.unwrap();
    drop(swarm);
    (summed, host)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn long_messages_that_nobody_awaits_take_no_room_from_those_that_are_awaited() {
    let _limit = watchdog::start();
    let test = Arc::new(TestFederation::new(&EXPERIMENT.replace("devices = 20", "devices = 48")));
    let devices = test.devices();
    let (honest, rogues) = devices.split_at(devices.len() - CONCURRENT);
    // Room for no more than a round needs, and nobody is cut off for being slow: what is held is
    // held for good.
    let limits =
        Limits { incoming_bytes: 0, patience: Duration::from_secs(3600), min_rate: 1, ..Limits::default() };
    let mut host = start_host(Setup { limits, ..test.setup() }, &test.roster(&[])).await;
    let address = host.address();
    let deadline = Duration::from_secs(5);
    let deadlines = Deadlines { setup: deadline, input: deadline, unmask: deadline };
    let rules = Rules { deadlines, present: devices.len(), quorum: 3, ..test.rules() };
    let mut exchange = host.exchange(rules, never());
    let swarm = test.swarm_of(honest, address, &options());
    let mut lines = Vec::new();
    for (place, &rogue) in (honest.len()..).zip(rogues) {
        lines.push(enrolled(address, &test, rogue, place as u32).await.0);
    }
    let asked = 0..honest.len() as u32;
    let first = tokio::task::spawn_blocking({
        let (test, asked) = (Arc::clone(&test), asked.clone());
        move || {
            exchange.reachable().unwrap();
            sum_of(&test, &mut exchange, 0, asked).map(|answered| (exchange, answered))
        }
    });
    let (mut exchange, answered) = first.await.unwrap().unwrap();
    assert_eq!(answered, honest.len() as u64);
    // As many devices as the round has room for begin an answer that nobody asked for, and leave it
    // at that.
    let total = 8 * (test.model.num_params() + 3) as u32;
    for line in &lines {
        line.say(from_device::Body::Part(Part { total, data: Bytes::from(vec![0; FRAGMENT]) })).await;
    }
    let second = tokio::task::spawn_blocking(move || sum_of(&test, &mut exchange, 1, asked));
    assert_eq!(second.await.unwrap().unwrap(), honest.len() as u64);
    assert_eq!(host.refused(Refusal::Late), rogues.len() as u64);
    drop((swarm, lines));
    host.shut_down().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_that_come_a_byte_at_a_time_do_not_keep_the_others_from_their_sum() {
    let _limit = watchdog::start();
    let (summed, host) = sum_with_two(Rogue::Dawdles).await;
    assert_eq!(summed.unwrap(), 6);
    assert_eq!(host.refused(Refusal::Stalled), 2);
    host.shut_down().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sum_that_no_honest_devices_make_is_thrown_away() {
    let _limit = watchdog::start();
    let (summed, host) = sum_with_two(Rogue::Lies).await;
    let refused = format!("{:?}", summed.unwrap_err());
    assert!(refused.contains("Implausible(Devices"), "{refused}");
    assert_eq!(host.refused(Refusal::Implausible), 1);
    host.shut_down().await;
}

/// The device that the first cohort draws first.
fn engine_first_drawn(test: &TestFederation) -> TrainIndex {
    use deltafl::cohort::Draw;
    use deltafl::exchange::Reachable;
    let draw = Draw { seed: 1, round: 0, attempt: 0 };
    let cohort = test.experiment.plan().sampling().cohort(test.devices().len(), draw, &Reachable::Everyone);
    cohort[0].device
}
