//! Whoever does not belong or does not behave is refused and counted, and the others are served.

#![allow(clippy::unwrap_used, missing_docs)]

#[path = "field/certified.rs"]
#[allow(dead_code, unreachable_pub, reason = "shared by several tests")]
mod certified;
#[path = "field/fleet.rs"]
#[allow(dead_code, unreachable_pub, reason = "shared by several tests")]
mod fleet;

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use certified::Certified;
use chacha20::ChaCha20Rng;
use deltafl::data::FederationIndex;
use deltafl::exchange::{Drawn, Exchange as _, ExchangeError, Round, TrainIndex};
use deltafl::params::Params;
use deltafl::question::{Ask, Query};
use deltafl::selection::Weighting;
use deltafl::terms::Terms;
use deltafl_device::{Server, Trust, is_refused_certificate};
use deltafl_device::{SessionError, offer};
use deltafl_secagg::device::{Adversary, DeviceEvent, Enrolment, Policy};
use deltafl_secagg::graph::Permille;
use deltafl_secagg::identity::{DeviceId, Identity};
use deltafl_secagg::message::ServerBody;
use deltafl_secagg::message::wire::{decode_server, encode_device};
use deltafl_secagg::ring::RingVector;
use deltafl_server::Deadlines;
use deltafl_server::engine::Rules;
use deltafl_server::listener::{ConnectionLimits, ListenError, Listener, Protection};
use deltafl_server::refusal::Refusal;
use deltafl_server::serve::{Host, Limits, Setup};
use deltafl_wire::proto::federation_client::FederationClient;
use deltafl_wire::proto::{
    FetchRequest, FromDevice, FromServer, Hello, Part, Ready, from_device, from_server,
};
use deltafl_wire::roster::{SignedRoster, session_under};
use deltafl_wire::{Assembly, parts};
use fleet::{Records, TestFederation, never, options};
use prost::Message as _;
use rand_core::SeedableRng;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_stream::StreamExt as _;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status, Streaming};
use tower::{Service as _, ServiceExt as _};

const EXPERIMENT: &str = r#"
    name = "bad-actors"
    rounds = 2
    cohort = 8
    data = { source = { kind = "glyphs", devices = 20, seed = 3 } }
    model = { kind = "linear" }
    local = { steps = 1, batch = 10, learning_rate = 0.1 }
    algorithm = [{ kind = "fedavg" }]
"#;

/// A server that loses its patience quickly.
async fn host(test: &TestFederation) -> Host {
    let patience = Duration::from_millis(300);
    let setup = Setup {
        connections: ConnectionLimits { patience, ..ConnectionLimits::default() },
        limits: Limits { patience, ..Limits::default() },
        ..test.setup()
    };
    Host::start(setup, &test.roster(&[])).await.unwrap()
}

async fn client(address: SocketAddr) -> FederationClient<Channel> {
    let endpoint = Endpoint::from_shared(format!("http://{address}")).unwrap();
    FederationClient::new(endpoint.connect().await.unwrap())
}

/// Both ends of a stream that began with this message.
struct Line {
    outgoing: mpsc::Sender<FromDevice>,
    incoming: Streaming<FromServer>,
}

impl Line {
    async fn open(address: SocketAddr, first: from_device::Body) -> Result<Self, Status> {
        let (outgoing, outbox) = mpsc::channel(64);
        outgoing.send(FromDevice { body: Some(first) }).await.unwrap();
        let incoming = client(address).await.attend(ReceiverStream::new(outbox)).await?.into_inner();
        Ok(Self { outgoing, incoming })
    }

    async fn hello(address: SocketAddr, device: &str) -> Result<Self, Status> {
        Self::open(address, from_device::Body::Hello(Hello { version: 1, device: device.to_owned() })).await
    }

    async fn say(&self, body: from_device::Body) {
        self.outgoing.send(FromDevice { body: Some(body) }).await.unwrap();
    }

    /// Reads until the server ends the stream.
    async fn end(mut self) {
        while let Ok(Some(_)) = self.incoming.message().await {}
    }

    async fn next(&mut self) -> from_server::Body {
        self.incoming.message().await.unwrap().unwrap().body.unwrap()
    }
}

/// An honest device is welcome all the same.
async fn still_serves(test: &TestFederation, host: &Host) {
    let honest = test.federation.id(*test.devices().last().unwrap());
    let mut line = Line::hello(host.address(), honest).await.unwrap();
    assert!(matches!(line.next().await, from_server::Body::Welcome(_)));
}

#[tokio::test]
async fn a_server_that_stops_says_so_to_its_devices() {
    let test = TestFederation::new(EXPERIMENT);
    let host = host(&test).await;
    let mut line = Line::hello(host.address(), test.federation.id(test.devices()[0])).await.unwrap();
    assert!(matches!(line.next().await, from_server::Body::Welcome(_)));
    host.shut_down().await;
    assert!(matches!(line.next().await, from_server::Body::Drain(drain) if drain.within > 0));
    line.end().await;
}

#[tokio::test]
async fn without_certificates_only_this_machine_is_served() {
    let anywhere = SocketAddr::from(([0, 0, 0, 0], 0));
    let bound = Listener::bind(anywhere, Protection::Loopback, ConnectionLimits::default()).await;
    assert!(matches!(bound.err(), Some(ListenError::NotLoopback(_))));
}

#[tokio::test]
async fn strangers_and_revoked_devices_are_refused() {
    let test = TestFederation::new(EXPERIMENT);
    let host = host(&test).await;
    let stranger = Line::hello(host.address(), "nobody").await.err().unwrap();
    assert_eq!((stranger.code(), host.refused(Refusal::Unknown)), (Code::PermissionDenied, 1));

    let outcast = test.devices()[0];
    let name = test.federation.id(outcast);
    let mut line = Line::hello(host.address(), name).await.unwrap();
    line.next().await;
    host.change_roster(&test.roster(&[outcast])).unwrap();
    line.end().await; // who is online when it is revoked leaves
    assert_eq!(host.refused(Refusal::Revoked), 1);
    let revoked = Line::hello(host.address(), name).await.err().unwrap();
    assert_eq!((revoked.code(), host.refused(Refusal::Revoked)), (Code::PermissionDenied, 2));
    still_serves(&test, &host).await;
}

#[tokio::test]
async fn whoever_does_not_say_hello_is_refused() {
    let test = TestFederation::new(EXPERIMENT);
    let host = host(&test).await;
    let part = from_device::Body::Part(Part { total: 1, data: Bytes::from_static(b"x") });
    let rude = Line::open(host.address(), part).await.err().unwrap();
    assert_eq!((rude.code(), host.refused(Refusal::Malformed)), (Code::InvalidArgument, 1));
    let request = FetchRequest { hash: Bytes::from_static(&[0; 32]), offset: 0 };
    let fetched = client(host.address()).await.fetch(request).await;
    assert_eq!((fetched.err().unwrap().code(), host.refused(Refusal::Silent)), (Code::Unauthenticated, 1));
    still_serves(&test, &host).await;
}

#[tokio::test]
async fn messages_without_measure_are_refused() {
    let test = TestFederation::new(EXPERIMENT);
    let host = host(&test).await;
    let name = test.federation.id(test.devices()[0]);
    let announced = Line::hello(host.address(), name).await.unwrap();
    announced.say(from_device::Body::Part(Part { total: u32::MAX, data: Bytes::from_static(b"x") })).await;
    announced.end().await;
    assert_eq!(host.refused(Refusal::TooLong), 1);
    let sent = Line::hello(host.address(), name).await.unwrap();
    sent.say(from_device::Body::Part(Part { total: 1, data: vec![0; 2 << 20].into() })).await;
    sent.end().await;
    assert_eq!(host.refused(Refusal::TooLong), 2);
    still_serves(&test, &host).await;
}

/// A call of `Attend` that greets, announces a message without end, and sends so many chunks of it if it is let; how many
/// bytes of them left the device.
async fn flood(address: SocketAddr, device: &str, chunk: Bytes, chunks: u64) -> u64 {
    let hello =
        FromDevice { body: Some(from_device::Body::Hello(Hello { version: 1, device: device.to_owned() })) };
    let taken = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&taken);
    let more = (0..chunks).map(move |_| {
        counted.fetch_add(chunk.len() as u64, Ordering::Relaxed);
        chunk.clone()
    });
    let greeting = [frame(hello.encoded_len() as u32), hello.encode_to_vec().into()];
    let endless = [frame(u32::MAX)].into_iter().chain(more);
    let body = tokio_stream::iter(greeting.into_iter().chain(endless).map(Ok::<_, Infallible>));
    let request = axum::http::Request::post(format!("http://{address}/deltafl.v1.Federation/Attend"))
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .body(tonic::body::Body::new(Body::from_stream(body)))
        .unwrap();
    let endpoint = tonic::transport::Endpoint::from_shared(format!("http://{address}")).unwrap();
    let mut channel = endpoint.connect().await.unwrap();
    channel.ready().await.unwrap();
    if let Ok(answer) = channel.call(request).await {
        let _ = axum::body::to_bytes(Body::new(answer.into_body()), 1 << 20).await; // to the end of the stream
    }
    taken.load(Ordering::Relaxed)
}

/// The five bytes that announce a message of gRPC.
fn frame(len: u32) -> Bytes {
    let mut header = vec![0];
    header.extend_from_slice(&len.to_be_bytes());
    header.into()
}

#[tokio::test]
async fn of_a_message_of_ten_gigabytes_next_to_nothing_is_taken() {
    let test = TestFederation::new(EXPERIMENT);
    let host = host(&test).await;
    let name = test.federation.id(test.devices()[0]);
    let chunk = Bytes::from(vec![0; 64 << 10]);
    let taken = flood(host.address(), name, chunk, (10 << 30) / (64 << 10)).await;
    assert_eq!(host.refused(Refusal::TooLong), 1);
    // The window of the stream, and what the device's own end reads ahead.
    assert!(taken < 1 << 20, "{taken} bytes left the device");
    still_serves(&test, &host).await;
}

#[tokio::test]
async fn a_connection_that_dawdles_is_cut_off() {
    let test = TestFederation::new(EXPERIMENT);
    let host = host(&test).await;
    for begun in ["", "PRI * HT"] {
        let mut slow = TcpStream::connect(host.address()).await.unwrap();
        slow.write_all(begun.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        let _ = slow.read_to_end(&mut answer).await; // ends, or the test does not
    }
    assert_eq!(host.refused(Refusal::Silent), 2);

    let name = test.federation.id(test.devices()[0]);
    let stuck = Line::hello(host.address(), name).await.unwrap();
    stuck.say(from_device::Body::Part(Part { total: 100, data: Bytes::from_static(b"half a mess") })).await;
    stuck.end().await;
    assert_eq!(host.refused(Refusal::Stalled), 1);
    still_serves(&test, &host).await;
}

#[tokio::test]
async fn a_device_that_connects_again_and_again_is_told_to_wait() {
    let test = TestFederation::new(EXPERIMENT);
    let host = host(&test).await;
    let name = test.federation.id(test.devices()[0]);
    let mut turned_away = 0;
    for _ in 0..100 {
        turned_away += u64::from(Line::hello(host.address(), name).await.is_err());
    }
    assert!(turned_away >= 50, "{turned_away}");
    assert_eq!(host.refused(Refusal::Crowding), turned_away);
    still_serves(&test, &host).await;
}

/// Takes the place of a device, and says everything twice.
async fn parrot(address: SocketAddr, test: &TestFederation, device: FederationIndex, index: u32) {
    let credentials = test.credentials(device);
    let identity = Arc::new(Identity::from_secret(DeviceId(index), &credentials.signing));
    let SignedRoster { bytes, .. } = test.roster(&[]);
    let keys = Arc::new(
        deltafl_wire::roster::Roster::decode(bytes.clone())
            .unwrap()
            .keys(&blake3::hash(&bytes), &[0; 64])
            .unwrap(),
    );
    let mut line = Line::hello(address, &credentials.name).await.unwrap();
    let from_server::Body::Welcome(welcome) = line.next().await else { panic!("a welcome comes first") };
    let session = session_under(&welcome.session.as_ref().try_into().unwrap(), &blake3::hash(&bytes));
    let share = Permille::new(50).unwrap();
    let adversary = Adversary::Active { gamma: share.into() };
    let policy =
        Policy { min_members: 2, adversary, max_len: u32::MAX, patience: Duration::MAX, max_left_out: None };
    let mut enrolment = Enrolment::new(identity, keys, session, policy);
    let hash = blake3::hash(&bytes);
    line.say(from_device::Body::Ready(Ready { roster: Bytes::copy_from_slice(hash.as_bytes()) })).await;
    let mut assembly = Assembly::default();
    while let Ok(Some(message)) = line.incoming.message().await {
        let Some(from_server::Body::Part(part)) = message.body else { continue };
        let Some(bytes) = assembly.take(part, 1 << 20).unwrap() else { continue };
        let ServerBody::Invite(params) = decode_server(bytes, 1 << 20).unwrap().body else { continue };
        let mut rng = ChaCha20Rng::from_seed([1; 32]);
        let mut protocol = enrolment.join(&params, Duration::ZERO, &mut rng).unwrap();
        let advertise = encode_device(&protocol.poll_transmit().unwrap());
        for part in parts(advertise.clone()).chain(parts(advertise)) {
            line.say(from_device::Body::Part(part)).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_said_twice_is_refused_and_the_round_goes_on() {
    let test = Arc::new(TestFederation::new(EXPERIMENT));
    let mut host = test.host().await;
    let address = host.address();
    let second = Duration::from_secs(1);
    let deadlines = Deadlines { setup: second, ..Deadlines::default() };
    let mut engine = host.engine(Rules { deadlines, ..test.rules() }, never()).unwrap();
    let mut devices = test.devices();
    let replayed = engine_first_drawn(&test);
    let rogue = devices.remove(replayed.place());
    let _swarm = test.swarm_of(&devices, address, &options());
    let other = Arc::clone(&test);
    tokio::spawn(async move {
        loop {
            parrot(address, &other, rogue, replayed.0).await; // shown the connections, it comes back
        }
    });
    let trained = tokio::task::spawn_blocking(move || {
        let mut diary = Records::default();
        test.train(&mut engine, &mut diary).map(|_| diary).unwrap()
    });
    let diary = trained.await.unwrap();
    assert_eq!(diary.states.len(), 2);
    // A repetition within the phase is dishonest, one behind it is late.
    assert!(host.refused(Refusal::Dishonest) + host.refused(Refusal::Late) > 0);
    host.shut_down().await;
}

/// What a rogue does with its answer.
#[derive(Clone, Copy, PartialEq)]
enum Rogue {
    /// Sends it a byte at a time.
    Dawdles,
    /// Hands in numbers that no update has.
    Lies,
}

/// Takes the place of a device, and keeps to the protocol up to its answer.
async fn rogue(
    options: Rogue,
    address: SocketAddr,
    test: &TestFederation,
    device: FederationIndex,
    index: u32,
) {
    let credentials = test.credentials(device);
    let identity = Arc::new(Identity::from_secret(DeviceId(index), &credentials.signing));
    let SignedRoster { bytes, .. } = test.roster(&[]);
    let keys = Arc::new(
        deltafl_wire::roster::Roster::decode(bytes.clone())
            .unwrap()
            .keys(&blake3::hash(&bytes), &[0; 64])
            .unwrap(),
    );
    let mut line = Line::hello(address, &credentials.name).await.unwrap();
    let from_server::Body::Welcome(welcome) = line.next().await else { panic!("a welcome comes first") };
    let hash = blake3::hash(&bytes);
    let session = session_under(&welcome.session.as_ref().try_into().unwrap(), &hash);
    let share = Permille::new(50).unwrap();
    let adversary = Adversary::HonestButCurious { gamma: share.into(), delta: share };
    let policy =
        Policy { min_members: 2, adversary, max_len: u32::MAX, patience: Duration::MAX, max_left_out: None };
    let mut enrolment = Enrolment::new(identity, keys, session, policy);
    line.say(from_device::Body::Ready(Ready { roster: Bytes::copy_from_slice(hash.as_bytes()) })).await;
    let (mut assembly, mut protocol, mut bound) = (Assembly::default(), None, Vec::new());
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
            if answers && options == Rogue::Dawdles {
                return drip(&line, &bytes).await;
            }
            for part in parts(bytes) {
                line.say(from_device::Body::Part(part)).await;
            }
        }
    }
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

/// The sum of the updates at w = 0 of eight devices, of which the first two are rogues; how many are in it, and the server.
async fn sum_with_two(conduct_of: Rogue) -> (Result<u64, ExchangeError>, Host) {
    let test = Arc::new(TestFederation::new(EXPERIMENT));
    let devices: Vec<FederationIndex> = test.devices()[..8].to_vec();
    let answer = 8 * (test.model.num_params() + 3);
    // Room for two answers: where two can hold it, nobody else comes in.
    let patience = Duration::from_millis(500);
    let limits = Limits { incoming_bytes: 2 * answer + 4096, patience, min_rate: 1 << 20 };
    let mut host = Host::start(Setup { limits, ..test.setup() }, &test.roster(&[])).await.unwrap();
    let address = host.address();
    let second = Duration::from_secs(1);
    let deadlines = Deadlines { setup: 5 * second, input: 15 * second, unmask: 5 * second };
    let rules = Rules { deadlines, present: 8, quorum: 3, ..test.rules() };
    let mut engine = host.engine(rules, never()).unwrap();
    for index in [0, 1] {
        let (test, device) = (Arc::clone(&test), devices[index as usize]);
        tokio::spawn(async move { rogue(conduct_of, address, &test, device, index).await });
    }
    let swarm = test.swarm_of(&devices[2..], address, &options());
    let summed = tokio::task::spawn_blocking(move || {
        engine.reachable().unwrap();
        let cohort: Vec<Drawn> =
            (0..8).map(|device| Drawn { device: TrainIndex(device), times: 1, dropped: false }).collect();
        let round = Round { seed: 1, index: 0, cohort: &cohort, terms: Terms::PRIVATE, own: &[] };
        let params = Params::from(vec![0.0; test.model.num_params()]);
        let whole = test.experiment.plan();
        let plan = whole.local.plan(0, &whole.tracks[0]);
        let query = Query::new(params, Ask::Update { weighting: Weighting::everyone(), plan });
        engine.secure_sum(&round, &[query]).map(|sums| sums[0].answered)
    });
    let summed = summed.await.unwrap();
    drop(swarm);
    (summed, host)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_that_come_a_byte_at_a_time_do_not_keep_the_others_from_their_sum() {
    let (summed, host) = sum_with_two(Rogue::Dawdles).await;
    assert_eq!(summed.unwrap(), 6);
    assert_eq!(host.refused(Refusal::Stalled), 2);
    host.shut_down().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sum_that_no_honest_devices_make_is_thrown_away() {
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
    let cohort = test.experiment.plan().sampling.cohort(test.devices().len(), draw, &Reachable::Everyone);
    cohort[0].device
}

/// Connects as TLS does, or not; a device of `fleet` under this name.
async fn certified_hello(server: &Server, device: &str) -> Result<(), SessionError> {
    offer(server, device).await.map(|_| ())
}

#[tokio::test]
async fn certificates_decide_who_gets_in() {
    let test = TestFederation::new(EXPERIMENT);
    let certified = Certified::new(&test, "home");
    let host = certified.host(test.setup()).await;
    let address = host.address().to_string();
    let [anna, boris] = [0, 1].map(|k| &certified.fleet.devices[k]);
    let of = |identity| Server::certified(&address, identity).unwrap();

    // Without TLS at all, and with TLS but no certificate that this federation issued.
    let plain = Server { address: address.clone(), trust: Trust::Loopback };
    assert!(certified_hello(&plain, anna.name().as_str()).await.is_err());
    let other = Certified::new(&test, "elsewhere");
    let foreign = certified_hello(&of(&other.fleet.devices[0]), anna.name().as_str()).await;
    assert!(foreign.is_err());
    let mut raw = TcpStream::connect(host.address()).await.unwrap();
    raw.write_all(b"GET / HTTP/1.1\r\n\r\n").await.unwrap();
    let _ = raw.read_to_end(&mut Vec::new()).await;
    assert!(host.refused(Refusal::Handshake) >= 2, "{}", host.refused(Refusal::Handshake));

    // With a good certificate, under the name of another.
    let Err(SessionError::Status(impostor)) = certified_hello(&of(anna), boris.name().as_str()).await else {
        panic!("nobody is let in under another's name")
    };
    assert_eq!((impostor.code(), host.refused(Refusal::Impostor)), (Code::PermissionDenied, 1));

    certified_hello(&of(anna), anna.name().as_str()).await.unwrap();
}

#[tokio::test]
async fn a_certificate_that_has_expired_is_refused() {
    let test = TestFederation::new(EXPERIMENT);
    let certified = Certified::new(&test, "home");
    let anna = &certified.fleet.devices[0];
    for (days, refused) in [(29, 0), (31, 1)] {
        let host = certified.host_in(days, test.setup()).await;
        let server = Server::certified(&host.address().to_string(), anna).unwrap();
        let let_in = certified_hello(&server, anna.name().as_str()).await.is_ok();
        assert_eq!((let_in, host.refused(Refusal::Handshake)), (refused == 0, refused), "after {days} days");
    }
}

#[tokio::test]
async fn a_device_that_is_revoked_loses_the_connection_that_it_has() {
    let test = TestFederation::new(EXPERIMENT);
    let certified = Certified::new(&test, "home");
    let host = certified.host(test.setup()).await;
    let (thief, owner) = (&certified.fleet.devices[0], &certified.fleet.devices[1]);
    let server = Server::certified(&host.address().to_string(), thief).unwrap();
    let mut client = server.dial().await.unwrap();
    let hello = from_device::Body::Hello(Hello { version: 1, device: thief.name().as_str().to_owned() });
    let greeting = tokio_stream::once(FromDevice { body: Some(hello) }).chain(tokio_stream::pending());
    let mut incoming = client.attend(greeting).await.unwrap().into_inner();
    assert!(incoming.message().await.unwrap().is_some());

    certified.revocations.replace([thief.fingerprint()].into());
    let roster = certified.roster();
    let hash = Bytes::copy_from_slice(blake3::hash(&roster.bytes).as_bytes());
    host.change_roster(&roster).unwrap();
    while let Ok(Some(_)) = incoming.message().await {}
    assert_eq!(host.refused(Refusal::Revoked), 1);
    // Nothing more is to be had over this connection, nor over a new one.
    while client.fetch(FetchRequest { hash: hash.clone(), offset: 0 }).await.is_ok() {
        tokio::task::yield_now().await;
    }
    let handshakes = host.refused(Refusal::Handshake);
    let refused = certified_hello(&server, thief.name().as_str()).await.unwrap_err();
    assert!(is_refused_certificate(&refused), "{refused:?}");
    assert_eq!(host.refused(Refusal::Handshake), handshakes + 1);
    let server = Server::certified(&host.address().to_string(), owner).unwrap();
    certified_hello(&server, owner.name().as_str()).await.unwrap();
}

/// Says it a byte at a time, until the other end has had enough.
async fn trickle(mut stream: impl AsyncRead + AsyncWrite + Unpin, bytes: &[u8]) {
    for byte in bytes.iter().cycle() {
        let cut = timeout(Duration::from_millis(10), stream.read(&mut [0; 64])).await;
        if matches!(cut, Ok(Ok(0) | Err(_))) || stream.write_all(&[*byte]).await.is_err() {
            return;
        }
        let _ = stream.flush().await;
    }
}

#[tokio::test]
async fn a_slow_loris_is_cut_off_within_the_handshake_and_after_it() {
    let test = TestFederation::new(EXPERIMENT);
    let certified = Certified::new(&test, "home");
    let patience = Duration::from_millis(300);
    let connections = ConnectionLimits { patience, ..ConnectionLimits::default() };
    let host = certified.host(Setup { connections, ..test.setup() }).await;
    let (loris, honest) = (&certified.fleet.devices[0], &certified.fleet.devices[1]);

    // The head of a TLS record of 16,000 bytes, and then zeros: a ClientHello that does not end.
    let mut hello = vec![0; 16_000];
    hello[..9].copy_from_slice(&[22, 3, 1, 62, 128, 1, 0, 62, 124]);
    trickle(TcpStream::connect(host.address()).await.unwrap(), &hello).await;
    assert_eq!(host.refused(Refusal::Silent), 1);

    // After it: the preface of HTTP/2 and settings, over and over, and never a request.
    let tls = TlsConnector::from(loris.client_tls(&[b"h2"]).unwrap());
    let tcp = TcpStream::connect(host.address()).await.unwrap();
    let mut stream = tls.connect(ServerName::try_from("127.0.0.1").unwrap(), tcp).await.unwrap();
    stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await.unwrap();
    trickle(stream, &[0, 0, 0, 4, 0, 0, 0, 0, 0]).await;
    assert_eq!(host.refused(Refusal::Silent), 2);

    let server = Server::certified(&host.address().to_string(), honest).unwrap();
    certified_hello(&server, honest.name().as_str()).await.unwrap();
}

#[tokio::test]
async fn one_device_cannot_take_all_connections() {
    let test = TestFederation::new(EXPERIMENT);
    let certified = Certified::new(&test, "home");
    let host = certified.host(test.setup()).await;
    let [crowd, honest] = [0, 1].map(|k| &certified.fleet.devices[k]);
    let tls = crowd.client_tls(&[b"h2"]).unwrap();
    let name = ServerName::try_from("127.0.0.1").unwrap();
    let mut held = Vec::new();
    for attempt in 0..1000 {
        let tcp = TcpStream::connect(host.address()).await.unwrap();
        let stream = TlsConnector::from(Arc::clone(&tls)).connect(name.clone(), tcp).await;
        if attempt < 3 {
            held.push(stream);
        }
    }
    let server = Server::certified(&host.address().to_string(), honest).unwrap();
    certified_hello(&server, honest.name().as_str()).await.unwrap();
    // The server may not have looked at the last ones yet.
    assert!(host.refused(Refusal::Crowding) >= 950, "{}", host.refused(Refusal::Crowding));
}
