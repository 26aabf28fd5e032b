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
use deltafl_wire::{MAX_MESSAGE, MAX_SAID};
use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;
use tonic::body::Body;
use tonic::transport::Server;
use tower::util::{MapRequestLayer, MapResponseLayer};

use crate::engine::{Remote, Rules};
pub use crate::hub::{CONCURRENT, Introduction, Limits, Phase, Purpose, Status};
use crate::hub::{Event, Hub};
use crate::listener::{ConnectionLimits, ListenError, Listener, Protection};
use crate::refusal::{Refusal, Refusals};
use crate::service::FederationService;

use crate::round::Line;

use crate::framed::Framed;
use crate::paced::Paced;

/// Bytes that a device may send on a stream before the server has read them: HTTP/2 keeps them until then, and a cohort
/// hands its answers in at once. Fifteen parts: the list of what is unread, which a connection keeps, grows by doubling.
const WINDOW: u32 = 60 << 10;

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

/// A server that devices can connect to.
pub struct Host {
    address: SocketAddr,
    hub: Arc<Hub>,
    events: Option<mpsc::Receiver<Event>>,
    stop: Option<oneshot::Sender<()>>,
    service: JoinHandle<()>,
}

impl Host {
    /// Starts to listen, on the present runtime.
    pub async fn start(setup: Setup, roster: &SignedRoster) -> Result<Self, StartError> {
        let Setup { address, protection, connections, limits, introduction, newest } = setup;
        let (hub, events) = Hub::new(introduction, limits, roster)?;
        hub.blobs.keep_newest(newest.iter());
        let listener = Listener::bind(address, protection, connections).await?;
        let address = listener.address()?;
        let (stop, stopped) = oneshot::channel::<()>();
        let service = FederationServer::new(FederationService(Arc::clone(&hub)))
            .max_decoding_message_size(MAX_SAID)
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
            .serve_with_incoming_shutdown(listener.accept(Arc::clone(&hub.refusals)), async {
                let _ = stopped.await;
            });
        let service = tokio::spawn(async move {
            if let Err(error) = server.await {
                tracing::error!(%error, "the gRPC service ended");
            }
        });
        Ok(Self { address, hub, events: Some(events), stop: Some(stop), service })
    }

    /// Where devices connect to.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// How many devices are online, and how many of them can be drawn.
    pub fn presence(&self) -> (usize, usize) {
        self.hub.presence()
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

    /// Lets the devices go and stops listening.
    pub async fn shut_down(mut self) {
        self.hub.close();
        drop(self.stop.take());
        drop(self.events.take());
        // Connections that do not end by themselves are cut.
        let abort = self.service.abort_handle();
        if tokio::time::timeout(Duration::from_secs(5), self.service).await.is_err() {
            abort.abort();
        }
    }
}
