//! Whoever connects over TLS: with the certificate of another federation, of another device, of
//! yesterday, or with too many connections of its own.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use deltafl_device::{ServerEndpoint, ServerTrust, SessionError, is_refused_certificate, offer};
use deltafl_server::listener::ConnectionLimits;
use deltafl_server::refusal::Refusal;
use deltafl_server::serve::Setup;
use deltafl_wire::environment::Environment;
use deltafl_wire::proto::{FetchRequest, FromDevice, Hello, from_device};
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_stream::StreamExt as _;
use tonic::Code;

use super::EXPERIMENT;
use super::certified::Certified;
use super::fleet::TestFederation;
use super::watchdog;

/// Connects as TLS does, or not; a device of `fleet` under this name.
async fn certified_hello(server: &ServerEndpoint, device: &str) -> Result<(), SessionError> {
    offer(server, device, &Environment::default().network).await.map(|_| ())
}

#[tokio::test]
async fn certificates_decide_who_gets_in() {
    let _limit = watchdog::start();
    let test = TestFederation::new(EXPERIMENT);
    let certified = Certified::new(&test, "home");
    let host = certified.host(test.setup()).await;
    let address = host.address().to_string();
    let [anna, boris] = [0, 1].map(|k| &certified.fleet.devices[k]);
    let of = |identity| ServerEndpoint::certified(&address, identity).unwrap();

    // Without TLS at all, and with TLS but no certificate that this federation issued.
    let plain = ServerEndpoint { address: address.clone(), trust: ServerTrust::Loopback };
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
    let _limit = watchdog::start();
    let test = TestFederation::new(EXPERIMENT);
    let certified = Certified::new(&test, "home");
    let anna = &certified.fleet.devices[0];
    for (days, refused) in [(29, 0), (31, 1)] {
        let host = certified.host_in(days, test.setup()).await;
        let server = ServerEndpoint::certified(&host.address().to_string(), anna).unwrap();
        let let_in = certified_hello(&server, anna.name().as_str()).await.is_ok();
        assert_eq!((let_in, host.refused(Refusal::Handshake)), (refused == 0, refused), "after {days} days");
    }
}

#[tokio::test]
async fn a_device_that_is_revoked_loses_the_connection_that_it_has() {
    let _limit = watchdog::start();
    let test = TestFederation::new(EXPERIMENT);
    let certified = Certified::new(&test, "home");
    let host = certified.host(test.setup()).await;
    let (thief, owner) = (&certified.fleet.devices[0], &certified.fleet.devices[1]);
    let server = ServerEndpoint::certified(&host.address().to_string(), thief).unwrap();
    let mut client = server.dial(&Environment::default().network).await.unwrap();
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
    let server = ServerEndpoint::certified(&host.address().to_string(), owner).unwrap();
    certified_hello(&server, owner.name().as_str()).await.unwrap();
}

/// The alert and the end of the connection race with the first bytes of the device.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_revoked_device_learns_the_reason_on_every_attempt() {
    let _limit = watchdog::start();
    let test = TestFederation::new(EXPERIMENT);
    let certified = Certified::new(&test, "home");
    let thief = &certified.fleet.devices[0];
    certified.revocations.replace([thief.fingerprint()].into());
    let host = certified.host(test.setup()).await;
    let server = ServerEndpoint::certified(&host.address().to_string(), thief).unwrap();
    for attempt in 0..200 {
        let refused = certified_hello(&server, thief.name().as_str()).await.unwrap_err();
        assert!(is_refused_certificate(&refused), "attempt {attempt}: {refused:?}");
    }
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
    let _limit = watchdog::start();
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

    let server = ServerEndpoint::certified(&host.address().to_string(), honest).unwrap();
    certified_hello(&server, honest.name().as_str()).await.unwrap();
}

#[tokio::test]
async fn one_device_cannot_take_all_connections() {
    let _limit = watchdog::start();
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
    let server = ServerEndpoint::certified(&host.address().to_string(), honest).unwrap();
    certified_hello(&server, honest.name().as_str()).await.unwrap();
    // The server may not have looked at the last ones yet.
    assert!(host.refused(Refusal::Crowding) >= 950, "{}", host.refused(Refusal::Crowding));
}

/// Sockets that send nothing, all from one address. The time limit of a handshake is an hour, so
/// that devices get in only if the silent sockets make room.
#[tokio::test]
async fn silent_sockets_of_one_address_keep_no_device_out() {
    let _limit = watchdog::start();
    let test = TestFederation::new(EXPERIMENT);
    let certified = Certified::new(&test, "home");
    let hour = Duration::from_secs(3600);
    let connections = ConnectionLimits { patience: hour, ..ConnectionLimits::default() };
    let most = connections.handshakes_per_address as u64;
    let host = certified.host(Setup { connections, ..test.setup() }).await;
    let mut silent = Vec::new();
    for _ in 0..900 {
        silent.push(TcpStream::connect(host.address()).await.unwrap());
    }
    for honest in certified.fleet.devices.iter().take(10) {
        let server = ServerEndpoint::certified(&host.address().to_string(), honest).unwrap();
        certified_hello(&server, honest.name().as_str()).await.unwrap();
    }
    // The server accepts in order: all silent sockets came before the devices.
    assert!(host.refused(Refusal::Silent) >= 900 - most, "{}", host.refused(Refusal::Silent));
    assert_eq!(host.refused(Refusal::Full), 0);
    drop(silent);
}
