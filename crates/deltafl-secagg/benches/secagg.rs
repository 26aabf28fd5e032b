//! The speed of secure aggregation on one core: Shamir, masks, a device's input, the server's unmasking.
//!
//! The device and the server are measured through their state machines, set up once per case and driven to
//! the call that is timed: [`Device::submit`] for a device, the last answer of the unmasking for the server.

use std::collections::BTreeMap;
use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;

use chacha20::ChaCha20Rng;
use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use deltafl_secagg::device::{Adversary, Device, Enrolment, Policy};
use deltafl_secagg::field::Element;
use deltafl_secagg::graph::{GraphRule, Permille};
use deltafl_secagg::identity::{DeviceId, Identity, Roster};
use deltafl_secagg::mask::{self, MaskKey, Sign, Suite};
use deltafl_secagg::message::{DeviceMessage, DeviceSet};
use deltafl_secagg::params::{RoundId, RoundParams};
use deltafl_secagg::ring::{Ring, RingVector};
use deltafl_secagg::server::{Server, ServerConfig, ServerEvent};
use deltafl_secagg::shamir::{Interpolation, split};
use rand_core::SeedableRng;

const MILLION: u32 = 1_000_000;
const ZERO: Duration = Duration::ZERO;

fn shamir(c: &mut Criterion) {
    let mut rng = ChaCha20Rng::seed_from_u64(1);
    let points: Vec<Element> = (1..=100).map(Element::from).collect();
    let secret = [7; 32];
    c.bench_function("shamir/split n=100 t=51", |b| {
        b.iter(|| split(black_box(&secret), &points, 51, &mut rng).expect("sound parameters"));
    });
    let shares = split(&secret, &points, 51, &mut rng).expect("sound parameters");
    c.bench_function("shamir/recover t=51", |b| {
        b.iter(|| {
            let interpolation = Interpolation::new(points[..51].to_vec()).expect("distinct");
            interpolation.recover(black_box(&shares[..51])).expect("a secret")
        });
    });
}

/// Sixteen masks on a million coordinates.
fn masks(c: &mut Criterion) {
    let mut group = c.benchmark_group("masks/16 x 1M");
    group.sample_size(20);
    let keys: Vec<(Sign, MaskKey)> = (0..16)
        .map(|i| (if i % 2 == 0 { Sign::Plus } else { Sign::Minus }, MaskKey::from_bytes([i; 32])))
        .collect();
    for ring in [Ring::Z32, Ring::Z64] {
        group.throughput(Throughput::Bytes(16 * u64::from(MILLION) * ring.width() as u64));
        for suite in [Suite::Aes128Ctr, Suite::ChaCha20] {
            let mut vector = RingVector::zeros(ring, MILLION as usize);
            group.bench_function(format!("{ring:?} {suite:?}"), |b| {
                b.iter(|| mask::apply(&mut vector, suite, &keys));
            });
        }
    }
    group.finish();
}

/// A round on its way: the devices, the server, and what the devices have said but the server has not heard.
struct Bench {
    server: Server,
    devices: BTreeMap<DeviceId, Device>,
    said: Vec<(DeviceId, DeviceMessage)>,
}

impl Bench {
    /// Keys are set up between n devices, and a slot of `len` coordinates is open.
    fn open(n: u32, graph: GraphRule, ring: Ring, len: u32) -> Self {
        let mut rng = ChaCha20Rng::seed_from_u64(1);
        let identities: Vec<Identity> = (0..n).map(|i| Identity::generate(DeviceId(i), &mut rng)).collect();
        let mut roster = Roster::new();
        for identity in &identities {
            roster.add(identity.id(), &identity.public()).expect("distinct");
        }
        let roster = Arc::new(roster);
        let id = RoundId { session: [0; 16], round: 0 };
        let params = RoundParams { id, suite: Suite::Aes128Ctr, cohort: n, graph, slots: 1 };
        let cohort: DeviceSet = (0..n).map(DeviceId).collect();
        let (phase_timeout, min_members) = (Duration::from_secs(1), 2);
        let config = ServerConfig {
            params: params.clone(),
            cohort,
            roster: roster.clone(),
            min_members,
            phase_timeout,
        };
        let mut server = Server::new(config, ZERO).expect("sound parameters");
        server.poll_transmit();
        let (gamma, delta) = (Permille::default().into(), Permille::default());
        let adversary = Adversary::HonestButCurious { gamma, delta };
        let policy = Policy { min_members, adversary, max_len: MILLION, patience: Duration::MAX };
        let devices = identities.into_iter().map(|identity| {
            let id = identity.id();
            let mut enrolment = Enrolment::new(Arc::new(identity), roster.clone(), [0; 16], policy);
            (id, enrolment.join(&params, ZERO, &mut rng).expect("within the policy"))
        });
        let mut bench = Self { devices: devices.collect(), server, said: Vec::new() };
        bench.listen();
        bench.carry();
        bench.server.open_slot(ZERO, ring, len, b"").expect("keys are set up");
        bench.talk();
        bench
    }

    /// What the devices have to say.
    fn listen(&mut self) {
        for (&id, device) in &mut self.devices {
            self.said.extend(std::iter::from_fn(|| device.poll_transmit()).map(|message| (id, message)));
        }
    }

    /// What the server has to say, to the devices that are there.
    fn talk(&mut self) {
        while let Some(transmit) = self.server.poll_transmit() {
            for to in transmit.to.iter() {
                if let Some(device) = self.devices.get_mut(&to) {
                    device.handle(ZERO, transmit.message.clone()).expect("an honest server");
                }
            }
        }
        self.listen();
    }

    /// To and fro until the server waits for its program.
    fn carry(&mut self) {
        while !self.said.is_empty() {
            for (from, message) in std::mem::take(&mut self.said) {
                self.server.handle(ZERO, from, message).expect("an honest device");
            }
            self.talk();
        }
    }

    /// Everything up to the last answer of the unmasking, which is left in `said`.
    fn until_unmasking(mut self, ring: Ring, len: u32, dropped: u32) -> Self {
        let n = self.devices.len() as u32;
        // Spread over the ids.
        let gone = |id: &DeviceId| (id.0 * dropped) % n < dropped;
        self.devices.retain(|id, _| !gone(id));
        for id in self.devices.keys().copied().collect::<Vec<_>>() {
            let device = self.devices.get_mut(&id).expect("present");
            device.submit(b"", RingVector::zeros(ring, len as usize)).expect("as asked for");
            let message = device.poll_transmit().expect("a masked input");
            self.server.handle(ZERO, id, message).expect("an honest device");
        }
        let deadline = self.server.poll_timeout().expect("inputs are missing");
        self.server.handle_timeout(deadline);
        self.talk();
        for (from, message) in std::mem::take(&mut self.said) {
            self.server.handle(ZERO, from, message).expect("a signature");
        }
        self.talk();
        let last = self.said.pop().expect("shares");
        for (from, message) in std::mem::take(&mut self.said) {
            self.server.handle(ZERO, from, message).expect("shares");
        }
        self.said.push(last);
        self
    }
}

/// Hears the last answer and takes the masks off.
fn unmask(mut server: Server, from: DeviceId, message: DeviceMessage) -> Server {
    server.handle(ZERO, from, message).expect("shares");
    let events: Vec<ServerEvent> = std::iter::from_fn(|| server.poll_event()).collect();
    assert!(matches!(events[..], [.., ServerEvent::Sum(_)]), "{events:?}");
    server
}

fn regular(thousandths_colluding: u16, thousandths_dropping: u16) -> GraphRule {
    let permille = |value| Permille::new(value).expect("at most one half");
    GraphRule::Active { gamma: permille(thousandths_colluding).into(), delta: permille(thousandths_dropping) }
}

/// A device's share of a slot: agree with every neighbour, expand every mask, encode.
fn device(c: &mut Criterion) {
    let mut group = c.benchmark_group("device/submit 1M");
    group.sample_size(10);
    for (name, n) in [("k=16", 17), ("n=100 full", 100)] {
        for ring in [Ring::Z32, Ring::Z64] {
            // One set-up serves as many samples as it has devices.
            let mut pool: Vec<Device> = Vec::new();
            let mut next = || {
                if pool.is_empty() {
                    let graph = GraphRule::Full { threshold: n / 2 + 1 };
                    pool.extend(Bench::open(n, graph, ring, MILLION).devices.into_values());
                }
                (pool.pop().expect("refilled"), RingVector::zeros(ring, MILLION as usize))
            };
            group.bench_function(format!("{name} {ring:?}"), |b| {
                b.iter_batched(
                    &mut next,
                    |(mut device, input)| {
                        device.submit(b"", input).expect("as asked for");
                        device
                    },
                    BatchSize::PerIteration,
                );
            });
        }
    }
    group.finish();
}

/// The server's last step of a slot: recover secrets, check them, expand every mask.
fn server(c: &mut Criterion) {
    let mut group = c.benchmark_group("server/unmask");
    group.sample_size(10);
    let full = GraphRule::Full { threshold: 51 };
    for (name, n, graph, ring, len, dropped) in [
        ("n=100 full, 5 dropped, 1M", 100, full, Ring::Z32, MILLION, 5),
        ("n=100 full, 5 dropped, 1M", 100, full, Ring::Z64, MILLION, 5),
        ("n=1000 k-regular, 300 dropped, 100k", 1000, regular(50, 300), Ring::Z32, 100_000, 300),
    ] {
        let mut ready: Option<(Server, DeviceId, DeviceMessage)> = None;
        group.bench_function(format!("{name} {ring:?}"), |b| {
            let (server, from, message) = ready.get_or_insert_with(|| {
                let mut bench = Bench::open(n, graph, ring, len).until_unmasking(ring, len, dropped);
                let (from, message) = bench.said.pop().expect("the last shares");
                (bench.server, from, message)
            });
            b.iter_batched(
                || (server.clone(), message.clone()),
                |(server, message)| unmask(server, *from, message),
                BatchSize::PerIteration,
            );
        });
    }
    group.finish();
}

criterion_group!(benches, shamir, masks, device, server);
criterion_main!(benches);
