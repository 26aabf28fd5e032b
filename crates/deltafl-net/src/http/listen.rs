//! Connections: TLS, time limits, and a bound on how many there are.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::{Request, header};
use axum::response::{IntoResponse as _, Response};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use rustls::ServerConfig;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tower::ServiceExt as _;

use super::rate::Rate;
use super::{House, LONGEST_BODY, Problem, Visitor, router};
use crate::identity::Peer;
use crate::refusal::Refusal;

/// Bounds on what visitors can make the server do.
#[derive(Clone, Copy, Debug)]
pub struct HttpLimits {
    /// Connections at once.
    pub connections: usize,
    /// Time for a TLS handshake, and for the head of a request.
    pub patience: Duration,
    /// Requests a second from one address, in the long run.
    pub per_second: f64,
    /// Requests from one address at once.
    pub burst: f64,
}

impl Default for HttpLimits {
    fn default() -> Self {
        Self { connections: 1024, patience: Duration::from_secs(10), per_second: 20.0, burst: 100.0 }
    }
}

/// What every connection shares.
struct Door {
    router: Router,
    tls: Option<TlsAcceptor>,
    rate: Rate,
    patience: Duration,
    house: Arc<House>,
    closing: watch::Receiver<bool>,
}

impl Door {
    fn refuse(&self, refusal: Refusal, why: &'static str) -> Response {
        if let Some(refusals) = self.house.refusals.get() {
            refusals.count(refusal);
        }
        ([(header::CONNECTION, "close")], Problem::Bad(why)).into_response()
    }
}

/// Serves until `shutdown` is done; then lets running requests finish.
pub async fn serve(
    listener: TcpListener,
    tls: Option<Arc<ServerConfig>>,
    house: Arc<House>,
    limits: HttpLimits,
    shutdown: impl Future<Output = ()>,
) -> io::Result<()> {
    let (close, closing) = watch::channel(false);
    let door = Arc::new(Door {
        router: router(Arc::clone(&house)),
        house,
        tls: tls.map(TlsAcceptor::from),
        rate: Rate::new(limits.per_second, limits.burst),
        patience: limits.patience,
        closing,
    });
    let room = Arc::new(Semaphore::new(limits.connections));
    tokio::pin!(shutdown);
    loop {
        let accepted = tokio::select! {
            () = &mut shutdown => break,
            accepted = listener.accept() => accepted,
        };
        let (stream, address) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                // Out of descriptors, most likely: connections that end give them back.
                tracing::warn!(%error, "a connection could not be accepted");
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        // Beyond the bound, connections are closed at once rather than kept waiting.
        let Ok(permit) = Arc::clone(&room).try_acquire_owned() else { continue };
        let door = Arc::clone(&door);
        tokio::spawn(async move {
            let _permit = permit;
            if let Err(error) = greet(&door, stream, address).await {
                tracing::debug!(%error, "a connection ended");
            }
        });
    }
    close.send_replace(true);
    let all = u32::try_from(limits.connections).unwrap_or(u32::MAX);
    let _ = timeout(limits.patience, room.acquire_many(all)).await;
    Ok(())
}

async fn greet(door: &Arc<Door>, stream: TcpStream, address: SocketAddr) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let Some(acceptor) = &door.tls else {
        return converse(door, stream, address, Visitor(None)).await;
    };
    let stream = timeout(door.patience, acceptor.accept(stream)).await??;
    let certificate = stream.get_ref().1.peer_certificates().and_then(<[_]>::first);
    let visitor = Visitor(certificate.and_then(|certificate| Peer::of(certificate).ok()));
    converse(door, stream, address, visitor).await
}

async fn converse(
    door: &Arc<Door>,
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    address: SocketAddr,
    visitor: Visitor,
) -> io::Result<()> {
    let service = hyper::service::service_fn(|request: Request<Incoming>| {
        let (door, visitor) = (Arc::clone(door), visitor.clone());
        async move { Ok::<Response, Infallible>(answer(&door, request, address, visitor).await) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(door.patience)
        .max_buf_size(32 << 10)
        .serve_connection(TokioIo::new(stream), service);
    tokio::pin!(connection);
    let mut closing = door.closing.clone();
    tokio::select! {
        ended = &mut connection => return ended.map_err(io::Error::other),
        _ = closing.wait_for(|closing| *closing) => {}
    }
    connection.as_mut().graceful_shutdown();
    connection.await.map_err(io::Error::other)
}

async fn answer(door: &Door, request: Request<Incoming>, address: SocketAddr, visitor: Visitor) -> Response {
    if !door.rate.allows(address.ip(), Instant::now()) {
        return Problem::TooMany.into_response();
    }
    let (head, body) = request.into_parts();
    // A body that comes a byte a minute, or does not end, holds its connection no longer than a head does.
    let body = match timeout(door.patience, to_bytes(Body::new(body), LONGEST_BODY)).await {
        Ok(Ok(body)) => body,
        Ok(Err(_)) => return door.refuse(Refusal::TooLong, "the body is too long"),
        Err(_) => return door.refuse(Refusal::Silent, "the body took too long"),
    };
    let mut request = Request::from_parts(head, Body::from(body));
    request.extensions_mut().insert(visitor);
    match door.router.clone().oneshot(request).await {
        Ok(response) => response,
        Err(never) => match never {},
    }
}
