//! `deltafl demo`: the paper's method in a minute, on a federation that needs no download.

use std::path::{Path, PathBuf};

use deltafl_data::experiment::{Experiment, OneOrMore};
use deltafl_run::report::{ReportFigures, write_report};
use deltafl_run::{Ended, RunOptions, Start, experiment_file, text_table};
use miette::Result;

use crate::error::{self, bad_input, explained};
use crate::progress::Progress;
use crate::run::{MachineArgs, train};

/// The experiment of the demo, which is also a template for new experiments.
const QUICKSTART: &str = include_str!("../../../experiments/quickstart.toml");

/// Number of seeds of the demo.
const SEEDS: u64 = 3;

/// Train FedAvg and Δ-FL on an embedded federation of handwriting, and write a table and a report
#[derive(clap::Args, Debug)]
#[command(after_help = "Example:\n  deltafl demo --seed 7")]
pub(crate) struct Args {
    /// Seed of the federation and the cohorts
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// The run folder [default: runs/demo-SEED]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    #[command(flatten)]
    machine: MachineArgs,
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
    let mut progress = Progress::unless(args.quiet || args.json);
    let options = RunOptions {
        out: &out,
        // An interrupted demo continues. A finished one shows its table again.
        start: Start::Any,
        machine: args.machine.machine(),
        concurrent_seeds: true,
        algorithms: None,
    };
    let ended = train(experiment, &options, &mut progress);
    drop(progress);
    match ended? {
        Ended::Interrupted(stopped) => {
            return Err(error::interrupted(args.json, &stopped, &error::same_command()));
        }
        Ended::Finished(summary) if args.json => {
            println!("{}", serde_json::to_string_pretty(&summary).unwrap_or_default());
        }
        Ended::Finished(summary) => {
            print!("{}", text_table::render(&summary));
            let report = write_report(&[&out], &out, ReportFigures::Drawn).map_err(explained)?;
            println!("\nReport:     {}", report.page.display());
            println!("Run folder: {}", out.display());
        }
        _ => {}
    }
    Ok(())
}

/// Returns the quickstart experiment with three seeds, on a federation drawn from `seed`.
fn experiment(seed: u64) -> Result<Experiment> {
    let path = Path::new("quickstart.toml");
    let experiment = experiment_file::parse(
        path,
        QUICKSTART,
        &[format!("data.source.seed={seed}"), format!("name=demo-{seed}")],
    )
    .map_err(explained)?;
    let seeds: Vec<u64> = (0..SEEDS).map(|i| seed.wrapping_add(i)).collect();
    let seeds = OneOrMore::try_from(seeds).map_err(|e| bad_input("no seeds").because(e))?;
    Ok(experiment.with_seeds(seeds))
}
