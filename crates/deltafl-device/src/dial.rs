//! The device's end of the connection. The device dials out, so that it can be behind a NAT.

use std::error::Error;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use deltafl_wire::environment::{ByteStream, Network};
use deltafl_wire::identity::DeviceIdentity;
use deltafl_wire::proto::federation_client::FederationClient;
use deltafl_wire::{MAX_MESSAGE, MaybeTls};
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use tokio::io::AsyncBufReadExt as _;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tonic::transport::{Channel, Endpoint, Uri};
use tower::service_fn;

/// How a device authenticates its server.
#[derive(Clone)]
pub enum ServerTrust {
    /// TLS with certificates for both peers.
    Mutual {
        /// TLS 1.3 with this device's certificate, the federation's CA as the only root, and ALPN
        /// `h2`.
        config: Arc<rustls::ClientConfig>,
        /// The name in the server's certificate.
        server: ServerName<'static>,
    },
    /// No authentication: for tests and demonstrations on one machine.
    Loopback,
}

/// A server and its authentication.
#[derive(Clone)]
pub struct ServerEndpoint {
    /// Host and port.
    pub address: String,
    /// How the device authenticates the server.
    pub trust: ServerTrust,
}

impl ServerEndpoint {
    /// A server that the device authenticates with the federation's authority in `identity`.
    pub fn certified(address: &str, identity: &DeviceIdentity) -> Result<Self, DialError> {
        let invalid = || DialError::Address(address.to_owned());
        let (host, _) = address.rsplit_once(':').ok_or_else(invalid)?;
        let server = ServerName::try_from(host.trim_matches(['[', ']']).to_owned()).map_err(|_| invalid())?;
        let config = identity.client_tls(&[b"h2"]).map_err(|_| DialError::Identity)?;
        Ok(Self { address: address.to_owned(), trust: ServerTrust::Mutual { config, server } })
    }
}

/// The reason for which a connection failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DialError {
    /// The address is invalid.
    #[error("{0} is not an address: host:port is expected")]
    Address(String),
    /// TLS rejects the certificate or the key.
    #[error("the device's certificate and key cannot be used")]
    Identity,
    /// The address is on another machine and certificates are not used.
    #[error("{0} is not a loopback address: a device without certificates connects to its own machine only")]
    NotLoopback(String),
    /// The server is unreachable or failed authentication.
    #[error("no connection to the server")]
    Transport(#[from] tonic::transport::Error),
}

impl ServerEndpoint {
    /// Connects to the server.
    pub async fn dial(&self, network: &Arc<dyn Network>) -> Result<FederationClient<Channel>, DialError> {
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
        let (address, trust, network) = (self.address.clone(), self.trust.clone(), Arc::clone(network));
        let connector =
            service_fn(move |_: Uri| connect(Arc::clone(&network), address.clone(), trust.clone()));
        let channel = endpoint.connect_with_connector(connector).await?;
        Ok(FederationClient::new(channel).max_decoding_message_size(MAX_MESSAGE))
    }
}

/// Returns `true` if the error reports that the server rejected this device's certificate. Some
/// errors keep only the text of the alert.
pub fn is_refused_certificate(error: &(dyn Error + 'static)) -> bool {
    let mut next = Some(error);
    while let Some(error) = next {
        let inner = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
        let alert = |text: String| {
            let alert = text.split_once("received fatal alert: ").map_or("", |(_, alert)| alert);
            ["Certificate", "UnknownCA", "AccessDenied"].iter().any(|name| alert.contains(name))
        };
        if alert(error.to_string()) || inner.is_some_and(|inner| alert(inner.to_string())) {
            return true;
        }
        next = error.source();
    }
    false
}

/// The connection of a device.
type DeviceStream = MaybeTls<TlsStream<Box<dyn ByteStream>>>;

async fn connect(
    network: Arc<dyn Network>,
    address: String,
    trust: ServerTrust,
) -> io::Result<TokioIo<DeviceStream>> {
    let (stream, peer) = network.connect(&address).await?;
    let stream = match trust {
        ServerTrust::Loopback if !peer.ip().is_loopback() => {
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, DialError::NotLoopback(address)));
        }
        ServerTrust::Loopback => MaybeTls::Plain(stream),
        ServerTrust::Mutual { config, server } => {
            let mut stream = TlsConnector::from(config).connect(server, stream).await?;
            // With TLS 1.3 the server verifies the device's certificate after this handshake. Its
            // alert could be lost in a failed write, so the device waits for the server's settings,
            // which HTTP/2 servers send first.
            if stream.fill_buf().await?.is_empty() {
                return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the server closed the connection"));
            }
            MaybeTls::Tls(Box::new(stream))
        }
    };
    Ok(TokioIo::new(stream))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_alert_about_something_else_does_not_blame_the_certificate() {
        let refused =
            |alert: &str| is_refused_certificate(&io::Error::other(format!("received fatal alert: {alert}")));
        for alert in ["CertificateRevoked", "CertificateExpired", "BadCertificate", "UnknownCA"] {
            assert!(refused(alert), "{alert}");
        }
        // The HTTP port of a server.
        assert!(!refused("NoApplicationProtocol"));
    }
}
