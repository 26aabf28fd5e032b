//! A run from an experiment to its folder. All training commands use this module.

use std::num::NonZeroUsize;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use deltafl::algorithm::{AGNOSTIC_GROUPS, TrackLabel};
use deltafl::compute::Compute;
use deltafl::data::{DataContract, Federation, Split};
use deltafl::exchange::{Exchange, Simulation};
use deltafl::kernel::Isa;
use deltafl::model::Model;
use deltafl::params::Params;
use deltafl::trainer::{LocalTrainer, Sgd};
use deltafl::training::{Event, Observer, ObserverResult, SharedObserver, State};
use deltafl_data::experiment::{
    AlgorithmSection, DataSource, Experiment, ExternalAlgorithms, Population, Resolved, SecureAggregation,
};
use deltafl_data::run_folder::{self, RunFolder, RunFolderError, Summary};
use serde::Serialize;

use crate::backend::{Backend, BackendRequest, Machine};
use crate::baseline;
use crate::by_class;
use crate::by_group;
use crate::event::{RunEvent, RunObserver, SendEvent};
use crate::layer_table;

mod error;
mod local;

pub use error::RunError;
use local::LocalRun;

/// How to run an experiment.
pub struct RunOptions<'a> {
    /// The run folder.
    pub out: &'a Path,
    /// The accepted contents of the folder.
    pub start: Start,
    /// The parts of the machine to use.
    pub machine: Machine,
    /// Whether a GPU may train several seeds at the same time. An observer that displays one seed
    /// at a time needs `false`.
    pub concurrent_seeds: bool,
    /// The implementation of the external algorithms of the experiment.
    pub algorithms: Option<&'a dyn ExternalAlgorithms>,
}

impl<'a> RunOptions<'a> {
    /// Creates the options of a new run in `out` that uses the whole machine.
    pub fn new(out: &'a Path) -> Self {
        Self { out, start: Start::New, machine: Machine::default(), concurrent_seeds: true, algorithms: None }
    }
}

/// The accepted contents of a run folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// No run yet.
    New,
    /// The run to continue.
    Resume,
    /// Either of the two.
    Any,
}

/// How a run ended.
#[non_exhaustive]
pub enum Ended {
    /// All seeds are done.
    Finished(Summary),
    /// The observer stopped the run. The folder contains a state to resume from.
    Interrupted(Stopped),
    /// Not rank 0 of an MPI job: this process reports nothing.
    Followed,
}

/// The point at which a run was stopped.
#[derive(Clone, Debug, Serialize)]
pub struct Stopped {
    /// The run folder.
    pub folder: PathBuf,
    /// The seed that was being trained.
    pub seed: u64,
    /// The number of its rounds that are done.
    pub rounds: u64,
    /// Rounds planned for each seed.
    pub rounds_planned: u64,
    /// Seeds finished before it.
    pub seeds_finished: Vec<u64>,
    /// All seeds of the experiment.
    pub seeds_planned: Vec<u64>,
}

impl Stopped {
    /// Creates the value for a seed that was interrupted.
    pub(crate) fn at(folder: &Path, experiment: &Experiment, state: &State) -> Self {
        let seeds = experiment.seeds();
        Self {
            folder: folder.to_owned(),
            seed: state.seed,
            rounds: state.round,
            rounds_planned: experiment.rounds(),
            seeds_finished: seeds.iter().copied().take_while(|&seed| seed != state.seed).collect(),
            seeds_planned: seeds.to_vec(),
        }
    }
}

/// Trains all seeds of an experiment into its run folder.
///
/// # Errors
///
/// Fails if the experiment cannot be trained, the run folder cannot be used, or a round fails.
pub fn run(
    experiment: Experiment,
    options: &RunOptions<'_>,
    observer: &mut RunObserver<'_>,
) -> Result<Ended, RunError> {
    let federation = load(&experiment)?;
    run_on(experiment, &federation, options, observer)
}

/// Loads the data of an experiment.
///
/// # Errors
///
/// Fails if the data cannot be read or prepared.
pub fn load(experiment: &Experiment) -> Result<Federation, RunError> {
    Ok(experiment.data().load()?)
}

/// Prepares a federation in memory according to the experiment: split, normalised, sampled.
///
/// # Errors
///
/// Fails if the federation cannot be prepared according to the experiment.
pub fn prepare(experiment: &Experiment, federation: Federation) -> Result<Federation, RunError> {
    Ok(experiment.data().prepare(federation)?)
}

/// Builds the model of an experiment.
///
/// # Errors
///
/// Fails if the model does not fit the data.
pub fn build_model(
    experiment: &Experiment,
    federation: &Federation,
    kernel: Isa,
) -> Result<Box<dyn Model>, RunError> {
    Ok(experiment.model().spec().build(federation, kernel)?)
}

/// Creates the exchange of an experiment in this process.
pub(crate) fn exchange<'a>(
    experiment: &Experiment,
    compute: Box<dyn Compute + Send + 'a>,
    federation: &'a Federation,
) -> Result<Box<dyn Exchange + Send + 'a>, RunError> {
    let compute = experiment.adversary().wrap(compute, federation);
    let simulation = Simulation::with_compute(compute, federation).map_err(RunError::Setup)?;
    Ok(match experiment.secagg() {
        SecureAggregation::Plain => simulation.boxed(),
        SecureAggregation::Real => simulation.masked(experiment.availability().drop_out.get()).boxed(),
    })
}

/// Trains all seeds of an experiment on its data. Several experiments may share the data.
///
/// # Errors
///
/// Fails if the experiment cannot be trained, the run folder cannot be used, or a round fails.
pub fn run_on(
    experiment: Experiment,
    federation: &Federation,
    options: &RunOptions<'_>,
    observer: &mut RunObserver<'_>,
) -> Result<Ended, RunError> {
    let Machine { threads, kernel, compute } = options.machine;
    let falsified = experiment.adversary().falsified(federation);
    let federation = falsified.as_ref().unwrap_or(federation);
    let model = build_model(&experiment, federation, kernel)?;
    let trainer = Sgd::boxed(&*model);
    let request = BackendRequest::for_run(options.out, compute);
    let backend = Backend::open(request, &experiment, federation, &*trainer, threads)?;
    let observer = SharedObserver::new(observer);
    let send = |event: RunEvent<'_>| observer.send(event);
    send(RunEvent::Note(&backend.description()))?;
    if let Some(stack) = experiment.model().spec().stack(federation)? {
        send(RunEvent::Note(&layer_table::rendered(&stack)))?;
    }
    train(experiment, federation, &*trainer, backend, options, &send)
}

/// A backend around the threads that call a trainer for one device at a time.
pub type WrapCompute<'w> =
    dyn for<'f> Fn(&'f Federation, Box<dyn Compute + Send + 'f>) -> Box<dyn Compute + Send + 'f> + 'w;

/// Trains all seeds of an experiment with the caller's trainer. `wrap` may put a backend that
/// computes many devices in one call around the threads of the trainer.
///
/// # Errors
///
/// Fails if the experiment cannot be trained, the run folder cannot be used, or the trainer fails.
pub fn run_trainer(
    experiment: Experiment,
    federation: &Federation,
    trainer: &dyn LocalTrainer,
    wrap: &WrapCompute<'_>,
    options: &RunOptions<'_>,
    observer: &mut RunObserver<'_>,
) -> Result<Ended, RunError> {
    check_trainer(&experiment, trainer)?;
    let falsified = experiment.adversary().falsified(federation);
    let federation = falsified.as_ref().unwrap_or(federation);
    let threads = Backend::cpu(federation, trainer, options.machine.threads)?.into_compute();
    let backend = Backend::Cpu { compute: wrap(federation, threads), no_gpu: None };
    let observer = SharedObserver::new(observer);
    let send = |event: RunEvent<'_>| observer.send(event);
    train(experiment, federation, trainer, backend, options, &send)
}

fn train(
    experiment: Experiment,
    federation: &Federation,
    trainer: &dyn LocalTrainer,
    backend: Backend<'_>,
    options: &RunOptions<'_>,
    send: &SendEvent<'_>,
) -> Result<Ended, RunError> {
    let normalise = experiment.data().normalisation(federation);
    let experiment = experiment.with_resolved(Some(Resolved {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        data_hash: federation.hash().to_owned(),
        kernel: options.machine.kernel,
        compute: backend.recorded(),
        params: trainer.num_params(),
        normalise: Some(normalise),
        population: Population::if_sampled(federation),
    }));
    // An untrainable experiment is detected before the run folder is created.
    check_external(&experiment, options)?;
    let exchanges = local::exchanges(&experiment, federation, backend, options.concurrent_seeds)?;
    let folder = open(&experiment, options)?;
    describe_data(&folder, federation)?;
    warn_before(&experiment, federation, send)?;
    LocalRun::new(&experiment, federation, trainer, folder, options, send)?.train(exchanges)
}

/// Writes the contract of the data and the error of the best constant prediction, so that the run
/// folder is complete without the data.
pub(crate) fn describe_data(folder: &RunFolder, federation: &Federation) -> Result<(), RunError> {
    folder.contract(&DataContract::from_federation(federation))?;
    match baseline::baseline(federation) {
        Some(baseline) => Ok(folder.baseline(&baseline)?),
        None => Ok(()),
    }
}

/// Rejects external algorithms without an implementation.
pub(crate) fn check_external(experiment: &Experiment, options: &RunOptions<'_>) -> Result<(), RunError> {
    match (experiment.external(), options.algorithms) {
        (Some(name), None) => Err(RunError::External { name: name.to_owned() }),
        _ => Ok(()),
    }
}

/// Rejects algorithms that need more of the local steps than a trainer of the caller provides.
fn check_trainer(experiment: &Experiment, trainer: &dyn LocalTrainer) -> Result<(), RunError> {
    for track in experiment.tracks() {
        let reason = match () {
            () if track.correction.is_some() && !trainer.corrects_gradients() => {
                "it corrects the gradient of each local step"
            }
            () if track.personal.is_some() => "it trains a personal model on each device",
            () => continue,
        };
        return Err(RunError::Untrainable { track: track.label.name, reason });
    }
    Ok(())
}

/// Writes the metric of each class and of each group of devices after the last round, if they have
/// names. There are no classes if a track evaluates personal models, which exist for each device.
pub(crate) fn write_classes(
    folder: &RunFolder,
    experiment: &Experiment,
    trainer: &dyn LocalTrainer,
    federation: &Federation,
    threads: Option<NonZeroUsize>,
) -> Result<(), RunError> {
    if matches!(experiment.data().source, DataSource::Folder(_)) {
        let split = if federation.split(Split::Test).is_empty() { Split::Train } else { Split::Test };
        let mut evaluations = Vec::new();
        for file in run_folder::evaluations(folder.path())? {
            if file.round == experiment.rounds() {
                evaluations.extend(file.read()?.into_iter().filter(|evaluated| evaluated.split == split));
            }
        }
        let groups = by_group::figures(federation, split, &evaluations);
        groups.map(|groups| folder.groups(&groups)).transpose()?;
    }
    let mut personal = experiment.tracks().into_iter().filter_map(|track| track.personal);
    if personal.any(|personal| personal.is_evaluated) {
        return Ok(());
    }
    let mut states = Vec::new();
    for &seed in experiment.seeds() {
        states.extend(folder.state(seed, trainer.num_params())?);
    }
    let seeds: Vec<Vec<&Params>> =
        states.iter().map(|state| state.tracks.iter().map(|track| &track.params).collect()).collect();
    match by_class::evaluate(trainer, federation, &seeds, threads)? {
        Some(classes) => Ok(folder.classes(&classes)?),
        None => Ok(()),
    }
}

/// Writes the results of the round loop into the run folder and forwards them. Ends the loop if
/// another seed failed.
pub(crate) struct Recorder<'a> {
    pub(crate) folder: &'a Mutex<RunFolder>,
    pub(crate) send: &'a SendEvent<'a>,
    pub(crate) labels: &'a [TrackLabel],
    pub(crate) seed: u64,
    /// Set when another seed failed.
    pub(crate) failed: &'a AtomicBool,
    pub(crate) lap: Instant,
}

impl Recorder<'_> {
    fn folder(&self) -> MutexGuard<'_, RunFolder> {
        self.folder.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Observer<Event<'_>> for Recorder<'_> {
    fn handle(&mut self, event: Event<'_>) -> ObserverResult {
        match event {
            Event::RoundFinished { records } => {
                self.folder().append(records, self.lap.elapsed().as_secs_f64())?;
            }
            Event::Evaluated { round, splits } => self.folder().evaluation(self.seed, round, splits)?,
            Event::Checkpoint { state } => self.folder().checkpoint(state)?,
            _ => {}
        }
        let stop = (self.send)(RunEvent::Training { seed: self.seed, labels: self.labels, event })?;
        self.lap = Instant::now();
        let stop = stop || self.failed.load(Ordering::Relaxed);
        Ok(if stop { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
    }
}

pub(crate) fn open(experiment: &Experiment, options: &RunOptions<'_>) -> Result<RunFolder, RunError> {
    let create = || RunFolder::create(options.out, experiment);
    let resume = || RunFolder::resume(options.out, experiment);
    let folder = match options.start {
        Start::New => create(),
        Start::Resume => resume(),
        Start::Any => create().or_else(|error| match error {
            RunFolderError::Exists { .. } => resume(),
            error => Err(error),
        }),
    };
    Ok(folder?)
}

/// Warns about settings that are easily misread.
pub(crate) fn warn_before(
    experiment: &Experiment,
    federation: &Federation,
    send: &SendEvent<'_>,
) -> Result<(), RunError> {
    let mut warnings = thin_tail_warnings(experiment);
    let (cohort, devices) = (experiment.cohort(), federation.split(Split::Train).len());
    if cohort > devices && !experiment.with_replacement() {
        warnings.push(format!(
            "the cohort of {cohort} is larger than the federation: every round draws all {devices} train devices"
        ));
    }
    let by_group = |section: &&AlgorithmSection| section.algorithm().kind == AGNOSTIC_GROUPS.kind;
    if federation.group_names().is_empty()
        && let Some(section) = experiment.algorithms().iter().find(by_group)
    {
        warnings.push(format!(
            "the devices declare no groups, so {} equals FedAvg: add groups.csv to the federation folder",
            section.algorithm().kind
        ));
    }
    for warning in &warnings {
        send(RunEvent::Warning(warning))?;
    }
    Ok(())
}

/// Returns a warning for each track that keeps fewer than ten devices per round.
pub fn thin_tail_warnings(experiment: &Experiment) -> Vec<String> {
    let warning = |label: TrackLabel| {
        let devices = label.theta.get() * experiment.cohort() as f64;
        format!("{label} keeps about {devices:.0} devices a round; below 10 a tail is noisy and hides little")
    };
    experiment.thin_tails().into_iter().map(warning).collect()
}
