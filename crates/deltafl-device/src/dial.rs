//! The device's end: it connects out, so that it can be behind a NAT.

use std::error::Error;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use deltafl_wire::identity::DeviceIdentity;
use deltafl_wire::proto::federation_client::FederationClient;
use deltafl_wire::{MAX_MESSAGE, MaybeTls};
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tonic::transport::{Channel, Endpoint, Uri};
use tower::service_fn;

/// How a device knows that it talks to its server.
#[derive(Clone)]
pub enum Trust {
    /// TLS with certificates on both sides.
    Mutual {
        /// TLS 1.3, this device's certificate, the federation's CA as the only root, ALPN `h2`.
        config: Arc<rustls::ClientConfig>,
        /// The name in the server's certificate.
        server: ServerName<'static>,
    },
    /// Not at all: for tests and demonstrations on one machine.
    Loopback,
}

/// A server to connect to.
#[derive(Clone)]
pub struct Server {
    /// Host and port.
    pub address: String,
    /// How it is known.
    pub trust: Trust,
}

impl Server {
    /// A server that is known by its federation's authority, as `identity` knows it.
    pub fn certified(address: &str, identity: &DeviceIdentity) -> Result<Self, DialError> {
        let invalid = || DialError::Address(address.to_owned());
        let (host, _) = address.rsplit_once(':').ok_or_else(invalid)?;
        let server = ServerName::try_from(host.trim_matches(['[', ']']).to_owned()).map_err(|_| invalid())?;
        let config = identity.client_tls(&[b"h2"]).map_err(|_| DialError::Identity)?;
        Ok(Self { address: address.to_owned(), trust: Trust::Mutual { config, server } })
    }
}

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DialError {
    /// An address that is none.
    #[error("{0} is not an address: host:port is expected")]
    Address(String),
    /// A certificate or a key that TLS does not take.
    #[error("the device's certificate and key cannot be used")]
    Identity,
    /// Without certificates, to another machine.
    #[error("{0} is not a loopback address: without certificates a device talks to its own machine only")]
    NotLoopback(String),
    /// Nobody answers, or somebody else.
    #[error("no connection to the server")]
    Transport(#[from] tonic::transport::Error),
}

impl Server {
    /// Connects.
    pub async fn dial(&self) -> Result<FederationClient<Channel>, DialError> {
        let uri = format!("http://{}", self.address);
        let endpoint = Endpoint::from_shared(uri).map_err(|_| DialError::Address(self.address.clone()))?;
        let endpoint = endpoint
            .connect_timeout(Duration::from_secs(20))
            .http2_keep_alive_interval(Duration::from_secs(40))
            .keep_alive_timeout(Duration::from_secs(20))
            .keep_alive_while_idle(true)
            .initial_stream_window_size(256 << 10)
            .initial_connection_window_size(512 << 10)
            .buffer_size(8);
        let (address, trust) = (self.address.clone(), self.trust.clone());
        let connector = service_fn(move |_: Uri| connect(address.clone(), trust.clone()));
        let channel = endpoint.connect_with_connector(connector).await?;
        Ok(FederationClient::new(channel).max_decoding_message_size(MAX_MESSAGE))
    }
}

/// Whether an error says that the other end refused this device's certificate. With TLS 1.3 a device hears of that after its own
/// side of the handshake is done: the alert lies deep in an error of HTTP/2, which keeps no more of it than its text.
pub fn is_refused_certificate(error: &(dyn Error + 'static)) -> bool {
    let mut next = Some(error);
    while let Some(error) = next {
        let inner = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
        let alert = |text: String| text.contains("received fatal alert");
        if alert(error.to_string()) || inner.is_some_and(|inner| alert(inner.to_string())) {
            return true;
        }
        next = error.source();
    }
    false
}

async fn connect(address: String, trust: Trust) -> io::Result<TokioIo<MaybeTls<TlsStream<TcpStream>>>> {
    let stream = TcpStream::connect(&address).await?;
    stream.set_nodelay(true)?;
    let stream = match trust {
        Trust::Loopback if !stream.peer_addr()?.ip().is_loopback() => {
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, DialError::NotLoopback(address)));
        }
        Trust::Loopback => MaybeTls::Plain(stream),
        Trust::Mutual { config, server } => {
            MaybeTls::Tls(Box::new(TlsConnector::from(config).connect(server, stream).await?))
        }
    };
    Ok(TokioIo::new(stream))
}
