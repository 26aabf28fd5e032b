//! `deltafl run`: trains an experiment.

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use deltafl::kernel::Isa;
use deltafl_cuda::BackendChoice;
use deltafl_data::experiment::Experiment;
use deltafl_data::run_folder;
use deltafl_run::error::shell_quoted;
use deltafl_run::{
    Ended, Machine, RunObserver, RunOptions, Start, by_class, by_group, experiment_file, session, text_table,
};
use miette::Result;

use crate::error::{self, explained, folder_error};
use crate::progress::{Progress, warn_of_idle_rounds};

/// Train an experiment
#[derive(clap::Args, Debug)]
#[command(
    after_help = "Ctrl-C finishes the round, saves it and ends with exit code 130. Every key of the experiment: deltafl help experiment\n\nExamples:\n  \
deltafl run experiments/quickstart.toml --set rounds=5 --out runs/try\n  \
deltafl run experiments/quickstart.toml --set rounds=9 --out runs/try --resume"
)]
pub(crate) struct Args {
    /// The experiment, a TOML file
    experiment: PathBuf,
    /// The run folder [default: runs/NAME]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Continue the run in the folder; a finished run can be extended with more rounds
    #[arg(long)]
    resume: bool,
    /// Override a key of the experiment; may be repeated
    #[arg(long = "set", value_name = "KEY=VALUE")]
    overrides: Vec<String>,
    #[command(flatten)]
    machine: MachineArgs,
    /// Print the summary as JSON
    #[arg(long)]
    json: bool,
    /// Show a full-screen dashboard: loss curves, tail, η, percentiles, throughput, time left
    #[arg(long)]
    tui: bool,
    /// Show no progress
    #[arg(long, short)]
    quiet: bool,
}

/// The parts of the machine to use.
#[derive(clap::Args, Debug)]
pub(crate) struct MachineArgs {
    #[command(flatten)]
    pub(crate) cpu: CpuArgs,
    /// Compute backend: cpu, cuda, cuda:N, or auto for a GPU if there is one with kernels for the
    /// model
    #[arg(long, value_name = "PLACE", default_value_t = BackendChoice::Auto)]
    compute: BackendChoice,
}

impl MachineArgs {
    /// Returns the parts of the machine.
    pub(crate) fn machine(&self) -> Machine {
        Machine { threads: self.cpu.threads(), kernel: self.cpu.kernel.isa(), compute: self.compute }
    }
}

/// The CPU options, for commands that compute only on the CPU.
#[derive(clap::Args, Debug)]
pub(crate) struct CpuArgs {
    /// Number of threads; the result is the same to the bit for any number [default: one per core]
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    threads: Option<NonZeroUsize>,
    #[command(flatten)]
    pub(crate) kernel: KernelArgs,
}

impl CpuArgs {
    /// Returns the number of threads; one per core if `None`.
    pub(crate) fn threads(&self) -> Option<NonZeroUsize> {
        self.threads
    }
}

/// Parses a number of threads or jobs.
pub(crate) fn at_least_one(text: &str) -> Result<NonZeroUsize, String> {
    text.parse()
        .map_err(|_| "expected a whole number, 1 or above; leave the option out for the default".to_owned())
}

/// The kernel options, for single devices and servers.
#[derive(clap::Args, Debug)]
pub(crate) struct KernelArgs {
    /// Use the kernels of an instruction set: reference, avx2, avx512 [default: the best of this
    /// CPU]
    #[arg(long, value_name = "SET")]
    kernel: Option<Isa>,
}

impl KernelArgs {
    /// Returns the instruction set of the kernels.
    pub(crate) fn isa(&self) -> Isa {
        self.kernel.unwrap_or_else(Isa::detect)
    }
}

pub(crate) fn run(args: Args) -> Result<()> {
    let experiment = experiment_file::read(&args.experiment, &args.overrides).map_err(explained)?;
    let out = args.out.unwrap_or_else(|| PathBuf::from("runs").join(experiment.name()));
    let mut progress = Progress::new(args.tui, args.quiet || args.json)?;
    let options = RunOptions {
        out: &out,
        start: if args.resume { Start::Resume } else { Start::New },
        machine: args.machine.machine(),
        concurrent_seeds: progress.shows_concurrent_seeds(),
        algorithms: None,
    };
    let explain = |error: deltafl_run::RunError| at_layer(error, &args.experiment, &args.overrides);
    let ended = train_or(experiment, &options, &mut progress, &explain);
    drop(progress);
    let summary = match ended? {
        Ended::Interrupted(stopped) => {
            let resume = resume_command(&args.experiment, &out, &args.overrides);
            return Err(error::interrupted(args.json, &stopped, &resume));
        }
        Ended::Finished(summary) => summary,
        _ => return Ok(()),
    };
    if args.json {
        println!("{}", serde_json::to_string_pretty(&summary).unwrap_or_default());
    } else {
        print!("{}", text_table::render(&summary));
        if let Some(classes) = run_folder::read_classes(&out).map_err(folder_error)? {
            let tracks: Vec<String> = summary.tracks.iter().map(|track| track.name.clone()).collect();
            print!("{}", by_class::rendered(&classes, &tracks));
        }
        if let Some(groups) = run_folder::read_groups(&out).map_err(folder_error)? {
            let tracks: Vec<String> = summary.tracks.iter().map(|track| track.name.clone()).collect();
            print!("{}", by_group::rendered(&groups, summary.task.primary(), &tracks));
        }
        println!("\nRun folder: {}", out.display());
    }
    warn_of_idle_rounds(&summary, &run_folder::read_experiment(&out).map_err(folder_error)?);
    Ok(())
}

/// Trains all seeds of an experiment: in this process, or on the ranks of an MPI job.
pub(crate) fn train(
    experiment: Experiment,
    options: &RunOptions<'_>,
    observer: &mut RunObserver<'_>,
) -> Result<Ended> {
    train_or(experiment, options, observer, &|error| explained(error))
}

/// Reports a layer that does not fit the data at its line of the experiment file.
pub(crate) fn at_layer(error: deltafl_run::RunError, path: &Path, overrides: &[String]) -> miette::Report {
    let place = experiment_file::layer_error(path, overrides, &error);
    place.map_or_else(|| explained(error), explained)
}

/// Trains all seeds of an experiment. The function creates the report of an error.
fn train_or(
    experiment: Experiment,
    options: &RunOptions<'_>,
    observer: &mut RunObserver<'_>,
    explain: &dyn Fn(deltafl_run::RunError) -> miette::Report,
) -> Result<Ended> {
    #[cfg(feature = "mpi")]
    if deltafl_run::cluster::launched() {
        let failed = |rank: &str, error: deltafl_run::RunError| {
            let report = explained(error);
            eprintln!("{rank}\nError: {report:?}");
            error::exit_code(&report)
        };
        return deltafl_run::cluster::run(experiment, options, observer, &failed).map_err(explain);
    }
    session::run(experiment, options, observer).map_err(explain)
}

/// Rejects MPI ranks, for commands that run in one process.
pub(crate) fn refuse_ranks(instead: &str) -> Result<()> {
    #[cfg(feature = "mpi")]
    if deltafl_run::cluster::launched() {
        let refused = error::bad_input("this command runs in one process, not on MPI ranks");
        return Err(refused.help(instead).into());
    }
    let _ = instead;
    Ok(())
}

/// Returns the command that continues a stopped run.
fn resume_command(experiment: &Path, out: &Path, overrides: &[String]) -> String {
    let path = |path: &Path| shell_quoted(&path.display().to_string());
    let set: String =
        overrides.iter().map(|assignment| format!(" --set {}", shell_quoted(assignment))).collect();
    format!("deltafl run {} --out {}{set} --resume", path(experiment), path(out))
}
