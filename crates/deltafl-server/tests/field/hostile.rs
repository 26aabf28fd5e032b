//! A server that does as a script says: it greets devices, shows them any roster, and hears what
//! they answer.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex};

use bytes::Bytes;

use deltafl_wire::BlobId;
use deltafl_wire::proto;
use deltafl_wire::proto::federation_server::{Federation, FederationServer};
use deltafl_wire::proto::{
    Chunk, FetchRequest, FromDevice, FromServer, NewestParams, NewestRequest, from_device, from_server,
};
use deltafl_wire::roster::{Roster, SignedRoster};
use tokio::sync::mpsc;
use tokio_stream::wrappers::UnboundedReceiverStream;
use tokio_stream::{Stream, StreamExt as _, once, pending};
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;
use tonic::{Request, Response, Status, Streaming};

/// What a device did.
#[derive(Debug)]
pub enum Heard {
    /// It said hello, and was shown a roster of this version.
    Greeted(u64),
    Said(from_device::Body),
    /// It fetched the bytes of this hash, if there are any.
    Fetched(blake3::Hash),
    Left,
}

pub struct Hostile {
    pub address: SocketAddr,
    script: Arc<Script>,
    heard: mpsc::UnboundedReceiver<Heard>,
}

/// A message for which a device waits in vain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Withheld {
    Nothing,
    Welcome,
    /// The second half of every blob.
    Blobs,
    /// The list of the newest params.
    Newest,
}

/// What the server shows next.
struct Script {
    withheld: Mutex<Withheld>,
    experiment: proto::Experiment,
    shown: Mutex<SignedRoster>,
    blobs: Mutex<HashMap<blake3::Hash, Bytes>>,
    /// What it says of the newest params; without it, it does not know the call.
    newest: Mutex<Option<Vec<proto::Blob>>>,
    outbox: Mutex<Option<mpsc::UnboundedSender<Result<FromServer, Status>>>>,
    /// The number that it gives to every device in place of its own.
    number: Mutex<Option<u32>>,
    heard: mpsc::UnboundedSender<Heard>,
}

impl Hostile {
    pub async fn start(experiment: proto::Experiment, roster: SignedRoster) -> Self {
        let (sender, heard) = mpsc::unbounded_channel();
        let script = Arc::new(Script {
            withheld: Mutex::new(Withheld::Nothing),
            experiment,
            shown: Mutex::new(roster),
            blobs: Mutex::default(),
            newest: Mutex::default(),
            outbox: Mutex::default(),
            number: Mutex::default(),
            heard: sender,
        });
        let incoming = TcpIncoming::bind(SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
        let address = incoming.local_addr().unwrap();
        let service = FederationServer::new(Service(Arc::clone(&script)));
        tokio::spawn(Server::builder().add_service(service).serve_with_incoming(incoming));
        Self { address, script, heard }
    }

    /// Shows this roster to whoever comes next, and sends the device that is there away.
    pub fn show(&self, roster: SignedRoster) {
        *self.script.shown.lock().unwrap() = roster;
        *self.script.outbox.lock().unwrap() = None;
    }

    /// Shows this roster to the device that is there.
    pub fn push(&self, roster: SignedRoster) {
        let wire = self.script.wire(&roster);
        *self.script.shown.lock().unwrap() = roster;
        let message = FromServer { body: Some(from_server::Body::Roster(wire)) };
        self.script.outbox.lock().unwrap().as_ref().unwrap().send(Ok(message)).unwrap();
    }

    /// Withholds messages from now on.
    pub fn withhold(&self, withheld: Withheld) {
        *self.script.withheld.lock().unwrap() = withheld;
    }

    /// Says that these are the newest params.
    pub fn say_newest(&self, newest: Vec<proto::Blob>) {
        *self.script.newest.lock().unwrap() = Some(newest);
    }

    /// Hands these bytes out under a hash, which need not be theirs.
    pub fn hand_out(&self, hash: blake3::Hash, bytes: Bytes) {
        self.script.blobs.lock().unwrap().insert(hash, bytes);
    }

    /// Gives every device this number on the roster.
    pub fn number_as(&self, number: u32) {
        *self.script.number.lock().unwrap() = Some(number);
    }

    /// Hands these bytes out under their hash.
    pub fn offer(&self, bytes: Bytes) -> proto::Blob {
        let BlobId { hash, len } = BlobId::for_bytes(&bytes);
        self.hand_out(hash, bytes);
        proto::Blob { hash: Bytes::copy_from_slice(hash.as_bytes()), len }
    }

    /// Sends a message to the device that is there.
    pub fn say(&self, body: from_server::Body) {
        let message = FromServer { body: Some(body) };
        self.script.outbox.lock().unwrap().as_ref().unwrap().send(Ok(message)).unwrap();
    }

    /// The next message of the device.
    pub async fn said(&mut self) -> from_device::Body {
        loop {
            match self.next().await {
                Heard::Said(body) => return body,
                Heard::Left => panic!("the device left"),
                _ => {}
            }
        }
    }

    /// Like [`Self::ready`], on the next connection.
    pub async fn ready_again(&mut self) -> Option<Bytes> {
        loop {
            if let Some(ready) = self.ready().await {
                return Some(ready);
            }
        }
    }

    pub async fn next(&mut self) -> Heard {
        self.heard.recv().await.unwrap()
    }

    /// The hash of the roster with which the device says that it is ready; `None` if it left
    /// before.
    pub async fn ready(&mut self) -> Option<Bytes> {
        loop {
            match self.next().await {
                Heard::Said(from_device::Body::Ready(ready)) => return Some(ready.roster),
                Heard::Left => return None,
                _ => {}
            }
        }
    }
}

impl Script {
    fn withholds(&self, message: Withheld) -> bool {
        *self.withheld.lock().unwrap() == message
    }

    fn wire(&self, roster: &SignedRoster) -> proto::Roster {
        let BlobId { hash, len } = BlobId::for_bytes(&roster.bytes);
        self.blobs.lock().unwrap().insert(hash, roster.bytes.clone());
        let hash = Bytes::copy_from_slice(hash.as_bytes());
        let signature = Bytes::copy_from_slice(&roster.signature);
        proto::Roster { blob: Some(proto::Blob { hash, len }), signature }
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
        let roster = Roster::decode(shown.bytes.clone()).unwrap();
        let welcome = proto::Welcome {
            version: 1,
            federation: "hostile".to_owned(),
            session: Bytes::from_static(&[7; 16]),
            index: script.number.lock().unwrap().unwrap_or_else(|| roster.index(&hello.device).unwrap()),
            experiment: Some(script.experiment.clone()),
            roster: Some(script.wire(&shown)),
        };
        let (outbox, outgoing) = mpsc::unbounded_channel();
        let welcome = FromServer { body: Some(from_server::Body::Welcome(welcome)) };
        if !script.withholds(Withheld::Welcome) {
            outbox.send(Ok(welcome)).unwrap();
        }
        *script.outbox.lock().unwrap() = Some(outbox);
        let _ = script.heard.send(Heard::Greeted(roster.edition().version));
        tokio::spawn(async move {
            while let Ok(Some(FromDevice { body: Some(body) })) = incoming.message().await {
                let _ = script.heard.send(Heard::Said(body));
            }
            let _ = script.heard.send(Heard::Left);
        });
        Ok(Response::new(UnboundedReceiverStream::new(outgoing)))
    }

    async fn fetch(&self, request: Request<FetchRequest>) -> Result<Response<Self::FetchStream>, Status> {
        let hash = deltafl_wire::hash(&request.into_inner().hash).unwrap();
        let _ = self.0.heard.send(Heard::Fetched(hash));
        let data = self.0.blobs.lock().unwrap().get(&hash).cloned();
        let data = data.ok_or_else(|| Status::not_found("no such blob"))?;
        if self.0.withholds(Withheld::Blobs) {
            let half = Chunk { data: data.slice(..data.len() / 2) };
            return Ok(Response::new(Box::pin(once(Ok(half)).chain(pending()))));
        }
        Ok(Response::new(Box::pin(once(Ok(Chunk { data })))))
    }

    async fn newest(&self, _: Request<NewestRequest>) -> Result<Response<NewestParams>, Status> {
        if self.0.withholds(Withheld::Newest) {
            std::future::pending::<()>().await;
        }
        let newest = self.0.newest.lock().unwrap().clone();
        let missing = newest.ok_or_else(|| Status::unimplemented("an older server"))?;
        Ok(Response::new(NewestParams { missing }))
    }
}
