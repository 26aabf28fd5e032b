//! The durable server: an experiment trained with devices that connect over a network.
//!
//! A server commits every finished round to its store. If it is started again with the same
//! options, it continues. Several servers may share a database: one of them holds a lease and
//! leads, and the others are on standby.
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use deltafl::data::{Federation, Split, WithinSplit};
use deltafl::kernel::Isa;
use deltafl::task::Task;
use deltafl::trainer::LocalTrainer;
use deltafl::training::{Observer, Outcome, Plan, RoundRecord, train_with};
use deltafl_data::experiment::{
    BackendName, Experiment, ExternalAlgorithms, Resolved, SecureAggregation, SplitSection,
};
use deltafl_data::run_folder::{RunFolder, RunFolderError};
use deltafl_data::seeds::Seeds;
use deltafl_wire::contract::DataContract;
use deltafl_wire::environment::Environment;
use deltafl_wire::loopback;
use deltafl_wire::roster::{Roster, RosterVersion};
use tokio::runtime::Runtime;

pub mod allocator;
mod checks;
mod config;
mod deployment;
mod error;
mod event;
mod initial_model;

pub use checks::Undeployable;
pub use config::ServerConfig;
pub use error::ServerError;
pub(crate) use event::ServerEvents;
pub use event::{ServerEvent, ServerObserver};
pub use initial_model::InitialModel;

use crate::committer::RoundCommitter;
use crate::exchange::{NetworkExchange, Rules};
use crate::listener::ConnectionLimits;
use crate::live::Role;
use crate::refusal::Refusal;
use crate::serve::{Host, Introduction, Setup};
use crate::store::Store;
use deployment::Deployment;

/// The roster of a server without certificates contains the devices of its data, and does not
/// change.
const LOOPBACK: RosterVersion = RosterVersion { version: 1, expires: u64::MAX };

/// The model that a server trains, and its data.
pub struct ServedModel<'a> {
    /// Initialises w and names its tensors. Devices train with their own trainer.
    pub trainer: &'a dyn LocalTrainer,
    /// The contract of the data; `None` if devices have their own trainer and data.
    pub contract: Option<DataContract>,
    /// The hash of the data that the run folder records.
    pub data_hash: String,
    /// The names of the devices of a server without certificates.
    pub devices: Vec<String>,
    /// The implementation of the external algorithms of the experiment.
    pub algorithms: Option<&'a dyn ExternalAlgorithms>,
}

impl<'a> ServedModel<'a> {
    /// A model that devices train by their own trainer, on data that the server does not know.
    pub fn for_devices(trainer: &'a dyn LocalTrainer, devices: impl IntoIterator<Item = String>) -> Self {
        let devices = devices.into_iter().collect();
        Self { trainer, contract: None, data_hash: String::new(), devices, algorithms: None }
    }

    /// A model for data like `federation`, whose train devices are the devices of a server without
    /// certificates.
    pub fn for_data(trainer: &'a dyn LocalTrainer, federation: &Federation, experiment: &Experiment) -> Self {
        let train = federation.split(Split::Train).into_iter();
        Self {
            trainer,
            contract: Some(contract_of(federation, experiment)),
            data_hash: federation.hash().to_owned(),
            devices: train.map(|device| federation.id(device).to_owned()).collect(),
            algorithms: None,
        }
    }
}

/// The contract of data like `federation`, with the split of the devices' own examples that the
/// experiment asks for.
pub fn contract_of(federation: &Federation, experiment: &Experiment) -> DataContract {
    DataContract { split: split_within(experiment), ..DataContract::from_federation(federation) }
}

/// The split of the devices' own examples that an experiment asks for.
pub fn split_within(experiment: &Experiment) -> Option<WithinSplit> {
    match &experiment.data().split {
        Some(SplitSection::Within(within)) => Some(*within),
        _ => None,
    }
}

/// A server that trains an experiment with devices that connect.
///
/// `crates/deltafl-server/examples/embedded.rs` is a program with one.
pub struct Server<'a> {
    config: ServerConfig,
    experiment: Experiment,
    model: ServedModel<'a>,
    plan: Plan,
    rules: Rules,
    out: PathBuf,
    environment: Environment,
    /// Opened according to the configuration if `None`.
    store: Option<Store>,
}

impl<'a> Server<'a> {
    /// A server for an experiment. Nothing is opened before [`Self::run`].
    pub fn new(
        config: ServerConfig,
        experiment: Experiment,
        model: ServedModel<'a>,
    ) -> Result<Self, ServerError> {
        checks::check(&config, &experiment)?;
        checks::check_program(&experiment, model.algorithms.is_some())?;
        let certified = config.certs.is_some();
        if model.devices.is_empty() && !certified {
            return Err(ServerError::NoDevices);
        }
        // Deployed, sums are always secure.
        let schedule = checks::schedule(&experiment)?;
        let experiment = experiment.with_secagg(SecureAggregation::Real).with_schedule(Some(schedule));
        let normalise = experiment.data().normalise;
        let experiment = experiment.with_resolved(Some(Resolved {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            data_hash: model.data_hash.clone(),
            kernel: config.kernel.unwrap_or_else(Isa::detect),
            compute: BackendName::default(),
            params: model.trainer.num_params(),
            normalise,        // Without one, the contract of the data contains its constants.
            population: None, // Devices do not report their number of examples.
        }));
        let out = config.out.clone().unwrap_or_else(|| Path::new("runs").join(experiment.name()));
        let plan = experiment.plan_with(model.algorithms);
        // With certificates the devices are those on the roster, which may grow; the data only
        // shows their shape.
        let devices = if certified { usize::MAX } else { model.devices.len() };
        let (rules, invited) = config.rules(plan.sampling().cohort_size, devices)?;
        let plan = plan.into_builder().held_out(held_out(&config, &model)).cohort(invited).build()?;
        let environment = Environment::default();
        Ok(Self { config, experiment, model, plan, rules, out, environment, store: None })
    }

    /// Replaces the network, the clock and the random numbers of the operating system.
    #[must_use]
    pub fn with_environment(self, environment: Environment) -> Self {
        Self { environment, ..self }
    }

    /// Uses an open store instead of the one in the configuration.
    #[must_use]
    pub fn with_store(self, store: Store) -> Self {
        Self { store: Some(store), ..self }
    }

    /// Checks whether an experiment may be deployed, as [`Self::new`] does.
    pub fn check(config: &ServerConfig, experiment: &Experiment) -> Result<(), ServerError> {
        Ok(checks::check(config, experiment)?)
    }

    /// The run folder.
    pub fn folder(&self) -> &Path {
        &self.out
    }

    /// Trains until all seeds are done, or until `stop` is set or the observer returns `Break`. The
    /// server then ends after the current round.
    ///
    /// This call blocks and starts a tokio runtime.
    ///
    /// # Errors
    ///
    /// Fails if the server cannot start, a round fails, or the observer fails.
    ///
    /// # Panics
    ///
    /// Panics if the caller is inside a tokio runtime.
    pub fn run(
        &self,
        stop: &Arc<AtomicBool>,
        observer: impl for<'e> Observer<ServerEvent<'e>> + Send + 'static,
    ) -> Result<Outcome, ServerError> {
        let events = ServerEvents::new(Box::new(observer), stop);
        let ended = self.run_with(stop, &events);
        events.failure().map_or(ended, Err)
    }

    fn run_with(&self, stop: &Arc<AtomicBool>, events: &ServerEvents) -> Result<Outcome, ServerError> {
        let contract = self.model.contract.as_ref();
        if !self.config.no_evaluation && contract.is_some_and(|contract| contract.split.is_none()) {
            events.send(ServerEvent::NothingHeldOut);
        }
        let mut folder = open(&self.out, &self.experiment)?;
        if let Some(contract) = contract {
            folder.contract(contract)?;
        }
        let runtime = Runtime::new().map_err(ServerError::Runtime)?;
        let opened = Deployment::open(self, events);
        let deployment = runtime.block_on(opened)?;
        let http = runtime.block_on(deployment.serve_http(&self.config))?;
        if let Some((_, url)) = &http {
            events.send(ServerEvent::Page { url });
        }
        let Some(lease) = runtime.block_on(deployment.lead(stop, events))? else {
            return Ok(Outcome::Stopped);
        };
        let trainer = self.model.trainer;
        let seeds = Seeds::new(&self.experiment, trainer, |seed| {
            let params = trainer.num_params();
            deployment.run.begin(runtime.handle(), &mut folder, seed, params).map_err(ServerError::from)
        })?;
        let setup = self.setup(&deployment, &seeds)?;
        let started = self.start(setup, &deployment, events, Arc::clone(stop));
        let (host, exchange) = runtime.block_on(started)?;
        let mut exchange = exchange.kept_in(deployment.run.journal(&lease));
        if let Some((state, _)) = http {
            let _ = state.refusals.set(host.refusals());
        }
        events.send(ServerEvent::Listening { address: host.address(), devices: self.rules.present });
        let host = Arc::new(host);
        let following = {
            let _entered = runtime.enter();
            deployment.follow(&host, events)
        };
        let on_round = |record: &RoundRecord, seconds: f64| {
            allocator::return_free_memory();
            events.send(ServerEvent::Round { record, seconds });
        };
        let mut committer =
            RoundCommitter::new(&deployment.run, &lease, &host, runtime.handle(), &mut folder, stop);
        (committer.survey, committer.on_round) = (!self.config.no_survey, &on_round);
        let first_run = self.first_run(host.runs())?;
        let ended = self.train_all(&seeds, (&mut exchange, first_run), committer, events);
        let finished = matches!(ended, Ok(Outcome::Finished));
        if finished {
            deployment.live.role(Role::Finished);
            host.announce_end();
        }
        if finished && self.plan.held_out().is_some() {
            match folder.summarise() {
                // No device holds examples out.
                Ok(_) | Err(RunFolderError::NotEvaluated { .. }) => {}
                Err(error) => events.send(ServerEvent::NoSummary { error: &error }),
            }
        }
        report_refusals(&host, events);
        if finished && self.config.stay {
            events.send(ServerEvent::Staying);
            while !stop.load(Ordering::Relaxed) && lease.is_held() {
                std::thread::sleep(Duration::from_millis(200));
            }
        }
        runtime.block_on(async {
            following.abort();
            let _ = following.await;
            if let Some(host) = Arc::into_inner(host) {
                host.shut_down().await;
            }
            // The next server need not wait. If the database is gone, it waits until the lease
            // expires.
            let _ = lease.release().await;
        });
        ended
    }

    /// The setup of the gRPC side, with the introduction for devices that connect.
    fn setup(&self, deployment: &Deployment, seeds: &Seeds) -> Result<Setup, ServerError> {
        let mut session = [0; 16];
        self.environment.random.fill(&mut session)?;
        let tracks = seeds.pending().iter().take(1).flat_map(|state| &state.tracks);
        let model = serde_json::to_string(self.experiment.model().spec()).expect("a model is plain values");
        Ok(Setup {
            address: self.config.listen,
            protection: deployment.protection()?,
            connections: ConnectionLimits::default(),
            limits: self.config.limits(),
            introduction: Introduction {
                federation: deployment.federation.to_string(),
                session,
                experiment: self.experiment.name().to_owned(),
                model,
                params: self.model.trainer.num_params(),
                open: self.experiment.is_open(),
                contract: deployment.contract.clone(),
            },
            newest: tracks.map(|track| track.params.clone()).collect(),
            environment: self.environment.clone(),
        })
    }

    async fn start(
        &self,
        setup: Setup,
        deployment: &Deployment,
        events: &ServerEvents,
        stop: Arc<AtomicBool>,
    ) -> Result<(Host, NetworkExchange), ServerError> {
        let roster = match deployment.roster(events).await? {
            Some(roster) => roster,
            None => {
                let names = self.model.devices.iter().map(String::as_str);
                let signed = loopback::roster(LOOPBACK, names, |_| false)?;
                loopback::signed(&Roster::decode(signed.bytes)?.with_runs(self.seeds()))
            }
        };
        let (host, link) = Host::start(setup, &roster).await?;
        let exchange = NetworkExchange::new(link, self.rules, stop);
        Ok(match deployment.chain().await? {
            Some(chain) => (host, exchange.drawing_by(chain)),
            None => (host, exchange),
        })
    }

    /// Number of seeds of the experiment.
    fn seeds(&self) -> u64 {
        self.experiment.seeds().iter().len() as u64
    }

    /// The run of the first seed: the seeds are the last of the runs that the authority has signed.
    fn first_run(&self, signed: u64) -> Result<u64, ServerError> {
        let seeds = self.seeds();
        signed.checked_sub(seeds).ok_or(ServerError::TooFewRuns { signed, seeds })
    }

    /// Trains all seeds that are not done.
    fn train_all(
        &self,
        seeds: &Seeds,
        (exchange, first_run): (&mut NetworkExchange, u64),
        mut committer: RoundCommitter<'_>,
        events: &ServerEvents,
    ) -> Result<Outcome, ServerError> {
        let stopped = seeds.work(|state| {
            let (seed, done) = (state.seed, state.round);
            events.send(ServerEvent::SeedBegins { experiment: &self.experiment, seed, done });
            let place = self.experiment.seeds().iter().position(|&known| known == seed).unwrap_or(0);
            exchange.set_run(first_run + place as u64);
            exchange.resume(state)?;
            match train_with(exchange, &self.plan, state, committer.train_options(), &mut committer) {
                // It was waiting for devices, and no further round was started.
                Err(_) if committer.stop.load(Ordering::Relaxed) => Ok(Outcome::Stopped),
                ended => ended.map_err(ServerError::from),
            }
        })?;
        Ok(if stopped.is_some() { Outcome::Stopped } else { Outcome::Finished })
    }
}

/// The task of the examples that devices hold out, if cohorts are asked about them.
fn held_out(config: &ServerConfig, model: &ServedModel<'_>) -> Option<Task> {
    let contract = model.contract.as_ref().filter(|_| !config.no_evaluation)?;
    contract.split.map(|_| model.trainer.task())
}

/// The run folder: a new one, or the one of an earlier server.
fn open(out: &Path, experiment: &Experiment) -> Result<RunFolder, RunFolderError> {
    let begun = out.join("experiment.toml").exists();
    if begun { RunFolder::resume(out, experiment) } else { RunFolder::create(out, experiment) }
}

fn report_refusals(host: &Host, events: &ServerEvents) {
    let counted = Refusal::ALL.map(|refusal| (refusal.name(), host.refused(refusal)));
    let counts: Vec<(&'static str, u64)> = counted.into_iter().filter(|(_, count)| *count > 0).collect();
    if !counts.is_empty() {
        events.send(ServerEvent::Refused { counts: &counts });
    }
}
