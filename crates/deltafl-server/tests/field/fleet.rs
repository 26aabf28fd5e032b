//! A small federation with its server and its devices in one process, over real sockets.

use std::net::{Ipv4Addr, SocketAddr};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use deltafl::compute::Threads;
use deltafl::data::{Federation, FederationIndex, Split};
use deltafl::exchange::{Direct, Exchange, SplitEvaluation};
use deltafl::kernel::Isa;
use deltafl::model::Model;
use deltafl::superquantile::LossDistribution;
use deltafl::trainer::{LocalTrainer, Sgd};
use deltafl::training::{Observer, ObserverError, RoundRecord, State, Survey, TrainingError, train};
use deltafl_data::experiment::{Experiment, SplitSection};
use deltafl_device::fault::Misconduct;
use deltafl_device::swarm::{SimulatedDevice, Swarm, SwarmOptions};
use deltafl_device::{Backoff, Consent, Credentials, Server, Trust, model_trainer};
use deltafl_server::engine::Rules;
use deltafl_server::listener::{ConnectionLimits, Protection};
use deltafl_server::serve::{Host, Introduction, Limits, Setup};
use deltafl_wire::loopback;
use deltafl_wire::roster::{Edition, SignedRoster};

/// A federation and its model.
pub struct TestFederation {
    pub experiment: Experiment,
    pub federation: Arc<Federation>,
    pub model: Arc<dyn Model>,
}

impl TestFederation {
    pub fn new(experiment: &str) -> Self {
        let experiment = Experiment::parse(experiment).unwrap();
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
        let edition = Edition { version: 1 + revoked.len() as u64, expires: u64::MAX };
        loopback::roster(edition, names, |name| revoked.iter().any(|&k| self.federation.id(k) == name))
            .unwrap()
    }

    pub fn setup(&self) -> Setup {
        Setup {
            address: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
            protection: Protection::Loopback,
            connections: ConnectionLimits::default(),
            limits: Limits::default(),
            introduction: Introduction {
                federation: "test".to_owned(),
                session: rand_session(),
                experiment: self.experiment.name().to_owned(),
                model: serde_json::to_string(&self.experiment.model().spec()).unwrap(),
                params: self.model.num_params(),
                open: self.experiment.is_open(),
                contract: None,
            },
            newest: Vec::new(),
        }
    }

    pub async fn host(&self) -> Host {
        Host::start(self.setup(), &self.roster(&[])).await.unwrap()
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
            let server = Server { address: address.to_string(), trust: Trust::Loopback };
            SimulatedDevice { credentials: self.credentials(data), server, data }
        };
        Swarm::start(devices.iter().map(device).collect(), &self.trainer(), &self.federation, options)
    }

    /// Trains in this process, from w₀ to the end.
    pub fn simulate(&self, diary: &mut Records) -> State {
        let trainer = Sgd::new(&*self.model);
        let compute = Threads::new(&trainer, &self.federation, 2).unwrap();
        self.train(&mut Direct::new(compute, &self.federation).unwrap(), diary).unwrap()
    }

    /// Trains over an exchange from w₀ to the end.
    pub fn train(
        &self,
        exchange: &mut dyn Exchange,
        diary: &mut dyn Observer,
    ) -> Result<State, TrainingError> {
        let mut plan = self.experiment.plan();
        // As `deltafl serve` does.
        if matches!(self.experiment.data().split, Some(SplitSection::Within(_))) {
            plan.held_out = Some(self.model.task());
        }
        let seed = *self.experiment.seeds().iter().next().unwrap();
        let mut state = State::new(seed, plan.tracks.len(), &Sgd::new(&*self.model));
        train(exchange, &plan, &mut state, diary).map(|_| state)
    }
}

pub fn options() -> SwarmOptions {
    SwarmOptions {
        consent: Consent { open: true, min_cohort: 3, ..Consent::default() },
        misconduct: Misconduct::default(),
        seed: 1,
        threads: 2,
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

/// What a run told.
#[derive(Default)]
pub struct Records {
    pub records: Vec<RoundRecord>,
    pub states: Vec<State>,
    pub evaluations: usize,
}

impl Observer for Records {
    fn round(&mut self, records: &[RoundRecord]) -> Result<ControlFlow<()>, ObserverError> {
        self.records.extend_from_slice(records);
        Ok(ControlFlow::Continue(()))
    }

    fn evaluation(&mut self, _: u64, _: &[SplitEvaluation]) -> Result<(), ObserverError> {
        self.evaluations += 1;
        Ok(())
    }

    fn checkpoint(&mut self, state: &State) -> Result<(), ObserverError> {
        self.states.push(state.clone());
        Ok(())
    }

    fn every_round(&self) -> bool {
        true
    }

    fn survey(&self, _: u64) -> Survey {
        Survey::None
    }

    fn losses(&mut self, _: u64, _: &[Option<LossDistribution>]) -> Result<(), ObserverError> {
        Ok(())
    }
}

/// A flag that nobody raises.
pub fn never() -> Arc<AtomicBool> {
    Arc::default()
}
