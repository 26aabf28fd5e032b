//! A run from an experiment to its folder: shared by everything that trains.

use std::num::NonZeroUsize;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use deltafl::algorithm::TrackLabel;
use deltafl::compute::{Compute, ComputeError};
use deltafl::data::{Federation, Split};
use deltafl::exchange::{Direct, Exchange, ExchangeError, Masked, SplitEvaluation};
use deltafl::kernel::Isa;
use deltafl::model::{Model, ModelMismatch};
use deltafl::params::Params;
use deltafl::superquantile::LossDistribution;
use deltafl::trainer::{LocalTrainer, Sgd};
use deltafl::training::{Observer, ObserverError, RoundRecord, State, Survey, TrainingError};
use deltafl_cuda::GpuError;
use deltafl_data::experiment::{Experiment, LoadError, Population, Resolved, SecureAggregation};
use deltafl_data::run_folder::{CheckpointError, RunFolder, RunFolderError, Summary};
use serde::Serialize;

use crate::backend::{Backend, BackendRequest, Machine};
use crate::by_class::{self, ByClassError};
use crate::error::{ErrorKind, Excerpt, Explain, FolderError};
use crate::listener::{Listener, SeedEvaluation};

mod local;

use local::LocalRun;

/// Why a run fails.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// The data of the experiment cannot be loaded.
    #[error("the data of the experiment cannot be used")]
    Data(#[from] LoadError),
    /// The model cannot be built for the data.
    #[error("the model does not fit the data")]
    Model(#[from] ModelMismatch),
    /// The devices cannot compute, or there are none.
    #[error("the experiment cannot be trained")]
    Setup(#[source] ExchangeError),
    /// The GPU that the run requires cannot be used.
    #[error("--compute cuda:{ordinal} cannot be used")]
    Gpu {
        /// The number of the GPU.
        ordinal: usize,
        /// The error of the GPU.
        source: GpuError,
    },
    /// The GPU has too little memory for the seeds.
    #[error("the seeds do not fit on the GPU")]
    GpuMemory(#[source] GpuError),
    /// The run folder cannot be used.
    #[error(transparent)]
    Folder(#[from] FolderError),
    /// A round failed.
    #[error(transparent)]
    Training(#[from] TrainingError),
    /// The classes cannot be evaluated.
    #[error(transparent)]
    Classes(#[from] ByClassError),
    /// The state of rank 0 cannot be sent to the other ranks.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// A rank of an MPI job cannot take part, or the ranks disagree.
    #[error("{problem}")]
    Ranks {
        /// The problem.
        problem: String,
    },
    /// A rank of an MPI job cannot take part.
    #[error("{rank} cannot take part")]
    Rank {
        /// The rank, with its host.
        rank: String,
        /// The error on the rank.
        source: Box<Self>,
    },
}

impl RunError {
    /// For an error of the backend before training.
    pub(crate) fn compute(error: ComputeError) -> Self {
        Self::Setup(error.into())
    }
}

impl From<RunFolderError> for RunError {
    fn from(error: RunFolderError) -> Self {
        Self::Folder(error.into())
    }
}

impl Explain for RunError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Data(_)
            | Self::Model(_)
            | Self::Setup(_)
            | Self::Gpu { .. }
            | Self::GpuMemory(_)
            | Self::Ranks { .. } => ErrorKind::InvalidInput,
            Self::Folder(error) => error.kind(),
            Self::Training(_) | Self::Classes(_) | Self::Checkpoint(_) => ErrorKind::Failure,
            Self::Rank { source, .. } => source.kind(),
        }
    }

    fn help(&self) -> Option<String> {
        match self {
            Self::Gpu { .. } => Some(
                "train with --compute cpu, or auto for a GPU if one can be used; a run continues on the backend on \
                 which it was begun"
                    .to_owned(),
            ),
            Self::Folder(error) => error.help(),
            Self::Rank { source, .. } => source.help(),
            _ => None,
        }
    }

    fn excerpt(&self) -> Option<Excerpt<'_>> {
        None
    }
}

/// How to run an experiment.
pub struct RunOptions<'a> {
    /// The run folder.
    pub out: &'a Path,
    /// What the folder may contain.
    pub start: Start,
    /// The parts of the machine to use.
    pub machine: Machine,
    /// The program that shows progress.
    pub listener: &'a dyn Listener,
}

impl<'a> RunOptions<'a> {
    /// A new run in `out`, with the whole machine.
    pub fn new(out: &'a Path, listener: &'a dyn Listener) -> Self {
        Self { out, start: Start::New, machine: Machine::default(), listener }
    }
}

/// How a run folder is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// It contains no run yet.
    New,
    /// It contains the run to continue.
    Resume,
    /// Either.
    Any,
}

/// How a run ended.
#[non_exhaustive]
pub enum Ended {
    /// All seeds are done.
    Finished(Summary),
    /// The listener's flag was set: the folder contains a state to resume from.
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
    /// Rounds done of it.
    pub rounds: u64,
    /// Rounds planned for each seed.
    pub rounds_planned: u64,
    /// Seeds done before it.
    pub seeds_finished: Vec<u64>,
    /// All seeds of the experiment.
    pub seeds_planned: Vec<u64>,
}

impl Stopped {
    /// In the middle of a seed of an experiment.
    pub(crate) fn at(folder: &Path, experiment: &Experiment, state: &State) -> Self {
        let seeds = experiment.seeds.as_slice();
        Self {
            folder: folder.to_owned(),
            seed: state.seed,
            rounds: state.round,
            rounds_planned: experiment.rounds.get(),
            seeds_finished: seeds.iter().copied().take_while(|&seed| seed != state.seed).collect(),
            seeds_planned: seeds.to_vec(),
        }
    }
}

/// Trains all seeds of an experiment into its run folder.
pub fn run(experiment: Experiment, options: &RunOptions<'_>) -> Result<Ended, RunError> {
    let federation = load(&experiment)?;
    run_on(experiment, &federation, options)
}

/// The data of an experiment.
pub fn load(experiment: &Experiment) -> Result<Federation, RunError> {
    Ok(experiment.data.load()?)
}

/// A federation in memory, prepared as the experiment asks: split, normalised, sampled.
pub fn prepare(experiment: &Experiment, federation: Federation) -> Result<Federation, RunError> {
    Ok(experiment.data.prepare(federation)?)
}

/// The model of an experiment.
pub fn build_model(
    experiment: &Experiment,
    federation: &Federation,
    kernel: Isa,
) -> Result<Box<dyn Model>, RunError> {
    Ok(experiment.model.spec().build(federation, kernel)?)
}

/// The exchange of an experiment in this process.
pub(crate) fn exchange<'a>(
    experiment: &Experiment,
    compute: Box<dyn Compute + Send + 'a>,
    federation: &'a Federation,
) -> Result<Box<dyn Exchange + Send + 'a>, RunError> {
    let exchange: Result<Box<dyn Exchange + Send + 'a>, _> = match experiment.secagg {
        SecureAggregation::Plain => Direct::new(compute, federation).map(|direct| Box::new(direct) as _),
        SecureAggregation::Real => {
            let drop_out = experiment.availability.drop_out.get();
            Masked::new(compute, federation, drop_out).map(|masked| Box::new(masked) as _)
        }
    };
    exchange.map_err(RunError::Setup)
}

/// Trains all seeds of an experiment on its data, which several experiments may share.
pub fn run_on(
    experiment: Experiment,
    federation: &Federation,
    options: &RunOptions<'_>,
) -> Result<Ended, RunError> {
    let Machine { threads, kernel, compute } = options.machine;
    let model = build_model(&experiment, federation, kernel)?;
    let trainer = Sgd::new(&*model);
    let request = BackendRequest::for_run(options.out, compute);
    let backend = Backend::open(request, &experiment, federation, &trainer, threads)?;
    options.listener.note(&backend.description());
    train(experiment, federation, &trainer, backend, options)
}

/// Trains all seeds of an experiment by the caller's trainer, on the CPU.
pub fn run_trainer(
    experiment: Experiment,
    federation: &Federation,
    trainer: &dyn LocalTrainer,
    options: &RunOptions<'_>,
) -> Result<Ended, RunError> {
    let backend = Backend::cpu(federation, trainer, options.machine.threads)?;
    train(experiment, federation, trainer, backend, options)
}

fn train(
    mut experiment: Experiment,
    federation: &Federation,
    trainer: &dyn LocalTrainer,
    backend: Backend<'_>,
    options: &RunOptions<'_>,
) -> Result<Ended, RunError> {
    experiment.resolved = Some(Resolved {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        data_hash: federation.hash().to_owned(),
        kernel: options.machine.kernel,
        compute: backend.recorded(),
        params: trainer.num_params(),
        population: Population::of(federation),
    });
    // An experiment that cannot be trained is detected before the run folder is created.
    let exchanges = local::exchanges(&experiment, federation, backend, options.listener)?;
    let folder = open(&experiment, options)?;
    warn_before(&experiment, federation, options.listener);
    LocalRun::new(&experiment, federation, trainer, folder, options)?.train(exchanges)
}

/// Evaluates each class after the last round, if classes have names, and writes the figures.
pub(crate) fn write_classes(
    folder: &RunFolder,
    experiment: &Experiment,
    trainer: &dyn LocalTrainer,
    federation: &Federation,
    threads: Option<NonZeroUsize>,
) -> Result<(), RunError> {
    let mut states = Vec::new();
    for &seed in &experiment.seeds {
        states.extend(folder.state(seed, trainer.num_params())?);
    }
    let seeds: Vec<Vec<&Params>> =
        states.iter().map(|state| state.tracks.iter().map(|track| &track.params).collect()).collect();
    match by_class::evaluate(trainer, federation, &seeds, threads)? {
        Some(classes) => Ok(folder.classes(&classes)?),
        None => Ok(()),
    }
}

/// Writes the results of the round loop into the run folder, forwards them, and ends the loop if a flag is set.
pub(crate) struct Recorder<'a> {
    pub(crate) folder: &'a Mutex<RunFolder>,
    pub(crate) listener: &'a dyn Listener,
    pub(crate) labels: &'a [TrackLabel],
    pub(crate) seed: u64,
    /// Raised when another seed failed.
    pub(crate) failed: &'a AtomicBool,
    pub(crate) lap: Instant,
}

impl Recorder<'_> {
    fn folder(&self) -> MutexGuard<'_, RunFolder> {
        self.folder.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Observer for Recorder<'_> {
    fn round(&mut self, records: &[RoundRecord]) -> Result<ControlFlow<()>, ObserverError> {
        self.folder().append(records, self.lap.elapsed().as_secs_f64())?;
        self.listener.round(records);
        self.lap = Instant::now();
        let stop = [self.listener.stop(), self.failed].iter().any(|stop| stop.load(Ordering::Relaxed));
        Ok(if stop { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
    }

    fn evaluation(&mut self, round: u64, splits: &[SplitEvaluation]) -> Result<(), ObserverError> {
        self.folder().evaluation(self.seed, round, splits)?;
        let (seed, labels) = (self.seed, self.labels);
        self.listener.evaluation(&SeedEvaluation { seed, round, labels, splits });
        self.lap = Instant::now();
        Ok(())
    }

    fn checkpoint(&mut self, state: &State) -> Result<(), ObserverError> {
        self.folder().checkpoint(state)?;
        self.lap = Instant::now();
        Ok(())
    }

    fn every_round(&self) -> bool {
        false
    }

    fn survey(&self, _: u64) -> Survey {
        Survey::None
    }

    fn losses(&mut self, _: u64, _: &[Option<LossDistribution>]) -> Result<(), ObserverError> {
        Ok(())
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
pub(crate) fn warn_before(experiment: &Experiment, federation: &Federation, listener: &dyn Listener) {
    thin_tail_warnings(experiment).iter().for_each(|warning| listener.warn(warning));
    let (cohort, devices) = (experiment.cohort.get(), federation.split(Split::Train).len());
    if cohort > devices && !experiment.with_replacement {
        listener.warn(&format!(
            "the cohort of {cohort} is larger than the federation: every round draws all {devices} train devices"
        ));
    }
}

/// A warning for each track that keeps fewer than ten devices a round.
pub fn thin_tail_warnings(experiment: &Experiment) -> Vec<String> {
    let warning = |label: TrackLabel| {
        let devices = label.theta.get() * experiment.cohort.get() as f64;
        format!("{label} keeps about {devices:.0} devices a round; below 10 a tail is noisy and hides little")
    };
    experiment.thin_tails().into_iter().map(warning).collect()
}
