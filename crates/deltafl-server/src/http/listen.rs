//! Connections: TLS, time limits, and a limit on their number.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::{Request, header};
use axum::response::{IntoResponse as _, Response};
use deltafl_wire::environment::{ByteStream, NetworkListener};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use rustls::ServerConfig;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};
use tokio_rustls::TlsAcceptor;
use tower::ServiceExt as _;

use super::rate::RateLimiter;
use super::{Client, ClientAddress, HttpError, HttpState, LONGEST_BODY, router};
use crate::authority::Peer;
use crate::quota::AddressQuota;
use crate::refusal::Refusal;

/// Limits on the resources that clients can use.
#[derive(Clone, Copy, Debug)]
pub struct HttpLimits {
    /// The maximum number of connections.
    pub connections: usize,
    /// The maximum number of connections of one address, or of one /64 of IPv6.
    pub per_address: usize,
    /// The time limit for a TLS handshake and for the head of a request.
    pub patience: Duration,
    /// The sustained number of requests per second from one address.
    pub per_second: f64,
    /// The number of requests from one address in a burst.
    pub burst: f64,
}

impl Default for HttpLimits {
    fn default() -> Self {
        Self {
            connections: 1024,
            per_address: 256,
            patience: Duration::from_secs(10),
            per_second: 20.0,
            burst: 100.0,
        }
    }
}

/// The state shared by all connections.
struct Connections {
    router: Router,
    tls: Option<TlsAcceptor>,
    rate: RateLimiter,
    patience: Duration,
    state: Arc<HttpState>,
    closing: watch::Receiver<bool>,
}

impl Connections {
    fn refuse(&self, refusal: Refusal, why: &'static str) -> Response {
        if let Some(refusals) = self.state.refusals.get() {
            refusals.count(refusal);
        }
        ([(header::CONNECTION, "close")], HttpError::Bad(why)).into_response()
    }
}

/// Serves until `shutdown` completes. Then it closes the socket, waits for running requests, and
/// closes connections that exceed the time limit.
pub async fn serve(
    mut listener: Box<dyn NetworkListener>,
    tls: Option<Arc<ServerConfig>>,
    state: Arc<HttpState>,
    limits: HttpLimits,
    shutdown: impl Future<Output = ()>,
) -> io::Result<()> {
    let (close, closing) = watch::channel(false);
    let connections = Arc::new(Connections {
        router: router(Arc::clone(&state)),
        state,
        tls: tls.map(TlsAcceptor::from),
        rate: RateLimiter::new(limits.per_second, limits.burst),
        patience: limits.patience,
        closing,
    });
    let room = Arc::new(Semaphore::new(limits.connections));
    let quota = AddressQuota::new(limits.per_address);
    // Dropping it closes the remaining connections.
    let mut serving = JoinSet::new();
    tokio::pin!(shutdown);
    loop {
        let accepted = tokio::select! {
            () = &mut shutdown => break,
            Some(_) = serving.join_next() => continue,
            accepted = listener.accept() => accepted,
        };
        let (stream, address) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                // Most likely out of file descriptors, which closed connections release.
                tracing::warn!(%error, "failed to accept a connection");
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        // Connections beyond the limit are closed immediately and do not wait.
        let Some(counted) = quota.take(address.ip()) else { continue };
        let Ok(permit) = Arc::clone(&room).try_acquire_owned() else { continue };
        let connections = Arc::clone(&connections);
        serving.spawn(async move {
            let _counted = (permit, counted);
            if let Err(error) = accept(&connections, stream, address).await {
                tracing::debug!(%error, "a connection ended");
            }
        });
    }
    drop(listener);
    close.send_replace(true);
    let _ = timeout(limits.patience, async { while serving.join_next().await.is_some() {} }).await;
    serving.shutdown().await;
    Ok(())
}

async fn accept(
    connections: &Arc<Connections>,
    stream: Box<dyn ByteStream>,
    address: SocketAddr,
) -> io::Result<()> {
    let Some(acceptor) = &connections.tls else {
        return serve_connection(connections, stream, address, Client(None)).await;
    };
    let stream = timeout(connections.patience, acceptor.accept(stream)).await??;
    let certificate = stream.get_ref().1.peer_certificates().and_then(<[_]>::first);
    let client = Client(certificate.and_then(|certificate| Peer::from_certificate(certificate).ok()));
    serve_connection(connections, stream, address, client).await
}

async fn serve_connection(
    connections: &Arc<Connections>,
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    address: SocketAddr,
    client: Client,
) -> io::Result<()> {
    let service = hyper::service::service_fn(|request: Request<Incoming>| {
        let (connections, client) = (Arc::clone(connections), client.clone());
        async move { Ok::<Response, Infallible>(answer(&connections, request, address, client).await) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(connections.patience)
        .max_buf_size(32 << 10)
        .serve_connection(TokioIo::new(stream), service);
    tokio::pin!(connection);
    let mut closing = connections.closing.clone();
    tokio::select! {
        ended = &mut connection => return ended.map_err(io::Error::other),
        _ = closing.wait_for(|closing| *closing) => {}
    }
    connection.as_mut().graceful_shutdown();
    connection.await.map_err(io::Error::other)
}

async fn answer(
    connections: &Connections,
    request: Request<Incoming>,
    address: SocketAddr,
    client: Client,
) -> Response {
    if !connections.rate.allows(address.ip(), Instant::now()) {
        return HttpError::TooMany.into_response();
    }
    let (head, body) = request.into_parts();
    // A slow or endless body occupies its connection no longer than a head does.
    let body = match timeout(connections.patience, to_bytes(Body::new(body), LONGEST_BODY)).await {
        Ok(Ok(body)) => body,
        Ok(Err(_)) => return connections.refuse(Refusal::TooLong, "the body is too long"),
        Err(_) => return connections.refuse(Refusal::Silent, "the body took too long"),
    };
    let mut request = Request::from_parts(head, Body::from(body));
    request.extensions_mut().insert(client);
    request.extensions_mut().insert(ClientAddress(address.ip()));
    match connections.router.clone().oneshot(request).await {
        Ok(response) => response,
        Err(never) => match never {},
    }
}
