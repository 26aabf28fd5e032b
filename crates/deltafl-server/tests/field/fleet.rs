//! A small federation with its server and its devices in one process, over real sockets.

use std::net::{Ipv4Addr, SocketAddr};
use std::num::NonZeroUsize;
use std::ops::{ControlFlow, Deref};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use deltafl::data::{Federation, FederationIndex, Split};
use deltafl::exchange::{Exchange, Simulation};
use deltafl::kernel::Isa;
use deltafl::model::Model;
use deltafl::trainer::{LocalTrainer, Sgd};
use deltafl::training::{
    Event, Observer, ObserverResult, RoundRecord, State, TrainOptions, TrainingError, TrainingObserver,
    train_with,
};
use deltafl_data::experiment::{Experiment, SplitSection};
use deltafl_device::fault::Misconduct;
use deltafl_device::swarm::{SimulatedDevice, Swarm, SwarmOptions};
use deltafl_device::{Backoff, Consent, Credentials, ServerEndpoint, ServerTrust, model_trainer};
use deltafl_server::exchange::{NetworkExchange, Rules};
use deltafl_server::serve::{DeviceLink, Host, Introduction, Setup};
use deltafl_wire::loopback;
use deltafl_wire::roster::{RosterVersion, SignedRoster};

use crate::watchdog;

/// A federation and its model.
pub struct TestFederation {
    pub experiment: Experiment,
    pub federation: Arc<Federation>,
    pub model: Arc<dyn Model>,
}

impl TestFederation {
    pub fn new(experiment: &str) -> Self {
        let experiment = Experiment::parse(experiment).unwrap();
        // As `deltafl serve` does.
        let schedule = experiment.deployed_schedule();
        let experiment = experiment.with_schedule(schedule);
        let federation = experiment.data().load().unwrap();
        let model = experiment.model().spec().build(&federation, Isa::detect()).unwrap();
        Self { experiment, federation: Arc::new(federation), model: Arc::from(model) }
    }

    /// The model, as devices train it.
    pub fn trainer(&self) -> Arc<dyn LocalTrainer> {
        Arc::new(model_trainer(Arc::clone(&self.model)))
    }

    pub fn devices(&self) -> Vec<FederationIndex> {
        self.federation.split(Split::Train)
    }

    pub fn credentials(&self, device: FederationIndex) -> Credentials {
        loopback::credentials(self.federation.id(device))
    }

    /// The roster, with these devices revoked.
    pub fn roster(&self, revoked: &[FederationIndex]) -> SignedRoster {
        let devices = self.devices();
        let names = devices.iter().map(|&k| self.federation.id(k));
        let edition = RosterVersion { version: 1 + revoked.len() as u64, expires: u64::MAX };
        loopback::roster(edition, names, |name| revoked.iter().any(|&k| self.federation.id(k) == name))
            .unwrap()
    }

    pub fn setup(&self) -> Setup {
        let introduction = Introduction {
            federation: "test".to_owned(),
            session: rand_session(),
            experiment: self.experiment.name().to_owned(),
            model: serde_json::to_string(&self.experiment.model().spec()).unwrap(),
            params: self.model.num_params(),
            open: self.experiment.is_open(),
            contract: None,
        };
        Setup::loopback(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)), introduction)
    }

    pub async fn host(&self) -> TestHost {
        start_host(self.setup(), &self.roster(&[])).await
    }

    pub fn rules(&self) -> Rules {
        let devices = self.devices().len();
        Rules {
            present: devices,
            quorum: 3,
            pause: Duration::from_millis(10),
            come_back: Duration::from_secs(10),
            ..Rules::new(self.experiment.cohort(), devices)
        }
    }

    /// Every device of the federation, at large.
    pub fn swarm(&self, address: SocketAddr, options: &SwarmOptions) -> Swarm {
        self.swarm_of(&self.devices(), address, options)
    }

    /// Some devices of the federation, at large.
    pub fn swarm_of(
        &self,
        devices: &[FederationIndex],
        address: SocketAddr,
        options: &SwarmOptions,
    ) -> Swarm {
        let device = |&data: &FederationIndex| {
            let server = ServerEndpoint { address: address.to_string(), trust: ServerTrust::Loopback };
            SimulatedDevice { credentials: self.credentials(data), server, data }
        };
        Swarm::start(devices.iter().map(device).collect(), &self.trainer(), &self.federation, options)
    }

    /// Trains in this process, from w₀ to the end.
    pub fn simulate(&self, diary: &mut Records) -> State {
        let trainer = Sgd::new(&*self.model);
        let threads = NonZeroUsize::new(2);
        self.train(&mut Simulation::with_threads(&trainer, &self.federation, threads).unwrap(), diary)
            .unwrap()
    }

    /// Trains over an exchange from w₀ to the end.
    pub fn train(
        &self,
        exchange: &mut dyn Exchange,
        diary: &mut TrainingObserver<'_>,
    ) -> Result<State, TrainingError> {
        let mut plan = self.experiment.plan();
        // As `deltafl serve` does.
        if matches!(self.experiment.data().split, Some(SplitSection::Within(_))) {
            plan = plan.into_builder().held_out(self.model.task()).build().unwrap();
        }
        let seed = *self.experiment.seeds().iter().next().unwrap();
        let mut state = plan.start(seed, &Sgd::new(&*self.model));
        let options = TrainOptions { checkpoint_every_round: true, ..TrainOptions::default() };
        train_with(exchange, &plan, &mut state, options, diary).map(|_| state)
    }
}

pub fn options() -> SwarmOptions {
    SwarmOptions {
        consent: Consent { open: true, min_cohort: 3, reproducible: true, ..Consent::default() },
        misconduct: Misconduct::default(),
        seed: 1,
        threads: NonZeroUsize::new(2).unwrap(),
        arrivals: 1000,
        backoff: Backoff { first: Duration::from_millis(20), longest: Duration::from_millis(200) },
        day: None,
    }
}

/// A session of its own for each server.
fn rand_session() -> [u8; 16] {
    use std::sync::atomic::{AtomicU8, Ordering};
    static NEXT: AtomicU8 = AtomicU8::new(0);
    [NEXT.fetch_add(1, Ordering::Relaxed); 16]
}

/// The events of a run.
#[derive(Default)]
pub struct Records {
    pub records: Vec<RoundRecord>,
    pub states: Vec<State>,
    pub evaluations: usize,
}

impl Observer<Event<'_>> for Records {
    fn handle(&mut self, event: Event<'_>) -> ObserverResult {
        match event {
            Event::RoundFinished { records } => self.records.extend_from_slice(records),
            Event::Evaluated { .. } => self.evaluations += 1,
            Event::Checkpoint { state } => self.states.push(state.clone()),
            _ => {}
        }
        Ok(ControlFlow::Continue(()))
    }
}

/// A server and its devices.
pub struct TestHost {
    host: Host,
    link: Option<DeviceLink>,
}

impl TestHost {
    /// The devices as an exchange.
    pub fn exchange(&mut self, rules: Rules, stop: Arc<AtomicBool>) -> NetworkExchange {
        NetworkExchange::new(self.link.take().expect("the exchange exists already"), rules, stop)
    }

    pub async fn shut_down(self) {
        drop(self.link);
        self.host.shut_down().await;
    }
}

impl Deref for TestHost {
    type Target = Host;

    fn deref(&self) -> &Host {
        &self.host
    }
}

/// Starts a server whose sessions are shown when a test exceeds its time limit.
pub async fn start_host(setup: Setup, roster: &SignedRoster) -> TestHost {
    let (host, link) = Host::start(setup, roster).await.unwrap();
    let monitor = host.session_monitor();
    watchdog::report(move || monitor.sessions().map(|sessions| sessions.to_string()));
    TestHost { host, link: Some(link) }
}

/// A flag that nobody raises.
pub fn never() -> Arc<AtomicBool> {
    Arc::default()
}
