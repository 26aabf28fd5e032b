//! The cost of a round on one core: a device's set-up and input, the server's unmasking, and the
//! bytes of a set-up.
//!
//! Device and server are measured through their state machines with encoded messages. On Linux the
//! figures are CPU time, so that a busy machine does not distort them. Each is the minimum of
//! several repetitions. `cargo bench -p deltafl-secagg --bench rounds [-- words in the names of
//! cases]`.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use chacha20::ChaCha20Rng;
use deltafl_secagg::defences::Defences;
use deltafl_secagg::device::{AdversaryModel, DevicePolicy, DeviceRound, Participant};
use deltafl_secagg::graph::{GraphRule, Permille};
use deltafl_secagg::identity::{DeviceId, KeyRoster, SigningIdentity};
use deltafl_secagg::mask::MaskSuite;
use deltafl_secagg::message::DeviceMessage;
use deltafl_secagg::message::wire::{encode_device, encode_server};
use deltafl_secagg::params::{RoundId, RoundParams};
use deltafl_secagg::ring::{Ring, RingVector};
use deltafl_secagg::server::{ServerRound, ServerRoundConfig, ServerRoundEvent};
use rand_core::SeedableRng;

const MILLION: u32 = 1_000_000;
const ZERO: Duration = Duration::ZERO;

/// Returns the CPU time of this thread.
fn cpu() -> Duration {
    let told = std::fs::read_to_string("/proc/thread-self/schedstat").ok();
    let nanoseconds = told.and_then(|text| text.split_whitespace().next()?.parse().ok());
    match nanoseconds {
        Some(nanoseconds) => Duration::from_nanos(nanoseconds),
        None => START.with(Instant::elapsed),
    }
}

thread_local! {
    static START: Instant = Instant::now();
}

/// Measures how long `work` takes.
fn timed<T>(work: impl FnOnce() -> T) -> (Duration, T) {
    let before = cpu();
    let done = work();
    (cpu().saturating_sub(before), done)
}

/// A round in progress: the devices, the server, and the devices' messages not yet delivered.
struct Bench {
    server: ServerRound,
    devices: BTreeMap<DeviceId, DeviceRound>,
    said: Vec<(DeviceId, DeviceMessage)>,
    cost: SetUp,
}

/// A device's cost of the set-up: the smallest time, and the bytes of the device with the most
/// traffic.
#[derive(Default)]
struct SetUp {
    work: BTreeMap<DeviceId, Duration>,
    up: BTreeMap<DeviceId, usize>,
    down: BTreeMap<DeviceId, usize>,
}

impl Bench {
    /// Sets up keys between n devices.
    fn new(n: u32, graph: GraphRule, slots: u32) -> Self {
        let mut rng = ChaCha20Rng::seed_from_u64(1);
        let identities: Vec<SigningIdentity> =
            (0..n).map(|i| SigningIdentity::generate(DeviceId(i), &mut rng)).collect();
        let mut roster = KeyRoster::new();
        for identity in &identities {
            roster.add(identity.id(), &identity.public()).expect("distinct");
        }
        let roster = Arc::new(roster);
        let id = RoundId { session: [0; 16], round: 0 };
        let params = RoundParams { id, suite: MaskSuite::default(), cohort: n, graph, slots, draw: None };
        let (phase_timeout, min_members) = (Duration::from_secs(1), 2);
        let config = ServerRoundConfig {
            params: params.clone(),
            cohort: (0..n).map(DeviceId).collect(),
            roster: roster.clone(),
            min_members,
            phase_timeout,
        };
        let mut server = ServerRound::new(config, ZERO).expect("sound parameters");
        server.poll_transmit();
        let (gamma, delta) = (Permille::default().into(), Permille::default());
        let adversary = AdversaryModel::HonestButCurious { gamma, delta };
        let policy = DevicePolicy {
            min_members,
            adversary,
            max_len: MILLION,
            patience: Duration::MAX,
            max_left_out: None,
            defences: Defences::default(),
        };
        let mut bench = Self { devices: BTreeMap::new(), server, said: Vec::new(), cost: SetUp::default() };
        for identity in identities {
            let id = identity.id();
            let mut participant = Participant::new(Arc::new(identity), roster.clone(), [0; 16], policy);
            let (work, device) = timed(|| participant.join(&params, ZERO, &mut rng));
            *bench.cost.work.entry(id).or_default() += work;
            bench.devices.insert(id, device.expect("within the policy"));
        }
        bench.listen();
        while !bench.said.is_empty() {
            for (from, message) in std::mem::take(&mut bench.said) {
                *bench.cost.up.entry(from).or_default() += encode_device(&message).len();
                bench.server.handle(ZERO, from, message).expect("an honest device");
            }
            bench.talk();
        }
        bench
    }

    /// Opens a slot of `len` coordinates.
    fn open(mut self, ring: Ring, len: u32) -> Self {
        self.server.open_slot(ZERO, ring, len, b"").expect("keys are set up");
        self.talk();
        self
    }

    /// Collects the devices' messages.
    fn listen(&mut self) {
        for (&id, device) in &mut self.devices {
            self.said.extend(std::iter::from_fn(|| device.poll_transmit()).map(|message| (id, message)));
        }
    }

    /// Delivers the server's messages to the active devices.
    fn talk(&mut self) {
        while let Some(transmit) = self.server.poll_transmit() {
            let bytes = encode_server(&transmit.message).len();
            for to in transmit.to.iter() {
                if let Some(device) = self.devices.get_mut(&to) {
                    let message = transmit.message.clone();
                    let (work, heard) = timed(|| device.handle(ZERO, message));
                    heard.expect("an honest server");
                    *self.cost.work.entry(to).or_default() += work;
                    *self.cost.down.entry(to).or_default() += bytes;
                }
            }
        }
        self.listen();
    }

    /// Runs everything up to the last message of the unmasking.
    fn until_unmasking(
        mut self,
        ring: Ring,
        len: u32,
        dropped: u32,
    ) -> (ServerRound, DeviceId, DeviceMessage) {
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
        let (last, message) = self.said.pop().expect("shares");
        for (from, message) in std::mem::take(&mut self.said) {
            self.server.handle(ZERO, from, message).expect("shares");
        }
        (self.server, last, message)
    }
}

fn full(n: u32) -> GraphRule {
    GraphRule::Full { threshold: n * 105 / 200 + 1 }
}

fn active(gamma: u16, delta: u16) -> GraphRule {
    let permille = |value| Permille::new(value).expect("at most one half");
    GraphRule::Active { gamma: permille(gamma).into(), delta: permille(delta) }
}

fn tell(case: &str, times: &[Duration], note: &str) {
    let least = times.iter().min().copied().unwrap_or_default();
    println!("{case:<52} {:>9.1} ms  (least of {}){note}", 1e3 * least.as_secs_f64(), times.len());
}

/// Measures a device's set-up and its bytes.
fn set_up(case: &str, n: u32, graph: GraphRule, slots: u32) {
    let SetUp { work, up, down } = Bench::new(n, graph, slots).cost;
    let most =
        |bytes: &BTreeMap<DeviceId, usize>| bytes.values().max().copied().unwrap_or_default() as f64 / 1e3;
    let note = format!("  {:.0} kB up, {:.0} kB down", most(&up), most(&down));
    tell(case, &work.into_values().collect::<Vec<_>>(), &note);
}

/// Measures a device's input: derive and expand every mask, sign, encode.
fn device(case: &str, n: u32, ring: Ring) {
    let devices = Bench::new(n, full(n), 1).open(ring, MILLION).devices;
    let times = devices.into_values().take(20).map(|mut device| {
        let input = RingVector::zeros(ring, MILLION as usize);
        timed(|| device.submit(b"", input).expect("as asked for")).0
    });
    tell(case, &times.collect::<Vec<_>>(), "");
}

/// Measures the server's last step of a slot: recover and check secrets, expand every mask.
fn server(case: &str, (n, graph): (u32, GraphRule), (ring, len): (Ring, u32), dropped: u32) {
    let bench = Bench::new(n, graph, 1).open(ring, len);
    let (server, last, message) = bench.until_unmasking(ring, len, dropped);
    let times = (0..5).map(|_| {
        let (mut server, message) = (server.clone(), message.clone());
        let (time, ()) = timed(|| server.handle(ZERO, last, message).expect("shares"));
        let events: Vec<ServerRoundEvent> = std::iter::from_fn(|| server.poll_event()).collect();
        assert!(matches!(events[..], [.., ServerRoundEvent::Sum(_)]), "{events:?}");
        time
    });
    tell(case, &times.collect::<Vec<_>>(), "");
}

/// A case with its name.
type Case = (String, Box<dyn Fn(&str)>);

fn cases() -> Vec<Case> {
    let mut cases: Vec<Case> = Vec::new();
    for n in [100, 300, 500] {
        let name = format!("set-up of a device, n={n} full, 4 slots");
        cases.push((name, Box::new(move |case| set_up(case, n, full(n), 4))));
    }
    let name = "set-up of a device, n=1000 sparse, 4 slots".to_owned();
    cases.push((name, Box::new(|case| set_up(case, 1000, active(50, 200), 4))));
    for n in [100, 500] {
        for ring in [Ring::Z32, Ring::Z64] {
            let name = format!("device, input of 1M, n={n} full, {ring:?}");
            cases.push((name, Box::new(move |case| device(case, n, ring))));
            let name = format!("server, 5 % dropped, 1M, n={n} full, {ring:?}");
            cases.push((name, Box::new(move |case| server(case, (n, full(n)), (ring, MILLION), n / 20))));
        }
    }
    let name = "server, 20 % dropped, 100k, n=1000 sparse, Z32".to_owned();
    cases.push((name, Box::new(|case| server(case, (1000, active(50, 200)), (Ring::Z32, 100_000), 200))));
    cases
}

fn main() {
    // Only `cargo bench` passes this flag. A test run that builds benches must not take minutes.
    if !std::env::args().any(|word| word == "--bench") {
        return;
    }
    let words: Vec<String> = std::env::args().skip(1).filter(|word| !word.starts_with('-')).collect();
    for (name, run) in cases() {
        if words.iter().all(|word| name.contains(word)) {
            run(&name);
        }
    }
}
