//! A federation in one thread: connections in memory, virtual time, and seeded random numbers.
#![allow(clippy::unwrap_used, missing_docs)]

#[path = "field/fleet.rs"]
#[allow(dead_code, unreachable_pub, reason = "shared by several tests")]
mod fleet;
#[path = "field/watchdog.rs"]
#[allow(dead_code, unreachable_pub, reason = "shared by several tests")]
mod watchdog;

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use chacha20::ChaCha20Rng;
use deltafl_device::fault::{Faults, Misconduct};
use deltafl_device::{Device, DeviceData, ServerEndpoint, ServerTrust};
use deltafl_server::exchange::NetworkExchange;
use deltafl_server::serve::{Host, Setup};
use deltafl_wire::environment::{Clock, Environment, Network, NetworkListener, PeerStream, RandomSource};
use deltafl_wire::loopback;
use deltafl_wire::roster::RosterVersion;
use fleet::{Records, TestFederation, never, options};
use rand_core::{Rng as _, SeedableRng as _};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep};

/// The time that a connection needs.
const LATENCY: Duration = Duration::from_secs(5);

/// Connections in memory.
#[derive(Debug, Default)]
struct MemoryNetwork {
    /// The number of attempts to connect.
    attempts: AtomicUsize,
    listeners: Mutex<HashMap<SocketAddr, mpsc::UnboundedSender<PeerStream>>>,
}

struct MemoryListener {
    address: SocketAddr,
    connections: mpsc::UnboundedReceiver<PeerStream>,
}

#[tonic::async_trait]
impl Network for MemoryNetwork {
    async fn connect(&self, address: &str) -> io::Result<PeerStream> {
        self.attempts.fetch_add(1, Ordering::Relaxed);
        sleep(LATENCY).await;
        let address: SocketAddr = address.parse().map_err(io::Error::other)?;
        let (ours, theirs) = tokio::io::duplex(64 << 10);
        let listeners = self.listeners.lock().unwrap();
        let listener = listeners.get(&address).ok_or(io::ErrorKind::ConnectionRefused)?;
        listener.send((Box::new(theirs), address)).map_err(|_| io::ErrorKind::ConnectionRefused)?;
        Ok((Box::new(ours), address))
    }

    async fn listen(&self, address: SocketAddr) -> io::Result<Box<dyn NetworkListener>> {
        let (sender, connections) = mpsc::unbounded_channel();
        self.listeners.lock().unwrap().insert(address, sender);
        Ok(Box::new(MemoryListener { address, connections }))
    }
}

#[tonic::async_trait]
impl NetworkListener for MemoryListener {
    fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.address)
    }

    async fn accept(&mut self) -> io::Result<PeerStream> {
        self.connections.recv().await.ok_or_else(|| io::ErrorKind::NotConnected.into())
    }
}

/// A date that does not change.
#[derive(Debug)]
struct FixedDate;

impl Clock for FixedDate {
    fn since_1970(&self) -> Duration {
        Duration::from_secs(1_700_000_000)
    }
}

/// Random numbers of a seed.
#[derive(Debug)]
struct SeededRandom(Mutex<ChaCha20Rng>);

impl RandomSource for SeededRandom {
    fn fill(&self, bytes: &mut [u8]) -> Result<(), getrandom::Error> {
        self.0.lock().unwrap().fill_bytes(bytes);
        Ok(())
    }
}

const EXPERIMENT: &str = r#"
    name = "simulated"
    rounds = 4
    cohort = 4
    weights = "uniform"
    data = { source = { kind = "glyphs", devices = 6, seed = 3 } }
    model = { kind = "linear" }
    local = { steps = 2, batch = 5, learning_rate = 0.1 }
    algorithm = [{ kind = "delta-fl", theta = 0.5, quantile = "histogram" }]
"#;

fn environment(network: &Arc<MemoryNetwork>) -> Environment {
    Environment {
        network: Arc::clone(network) as Arc<dyn Network>,
        clock: Arc::new(FixedDate),
        random: Arc::new(SeededRandom(Mutex::new(ChaCha20Rng::seed_from_u64(1)))),
    }
}

/// Starts the devices of a federation. Each message takes up to ten seconds.
fn spawn_devices(test: &TestFederation, runtime: &Runtime, address: SocketAddr, environment: &Environment) {
    for device in test.devices() {
        let server = ServerEndpoint { address: address.to_string(), trust: ServerTrust::Loopback };
        let device_data = DeviceData::new(Arc::clone(&test.federation), device);
        let device = Device::new(server, test.credentials(device), options().consent)
            .with_faults(Faults::new(
                Misconduct { delay_ms: 10_000, ..Misconduct::default() },
                1,
                u64::from(device.0),
            ))
            .with_environment(environment.clone());
        let trainer = test.trainer();
        runtime.spawn(async move { device.run(trainer, device_data).await });
    }
}

#[test]
fn a_federation_in_memory_and_in_virtual_time_computes_the_bits_of_a_simulation() {
    let _limit = watchdog::start();
    let test = TestFederation::new(EXPERIMENT);
    let environment = environment(&Arc::default());
    let runtime = Arc::new(Builder::new_current_thread().enable_time().start_paused(true).build().unwrap());
    let begun = (std::time::Instant::now(), runtime.block_on(async { Instant::now() }));

    let setup = Setup { environment: environment.clone(), ..test.setup() };
    let (host, link) = runtime.block_on(Host::start(setup, &test.roster(&[]))).unwrap();
    spawn_devices(&test, &runtime, host.address(), &environment);
    let mut exchange = NetworkExchange::new(link, test.rules(), never()).driving(Arc::clone(&runtime));
    let deployed = test.train(&mut exchange, &mut Records::default()).unwrap();
    let simulated = test.simulate(&mut Records::default());
    assert_eq!(deployed.tracks[0].params.hash(), simulated.tracks[0].params.hash());

    let (real, virtual_time) = (begun.0.elapsed(), runtime.block_on(async { begun.1.elapsed() }));
    // Every round has several messages of each device.
    assert!(virtual_time > Duration::from_secs(60), "{virtual_time:?}");
    assert!(real < virtual_time, "nobody waited: {real:?}");
    drop(exchange);
    runtime.block_on(host.shut_down());
}

#[test]
fn devices_that_refuse_the_roster_wait_longer_after_every_attempt() {
    let _limit = watchdog::start();
    let test = TestFederation::new(EXPERIMENT);
    let network = Arc::new(MemoryNetwork::default());
    let environment = environment(&network);
    let runtime = Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    let setup = Setup { environment: environment.clone(), ..test.setup() };
    let devices = test.devices();
    let names = devices.iter().map(|&device| test.federation.id(device));
    let expired = loopback::roster(RosterVersion { version: 1, expires: 1 }, names, |_| false).unwrap();
    let (host, link) = runtime.block_on(Host::start(setup, &expired)).unwrap();
    spawn_devices(&test, &runtime, host.address(), &environment);
    runtime.block_on(async { sleep(Duration::from_secs(3600)).await });
    // The delays reach two minutes, one on average. Without them an attempt takes the latency.
    let attempts = network.attempts.load(Ordering::Relaxed) / devices.len();
    assert!((20..120).contains(&attempts), "{attempts} attempts of a device in an hour");
    drop(link);
    runtime.block_on(host.shut_down());
}
