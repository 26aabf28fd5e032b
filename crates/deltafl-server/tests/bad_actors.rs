//! Whoever does not belong or does not behave is refused and counted, and the others are served:
//! callers without certificates, callers with them, and devices that take part in rounds.

#![allow(clippy::unwrap_used, missing_docs)]

#[path = "bad_actors/callers.rs"]
mod callers;
#[path = "bad_actors/certificates.rs"]
mod certificates;
#[path = "field/certified.rs"]
#[allow(dead_code, unreachable_pub, reason = "shared by several tests")]
mod certified;
#[path = "field/fleet.rs"]
#[allow(dead_code, unreachable_pub, reason = "shared by several tests")]
mod fleet;
#[path = "bad_actors/rogues.rs"]
mod rogues;
#[path = "field/watchdog.rs"]
#[allow(dead_code, unreachable_pub, reason = "shared by several tests")]
mod watchdog;

use std::net::SocketAddr;
use std::time::Duration;

use deltafl_server::listener::ConnectionLimits;
use deltafl_server::serve::{Host, Limits, Setup};
use deltafl_wire::proto::federation_client::FederationClient;
use deltafl_wire::proto::{FromDevice, FromServer, Hello, from_device, from_server};
use fleet::{TestFederation, TestHost, start_host};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::{Channel, Endpoint};
use tonic::{Status, Streaming};

const EXPERIMENT: &str = r#"
    name = "bad-actors"
    rounds = 2
    cohort = 8
    data = { source = { kind = "glyphs", devices = 20, seed = 3 } }
    model = { kind = "linear" }
    local = { steps = 1, batch = 10, learning_rate = 0.1 }
    algorithm = [{ kind = "fedavg" }]
"#;

/// A server that loses its patience quickly.
async fn host(test: &TestFederation) -> TestHost {
    let patience = Duration::from_millis(300);
    let setup = Setup {
        connections: ConnectionLimits { patience, ..ConnectionLimits::default() },
        limits: Limits { patience, ..Limits::default() },
        ..test.setup()
    };
    start_host(setup, &test.roster(&[])).await
}

async fn client(address: SocketAddr) -> FederationClient<Channel> {
    let endpoint = Endpoint::from_shared(format!("http://{address}")).unwrap();
    FederationClient::new(endpoint.connect().await.unwrap())
}

/// Both ends of a stream that began with this message.
struct Line {
    outgoing: mpsc::Sender<FromDevice>,
    incoming: Streaming<FromServer>,
}

impl Line {
    async fn open(address: SocketAddr, first: from_device::Body) -> Result<Self, Status> {
        let (outgoing, outbox) = mpsc::channel(64);
        outgoing.send(FromDevice { body: Some(first) }).await.unwrap();
        let incoming = client(address).await.attend(ReceiverStream::new(outbox)).await?.into_inner();
        Ok(Self { outgoing, incoming })
    }

    async fn hello(address: SocketAddr, device: &str) -> Result<Self, Status> {
        Self::open(address, from_device::Body::Hello(Hello { version: 1, device: device.to_owned() })).await
    }

    async fn say(&self, body: from_device::Body) {
        self.outgoing.send(FromDevice { body: Some(body) }).await.unwrap();
    }

    /// Reads until the server ends the stream.
    async fn end(mut self) {
        while let Ok(Some(_)) = self.incoming.message().await {}
    }

    async fn next(&mut self) -> from_server::Body {
        self.incoming.message().await.unwrap().unwrap().body.unwrap()
    }
}

/// An honest device is welcome all the same.
async fn still_serves(test: &TestFederation, host: &Host) {
    let honest = test.federation.id(*test.devices().last().unwrap());
    let mut line = Line::hello(host.address(), honest).await.unwrap();
    assert!(matches!(line.next().await, from_server::Body::Welcome(_)));
}
