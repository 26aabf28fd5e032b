//! The gRPC service: opens the sessions of devices and serves blobs.

use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;
use deltafl_wire::proto::federation_server::Federation;
use deltafl_wire::proto::{
    Chunk, FetchRequest, FromDevice, FromServer, Hello, NewestParams, NewestRequest, from_device,
};
use deltafl_wire::{BlobId, CHUNK, MAX_QUERIES, hash};
use tokio::time::timeout;
use tokio_stream::{Stream, iter};
use tonic::{Request, Response, Status, Streaming};

use crate::hub::{Hub, SessionEnd};
use crate::listener::Caller;
use crate::refusal::Refusal;

/// The response of a call.
type Messages<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

/// Answers the calls of devices.
pub(crate) struct FederationService(pub(crate) Arc<Hub>);

#[tonic::async_trait]
impl Federation for FederationService {
    type AttendStream = Messages<FromServer>;
    type FetchStream = Messages<Chunk>;

    async fn attend(
        &self,
        request: Request<Streaming<FromDevice>>,
    ) -> Result<Response<Self::AttendStream>, Status> {
        let caller = caller(&request)?;
        let mut incoming = request.into_inner();
        let opened = match self.first_message(&mut incoming).await {
            Ok(hello) => self.0.open_session(&hello, caller.certified()),
            Err(refusal) => Err(refusal),
        };
        match opened {
            Ok((session, outgoing)) => {
                caller.set_identified(session.device());
                tokio::spawn(async move {
                    if session.listen(incoming).await == SessionEnd::Expelled {
                        caller.disconnect();
                    }
                    // Last, because the round loop may receive the event late.
                    session.announce_end().await;
                });
                Ok(Response::new(Box::pin(outgoing)))
            }
            Err(refusal) => {
                self.0.refusals.count(refusal);
                Err(status(refusal))
            }
        }
    }

    async fn fetch(&self, request: Request<FetchRequest>) -> Result<Response<Self::FetchStream>, Status> {
        let device = self.identified(&request)?;
        self.0.note_fetch(device);
        let FetchRequest { hash: wanted, offset } = request.into_inner();
        let found = hash(&wanted).ok().and_then(|hash| self.0.blobs.find(&hash));
        let blob = found.ok_or_else(|| Status::not_found("no such blob now"))?;
        let offset = usize::try_from(offset).unwrap_or(usize::MAX).min(blob.len());
        Ok(Response::new(Box::pin(iter(chunks(blob.slice(offset..)).map(Ok)))))
    }

    async fn newest(&self, request: Request<NewestRequest>) -> Result<Response<NewestParams>, Status> {
        let device = self.identified(&request)?;
        let held = request.into_inner().held;
        let hashes = held.iter().map(|held| hash(held)).collect::<Result<Vec<_>, _>>();
        let Some(held) = hashes.ok().filter(|held| held.len() <= MAX_QUERIES) else {
            self.0.refusals.count(Refusal::Malformed);
            return Err(Status::invalid_argument("expected at most 64 hashes of 32 bytes"));
        };
        let missing = self.0.newest(&held, device).await;
        Ok(Response::new(NewestParams { missing: missing.into_iter().map(BlobId::to_wire).collect() }))
    }
}

impl FederationService {
    /// Returns the calling device if it has sent its Hello.
    fn identified<T>(&self, request: &Request<T>) -> Result<u32, Status> {
        caller(request)?.identified().ok_or_else(|| {
            self.0.refusals.count(Refusal::Silent);
            Status::unauthenticated("send Hello in Attend first")
        })
    }

    async fn first_message(&self, incoming: &mut Streaming<FromDevice>) -> Result<Hello, Refusal> {
        let first = timeout(self.0.patience(), incoming.message()).await;
        match first.map_err(|_| Refusal::Silent)? {
            Ok(Some(FromDevice { body: Some(from_device::Body::Hello(hello)) })) => Ok(hello),
            _ => Err(Refusal::Malformed),
        }
    }
}

fn caller<T>(request: &Request<T>) -> Result<Caller, Status> {
    let caller = request.extensions().get::<Caller>().cloned();
    caller.ok_or_else(|| Status::internal("a request without a connection"))
}

fn chunks(bytes: Bytes) -> impl Iterator<Item = Chunk> + Send {
    let starts = (0..bytes.len()).step_by(CHUNK);
    starts.map(move |start| Chunk { data: bytes.slice(start..(start + CHUNK).min(bytes.len())) })
}

fn status(refusal: Refusal) -> Status {
    match refusal {
        Refusal::Unknown => Status::permission_denied("the device is not on the roster"),
        Refusal::Revoked => Status::permission_denied("the device was revoked"),
        Refusal::Impostor => Status::permission_denied("the name does not match the certificate"),
        Refusal::Closing => Status::unavailable("the server is shutting down: connect again"),
        Refusal::Crowding => Status::resource_exhausted("too many connections: wait a minute"),
        _ => Status::invalid_argument("expected a Hello of this protocol"),
    }
}
