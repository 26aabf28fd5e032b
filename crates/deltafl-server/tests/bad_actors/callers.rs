//! Whoever connects without a certificate, as on one machine: strangers, and devices that do not
//! keep to the protocol.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use axum::body::Body;
use bytes::Bytes;
use deltafl::trainer::Sgd;
use deltafl::training::State;
use deltafl_server::listener::{ConnectionLimits, ListenError, Protection, ServerSocket};
use deltafl_server::refusal::Refusal;
use deltafl_server::serve::{Host, Limits, Setup};
use deltafl_wire::environment::Tcp;
use deltafl_wire::proto::federation_client::FederationClient;
use deltafl_wire::proto::{FetchRequest, FromDevice, Hello, NewestRequest, Part, from_device, from_server};
use prost::Message as _;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Code;
use tonic::transport::Channel;
use tower::{Service as _, ServiceExt as _};

use super::fleet::{TestFederation, start_host};
use super::watchdog;
use super::{EXPERIMENT, Line, client, host, still_serves};

#[tokio::test]
async fn a_server_that_stops_says_so_to_its_devices() {
    let _limit = watchdog::start();
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
    let _limit = watchdog::start();
    let anywhere = SocketAddr::from(([0, 0, 0, 0], 0));
    let bound = ServerSocket::bind(anywhere, Protection::Loopback, ConnectionLimits::default(), &Tcp).await;
    assert!(matches!(bound.err(), Some(ListenError::NotLoopback(_))));
}

#[tokio::test]
async fn strangers_and_revoked_devices_are_refused() {
    let _limit = watchdog::start();
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
    let _limit = watchdog::start();
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

/// A connection on which this device has said hello, and the stream that keeps it.
async fn identified(host: &Host, device: &str) -> (FederationClient<Channel>, Line) {
    let mut client = client(host.address()).await;
    let (outgoing, outbox) = mpsc::channel(1);
    let hello = from_device::Body::Hello(Hello { version: 1, device: device.to_owned() });
    outgoing.send(FromDevice { body: Some(hello) }).await.unwrap();
    let incoming = client.attend(ReceiverStream::new(outbox)).await.unwrap().into_inner();
    (client, Line { outgoing, incoming })
}

#[tokio::test]
async fn strange_requests_for_the_newest_params_are_refused() {
    let _limit = watchdog::start();
    let test = TestFederation::new(EXPERIMENT);
    let host = host(&test).await;
    let asked = client(host.address()).await.newest(NewestRequest { held: Vec::new() }).await;
    assert_eq!((asked.unwrap_err().code(), host.refused(Refusal::Silent)), (Code::Unauthenticated, 1));
    let (mut device, _line) = identified(&host, test.federation.id(test.devices()[0])).await;
    let hash = |len: usize| Bytes::from(vec![7; len]);
    for (refused, held) in [vec![hash(31)], vec![hash(32); 65]].into_iter().enumerate() {
        let asked = device.newest(NewestRequest { held }).await.unwrap_err();
        let counted = host.refused(Refusal::Malformed);
        assert_eq!((asked.code(), counted), (Code::InvalidArgument, refused as u64 + 1));
    }
    let told = device.newest(NewestRequest { held: vec![hash(32); 64] }).await.unwrap();
    assert!(told.into_inner().missing.is_empty(), "nothing was trained yet");
    still_serves(&test, &host).await;
}

#[tokio::test]
async fn a_device_that_asks_for_the_newest_params_again_and_again_delays_nobody() {
    let _limit = watchdog::start();
    let test = TestFederation::new(EXPERIMENT);
    // At this rate a second turn would be a matter of hours.
    let limits = Limits { newest_rate: 1, ..Limits::default() };
    let host = start_host(Setup { limits, ..test.setup() }, &test.roster(&[])).await;
    let state = test.experiment.plan().start(1, &Sgd::new(&*test.model));
    host.set_newest(&state);
    let (mut device, _line) = identified(&host, test.federation.id(test.devices()[0])).await;
    for _ in 0..100 {
        let told = device.newest(NewestRequest { held: Vec::new() }).await.unwrap().into_inner();
        assert_eq!(told.missing[0].hash, state.tracks[0].params.hash().as_bytes()[..]);
    }
    let held = vec![told_hash(&state)];
    let (mut other, _line) = identified(&host, test.federation.id(test.devices()[1])).await;
    let told = other.newest(NewestRequest { held }).await.unwrap().into_inner();
    assert!(told.missing.is_empty(), "whoever holds them waits for no turn");
}

fn told_hash(state: &State) -> Bytes {
    Bytes::copy_from_slice(state.tracks[0].params.hash().as_bytes())
}

#[tokio::test]
async fn messages_without_measure_are_refused() {
    let _limit = watchdog::start();
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

/// A call of `Attend` that greets, announces a message without end, and sends so many chunks of it
/// if it is let; how many bytes of them left the device.
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
    let _limit = watchdog::start();
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
    let _limit = watchdog::start();
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
    let _limit = watchdog::start();
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
