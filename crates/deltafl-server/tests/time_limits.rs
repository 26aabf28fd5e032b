//! No wait of a server or a device is without an end: a server that shuts down leaves no connection
//! behind, and neither end waits for the other for longer than a time limit.
#![allow(clippy::unwrap_used, missing_docs)]

#[path = "field/certified.rs"]
#[allow(dead_code, unreachable_pub, reason = "shared by several tests")]
mod certified;
#[path = "field/fleet.rs"]
#[allow(dead_code, unreachable_pub, reason = "shared by several tests")]
mod fleet;
#[path = "field/hostile.rs"]
#[allow(dead_code, unreachable_pub, reason = "shared by several tests")]
mod hostile;
#[path = "field/watchdog.rs"]
#[allow(dead_code, unreachable_pub, reason = "shared by several tests")]
mod watchdog;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use certified::Certified;
use deltafl::exchange::Exchange as _;
use deltafl::trainer::Sgd;
use deltafl_device::{Device, DeviceData, ServerEndpoint, ServerTrust, TimeLimits};
use deltafl_server::refusal::Refusal;
use deltafl_server::serve::{Host, Limits, SessionState, Setup};
use deltafl_wire::proto;
use deltafl_wire::proto::federation_client::FederationClient;
use deltafl_wire::proto::{
    Decline, FromDevice, FromServer, Hello, NewestRequest, Ready, from_device, from_server,
};
use fleet::{TestFederation, TestHost, never, options, start_host};
use hostile::{Heard, Hostile, Withheld};
use tokio::io::AsyncReadExt as _;
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, timeout};
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status, Streaming};

const EXPERIMENT: &str = r#"
    name = "time-limits"
    rounds = 2
    cohort = 8
    data = { source = { kind = "glyphs", devices = 20, seed = 3 } }
    model = { kind = "linear" }
    local = { steps = 1, batch = 10, learning_rate = 0.1 }
    algorithm = [{ kind = "fedavg" }]
"#;

/// A time limit that tests wait for.
const SHORT: Duration = Duration::from_secs(1);
/// Enough for a loaded machine to notice that a connection was closed before.
const MOMENT: Duration = Duration::from_secs(4);
/// Far below the time after which a connection would end without the server: keep-alives take 50 s.
const SOON: Duration = Duration::from_secs(20);

/// A connection on which `Attend` is called, and no message was sent yet.
struct Caller {
    client: FederationClient<Channel>,
    outgoing: mpsc::Sender<FromDevice>,
    answer: tokio::task::JoinHandle<Result<Streaming<FromServer>, Status>>,
}

impl Caller {
    async fn call(address: SocketAddr) -> Result<Self, tonic::transport::Error> {
        let endpoint = Endpoint::from_shared(format!("http://{address}")).unwrap();
        let client = FederationClient::new(endpoint.connect().await?);
        let (outgoing, outbox) = mpsc::channel(8);
        let mut calling = client.clone();
        let answer =
            tokio::spawn(async move { Ok(calling.attend(ReceiverStream::new(outbox)).await?.into_inner()) });
        Ok(Self { client, outgoing, answer })
    }

    async fn say(&self, body: from_device::Body) {
        self.outgoing.send(FromDevice { body: Some(body) }).await.unwrap();
    }

    async fn say_hello(&self, device: &str) {
        let hello = Hello { version: 1, device: device.to_owned() };
        self.say(from_device::Body::Hello(hello)).await;
    }

    /// A device that has sent Hello and received its Welcome.
    async fn welcomed(address: SocketAddr, device: &str) -> (Self, Streaming<FromServer>, proto::Welcome) {
        let mut caller = Self::call(address).await.unwrap();
        caller.say_hello(device).await;
        let mut incoming = (&mut caller.answer).await.unwrap().unwrap();
        let Some(from_server::Body::Welcome(welcome)) = incoming.message().await.unwrap().unwrap().body
        else {
            panic!("a Welcome comes first")
        };
        (caller, incoming, welcome)
    }
}

/// Reads until the server ends the stream, and fails if it does not.
async fn ends(mut incoming: Streaming<FromServer>) {
    let reading = async { while let Ok(Some(_)) = incoming.message().await {} };
    timeout(SOON, reading).await.expect("the server ends the stream");
}

/// Whether the server has closed this connection, after a moment for the network.
async fn is_closed(stream: &mut TcpStream) -> bool {
    let reading = async { while stream.read(&mut [0; 256]).await.is_ok_and(|read| read > 0) {} };
    timeout(MOMENT, reading).await.is_ok()
}

fn name(test: &TestFederation, k: usize) -> &str {
    test.federation.id(test.devices()[k])
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_that_begins_while_the_server_shuts_down_is_refused() {
    let _limit = watchdog::start();
    let test = TestFederation::new(EXPERIMENT);
    let host = test.host().await;
    // One device is served, so that the server has begun to shut down when that device is drained.
    let (_first, mut drained, _) = Caller::welcomed(host.address(), name(&test, 0)).await;
    let second = Caller::call(host.address()).await.unwrap();
    sleep(Duration::from_millis(200)).await; // until the call has reached the server
    let (refusals, monitor) = (host.refusals(), host.session_monitor());
    let shutting_down = tokio::spawn(host.shut_down());
    let drain = timeout(SOON, drained.message()).await.unwrap().unwrap().unwrap();
    assert!(matches!(drain.body, Some(from_server::Body::Drain(_))));
    second.say_hello(name(&test, 1)).await;
    let refused = timeout(SOON, second.answer).await.unwrap().unwrap().unwrap_err();
    assert_eq!((refused.code(), refusals.number_of(Refusal::Closing)), (Code::Unavailable, 1), "{refused}");
    timeout(2 * SOON, shutting_down).await.unwrap().unwrap();
    assert!(monitor.sessions().is_none_or(|sessions| sessions.sessions.is_empty()));
}

/// Connects again and again until the server refuses, and keeps every connection.
async fn keep_connecting(address: SocketAddr) -> Vec<TcpStream> {
    let mut connections = Vec::new();
    while let Ok(stream) = TcpStream::connect(address).await {
        connections.push(stream);
        sleep(Duration::from_millis(2)).await;
    }
    connections
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_connection_is_left_when_shut_down_returns() {
    let _limit = watchdog::start();
    let test = TestFederation::new(EXPERIMENT);
    let host = test.host().await;
    let address = host.address();
    let mut silent = TcpStream::connect(address).await.unwrap();
    let pending = Caller::call(address).await.unwrap();
    let (_served, incoming, _) = Caller::welcomed(address, name(&test, 0)).await;
    let connecting = tokio::spawn(keep_connecting(address));
    sleep(Duration::from_millis(100)).await;
    timeout(4 * SOON, host.shut_down()).await.expect("connections that do not end are cut");
    // Its address is free at once: the socket is closed.
    let next = start_host(Setup { address, ..test.setup() }, &test.roster(&[])).await;
    ends(incoming).await;
    assert!(is_closed(&mut silent).await, "a connection without a request");
    let answer = timeout(MOMENT, pending.answer).await;
    assert!(answer.expect("a request without a Hello").unwrap().is_err());
    // Those that connect from now on are connected to the next server, which is dropped without
    // being shut down.
    drop(next);
    let connections = timeout(SOON, connecting).await.unwrap().unwrap();
    assert!(!connections.is_empty());
    for mut connection in connections {
        assert!(is_closed(&mut connection).await, "connected at some time");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_dropped_cuts_its_connections() {
    let _limit = watchdog::start();
    let test = TestFederation::new(EXPERIMENT);
    let certified = Certified::new(&test, "home");
    let with_tls = certified.host(test.setup()).await;
    let mut shaking_hands = TcpStream::connect(with_tls.address()).await.unwrap();
    let host = test.host().await;
    let (mut device, incoming, _) = Caller::welcomed(host.address(), name(&test, 0)).await;
    sleep(Duration::from_millis(100)).await;
    drop((host, with_tls));
    ends(incoming).await;
    assert!(is_closed(&mut shaking_hands).await, "a connection in its handshake");
    let asked = timeout(SOON, device.client.newest(NewestRequest { held: Vec::new() })).await;
    assert!(asked.unwrap().is_err(), "no call is answered any more");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_round_loop_that_waits_for_devices_ends_with_its_server() {
    let _limit = watchdog::start();
    let test = TestFederation::new(EXPERIMENT);
    let mut host = test.host().await;
    let mut exchange = host.exchange(test.rules(), never());
    let waiting = tokio::task::spawn_blocking(move || exchange.reachable().map(drop));
    sleep(Duration::from_millis(50)).await;
    host.shut_down().await;
    let ended = timeout(SOON, waiting).await.expect("it ends").unwrap();
    assert_eq!(ended.unwrap_err().to_string(), "no further round was started");
}

/// A server that gives devices little time to become ready.
async fn impatient(test: &TestFederation, limits: Limits) -> TestHost {
    let limits = Limits { ready_within: SHORT, ..limits };
    start_host(Setup { limits, ..test.setup() }, &test.roster(&[])).await
}

/// The state of the only session.
fn state(host: &Host) -> SessionState {
    host.sessions().sessions[0].state
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_device_that_does_not_become_ready_is_disconnected() {
    let _limit = watchdog::start();
    let test = TestFederation::new(EXPERIMENT);
    let host = impatient(&test, Limits::default()).await;
    let (mut silent, incoming, _) = Caller::welcomed(host.address(), name(&test, 0)).await;
    assert_eq!(state(&host), SessionState::Joining);
    ends(incoming).await;
    assert_eq!(host.refused(Refusal::NotReady), 1);
    let asked = timeout(SOON, silent.client.newest(NewestRequest { held: Vec::new() })).await;
    assert!(asked.unwrap().is_err(), "the connection has ended, too");

    // A device that answers stays, whatever it answers.
    let (declining, _declined, _) = Caller::welcomed(host.address(), name(&test, 1)).await;
    declining.say(from_device::Body::Decline(Decline::default())).await;
    let (ready, incoming, welcome) = Caller::welcomed(host.address(), name(&test, 2)).await;
    let roster = welcome.roster.unwrap().blob.unwrap().hash;
    ready.say(from_device::Body::Ready(Ready { roster: roster.clone() })).await;
    sleep(3 * SHORT).await;
    let states: Vec<_> = host.sessions().sessions.iter().map(|session| session.state).collect();
    assert_eq!(states, [SessionState::Declined, SessionState::Ready], "{}", host.sessions());
    assert_eq!(host.refused(Refusal::NotReady), 1);

    // A new roster is answered, too.
    declining.say(from_device::Body::Ready(Ready { roster })).await;
    host.change_roster(&test.roster(&[test.devices()[9]])).unwrap();
    ends(incoming).await;
    // A refusal is counted before its session ends.
    while host.refused(Refusal::NotReady) < 3 || host.presence() != (0, 0) {
        sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_queue_for_the_newest_params_costs_a_device_no_time_and_has_an_end() {
    let _limit = watchdog::start();
    let test = TestFederation::new(EXPERIMENT);
    let turn_within = 4 * SHORT;
    // At this rate a second turn would be a matter of hours.
    let host = impatient(&test, Limits { newest_rate: 1, turn_within, ..Limits::default() }).await;
    host.set_newest(&test.experiment.plan().start(1, &Sgd::new(&*test.model)));
    let (mut first, incoming, _) = Caller::welcomed(host.address(), name(&test, 0)).await;
    let told = first.client.newest(NewestRequest { held: Vec::new() }).await.unwrap().into_inner();
    assert_eq!(told.missing.len(), 1);
    drop((first, incoming));
    while host.presence().0 > 0 {
        sleep(Duration::from_millis(10)).await;
    }
    let (second, incoming, _) = Caller::welcomed(host.address(), name(&test, 1)).await;
    let asked = Instant::now();
    let mut asking = second.client.clone();
    let newest = tokio::spawn(async move { asking.newest(NewestRequest { held: Vec::new() }).await });
    sleep(2 * SHORT).await;
    assert_eq!((state(&host), host.refused(Refusal::NotReady)), (SessionState::Queued, 0));
    let told = timeout(SOON + turn_within, newest).await.expect("the queue has an end").unwrap();
    assert!(asked.elapsed() >= turn_within);
    assert!(told.unwrap().into_inner().missing.is_empty(), "it can be drawn without them");
    assert_eq!(host.refused(Refusal::NotReady), 0);
    // From then on its time runs, with that for a fetch of the params at the lowest rate.
    assert_eq!(state(&host), SessionState::Fetching);
    ends(incoming).await;
    assert_eq!(host.refused(Refusal::NotReady), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_states_of_sessions_follow_the_devices() {
    let _limit = watchdog::start();
    let test = TestFederation::new(EXPERIMENT);
    let host = test.host().await;
    let swarm = test.swarm(host.address(), &options());
    while host.presence().1 < test.devices().len() {
        sleep(Duration::from_millis(10)).await;
    }
    let sessions = host.sessions();
    let all = test.devices().len();
    assert_eq!((sessions.enrolled, sessions.count(SessionState::Ready)), (all, all));
    assert!(sessions.to_string().starts_with(&format!("{all} of {all} devices connected: {all} ready\n")));
    assert_eq!(sessions.sessions[3].device, name(&test, 3));
    let monitor = host.session_monitor();
    drop(swarm);
    host.shut_down().await;
    // The task of a session ends after its connection.
    while let Some(sessions) = monitor.sessions() {
        assert!(sessions.is_closed);
        if sessions.sessions.is_empty() {
            break;
        }
        sleep(Duration::from_millis(10)).await;
    }
}

/// A device that waits for little time, at a server that withholds messages.
fn device(test: &TestFederation, server: &Hostile) -> tokio::task::JoinHandle<()> {
    let (k, options) = (test.devices()[0], options());
    let address = ServerEndpoint { address: server.address.to_string(), trust: ServerTrust::Loopback };
    let limits = TimeLimits { welcome: SHORT, newest: SHORT, chunk: SHORT, ..TimeLimits::default() };
    let device = Device::new(address, test.credentials(k), options.consent)
        .with_backoff(options.backoff)
        .with_time_limits(limits);
    let (trainer, data) = (test.trainer(), DeviceData::new(Arc::clone(&test.federation), k));
    tokio::spawn(async move { drop(device.run(trainer, data).await) })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_does_not_answer_loses_its_device_which_comes_back() {
    let _limit = watchdog::start();
    let test = TestFederation::new(EXPERIMENT);
    let experiment = proto::Experiment {
        name: test.experiment.name().to_owned(),
        model: serde_json::to_string(&test.experiment.model().spec()).unwrap(),
        params: test.model.num_params() as u64,
        open: false,
        contract: None,
    };
    for withheld in [Withheld::Welcome, Withheld::Blobs, Withheld::Newest] {
        let mut server = Hostile::start(experiment.clone(), test.roster(&[])).await;
        server.say_newest(Vec::new());
        server.withhold(withheld);
        let running = device(&test, &server);
        let leaves = async {
            while !matches!(server.next().await, Heard::Left) {}
            while !matches!(server.next().await, Heard::Greeted(_)) {}
        };
        timeout(SOON, leaves)
            .await
            .unwrap_or_else(|_| panic!("{withheld:?}: the device leaves and comes back"));
        server.withhold(Withheld::Nothing);
        let hash = Bytes::copy_from_slice(blake3::hash(&test.roster(&[]).bytes).as_bytes());
        let ready = async {
            loop {
                if let Some(roster) = server.ready().await {
                    return roster;
                }
            }
        };
        assert_eq!(timeout(SOON, ready).await.expect("it becomes ready"), hash, "{withheld:?}");
        running.abort();
    }
}
