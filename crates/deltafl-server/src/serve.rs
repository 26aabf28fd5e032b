//! The server: listens, authenticates devices, and provides them to the round loop as an exchange.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::http::{Request, Response};
use deltafl::params::Params;
use deltafl::training::State;
use deltafl_wire::environment::Environment;
use deltafl_wire::proto::federation_server::FederationServer;
use deltafl_wire::roster::{RosterError, SignedRoster};
use deltafl_wire::{MAX_DEVICE_MESSAGE, MAX_MESSAGE};
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_stream::{StreamExt as _, pending};
use tonic::body::Body;
use tonic::transport::Server;
use tower::util::{MapRequestLayer, MapResponseLayer};

#[cfg(doc)]
use crate::exchange::NetworkExchange;
pub use crate::hub::{
    CONCURRENT, Introduction, Limits, Phase, PhasePurpose, SessionList, SessionMonitor, SessionState,
    SessionStatus, Status,
};
use crate::hub::{Hub, keep_time_limits};
use crate::listener::{ConnectionLimits, ListenError, OpenConnections, Protection, ServerSocket};
use crate::refusal::{Refusal, Refusals};
use crate::service::FederationService;

pub use crate::round::DeviceLink;

use crate::framed::Framed;
use crate::paced::Paced;

/// The number of bytes that a device may send on a stream before the server has read them. HTTP/2
/// buffers them, and a cohort submits its answers at the same time. It is fifteen parts, because
/// the connection's list of unread parts grows by doubling.
const WINDOW: u32 = 60 << 10;

/// The time in which connections may end by themselves when the server shuts down.
const GRACE: Duration = Duration::from_secs(5);

/// The configuration of a server.
pub struct Setup {
    /// The address to listen on.
    pub address: SocketAddr,
    /// How the server authenticates clients.
    pub protection: Protection,
    /// Limits on connections.
    pub connections: ConnectionLimits,
    /// Limits on the memory that devices can use.
    pub limits: Limits,
    /// The description that devices receive.
    pub introduction: Introduction,
    /// The params from which training resumes, for devices that connect earlier. May be empty.
    pub newest: Vec<Params>,
    /// The network on which the server listens.
    pub environment: Environment,
}

impl Setup {
    /// Creates a configuration without certificates, on a loopback address, with the default
    /// limits. For tests and demonstrations on one machine.
    pub fn loopback(address: SocketAddr, introduction: Introduction) -> Self {
        Self {
            address,
            protection: Protection::Loopback,
            connections: ConnectionLimits::default(),
            limits: Limits::default(),
            introduction,
            newest: Vec::new(),
            environment: Environment::default(),
        }
    }
}

/// The reason for which a server does not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The server cannot listen.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// The roster is invalid.
    #[error(transparent)]
    Roster(#[from] RosterError),
    /// The address of the socket is not available.
    #[error("the socket has no address")]
    Address(#[from] io::Error),
}

/// A running server. Dropping it closes all connections. [`Host::shut_down`] drains the devices
/// first.
pub struct Host {
    address: SocketAddr,
    hub: Arc<Hub>,
    stop: Option<oneshot::Sender<()>>,
    connections: Arc<OpenConnections>,
    /// The accept loop, which owns the socket.
    accepting: JoinHandle<()>,
    service: JoinHandle<()>,
    time_limits: JoinHandle<()>,
}

impl Host {
    /// Starts to listen on the current runtime. Returns the server and its devices, for a
    /// [`NetworkExchange`].
    ///
    /// # Errors
    ///
    /// Fails if the address cannot be used or the roster is invalid.
    ///
    /// # Panics
    ///
    /// Panics outside of a tokio runtime.
    pub async fn start(setup: Setup, roster: &SignedRoster) -> Result<(Self, DeviceLink), StartError> {
        let Setup { address, protection, connections, limits, introduction, newest, environment } = setup;
        let (hub, events) = Hub::new(introduction, limits, roster)?;
        hub.blobs.keep_newest(newest.iter());
        let listener = ServerSocket::bind(address, protection, connections, &*environment.network).await?;
        let address = listener.address()?;
        let connections = Arc::<OpenConnections>::default();
        let (accepted, accepting) = listener.accept(Arc::clone(&hub.refusals), Arc::clone(&connections));
        // The gRPC library would end with its connections. It must end on request, after the
        // devices are drained.
        let accepted = accepted.chain(pending());
        let (stop, stopped) = oneshot::channel::<()>();
        let service = FederationServer::new(FederationService(Arc::clone(&hub)))
            .max_decoding_message_size(MAX_DEVICE_MESSAGE)
            .max_encoding_message_size(MAX_MESSAGE);
        let server = Server::builder()
            .concurrency_limit_per_connection(4)
            .max_concurrent_streams(8)
            .initial_stream_window_size(WINDOW)
            .initial_connection_window_size(2 * WINDOW)
            .http2_keepalive_interval(Some(Duration::from_secs(30)))
            .http2_keepalive_timeout(Some(Duration::from_secs(20)))
            .http2_max_header_list_size(8 << 10)
            .layer(MapRequestLayer::new(|request: Request<Body>| {
                request.map(|body| Body::new(Framed::new(body)))
            }))
            .layer(MapResponseLayer::new(|response: Response<Body>| {
                response.map(|body| Body::new(Paced::new(body)))
            }))
            .add_service(service)
            .serve_with_incoming_shutdown(accepted, async {
                let _ = stopped.await;
            });
        let service = tokio::spawn(async move {
            if let Err(error) = server.await {
                tracing::error!(%error, "the gRPC service ended");
            }
        });
        let time_limits = tokio::spawn(keep_time_limits(Arc::downgrade(&hub)));
        let link = DeviceLink::new(Arc::clone(&hub), events);
        let stop = Some(stop);
        Ok((Self { address, hub, stop, connections, accepting, service, time_limits }, link))
    }

    /// Returns the address to which devices connect.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the number of connected devices and the number that can be drawn.
    pub fn presence(&self) -> (usize, usize) {
        self.hub.presence()
    }

    /// Returns the state of every session: which devices are joining, fetching, ready, declined or
    /// in a round.
    pub fn sessions(&self) -> SessionList {
        self.hub.sessions()
    }

    /// Returns a handle that reads the states of all sessions and outlives this one.
    pub fn session_monitor(&self) -> SessionMonitor {
        SessionMonitor(Arc::downgrade(&self.hub))
    }

    /// Returns the number of runs that the authority has signed. Devices answer in runs 0 to this
    /// number − 1.
    pub fn runs(&self) -> u64 {
        self.hub.known().roster.runs()
    }

    /// Returns the number of refusals for this reason.
    pub fn refused(&self, refusal: Refusal) -> u64 {
        self.hub.refusals.number_of(refusal)
    }

    /// Returns the refusals, for a metrics page that outlives this handle.
    pub fn refusals(&self) -> Arc<Refusals> {
        Arc::clone(&self.hub.refusals)
    }

    /// Returns the progress of the round loop.
    pub fn status(&self) -> watch::Receiver<Status> {
        self.hub.status.subscribe()
    }

    /// Replaces the roster.
    pub fn change_roster(&self, roster: &SignedRoster) -> Result<(), RosterError> {
        self.hub.change_roster(roster)
    }

    /// Publishes the current params of the tracks. A returning device fetches them before it can be
    /// drawn. A [`RoundCommitter`](crate::committer::RoundCommitter) calls this after every round.
    pub fn set_newest(&self, state: &State) {
        self.hub.set_newest(state);
    }

    /// Informs the connected devices that no further round is planned.
    pub fn announce_end(&self) {
        self.hub.finish();
    }

    /// Closes the socket, drains the devices, and returns when no connection is open. Connections
    /// that do not end by themselves are closed. A round loop that still waits for devices ends
    /// with [`ShuttingDown`](crate::exchange::ShuttingDown).
    pub async fn shut_down(mut self) {
        self.connections.stop_accepting();
        // An error means that the loop panicked: the socket is closed in any case.
        let _ = (&mut self.accepting).await;
        // From here on no connection is accepted, and after this line no session is opened.
        self.hub.close();
        drop(self.stop.take());
        if timeout(GRACE, self.connections.all_closed()).await.is_err() {
            let cut = self.connections.cut();
            tracing::info!(cut, "connections that did not end by themselves are cut");
            self.connections.all_closed().await;
        }
        let _ = (&mut self.service).await;
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        self.hub.close();
        self.connections.cut();
        self.time_limits.abort();
    }
}
