//! A server in memory that sends real devices any message, and records what they send.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use deltafl_secagg::message::DeviceMessage;
use deltafl_secagg::message::wire::decode_device;
use deltafl_wire::environment::{Network, NetworkListener, PeerStream};
use deltafl_wire::proto::federation_server::{Federation, FederationServer};
use deltafl_wire::proto::{
    self, Chunk, FetchRequest, FromDevice, FromServer, NewestParams, NewestRequest, from_device, from_server,
};
use deltafl_wire::roster::{Roster, SignedRoster};
use deltafl_wire::{BlobId, Reassembly};
use tokio::io::DuplexStream;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_stream::wrappers::UnboundedReceiverStream;
use tokio_stream::{Stream, once};
use tonic::transport::Server;
use tonic::{Request, Response, Status, Streaming};

type Outbox = mpsc::UnboundedSender<Result<FromServer, Status>>;

/// A message of a device.
#[derive(Debug)]
pub(super) enum Received {
    /// A message of secure aggregation.
    Protocol(DeviceMessage),
    /// The loss of the device, in the clear.
    Loss,
}

/// Connects devices to the server in memory.
#[derive(Debug)]
pub(super) struct MemoryNetwork(mpsc::UnboundedSender<Result<DuplexStream, io::Error>>);

#[tonic::async_trait]
impl Network for MemoryNetwork {
    async fn connect(&self, _: &str) -> io::Result<PeerStream> {
        let (ours, theirs) = tokio::io::duplex(64 << 10);
        self.0.send(Ok(theirs)).map_err(|_| io::ErrorKind::ConnectionRefused)?;
        Ok((Box::new(ours), SocketAddr::from(([127, 0, 0, 1], 1))))
    }

    async fn listen(&self, _: SocketAddr) -> io::Result<Box<dyn NetworkListener>> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

/// The server.
pub(super) struct Liar {
    script: Arc<Script>,
    received: mpsc::UnboundedReceiver<(u32, Received)>,
    serving: JoinHandle<()>,
}

struct Script {
    experiment: proto::Experiment,
    shown: Mutex<SignedRoster>,
    /// The session in the next Welcome of each device.
    sessions: Mutex<HashMap<u32, [u8; 16]>>,
    outboxes: Mutex<HashMap<u32, Outbox>>,
    blobs: Mutex<HashMap<blake3::Hash, Bytes>>,
    received: mpsc::UnboundedSender<(u32, Received)>,
}

impl Liar {
    pub(super) fn start(experiment: proto::Experiment, roster: SignedRoster) -> (Self, MemoryNetwork) {
        let (sender, received) = mpsc::unbounded_channel();
        let script = Arc::new(Script {
            experiment,
            shown: Mutex::new(roster),
            sessions: Mutex::default(),
            outboxes: Mutex::default(),
            blobs: Mutex::default(),
            received: sender,
        });
        let (connections, incoming) = mpsc::unbounded_channel();
        let service = FederationServer::new(Service(Arc::clone(&script)));
        let serving = tokio::spawn(async move {
            let incoming = UnboundedReceiverStream::new(incoming);
            let _ended = Server::builder().add_service(service).serve_with_incoming(incoming).await;
        });
        (Self { script, received, serving }, MemoryNetwork(connections))
    }

    /// Sends a message to a device, if it is connected.
    pub(super) fn send(&self, to: u32, body: from_server::Body) {
        if let Some(outbox) = self.script.outboxes.lock().unwrap().get(&to) {
            let _left = outbox.send(Ok(FromServer { body: Some(body) }));
        }
    }

    /// Ends the connection of a device. The next one has this session.
    pub(super) fn reconnect(&self, device: u32, session: [u8; 16]) {
        self.script.sessions.lock().unwrap().insert(device, session);
        self.script.outboxes.lock().unwrap().remove(&device);
    }

    /// Shows a roster in every Welcome from now on.
    pub(super) fn show(&self, roster: SignedRoster) {
        *self.script.shown.lock().unwrap() = roster;
    }

    /// Returns a roster as a message.
    pub(super) fn roster(&self, roster: &SignedRoster) -> proto::Roster {
        self.script.wire(roster)
    }

    /// Offers bytes under their hash.
    pub(super) fn offer(&self, bytes: Bytes) {
        self.script.blobs.lock().unwrap().insert(blake3::hash(&bytes), bytes);
    }

    /// Returns the messages that have arrived.
    pub(super) fn take(&mut self) -> Vec<(u32, Received)> {
        std::iter::from_fn(|| self.received.try_recv().ok()).collect()
    }
}

impl Drop for Liar {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

impl Script {
    fn wire(&self, roster: &SignedRoster) -> proto::Roster {
        let id = BlobId::for_bytes(&roster.bytes);
        self.blobs.lock().unwrap().insert(id.hash, roster.bytes.clone());
        proto::Roster { blob: Some(id.to_wire()), signature: Bytes::copy_from_slice(&roster.signature) }
    }
}

struct Service(Arc<Script>);

#[tonic::async_trait]
impl Federation for Service {
    type AttendStream = UnboundedReceiverStream<Result<FromServer, Status>>;
    type FetchStream = Pin<Box<dyn Stream<Item = Result<Chunk, Status>> + Send>>;

    async fn attend(
        &self,
        request: Request<Streaming<FromDevice>>,
    ) -> Result<Response<Self::AttendStream>, Status> {
        let script = Arc::clone(&self.0);
        let mut incoming = request.into_inner();
        let Some(FromDevice { body: Some(from_device::Body::Hello(hello)) }) = incoming.message().await?
        else {
            return Err(Status::invalid_argument("no Hello"));
        };
        let shown = script.shown.lock().unwrap().clone();
        let index = Roster::decode(shown.bytes.clone()).unwrap().index(&hello.device).unwrap();
        let session = script.sessions.lock().unwrap().get(&index).copied().unwrap_or_default();
        let welcome = proto::Welcome {
            version: 1,
            federation: "liar".to_owned(),
            session: Bytes::copy_from_slice(&session),
            index,
            experiment: Some(script.experiment.clone()),
            roster: Some(script.wire(&shown)),
        };
        let (outbox, outgoing) = mpsc::unbounded_channel();
        outbox.send(Ok(FromServer { body: Some(from_server::Body::Welcome(welcome)) })).unwrap();
        script.outboxes.lock().unwrap().insert(index, outbox);
        tokio::spawn(async move {
            let mut assembly = Reassembly::default();
            while let Ok(Some(FromDevice { body: Some(body) })) = incoming.message().await {
                let received = match body {
                    from_device::Body::Part(part) => match assembly.take(part, usize::MAX) {
                        Ok(Some(bytes)) => decode_device(bytes, usize::MAX).map(Received::Protocol).ok(),
                        _ => None,
                    },
                    from_device::Body::Losses(_) => Some(Received::Loss),
                    _ => None,
                };
                if let Some(received) = received {
                    let _over = script.received.send((index, received));
                }
            }
        });
        Ok(Response::new(UnboundedReceiverStream::new(outgoing)))
    }

    async fn fetch(&self, request: Request<FetchRequest>) -> Result<Response<Self::FetchStream>, Status> {
        let hash = deltafl_wire::hash(&request.into_inner().hash).unwrap();
        let data = self.0.blobs.lock().unwrap().get(&hash).cloned();
        let data = data.ok_or_else(|| Status::not_found("no such blob"))?;
        Ok(Response::new(Box::pin(once(Ok(Chunk { data })))))
    }

    async fn newest(&self, _: Request<NewestRequest>) -> Result<Response<NewestParams>, Status> {
        Err(Status::unimplemented("an older server"))
    }
}
