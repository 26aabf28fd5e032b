//! A connection as the gRPC library reads and writes it.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use deltafl_wire::MaybeTls;
use deltafl_wire::environment::ByteStream;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Sleep, sleep};
use tokio_rustls::server::TlsStream;
use tonic::transport::server::Connected;

use super::{Caller, CountedConnection, OpenConnection, PendingConnection};
use crate::refusal::{Refusal, Refusals};

/// An accepted connection. It closes if the device does not send its Hello in time, so that a slow
/// partial request occupies no resources. It also closes if the service expels the device and when
/// the server closes all connections.
pub(crate) struct Connection {
    stream: MaybeTls<TlsStream<Box<dyn ByteStream>>>,
    caller: Caller,
    /// The deadline for the Hello.
    identify_by: Option<Pin<Box<Sleep>>>,
    refusals: Arc<Refusals>,
    _counted: Option<CountedConnection>,
    _permit: OwnedSemaphorePermit,
    /// Dropped last: the connection counts as open until its socket is closed.
    _open: OpenConnection,
}

impl Connection {
    pub(super) fn new(
        stream: MaybeTls<TlsStream<Box<dyn ByteStream>>>,
        counted: Option<CountedConnection>,
        pending: PendingConnection,
    ) -> Self {
        let PendingConnection { patience, refusals, permit, open, .. } = pending;
        let certified = counted.as_ref().map(|counted| counted.name.clone());
        let caller = Caller::new(certified, Arc::clone(&open.state));
        let identify_by = Some(Box::pin(sleep(patience)));
        Self { stream, caller, identify_by, refusals, _counted: counted, _permit: permit, _open: open }
    }

    /// Returns `true` if the device missed the deadline for its Hello.
    fn is_overdue(&mut self, context: &mut Context<'_>) -> bool {
        let Some(sleep) = &mut self.identify_by else { return false };
        if self.caller.identified().is_some() {
            self.identify_by = None;
            return false;
        }
        sleep.as_mut().poll(context).is_ready()
    }
}

impl Connected for Connection {
    type ConnectInfo = Caller;

    fn connect_info(&self) -> Caller {
        self.caller.clone()
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.is_overdue(context) {
            self.refusals.count(Refusal::Silent);
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        if self.caller.is_disconnected(context) {
            return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
        }
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

/// Writes also fail once the connection is closed. HTTP/2 does not read while it waits for a peer
/// that does not read.
impl AsyncWrite for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.caller.check_connected()?;
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.caller.check_connected()?;
        Pin::new(&mut self.stream).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.caller.check_connected()?;
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.caller.check_connected()?;
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
