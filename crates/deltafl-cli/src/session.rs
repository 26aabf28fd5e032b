//! A run from an experiment to its folder: what every command that trains shares.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use deltafl::algorithm::TrackLabel;
use deltafl::compute::{Compute, Threads};
use deltafl::data::{Federation, Split};
use deltafl::exchange::{Direct, Exchange, Masked, SplitEvaluation};
use deltafl::kernel::Isa;
use deltafl::model::Model;
use deltafl::params::Params;
use deltafl::superquantile::LossDistribution;
use deltafl::trainer::{LocalTrainer, Sgd};
use deltafl::training::{Observer, ObserverError, RoundRecord, State, Survey};
use deltafl_cuda::{Gpu, Place};
use deltafl_data::experiment::{ComputedOn, Experiment, Population, Resolved, SecureAggregation};
use deltafl_data::run_folder::{self, RunFolder, RunFolderError, Summary};
use miette::Report;
use serde::Serialize;

use crate::by_class;
use crate::dashboard;
use crate::error::{BadInput, Busy, bad_input, quoted};
use crate::gpu::Found;
use crate::progress::{Progress, Show};

mod local;
mod seeds;

use local::LocalRun;
pub(crate) use seeds::Seeds;

/// How to run, beside what the experiment says.
pub(crate) struct Options<'a> {
    /// The run folder.
    pub(crate) out: &'a Path,
    /// What may be in it.
    pub(crate) start: Start,
    /// Number of threads; 0 means one per core.
    pub(crate) threads: usize,
    /// The instruction set of the kernels.
    pub(crate) kernel: Isa,
    /// Where devices compute.
    pub(crate) compute: Place,
    /// How progress is shown.
    pub(crate) show: &'a Show<'a>,
}

/// How a run folder is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Start {
    /// It holds no run yet.
    New,
    /// It holds the run to go on with.
    Resume,
    /// Either.
    Any,
}

/// How a session ended.
pub(crate) enum Ended {
    /// All seeds are done.
    Finished(Summary),
    /// Ctrl-C: the folder holds a state to resume from.
    Interrupted(Stopped),
    /// On another rank than 0, which has nothing to say.
    #[cfg(feature = "mpi")]
    Followed,
}

/// Where a run was stopped.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Stopped {
    /// The run folder.
    pub(crate) folder: PathBuf,
    /// The seed that was being trained.
    pub(crate) seed: u64,
    /// Rounds done of it.
    pub(crate) rounds: u64,
    pub(crate) rounds_planned: u64,
    /// Seeds done before it.
    seeds_finished: Vec<u64>,
    seeds_planned: Vec<u64>,
}

impl Stopped {
    /// In the middle of a seed of an experiment.
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
pub(crate) fn run(experiment: Experiment, options: &Options<'_>) -> Result<Ended, Report> {
    #[cfg(feature = "mpi")]
    if deltafl_mpi::launched() {
        return crate::cluster::run(experiment, options);
    }
    let federation = load(&experiment)?;
    run_on(experiment, &federation, options)
}

/// The data of an experiment.
pub(crate) fn load(experiment: &Experiment) -> Result<Federation, Report> {
    let loaded = experiment.data().load();
    Ok(loaded.map_err(|e| bad_input("the data of the experiment cannot be used").because(e))?)
}

/// The model of an experiment.
pub(crate) fn build_model(
    experiment: &Experiment,
    federation: &Federation,
    kernel: Isa,
) -> Result<Box<dyn Model>, Report> {
    let built = experiment.model().spec().build(federation, kernel);
    Ok(built.map_err(|e| bad_input("the model does not fit the data").because(e))?)
}

/// Where the devices of this process compute, ready to.
pub(crate) enum Computing<'a> {
    Cpu(Box<dyn Compute + Send + 'a>),
    Gpu(Box<Gpu<'a>>),
}

impl<'a> Computing<'a> {
    /// For one run.
    pub(crate) fn alone(self) -> Box<dyn Compute + Send + 'a> {
        match self {
            Self::Cpu(compute) => compute,
            Self::Gpu(gpu) => gpu,
        }
    }

    /// For the run folder.
    fn recorded(&self) -> ComputedOn {
        match self {
            Self::Cpu(_) => ComputedOn::Cpu,
            Self::Gpu(gpu) => ComputedOn::Gpu(gpu.device().name().to_owned()),
        }
    }
}

/// Makes the place that was found ready.
pub(crate) fn computing<'a>(
    found: Found<'a>,
    trainer: &'a dyn LocalTrainer,
    federation: &'a Federation,
    threads: usize,
) -> Result<Computing<'a>, Report> {
    match found {
        Found::Gpu(gpu) => Ok(Computing::Gpu(gpu)),
        Found::Cpu { .. } => {
            let threads = Threads::new(trainer, federation, threads);
            let threads = threads.map_err(|e| bad_input("the experiment cannot be trained").because(e))?;
            Ok(Computing::Cpu(Box::new(threads)))
        }
    }
}

/// The exchange of an experiment in this process.
pub(crate) fn exchange<'a>(
    experiment: &Experiment,
    compute: Box<dyn Compute + Send + 'a>,
    federation: &'a Federation,
) -> Result<Box<dyn Exchange + Send + 'a>, Report> {
    let exchange: Result<Box<dyn Exchange + Send + 'a>, _> = match experiment.secagg() {
        SecureAggregation::Plain => Direct::new(compute, federation).map(|direct| Box::new(direct) as _),
        SecureAggregation::Real => {
            let drop_out = experiment.availability().drop_out.get();
            Masked::new(compute, federation, drop_out).map(|masked| Box::new(masked) as _)
        }
    };
    Ok(exchange.map_err(|e| bad_input("the experiment cannot be trained").because(e))?)
}

/// Refuses to go on as one of several MPI ranks, for commands that run in one process.
pub(crate) fn refuse_ranks(instead: &str) -> Result<(), Report> {
    if on_ranks() {
        return Err(bad_input("this command runs in one process, not on MPI ranks").help(instead).into());
    }
    Ok(())
}

#[cfg(feature = "mpi")]
fn on_ranks() -> bool {
    deltafl_mpi::launched()
}

#[cfg(not(feature = "mpi"))]
fn on_ranks() -> bool {
    false
}

/// Trains all seeds of an experiment on its data, which several experiments may share.
pub(crate) fn run_on(
    experiment: Experiment,
    federation: &Federation,
    options: &Options<'_>,
) -> Result<Ended, Report> {
    let model = build_model(&experiment, federation, options.kernel)?;
    let trainer = Sgd::new(&*model);
    let found = Found::for_run(&experiment, federation, model.num_params(), options)?;
    let place = computing(found, &trainer, federation, options.threads)?;
    run_trainer(experiment, federation, &trainer, place, options)
}

/// Trains all seeds of an experiment by a trainer, whose devices compute at a place.
pub(crate) fn run_trainer(
    experiment: Experiment,
    federation: &Federation,
    trainer: &dyn LocalTrainer,
    place: Computing<'_>,
    options: &Options<'_>,
) -> Result<Ended, Report> {
    let experiment = experiment.with_resolved(Some(Resolved {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        data_hash: federation.hash().to_owned(),
        kernel: options.kernel,
        compute: place.recorded(),
        params: trainer.num_params(),
        population: Population::if_sampled(federation),
    }));
    // What cannot be trained is found before the run folder is made.
    let exchanges = local::exchanges(&experiment, federation, place, options.show)?;
    let folder = open(&experiment, options)?;
    warn_before(&experiment, federation, options.show);
    LocalRun::new(&experiment, federation, trainer, folder, options)?.train(exchanges)
}

/// Writes how each class fares after the last round, where classes have names.
pub(crate) fn tell_classes(
    folder: &RunFolder,
    experiment: &Experiment,
    trainer: &dyn LocalTrainer,
    federation: &Federation,
    threads: usize,
) -> Result<(), Report> {
    let mut states = Vec::new();
    for &seed in experiment.seeds() {
        states.extend(folder.state(seed, trainer.num_params()).map_err(folder_error)?);
    }
    let seeds: Vec<Vec<&Params>> =
        states.iter().map(|state| state.tracks.iter().map(|track| &track.params).collect()).collect();
    match by_class::evaluate(trainer, federation, &seeds, threads)? {
        Some(classes) => folder.classes(&classes).map_err(folder_error),
        None => Ok(()),
    }
}

/// Writes what the round loop tells into the run folder, and stops it on Ctrl-C.
pub(crate) struct Recorder<'a> {
    pub(crate) folder: &'a Mutex<RunFolder>,
    pub(crate) progress: &'a Progress<'a>,
    pub(crate) labels: &'a [TrackLabel],
    pub(crate) seed: u64,
    /// Flags, each of which ends the run with its round.
    pub(crate) stop: [&'a AtomicBool; 2],
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
        self.progress.round(records);
        self.lap = Instant::now();
        let stop = self.stop.iter().any(|stop| stop.load(Ordering::Relaxed));
        Ok(if stop { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
    }

    fn evaluation(&mut self, round: u64, splits: &[SplitEvaluation]) -> Result<(), ObserverError> {
        self.folder().evaluation(self.seed, round, splits)?;
        self.progress.evaluation(self.seed, round, self.labels, splits);
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

pub(crate) fn open(experiment: &Experiment, options: &Options<'_>) -> Result<RunFolder, Report> {
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
    folder.map_err(folder_error)
}

/// An error of the run folder, with what to do about it.
pub(crate) fn folder_error(error: RunFolderError) -> Report {
    match &error {
        RunFolderError::Exists { .. } => bad_input(error.to_string())
            .help("add --resume to go on with it, or --out DIR to train somewhere else")
            .into(),
        RunFolderError::NotAFolder { .. } => {
            bad_input(error.to_string()).help("name a folder: --out DIR").into()
        }
        RunFolderError::Shorter { .. } => bad_input(error.to_string())
            .help("a run can be made longer, not shorter: ask for more rounds, or train into another --out")
            .into(),
        RunFolderError::Missing { .. } => {
            bad_input(error.to_string()).help("run without --resume to start it").into()
        }
        RunFolderError::Changed { differences, .. } => {
            let shown = |value: &Option<String>| value.clone().unwrap_or_else(|| "(nothing)".to_owned());
            let lines: Vec<String> = differences
                .iter()
                .map(|d| format!("{}: {} → {}", d.key, shown(&d.before), shown(&d.now)))
                .collect();
            bad_input(error.to_string())
                .help(format!(
                    "{}\nrestore these, or train the new experiment into another --out",
                    lines.join("\n")
                ))
                .into()
        }
        RunFolderError::Malformed { .. }
        | RunFolderError::Checkpoint { .. }
        | RunFolderError::Devices { .. } => bad_input("the run folder is damaged").because(error).into(),
        RunFolderError::Locked { .. } => Busy(error).into(),
        RunFolderError::NotEvaluated { path } => not_evaluated(path).into(),
        _ => Report::from_err(error),
    }
}

/// Why a run has no evaluation, and how to come by one.
fn not_evaluated(run: &Path) -> BadInput {
    let rounds = run_folder::read_rounds(run).unwrap_or_default();
    let rounds = rounds.iter().map(|line| line.record.round + 1).max().unwrap_or(0);
    let name = quoted(&run.display().to_string());
    if rounds == 0 {
        return bad_input(format!("{} holds no evaluation yet", run.display())).help(
            "its first one is written when training starts: train it, or go on with `deltafl run … --resume`",
        );
    }
    bad_input(format!("{} holds no evaluation, though {rounds} rounds were trained", run.display())).help(format!(
        "devices of a served run keep their losses and errors to themselves. Where they hold examples out (under [data] split = {{ within = \
         {{ train = 0.8 }} }}) their cohorts tell a server histograms.\n\
         Its models can be evaluated on examples that are at hand:\n  deltafl evaluate {name} --data DIR\n\
         and by each device on its own: deltafl model try"
    ))
}

/// Says what of an experiment is not what it looks like.
pub(crate) fn warn_before(experiment: &Experiment, federation: &Federation, show: &Show<'_>) {
    warn_thin_tails(experiment, show);
    let (cohort, devices) = (experiment.cohort(), federation.split(Split::Train).len());
    if cohort > devices && !experiment.with_replacement() {
        show.say(&format!(
            "warning: the cohort of {cohort} is larger than the federation: every round draws all {devices} train devices"
        ));
    }
}

pub(crate) fn warn_thin_tails(experiment: &Experiment, show: &Show<'_>) {
    for label in experiment.thin_tails() {
        let devices = label.theta.get() * experiment.cohort() as f64;
        show.say(&format!(
            "warning: {label} keeps about {devices:.0} devices a round; below 10 a tail is noisy and hides little"
        ));
    }
}

/// The flag that Ctrl-C or a termination raises, one for the process; the second one ends it at once.
pub(crate) fn stop_on_interrupt() -> &'static Arc<AtomicBool> {
    static STOP: LazyLock<Arc<AtomicBool>> = LazyLock::new(|| {
        let stop = Arc::new(AtomicBool::new(false));
        let raised = Arc::clone(&stop);
        // Without a handler Ctrl-C ends the process at once, which a run folder survives.
        let _ = ctrlc::set_handler(move || {
            if raised.swap(true, Ordering::Relaxed) {
                dashboard::restore();
                std::process::exit(130);
            }
            // A dashboard says so itself.
            if !dashboard::is_open() {
                eprintln!("\nfinishing the round; press Ctrl-C again to quit at once");
            }
        });
        stop
    });
    &STOP
}
