//! The server: listens, knows the devices, and lends them to the round loop as an engine.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use axum::http::{Request, Response};
use deltafl::params::Params;
use deltafl::training::State;
use deltafl_wire::proto::federation_server::FederationServer;
use deltafl_wire::roster::{RosterError, SignedRoster};
use deltafl_wire::{MAX_DEVICE_MESSAGE, MAX_MESSAGE};
use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_stream::{StreamExt as _, pending};
use tonic::body::Body;
use tonic::transport::Server;
use tower::util::{MapRequestLayer, MapResponseLayer};

use crate::engine::{Remote, Rules};
pub use crate::hub::{
    CONCURRENT, Introduction, Limits, Phase, Purpose, SessionList, SessionMonitor, SessionState,
    SessionStatus, Status,
};
use crate::hub::{Event, Hub, keep_time_limits};
use crate::listener::{ConnectionLimits, ListenError, Listener, OpenConnections, Protection};
use crate::refusal::{Refusal, Refusals};
use crate::service::FederationService;

use crate::round::Line;

use crate::framed::Framed;
use crate::paced::Paced;

/// Bytes that a device may send on a stream before the server has read them: HTTP/2 keeps them until then, and a cohort
/// hands its answers in at once. Fifteen parts: the list of what is unread, which a connection keeps, grows by doubling.
const WINDOW: u32 = 60 << 10;

/// How long connections may take to end by themselves when the server shuts down.
const GRACE: Duration = Duration::from_secs(5);

/// How a server is set up.
pub struct Setup {
    /// Where it listens.
    pub address: SocketAddr,
    /// How it knows who connects.
    pub protection: Protection,
    /// Bounds on connections.
    pub connections: ConnectionLimits,
    /// Bounds on what devices can make it hold.
    pub limits: Limits,
    /// What it tells the devices.
    pub introduction: Introduction,
    /// The params from which training goes on, for devices that come before it does; may be empty.
    pub newest: Vec<Params>,
}

impl Setup {
    /// Without certificates, on a loopback address, with the usual bounds: for tests and demonstrations on one machine.
    pub fn loopback(address: SocketAddr, introduction: Introduction) -> Self {
        Self {
            address,
            protection: Protection::Loopback,
            connections: ConnectionLimits::default(),
            limits: Limits::default(),
            introduction,
            newest: Vec::new(),
        }
    }
}

/// Why a server does not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// It cannot listen.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// Its roster is unsound.
    #[error(transparent)]
    Roster(#[from] RosterError),
    /// The address of the socket cannot be had.
    #[error("the socket has no address")]
    Address(#[from] io::Error),
}

/// A server that devices can connect to. Dropping it cuts all connections; [`Host::shut_down`] drains the devices first.
pub struct Host {
    address: SocketAddr,
    hub: Arc<Hub>,
    events: Option<mpsc::Receiver<Event>>,
    stop: Option<oneshot::Sender<()>>,
    connections: Arc<OpenConnections>,
    /// The accept loop, which owns the socket.
    accepting: JoinHandle<()>,
    service: JoinHandle<()>,
    time_limits: JoinHandle<()>,
}

impl Host {
    /// Starts to listen, on the present runtime.
    pub async fn start(setup: Setup, roster: &SignedRoster) -> Result<Self, StartError> {
        let Setup { address, protection, connections, limits, introduction, newest } = setup;
        let (hub, events) = Hub::new(introduction, limits, roster)?;
        hub.blobs.keep_newest(newest.iter());
        let listener = Listener::bind(address, protection, connections).await?;
        let address = listener.address()?;
        let connections = Arc::<OpenConnections>::default();
        let (accepted, accepting) = listener.accept(Arc::clone(&hub.refusals), Arc::clone(&connections));
        // The gRPC library ends with its connections; it is to end when it is told to, after the devices are drained.
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
        Ok(Self {
            address,
            hub,
            events: Some(events),
            stop: Some(stop),
            connections,
            accepting,
            service,
            time_limits,
        })
    }

    /// Where devices connect to.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// How many devices are online, and how many of them can be drawn.
    pub fn presence(&self) -> (usize, usize) {
        self.hub.presence()
    }

    /// Returns the state of every session: which devices are joining, fetching, ready, declined or in a round.
    pub fn sessions(&self) -> SessionList {
        self.hub.sessions()
    }

    /// Returns a handle that reads the states of all sessions and outlives this one.
    pub fn session_monitor(&self) -> SessionMonitor {
        SessionMonitor(Arc::downgrade(&self.hub))
    }

    /// How many runs the authority has signed: devices answer in runs 0 to this number − 1.
    pub fn runs(&self) -> u64 {
        self.hub.known().roster.runs()
    }

    /// How often this was refused.
    pub fn refused(&self, refusal: Refusal) -> u64 {
        self.hub.refusals.of(refusal)
    }

    /// What was refused, for a metrics page that outlives this handle.
    pub fn refusals(&self) -> Arc<Refusals> {
        Arc::clone(&self.hub.refusals)
    }

    /// Where the round loop stands.
    pub fn status(&self) -> watch::Receiver<Status> {
        self.hub.status.subscribe()
    }

    /// Puts another roster in force.
    pub fn change_roster(&self, roster: &SignedRoster) -> Result<(), RosterError> {
        self.hub.change_roster(roster)
    }

    /// The params that the tracks have now: a device that was away fetches them before it can be drawn. A
    /// [`RoundCommitter`](crate::committer::RoundCommitter) calls this after every round.
    pub fn set_newest(&self, state: &State) {
        self.hub.set_newest(state);
    }

    /// The devices as an engine, once. It blocks: the round loop runs on a thread outside of the runtime. `stop` ends the
    /// run before its next question.
    pub fn engine(&mut self, rules: Rules, stop: Arc<AtomicBool>) -> Option<Remote> {
        let line =
            Line { hub: Arc::clone(&self.hub), events: self.events.take()?, runtime: Handle::current() };
        Some(Remote::new(line, rules, stop))
    }

    /// Closes the socket, drains the devices, and returns when no connection is left. Connections that do not end by
    /// themselves are cut. A round loop that still waits for devices ends with
    /// [`ShuttingDown`](crate::engine::ShuttingDown).
    pub async fn shut_down(mut self) {
        self.connections.stop_accepting();
        // An error means that the loop panicked: the socket is closed in any case.
        let _ = (&mut self.accepting).await;
        // From here on no connection is accepted, and after this line no session is opened.
        self.hub.close();
        drop(self.stop.take());
        drop(self.events.take());
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
