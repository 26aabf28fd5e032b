//! The outside world of a server or a device: the network, the wall clock and random numbers.
//!
//! [`Environment::default`] is the operating system. A test or a simulation replaces its parts.
//! Timers are not a part of it: server and device use [`tokio::time`], so that a runtime with
//! paused time controls them.

use std::fmt::Debug;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tonic::async_trait;

/// The outside world of a server or a device.
#[derive(Clone, Debug)]
pub struct Environment {
    /// Opens connections.
    pub network: Arc<dyn Network>,
    /// Returns the date, for rosters and transcripts.
    pub clock: Arc<dyn Clock>,
    /// Provides the randomness of keys and delays. Secure aggregation protects a device only if
    /// it is unpredictable.
    pub random: Arc<dyn RandomSource>,
}

impl Default for Environment {
    /// The operating system: TCP, its clock and its random number generator.
    fn default() -> Self {
        Self { network: Arc::new(Tcp), clock: Arc::new(SystemClock), random: Arc::new(SystemRandom) }
    }
}

/// A connection without TLS.
pub trait ByteStream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> ByteStream for T {}

/// A connection and the address of its peer.
pub type PeerStream = (Box<dyn ByteStream>, SocketAddr);

/// Opens connections.
#[async_trait]
pub trait Network: Debug + Send + Sync {
    /// Connects to `host:port`.
    async fn connect(&self, address: &str) -> io::Result<PeerStream>;

    /// Accepts connections at an address.
    async fn listen(&self, address: SocketAddr) -> io::Result<Box<dyn NetworkListener>>;
}

/// Accepts connections. Dropping it closes the address.
#[async_trait]
pub trait NetworkListener: Send {
    /// Returns the address, with the actual port if port 0 was requested.
    fn local_addr(&self) -> io::Result<SocketAddr>;

    /// Accepts the next connection. Dropping the future loses no connection.
    async fn accept(&mut self) -> io::Result<PeerStream>;
}

/// A wall clock.
pub trait Clock: Debug + Send + Sync {
    /// Returns the time since 1970.
    fn since_1970(&self) -> Duration;
}

/// A source of random bytes.
pub trait RandomSource: Debug + Send + Sync {
    /// Fills a buffer with random bytes.
    ///
    /// # Errors
    ///
    /// Fails if the source has no randomness.
    fn fill(&self, bytes: &mut [u8]) -> Result<(), getrandom::Error>;
}

/// TCP.
#[derive(Clone, Copy, Debug)]
pub struct Tcp;

#[async_trait]
impl Network for Tcp {
    async fn connect(&self, address: &str) -> io::Result<PeerStream> {
        let stream = TcpStream::connect(address).await?;
        let peer = stream.peer_addr()?;
        Ok((without_delay(stream), peer))
    }

    async fn listen(&self, address: SocketAddr) -> io::Result<Box<dyn NetworkListener>> {
        Ok(Box::new(TcpListener::bind(address).await?))
    }
}

#[async_trait]
impl NetworkListener for TcpListener {
    fn local_addr(&self) -> io::Result<SocketAddr> {
        Self::local_addr(self)
    }

    async fn accept(&mut self) -> io::Result<PeerStream> {
        let (stream, peer) = Self::accept(self).await?;
        Ok((without_delay(stream), peer))
    }
}

fn without_delay(stream: TcpStream) -> Box<dyn ByteStream> {
    // It fails if the peer has already closed the connection, which reading then reports.
    let _ = stream.set_nodelay(true);
    Box::new(stream)
}

/// The clock of the operating system.
#[derive(Clone, Copy, Debug)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn since_1970(&self) -> Duration {
        // Zero if the clock is set before 1970.
        SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default()
    }
}

/// The random number generator of the operating system.
#[derive(Clone, Copy, Debug)]
pub struct SystemRandom;

impl RandomSource for SystemRandom {
    fn fill(&self, bytes: &mut [u8]) -> Result<(), getrandom::Error> {
        getrandom::fill(bytes)
    }
}
