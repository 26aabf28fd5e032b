//! `deltafl demo`: the paper in a minute, on a federation that needs no download.

use std::path::{Path, PathBuf};

use deltafl_data::experiment::{Experiment, OneOrMore};
use miette::Result;

use crate::error::bad_input;
use crate::progress::Show;
use crate::run::Machine;
use crate::session::{self, Ended, Options, Start};
use crate::{error, experiment_file, report, table};

/// The experiment of the demo, also a file to start from.
const QUICKSTART: &str = include_str!("../../../experiments/quickstart.toml");

/// Seeds of the demo.
const SEEDS: u64 = 3;

/// FedAvg and Δ-FL on an embedded federation of handwriting: a table and a report
#[derive(clap::Args, Debug)]
#[command(after_help = "Example:\n  deltafl demo --seed 7")]
pub(crate) struct Args {
    /// Draw another federation and other cohorts
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// The run folder [default: runs/demo-SEED]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    #[command(flatten)]
    machine: Machine,
    /// Print the summary as JSON
    #[arg(long)]
    json: bool,
    /// Show no progress
    #[arg(long, short)]
    quiet: bool,
}

pub(crate) fn run(args: Args) -> Result<()> {
    let experiment = experiment(args.seed)?;
    let out = args.out.unwrap_or_else(|| PathBuf::from("runs").join(experiment.name()));
    let options = Options {
        out: &out,
        // A demo that was interrupted goes on, one that is done shows its table again.
        start: Start::Any,
        threads: args.machine.cpu.threads,
        kernel: args.machine.kernel(),
        compute: args.machine.compute,
        show: &Show::unless(args.quiet || args.json),
    };
    match session::run(experiment, &options)? {
        Ended::Interrupted(stopped) => {
            return Err(error::interrupted(args.json, &stopped, &error::same_command()));
        }
        #[cfg(feature = "mpi")]
        Ended::Followed => {}
        Ended::Finished(summary) if args.json => {
            println!("{}", serde_json::to_string_pretty(&summary).unwrap_or_default());
        }
        Ended::Finished(summary) => {
            print!("{}", table::render(&summary));
            let report = report::write_report(&[&out], &out)?;
            println!("\nReport:     {}", report.page.display());
            println!("Run folder: {}", out.display());
        }
    }
    Ok(())
}

/// The quickstart over three seeds, on a federation drawn from `seed`.
fn experiment(seed: u64) -> Result<Experiment> {
    let path = Path::new("quickstart.toml");
    let experiment = experiment_file::parse(
        path,
        QUICKSTART,
        &[format!("data.source.seed={seed}"), format!("name=demo-{seed}")],
    )?;
    let seeds: Vec<u64> = (0..SEEDS).map(|i| seed.wrapping_add(i)).collect();
    let seeds = OneOrMore::try_from(seeds).map_err(|e| bad_input("no seeds").because(e))?;
    Ok(experiment.with_seeds(seeds))
}
