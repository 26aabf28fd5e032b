//! Outgoing messages of a device's stream.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use deltafl_wire::proto::{FromServer, from_server};
use deltafl_wire::{Fragments, fragments_from};
use tokio::sync::mpsc;
use tokio_stream::Stream;
use tonic::Status;

/// A queued item for a device.
#[derive(Clone, Debug)]
pub(crate) enum Outbound {
    /// A message of the stream, possibly shared by many devices.
    Message(Arc<FromServer>),
    /// A long secure aggregation message for one device, in pieces. It is assembled part by part
    /// when it is sent. The shares that cohort members exchange thus exist once, in the messages of
    /// their senders.
    Long(Arc<[Bytes]>),
}

impl Outbound {
    /// A message of the stream that may be shared by many devices.
    pub(crate) fn shared(body: from_server::Body) -> Self {
        Self::Message(Arc::new(FromServer { body: Some(body) }))
    }
}

/// The stream of a device: the contents of its outbox.
#[derive(Debug)]
pub(crate) struct Outgoing {
    outbox: mpsc::Receiver<Outbound>,
    /// The rest of a long message that is being sent.
    parts: Option<Fragments>,
}

impl Outgoing {
    pub(super) fn new(outbox: mpsc::Receiver<Outbound>) -> Self {
        Self { outbox, parts: None }
    }
}

impl Stream for Outgoing {
    type Item = Result<FromServer, Status>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            if let Some(part) = self.parts.as_mut().and_then(Fragments::next) {
                return Poll::Ready(Some(Ok(FromServer { body: Some(from_server::Body::Part(part)) })));
            }
            self.parts = None; // with the list of its pieces
            match ready!(self.outbox.poll_recv(context)) {
                None => return Poll::Ready(None),
                Some(Outbound::Message(message)) => {
                    return Poll::Ready(Some(Ok(Arc::unwrap_or_clone(message))));
                }
                Some(Outbound::Long(pieces)) => self.parts = Some(fragments_from(pieces.to_vec())),
            }
        }
    }
}
