//! What a program that holds this library calls: read an experiment, train it, read what a run left behind.
//!
//! The Python package stands on it. Errors have the words of the command ([`Failure`]); progress goes to a [`Listener`].

use std::path::{Path, PathBuf};

use deltafl::compute::Threads;
use deltafl::data::Federation;
use deltafl::kernel::Isa;
use deltafl::model::Model;
use deltafl::trainer::LocalTrainer;
use deltafl_cuda::Place;
use deltafl_data::experiment::Experiment;
use deltafl_data::run_folder::{self, Summary};
use miette::{GraphicalReportHandler, GraphicalTheme, Report};

pub use crate::progress::Listener;
use crate::progress::Show;
use crate::session::{self, Computing, Ended, Options, Start};
use crate::{error, experiment_file, idle, report, table};

#[cfg(feature = "net")]
pub mod deployed;
pub mod sweep;

/// Columns of a message.
const WIDTH: usize = 120;

/// Why something could not be done, in the words of the command.
#[derive(Clone, Debug)]
pub struct Failure {
    /// Whose fault it is.
    pub kind: FailureKind,
    /// For people: several lines, those of the file that is wrong among them.
    pub message: String,
}

/// Whose fault a failure is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FailureKind {
    /// Something that was given is wrong.
    BadInput,
    /// Another process trains in the run folder.
    Busy,
    /// The world: a full disk, a trainer that failed.
    Failed,
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Failure {}

impl From<Report> for Failure {
    fn from(report: Report) -> Self {
        let kind = if report.downcast_ref::<error::BadInput>().is_some() {
            FailureKind::BadInput
        } else if report.downcast_ref::<error::Busy>().is_some() {
            FailureKind::Busy
        } else {
            FailureKind::Failed
        };
        let mut message = String::new();
        let plain = GraphicalReportHandler::new_themed(GraphicalTheme::unicode_nocolor())
            .with_width(WIDTH)
            .with_links(false);
        if plain.render_report(&mut message, &*report).is_err() {
            message = report.to_string();
        }
        let message = message.trim();
        Self { kind, message: message.strip_prefix("× ").unwrap_or(message).to_owned() }
    }
}

impl From<error::BadInput> for Failure {
    fn from(error: error::BadInput) -> Self {
        Report::from(error).into()
    }
}

/// An experiment file with `KEY=VALUE` applied, as `deltafl run --set` does.
pub fn read_experiment(path: &Path, overrides: &[String]) -> Result<Experiment, Failure> {
    Ok(experiment_file::read(path, overrides)?)
}

/// The text of an experiment; `name` stands for the file in messages.
pub fn parse_experiment(name: &str, text: &str, overrides: &[String]) -> Result<Experiment, Failure> {
    Ok(experiment_file::parse(Path::new(name), text, overrides)?)
}

/// The data of an experiment.
pub fn load(experiment: &Experiment) -> Result<Federation, Failure> {
    // A pool of this call alone: the common one does not survive a fork, and Python forks.
    let pool = rayon::ThreadPoolBuilder::new().build().map_err(|e| Report::msg(e.to_string()))?;
    Ok(pool.install(|| session::load(experiment))?)
}

/// A federation in memory, as the experiment wants it: split, normalised, sampled.
pub fn prepare(experiment: &Experiment, federation: &Federation) -> Result<Federation, Failure> {
    let prepared = experiment.data().prepare(federation.clone());
    Ok(prepared.map_err(|e| error::bad_input("the data of the experiment cannot be used").because(e))?)
}

/// The model of an experiment.
pub fn model(experiment: &Experiment, federation: &Federation) -> Result<Box<dyn Model>, Failure> {
    Ok(session::build_model(experiment, federation, Isa::detect())?)
}

/// How to train, beside what the experiment says.
pub struct Job<'a> {
    /// The run folder.
    pub out: &'a Path,
    /// Whether it holds the run to go on with.
    pub resume: bool,
    /// Number of threads; 0 means one per core.
    pub threads: usize,
    /// The instruction set of the kernels.
    pub kernel: Isa,
    /// Where the devices of our own models compute.
    pub compute: Place,
    /// Who is told.
    pub listener: &'a dyn Listener,
}

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// All seeds are done.
    Finished,
    /// The listener's flag was up: the folder holds a state to resume from.
    Stopped {
        /// The seed that was being trained.
        seed: u64,
        /// Rounds done of it.
        rounds: u64,
        /// Rounds to do of it.
        planned: u64,
    },
}

/// Trains all seeds of an experiment on a federation that is prepared, by its own model or by a trainer that is brought.
pub fn train(
    experiment: Experiment,
    federation: &Federation,
    trainer: Option<&dyn LocalTrainer>,
    job: &Job<'_>,
) -> Result<End, Failure> {
    let show = Show::Listener(job.listener);
    let options = Options {
        out: job.out,
        start: if job.resume { Start::Resume } else { Start::New },
        threads: job.threads,
        kernel: job.kernel,
        compute: job.compute,
        show: &show,
    };
    let ended = match trainer {
        None => session::run_on(experiment, federation, &options)?,
        Some(trainer) => {
            let threads = Threads::new(trainer, federation, job.threads);
            let threads = threads.map_err(Report::from_err)?;
            let place = Computing::Cpu(Box::new(threads));
            session::run_trainer(experiment, federation, trainer, place, &options)?
        }
    };
    match ended {
        Ended::Interrupted(stopped) => {
            Ok(End::Stopped { seed: stopped.seed, rounds: stopped.rounds, planned: stopped.rounds_planned })
        }
        Ended::Finished(summary) => {
            let experiment = run_folder::read_experiment(job.out).map_err(session::folder_error)?;
            idle::warnings(&summary, &experiment).iter().for_each(|warning| job.listener.warn(warning));
            Ok(End::Finished)
        }
        #[cfg(feature = "mpi")]
        Ended::Followed => Ok(End::Finished),
    }
}

/// An error of a run folder, with what to do about it.
pub fn folder_failure(error: run_folder::RunFolderError) -> Failure {
    session::folder_error(error).into()
}

/// The figures of the last evaluation of each seed.
pub fn summary(folder: &Path) -> Result<Summary, Failure> {
    Ok(Summary::read(folder).map_err(session::folder_error)?)
}

/// The table that the command prints at the end of a run.
pub fn table(summary: &Summary) -> String {
    table::render(summary)
}

/// Writes tables, figures where they are wanted, and the page of runs into a folder; returns the page.
pub fn write_report(runs: &[&Path], out: &Path, figures: bool) -> Result<PathBuf, Failure> {
    Ok(report::write_parts(runs, out, figures)?.page)
}
