//! Handshakes between devices and a server: who gets in, and who does not.
#![allow(clippy::unwrap_used)]

#[path = "field/watchdog.rs"]
#[allow(dead_code, unreachable_pub, reason = "shared by several tests")]
mod watchdog;

use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use deltafl_server::authority::{Authority, FleetIdentities, NotADevice, Peer, Revocations, ServerIdentity};
use deltafl_wire::identity::{
    CertificateDer, DeviceIdentity, IdentityError, NotACertificate, Token, Validity,
};
use rustls::pki_types::{ServerName, UnixTime};
use rustls::time_provider::TimeProvider;
use rustls::{CertificateError, ClientConfig, ServerConfig};
use tokio_rustls::{TlsAcceptor, TlsConnector};

const H2: &[&[u8]] = &[b"h2"];

fn authority(federation: &str) -> Authority {
    Authority::generate(federation.parse().unwrap(), 30).unwrap()
}

fn server(authority: &Authority) -> ServerIdentity {
    authority.issue_server(&["localhost".to_owned(), "127.0.0.1".to_owned()], 30).unwrap()
}

fn device(authority: &Authority, name: &str) -> DeviceIdentity {
    authority.issue_device(&name.parse().unwrap(), 3, 30).unwrap()
}

#[test]
fn the_validity_of_a_certificate_is_read() {
    let _limit = watchdog::start();
    let authority = Authority::generate("demo".parse().unwrap(), 90).unwrap();
    let whole = authority.certificate();
    let validity = Validity::from_certificate(whole).unwrap();
    assert_eq!((validity.not_after - validity.not_before).num_days(), 90);
    for cut in 0..whole.len() {
        assert_eq!(
            Validity::from_certificate(&CertificateDer::from(&whole[..cut])),
            Err(NotACertificate),
            "{cut}"
        );
    }
}

/// Shakes hands over a pipe; the device that the server sees, or why it refused.
async fn shake(
    server: Arc<ServerConfig>,
    client: Arc<ClientConfig>,
    host: &str,
) -> Result<Peer, rustls::Error> {
    let (ours, theirs) = tokio::io::duplex(1 << 16);
    let name = ServerName::try_from(host.to_owned()).unwrap();
    let connecting = tokio::spawn(TlsConnector::from(client).connect(name, ours));
    let accepted = TlsAcceptor::from(server).accept(theirs).await;
    let connected = connecting.await.unwrap();
    let inner = |error: std::io::Error| error.downcast::<rustls::Error>().unwrap();
    let stream = accepted.map_err(inner)?;
    connected.map_err(inner)?;
    let certificates = stream.get_ref().1.peer_certificates().unwrap();
    assert_eq!(stream.get_ref().1.protocol_version(), Some(rustls::ProtocolVersion::TLSv1_3));
    Ok(Peer::from_certificate(&certificates[0]).unwrap())
}

#[tokio::test]
async fn a_device_is_known_by_its_certificate() {
    let _limit = watchdog::start();
    let authority = authority("demo");
    let tls = server(&authority).mutual_tls(&Revocations::new(), H2).unwrap();
    let device = device(&authority, "phone-17");
    for host in ["localhost", "127.0.0.1"] {
        let peer = shake(Arc::clone(&tls), device.client_tls(H2).unwrap(), host).await.unwrap();
        assert_eq!((peer.device.as_str(), peer.federation.as_str()), ("phone-17", "demo"));
        assert_eq!(peer.fingerprint, device.fingerprint());
    }
    let elsewhere = shake(tls, device.client_tls(H2).unwrap(), "example.org").await;
    assert!(elsewhere.is_err(), "the server's certificate does not name the host");
}

#[tokio::test]
async fn a_device_of_another_federation_is_refused_even_under_the_same_name() {
    let _limit = watchdog::start();
    let tls = server(&authority("demo")).mutual_tls(&Revocations::new(), H2).unwrap();
    // The other authority bears the same name as ours; only its key differs.
    let stranger = device(&authority("demo"), "phone-17");
    let refused = shake(tls, stranger.client_tls(H2).unwrap(), "localhost").await;
    assert!(refused.is_err());
}

#[tokio::test]
async fn a_server_certificate_is_no_device() {
    let _limit = watchdog::start();
    let authority = authority("demo");
    assert_eq!(Peer::from_certificate(server(&authority).certificate()), Err(NotADevice));
    assert_eq!(Peer::from_certificate(authority.certificate()), Err(NotADevice));
}

#[tokio::test]
async fn a_client_without_a_certificate_is_refused_where_one_is_needed() {
    let _limit = watchdog::start();
    let authority = authority("demo");
    let server = server(&authority);
    let mut roots = rustls::RootCertStore::empty();
    roots.add(authority.certificate().clone()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let nobody = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let nobody = Arc::new(nobody);
    let revocations = Revocations::new();
    let mutual = server.mutual_tls(&revocations, &[]).unwrap();
    let refused = shake(mutual, Arc::clone(&nobody), "localhost").await.unwrap_err();
    assert_eq!(refused, rustls::Error::NoCertificatesPresented);

    let (ours, theirs) = tokio::io::duplex(1 << 16);
    let open = TlsAcceptor::from(server.open_tls(&revocations, &[]).unwrap());
    let name = ServerName::try_from("localhost").unwrap();
    let connecting = tokio::spawn(TlsConnector::from(nobody).connect(name, ours));
    assert!(open.accept(theirs).await.unwrap().get_ref().1.peer_certificates().is_none());
    connecting.await.unwrap().unwrap();
}

#[derive(Debug)]
struct At(UnixTime);

impl TimeProvider for At {
    fn current_time(&self) -> Option<UnixTime> {
        Some(self.0)
    }
}

#[tokio::test]
async fn an_expired_certificate_is_refused() {
    let _limit = watchdog::start();
    let authority = authority("demo");
    let device = authority.issue_device(&"phone-17".parse().unwrap(), 0, 2).unwrap();
    let tls = server(&authority).mutual_tls(&Revocations::new(), H2).unwrap();
    let in_days = |days: u64| {
        let now = UnixTime::now().as_secs();
        let mut tls = (*tls).clone();
        tls.time_provider =
            Arc::new(At(UnixTime::since_unix_epoch(Duration::from_secs(now + days * 86_400))));
        Arc::new(tls)
    };
    assert!(shake(in_days(1), device.client_tls(H2).unwrap(), "localhost").await.is_ok());
    let refused = shake(in_days(3), device.client_tls(H2).unwrap(), "localhost").await.unwrap_err();
    assert!(
        matches!(refused, rustls::Error::InvalidCertificate(CertificateError::ExpiredContext { .. })),
        "{refused:?}"
    );
}

#[tokio::test]
async fn a_revoked_device_is_refused_and_live_connections_hear_of_it() {
    let _limit = watchdog::start();
    let authority = authority("demo");
    let revocations = Revocations::new();
    let tls = server(&authority).mutual_tls(&revocations, H2).unwrap();
    let [good, bad] = ["good", "bad"].map(|name| device(&authority, name));
    assert!(shake(Arc::clone(&tls), bad.client_tls(H2).unwrap(), "localhost").await.is_ok());

    let mut changed = revocations.changed();
    revocations.replace(HashSet::from([bad.fingerprint()]));
    changed.changed().await.unwrap();
    assert!(revocations.contains(&bad.fingerprint()));

    let refused = shake(Arc::clone(&tls), bad.client_tls(H2).unwrap(), "localhost").await.unwrap_err();
    assert_eq!(refused, rustls::Error::InvalidCertificate(CertificateError::Revoked));
    assert!(shake(tls, good.client_tls(H2).unwrap(), "localhost").await.is_ok());
}

#[tokio::test]
async fn identities_survive_their_folders() {
    let _limit = watchdog::start();
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let made = Authority::create(&at("ca"), "demo".parse().unwrap()).unwrap();
    let again = Authority::create(&at("ca"), "demo".parse().unwrap());
    assert!(matches!(again, Err(IdentityError::Exists { .. })));
    let authority = Authority::open(&at("ca")).unwrap();
    assert_eq!(authority.federation(), made.federation());
    assert_eq!((authority.public_key(), authority.sign(b"x")), (made.public_key(), made.sign(b"x")));

    // What the reopened authority issues is trusted by what the first one issued.
    server(&made).save(&at("server")).unwrap();
    device(&authority, "phone-17").save(&at("phone")).unwrap();
    let tls = ServerIdentity::open(&at("server")).unwrap().mutual_tls(&Revocations::new(), H2).unwrap();
    let phone = DeviceIdentity::open(&at("phone")).unwrap();
    assert_eq!((phone.number(), phone.authority_key()), (3, made.public_key()));
    assert!(shake(tls, phone.client_tls(H2).unwrap(), "localhost").await.is_ok());

    let fleet = FleetIdentities::issue(&authority, 10, 3, 30).unwrap();
    fleet.write(&at("fleet.json")).unwrap();
    let read = FleetIdentities::read(&at("fleet.json")).unwrap();
    assert_eq!(read.devices.len(), 3);
    for (a, b) in fleet.devices.iter().zip(&read.devices) {
        assert_eq!(
            (a.number(), a.fingerprint(), a.signing_public()),
            (b.number(), b.fingerprint(), b.signing_public())
        );
    }
    assert_eq!(read.devices[2].name().as_str(), "device-00012");
}

#[test]
fn nothing_secret_is_printed() {
    let _limit = watchdog::start();
    let authority = authority("demo");
    let device = device(&authority, "phone-17");
    let secret: String = device.signing_secret().iter().map(|byte| format!("{byte:02x}")).collect();
    let token = Token::generate(authority.fingerprint(), authority.public_key()).unwrap();
    let shown = format!("{authority:?} {device:?} {:?} {token:?}", server(&authority));
    assert!(!shown.contains(&secret) && !shown.contains(token.reveal().as_str()), "{shown}");
    assert!(shown.contains("DeviceIdentity(3 phone-17 of demo)"), "{shown}");
}

#[test]
fn a_damaged_folder_is_an_error_and_no_panic() {
    let _limit = watchdog::start();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    assert!(matches!(DeviceIdentity::open(Path::new("/nonexistent")), Err(IdentityError::Io { .. })));
    device(&authority("demo"), "phone-17").save(path).unwrap();
    for file in ["device.json", "device.pem", "ca.pem", "device.key", "signing.key"] {
        let whole = std::fs::read(path.join(file)).unwrap();
        std::fs::write(path.join(file), "garbage").unwrap();
        assert!(DeviceIdentity::open(path).is_err(), "{file}");
        std::fs::write(path.join(file), whole).unwrap();
    }
    assert!(DeviceIdentity::open(path).is_ok());
}
