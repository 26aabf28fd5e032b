//! A run from an experiment to its folder: what `run` and `demo` share.

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use deltafl::engine::{Engine, Masked, SplitEvaluation, Threads};
use deltafl::experiment::{Experiment, Resolved, SecureAggregation, TrackLabel};
use deltafl::kernel::Isa;
use deltafl::run_folder::{RunFolder, RunFolderError, Summary};
use deltafl::training::{Observer, ObserverError, Outcome, RoundRecord, State, train};
use miette::Report;

use crate::error::bad_input;
use crate::progress::Progress;

/// How to run, beside what the experiment says.
pub(crate) struct Options<'a> {
    /// The run folder.
    pub(crate) out: &'a Path,
    /// Go on with the run in it.
    pub(crate) resume: bool,
    /// Number of threads; 0 means one per core.
    pub(crate) threads: usize,
    /// The instruction set of the kernels.
    pub(crate) kernel: Isa,
    /// No progress.
    pub(crate) quiet: bool,
}

/// How a session ended.
pub(crate) enum Ended {
    /// All seeds are done.
    Finished(Summary),
    /// Ctrl-C: the folder holds a state to resume from.
    Interrupted,
    /// On another rank than 0, which has nothing to say.
    #[cfg(feature = "mpi")]
    Followed,
}

/// Trains all seeds of an experiment into its run folder.
pub(crate) fn run(mut experiment: Experiment, options: &Options<'_>) -> Result<Ended, Report> {
    #[cfg(feature = "mpi")]
    if deltafl_mpi::launched() {
        return crate::cluster::run(experiment, options);
    }
    let federation = experiment
        .data
        .load()
        .map_err(|e| bad_input("the data of the experiment cannot be used").because(e))?;
    let model = experiment
        .model
        .spec()
        .build(&federation, options.kernel)
        .map_err(|e| bad_input("the model does not fit the data").because(e))?;
    experiment.resolved = Some(Resolved {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        data_hash: federation.hash().to_owned(),
        kernel: options.kernel,
        params: model.num_params(),
    });
    let threads = Threads::new(&*model, &federation, options.threads)
        .map_err(|e| bad_input("the experiment cannot be trained").because(e))?;
    let mut engine: Box<dyn Engine + '_> = match experiment.secagg {
        SecureAggregation::Plain => Box::new(threads),
        SecureAggregation::Real => Box::new(Masked::new(threads, experiment.availability.drop_out)),
    };
    let mut folder = open(&experiment, options)?;
    warn_thin_tails(&experiment, options.quiet);
    let stop = stop_on_interrupt();
    let labels: Vec<TrackLabel> = experiment.tracks().into_iter().map(|track| track.label).collect();
    let plan = experiment.plan();

    for &seed in &experiment.seeds {
        let saved = folder.state(seed, model.num_params()).map_err(folder_error)?;
        let mut state = saved.unwrap_or_else(|| State::new(seed, labels.len(), &*model));
        if state.round == plan.rounds {
            continue;
        }
        let progress = Progress::new(plan.rounds, state.round, options.quiet);
        progress.seed(seed);
        let mut recorder = Recorder {
            folder: &mut folder,
            progress: &progress,
            labels: &labels,
            seed,
            stop: &stop,
            lap: Instant::now(),
        };
        let outcome = train(&mut *engine, &plan, &mut state, &mut recorder);
        progress.finish();
        if outcome.map_err(Report::from_err)? == Outcome::Stopped {
            return Ok(Ended::Interrupted);
        }
    }
    Ok(Ended::Finished(folder.summarise().map_err(folder_error)?))
}

/// Writes what the round loop tells into the run folder, and stops it on Ctrl-C.
pub(crate) struct Recorder<'a> {
    pub(crate) folder: &'a mut RunFolder,
    pub(crate) progress: &'a Progress,
    pub(crate) labels: &'a [TrackLabel],
    pub(crate) seed: u64,
    pub(crate) stop: &'a AtomicBool,
    pub(crate) lap: Instant,
}

impl Observer for Recorder<'_> {
    fn round(&mut self, records: &[RoundRecord]) -> Result<ControlFlow<()>, ObserverError> {
        self.folder.append(records, self.lap.elapsed().as_secs_f64())?;
        self.progress.round();
        self.lap = Instant::now();
        let stop = self.stop.load(Ordering::Relaxed);
        Ok(if stop { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
    }

    fn evaluation(&mut self, round: u64, splits: &[SplitEvaluation]) -> Result<(), ObserverError> {
        self.folder.evaluation(self.seed, round, splits)?;
        self.progress.evaluation(self.seed, round, self.labels, splits);
        self.lap = Instant::now();
        Ok(())
    }

    fn checkpoint(&mut self, state: &State) -> Result<(), ObserverError> {
        self.folder.checkpoint(state)?;
        self.lap = Instant::now();
        Ok(())
    }
}

pub(crate) fn open(experiment: &Experiment, options: &Options<'_>) -> Result<RunFolder, Report> {
    let folder = if options.resume {
        RunFolder::resume(options.out, experiment)
    } else {
        RunFolder::create(options.out, experiment)
    };
    folder.map_err(folder_error)
}

/// An error of the run folder, with what to do about it.
pub(crate) fn folder_error(error: RunFolderError) -> Report {
    match &error {
        RunFolderError::Exists { .. } => bad_input(error.to_string())
            .help("add --resume to go on with it, or --out DIR to train somewhere else")
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
        _ => Report::from_err(error),
    }
}

pub(crate) fn warn_thin_tails(experiment: &Experiment, quiet: bool) {
    for label in experiment.thin_tails() {
        if !quiet {
            let devices = label.theta.get() * experiment.cohort.get() as f64;
            eprintln!(
                "warning: {label} keeps about {devices:.0} devices a round; below 10 a tail is noisy and hides little"
            );
        }
    }
}

/// A flag that Ctrl-C or a termination raises; the second one ends the process at once.
pub(crate) fn stop_on_interrupt() -> Arc<AtomicBool> {
    let stop = Arc::new(AtomicBool::new(false));
    let raised = Arc::clone(&stop);
    // A handler may stand already when several runs share a process; then the first one's flag stays in charge.
    let _ = ctrlc::set_handler(move || {
        if raised.swap(true, Ordering::Relaxed) {
            std::process::exit(130);
        }
        eprintln!("\nfinishing the round; press Ctrl-C again to quit at once");
    });
    stop
}
