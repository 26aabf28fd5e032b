//! Connections: TLS below gRPC, over TCP or another network.
//!
//! The handshake happens here and not in the gRPC library. A client that does not complete it, or
//! does not send a Hello, is thus disconnected and counted at the cost of a socket.

mod caller;
mod handshakes;
mod open;
mod stream;

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use deltafl_wire::MaybeTls;
use deltafl_wire::environment::{ByteStream, Network, NetworkListener};
use rustls::pki_types::CertificateDer;
use rustls::server::Acceptor;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_rustls::LazyConfigAcceptor;
use tokio_stream::wrappers::ReceiverStream;

pub(crate) use self::caller::Caller;
use self::handshakes::{Handshake, Handshakes};
use self::open::OpenConnection;
pub(crate) use self::open::OpenConnections;
pub(crate) use self::stream::Connection;
use crate::authority::Peer;
use crate::refusal::{Refusal, Refusals};

/// The device name in a certificate that the handshake has verified.
pub type NameOf = fn(&CertificateDer<'_>) -> Option<String>;

/// How the server authenticates clients.
#[derive(Clone)]
pub enum Protection {
    /// TLS with certificates for both peers. The device's certificate contains its name.
    Mutual {
        /// TLS 1.3, client certificates required, ALPN `h2`.
        config: Arc<rustls::ServerConfig>,
        /// Reads the name from the certificate.
        name_of: NameOf,
    },
    /// No authentication: for tests and demonstrations on one machine.
    Loopback,
}

impl Protection {
    /// TLS with the certificates of [`crate::authority`].
    pub fn mutual(config: Arc<rustls::ServerConfig>) -> Self {
        Self::Mutual {
            config,
            name_of: |certificate| Some(Peer::from_certificate(certificate).ok()?.device.to_string()),
        }
    }
}

/// Limits on connections.
#[derive(Clone, Copy, Debug)]
pub struct ConnectionLimits {
    /// The maximum number of connections.
    pub total: usize,
    /// The maximum number of connections of one device: the current one and one that it has just
    /// lost.
    pub per_device: usize,
    /// The maximum number of concurrent handshakes.
    pub handshakes: usize,
    /// The maximum number of concurrent handshakes of one address, or of one /64 of IPv6.
    pub handshakes_per_address: usize,
    /// The time limit for the handshake, and then for the Hello.
    pub patience: Duration,
}

impl Default for ConnectionLimits {
    fn default() -> Self {
        Self {
            total: 20_000,
            per_device: 3,
            handshakes: 512,
            handshakes_per_address: 256,
            patience: Duration::from_secs(10),
        }
    }
}

/// The reason for which a server cannot listen.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ListenError {
    /// The address is reachable from other machines and certificates are not used.
    #[error(
        "{0} is reachable from other machines: without certificates the server listens on loopback addresses only"
    )]
    NotLoopback(SocketAddr),
    /// The address cannot be bound.
    #[error("cannot listen on {address}")]
    Bind {
        /// The address.
        address: SocketAddr,
        /// The error reported by the operating system.
        source: io::Error,
    },
}

/// A bound socket.
pub struct ServerSocket {
    socket: Box<dyn NetworkListener>,
    protection: Protection,
    limits: ConnectionLimits,
}

impl ServerSocket {
    /// Binds an address.
    pub async fn bind(
        address: SocketAddr,
        protection: Protection,
        limits: ConnectionLimits,
        network: &dyn Network,
    ) -> Result<Self, ListenError> {
        if matches!(protection, Protection::Loopback) && !address.ip().is_loopback() {
            return Err(ListenError::NotLoopback(address));
        }
        let socket = network.listen(address).await.map_err(|source| ListenError::Bind { address, source })?;
        Ok(Self { socket, protection, limits })
    }

    /// Returns the address of the socket, with the actual port if port 0 was requested.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    /// Starts the accept loop. Returns the connections with a completed handshake, and the task of
    /// the loop. The socket is closed when that task has ended.
    pub(crate) fn accept(
        self,
        refusals: Arc<Refusals>,
        open: Arc<OpenConnections>,
    ) -> (Accepted, JoinHandle<()>) {
        let (accepted_connections, accepted) = mpsc::channel(64);
        let accepting = tokio::spawn(accept_loop(self, accepted_connections, refusals, open));
        (ReceiverStream::new(accepted), accepting)
    }
}

/// The connections that the gRPC library serves.
pub(crate) type Accepted = ReceiverStream<io::Result<Connection>>;

/// Accepts connections until the server stops accepting them or the receiver is dropped.
async fn accept_loop(
    listener: ServerSocket,
    accepted_connections: mpsc::Sender<io::Result<Connection>>,
    refusals: Arc<Refusals>,
    open: Arc<OpenConnections>,
) {
    let ServerSocket { mut socket, protection, limits } = listener;
    let permits = Arc::new(Semaphore::new(limits.total));
    let handshakes = Handshakes::new(limits.handshakes, limits.handshakes_per_address);
    let counts = Arc::new(ConnectionCounts { most: limits.per_device, by_name: Mutex::default() });
    loop {
        let accepted = tokio::select! {
            () = accepted_connections.closed() => return,
            () = open.stops_accepting() => return,
            accepted = socket.accept() => accepted,
        };
        let (stream, address) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                // Possibly out of file descriptors. Accepting resumes after other connections
                // close.
                tracing::warn!(%error, "failed to accept a connection");
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            }
        };
        let (Ok(permit), Some(handshake)) =
            (Arc::clone(&permits).try_acquire_owned(), handshakes.begin(address.ip()))
        else {
            refusals.count(Refusal::Full);
            continue;
        };
        let Some(registered) = open.register() else { return };
        let pending = PendingConnection {
            protection: protection.clone(),
            patience: limits.patience,
            counts: Arc::clone(&counts),
            refusals: Arc::clone(&refusals),
            permit,
            open: registered,
        };
        let (accepted_connections, open) = (accepted_connections.clone(), Arc::clone(&open));
        tokio::spawn(async move {
            let refusals = Arc::clone(&pending.refusals);
            let admitted = tokio::select! {
                admitted = pending.admit(stream, &handshake) => admitted,
                () = handshake.evicted() => Err(Refusal::Silent),
                () = open.stops_accepting() => Err(Refusal::Closing),
            };
            drop(handshake);
            match admitted {
                Ok(connection) => drop(accepted_connections.send(Ok(connection)).await),
                Err(refusal) => refusals.count(refusal),
            }
        });
    }
}

/// A connection before its handshake.
struct PendingConnection {
    protection: Protection,
    patience: Duration,
    counts: Arc<ConnectionCounts>,
    refusals: Arc<Refusals>,
    permit: OwnedSemaphorePermit,
    open: OpenConnection,
}

impl PendingConnection {
    async fn admit(self, stream: Box<dyn ByteStream>, progress: &Handshake) -> Result<Connection, Refusal> {
        match &self.protection {
            Protection::Loopback => Ok(Connection::new(MaybeTls::Plain(stream), None, self)),
            Protection::Mutual { config, name_of } => {
                let handshake = async {
                    let hello = LazyConfigAcceptor::new(Acceptor::default(), stream).await?;
                    progress.set_heard();
                    hello.into_stream(Arc::clone(config)).await
                };
                let stream = match timeout(self.patience, handshake).await {
                    Ok(Ok(stream)) => stream,
                    Ok(Err(_)) => return Err(Refusal::Handshake),
                    Err(_) => return Err(Refusal::Silent),
                };
                let certificate = stream.get_ref().1.peer_certificates().and_then(<[_]>::first);
                let name = certificate.and_then(name_of).ok_or(Refusal::Handshake)?;
                let counted = self.counts.count(&name).ok_or(Refusal::Crowding)?;
                Ok(Connection::new(MaybeTls::Tls(Box::new(stream)), Some(counted), self))
            }
        }
    }
}

/// The number of connections of each device.
struct ConnectionCounts {
    most: usize,
    by_name: Mutex<HashMap<String, usize>>,
}

/// One connection of a device, counted until it is dropped.
pub(crate) struct CountedConnection {
    name: Arc<str>,
    counts: Arc<ConnectionCounts>,
}

impl ConnectionCounts {
    fn count(self: &Arc<Self>, name: &str) -> Option<CountedConnection> {
        let mut by_name = self.by_name.lock().unwrap_or_else(PoisonError::into_inner);
        let connections = by_name.entry(name.to_owned()).or_default();
        if *connections >= self.most {
            return None;
        }
        *connections += 1;
        Some(CountedConnection { name: name.into(), counts: Arc::clone(self) })
    }
}

impl Drop for CountedConnection {
    fn drop(&mut self) {
        let mut by_name = self.counts.by_name.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(connections) = by_name.get_mut(&*self.name) {
            *connections -= 1;
            if *connections == 0 {
                by_name.remove(&*self.name);
            }
        }
    }
}
