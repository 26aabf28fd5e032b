//! `deltafl run`: train an experiment.

use std::path::{Path, PathBuf};

use deltafl::kernel::Isa;
use deltafl_cuda::Place;
use deltafl_data::run_folder;
use miette::Result;

use crate::progress::Show;
use crate::session::{self, Ended, Options, Start};
use crate::{by_class, error, experiment_file, idle, table};

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
    /// Go on with the run in the folder; a finished one grows when the experiment asks for more rounds
    #[arg(long)]
    resume: bool,
    /// Override a key of the experiment; may be repeated
    #[arg(long = "set", value_name = "KEY=VALUE")]
    overrides: Vec<String>,
    #[command(flatten)]
    machine: Machine,
    /// Print the summary as JSON
    #[arg(long)]
    json: bool,
    /// Fill the terminal with a dashboard: loss curves, tail, η, percentiles, throughput, time left
    #[arg(long)]
    tui: bool,
    /// Show no progress
    #[arg(long, short)]
    quiet: bool,
}

/// What of the machine to use.
#[derive(clap::Args, Debug)]
pub(crate) struct Machine {
    #[command(flatten)]
    pub(crate) cpu: CpuArgs,
    /// Where devices compute: cpu, cuda, cuda:N, or auto for a GPU where there is one and it has kernels for the model
    #[arg(long, value_name = "PLACE", default_value_t = Place::Auto)]
    pub(crate) compute: Place,
}

impl Machine {
    /// The instruction set of the kernels.
    pub(crate) fn kernel(&self) -> Isa {
        self.cpu.kernel.isa()
    }
}

/// What of the CPU to use, for commands that compute nowhere else.
#[derive(clap::Args, Debug)]
pub(crate) struct CpuArgs {
    /// Number of threads; the result has the same bits for any [default: one per core]
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    pub(crate) threads: usize,
    #[command(flatten)]
    pub(crate) kernel: KernelArgs,
}

/// Which kernels to use: the part of the machine that a single device and a server choose.
#[derive(clap::Args, Debug)]
pub(crate) struct KernelArgs {
    /// Pin the kernels to an instruction set: reference, avx2, avx512 [default: the best here]
    #[arg(long, value_name = "SET")]
    kernel: Option<Isa>,
}

impl KernelArgs {
    /// The instruction set of the kernels.
    pub(crate) fn isa(&self) -> Isa {
        self.kernel.unwrap_or_else(Isa::detect)
    }
}

pub(crate) fn run(args: Args) -> Result<()> {
    let experiment = experiment_file::read(&args.experiment, &args.overrides)?;
    let out = args.out.unwrap_or_else(|| PathBuf::from("runs").join(experiment.name()));
    let show = Show::new(args.tui, args.quiet || args.json, session::stop_on_interrupt())?;
    let options = Options {
        out: &out,
        start: if args.resume { Start::Resume } else { Start::New },
        threads: args.machine.cpu.threads,
        kernel: args.machine.kernel(),
        compute: args.machine.compute,
        show: &show,
    };
    let ended = session::run(experiment, &options);
    drop(show);
    match ended? {
        Ended::Interrupted(stopped) => {
            let go_on = go_on(&args.experiment, &out, &args.overrides);
            return Err(error::interrupted(args.json, &stopped, &go_on));
        }
        #[cfg(feature = "mpi")]
        Ended::Followed => {}
        Ended::Finished(summary) => {
            if args.json {
                println!("{}", serde_json::to_string_pretty(&summary).unwrap_or_default());
            } else {
                print!("{}", table::render(&summary));
                if let Some(classes) = run_folder::read_classes(&out).map_err(session::folder_error)? {
                    let tracks: Vec<String> = summary.tracks.iter().map(|track| track.name.clone()).collect();
                    print!("{}", by_class::rendered(&classes, &tracks));
                }
                println!("\nRun folder: {}", out.display());
            }
            idle::warn(&summary, &run_folder::read_experiment(&out).map_err(session::folder_error)?);
        }
    }
    Ok(())
}

/// The command that goes on with a run that was stopped.
fn go_on(experiment: &Path, out: &Path, overrides: &[String]) -> String {
    let path = |path: &Path| error::quoted(&path.display().to_string());
    let set: String =
        overrides.iter().map(|assignment| format!(" --set {}", error::quoted(assignment))).collect();
    format!("deltafl run {} --out {}{set} --resume", path(experiment), path(out))
}
