//! A connection as the gRPC library reads and writes it.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Sleep, sleep};
use tokio_rustls::server::TlsStream;
use tonic::transport::server::Connected;

use super::{Caller, Entrance, Guest};
use crate::refusal::{Refusal, Refusals};

/// A TCP connection, with or without TLS in it.
pub(crate) enum Protected<T> {
    Plain(TcpStream),
    Tls(Box<T>),
}

/// An accepted connection. It breaks off when the device has not said who it is in time: half a request, sent a byte a
/// minute, holds nothing. It breaks off, too, when the service dismisses the device.
pub(crate) struct Connection {
    stream: Protected<TlsStream<TcpStream>>,
    caller: Caller,
    /// Runs out unless the device says who it is.
    borrowed: Option<Pin<Box<Sleep>>>,
    refusals: Arc<Refusals>,
    _guest: Option<Guest>,
    _place: OwnedSemaphorePermit,
}

impl Connection {
    pub(super) fn new(
        stream: Protected<TlsStream<TcpStream>>,
        guest: Option<Guest>,
        entrance: Entrance,
    ) -> Self {
        let caller = Caller::new(guest.as_ref().map(|guest| guest.name.clone()));
        let borrowed = Some(Box::pin(sleep(entrance.patience)));
        let Entrance { refusals, place, .. } = entrance;
        Self { stream, caller, borrowed, refusals, _guest: guest, _place: place }
    }

    /// Whether the device has been silent about itself for too long.
    fn is_overdue(&mut self, context: &mut Context<'_>) -> bool {
        let Some(sleep) = &mut self.borrowed else { return false };
        if self.caller.is_greeted() {
            self.borrowed = None;
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
        if self.caller.is_dismissed(context) {
            return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
        }
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for Protected<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match &mut *self {
            Self::Plain(stream) => Pin::new(stream).poll_read(context, buffer),
            Self::Tls(stream) => Pin::new(stream).poll_read(context, buffer),
        }
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Protected<T> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match &mut *self {
            Self::Plain(stream) => Pin::new(stream).poll_write(context, bytes),
            Self::Tls(stream) => Pin::new(stream).poll_write(context, bytes),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut *self {
            Self::Plain(stream) => Pin::new(stream).poll_flush(context),
            Self::Tls(stream) => Pin::new(stream).poll_flush(context),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut *self {
            Self::Plain(stream) => Pin::new(stream).poll_shutdown(context),
            Self::Tls(stream) => Pin::new(stream).poll_shutdown(context),
        }
    }
}
