//! `deltafl sweep`: an experiment with lists of values, and a run for each combination.

use std::fs;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use deltafl_run::error::shell_quoted;
use deltafl_run::sweep::folder::SweepFolder;
use deltafl_run::sweep::points::{Shard, Sweep, SweepPoint};
use deltafl_run::sweep::train::{SweepOptions, Tally, train};
use deltafl_run::sweep::{listing, merge, slurm, splits};
use miette::{IntoDiagnostic, Report, Result, WrapErr};

use crate::error::{self, explained};
use crate::progress::SweepProgress;
use crate::run::{MachineArgs, at_least_one, refuse_ranks};

/// Train every combination of values and compare the results
#[derive(clap::Subcommand, Debug)]
#[command(
    after_help = "Any key of the experiment can be a list. A key that takes a list, such as seeds or theta, can be a list of \
lists. A table [sweep] or --sweep does the same without changing the experiment:
  [sweep]
  \"local.learning_rate\" = [0.1, 0.3]
  seeds = [1, 2, 3]

Examples:
  deltafl sweep run x.toml --sweep local.learning_rate=0.3,1 --sweep local.batch=10,32
  deltafl sweep run x.toml --sweep data.split.seed=1,2,3,4,5 --sweep seeds=[1],[2],[3]
  deltafl sweep run x.toml --shard 2/8 --out part-2
  deltafl sweep merge part-* --into sweeps/x
  deltafl sweep list sweeps/x"
)]
pub(crate) enum SweepCommand {
    Run(RunArgs),
    List(ListArgs),
    Merge(MergeArgs),
    Slurm(SlurmArgs),
}

/// The options that define a sweep.
#[derive(clap::Args, Debug)]
struct What {
    /// The experiment, a TOML file
    experiment: PathBuf,
    /// Sweep a key of the experiment; may be repeated
    #[arg(long = "sweep", value_name = "KEY=VALUE,VALUE…")]
    swept: Vec<String>,
    /// Override a key of the experiment; may be repeated
    #[arg(long = "set", value_name = "KEY=VALUE")]
    overrides: Vec<String>,
    /// The sweep's folder [default: sweeps/NAME]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

impl What {
    fn read(&self) -> Result<(Sweep, SweepFolder)> {
        let sweep = Sweep::read(&self.experiment, &self.overrides, &self.swept).map_err(explained)?;
        let out = self.out.clone().unwrap_or_else(|| Path::new("sweeps").join(&sweep.name));
        Ok((sweep, SweepFolder::at(&out)))
    }
}

/// Train the points of a sweep; finished points are skipped, interrupted ones continue
#[derive(clap::Args, Debug)]
#[command(
    after_help = "Example:\n  deltafl sweep run experiments/quickstart.toml --sweep local.learning_rate=0.1,0.3,1"
)]
pub(crate) struct RunArgs {
    #[command(flatten)]
    what: What,
    /// Train the i-th of n shares of the points: i/n
    #[arg(long, value_name = "I/N", default_value = "1/1", hide_default_value = true)]
    shard: Shard,
    /// Number of points that train at the same time [default: one per thread]
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    jobs: Option<NonZeroUsize>,
    #[command(flatten)]
    machine: MachineArgs,
    /// Print the results as JSON, as `sweep list --json` does
    #[arg(long)]
    json: bool,
    /// Show no progress
    #[arg(long, short)]
    quiet: bool,
}

/// List the points of a sweep with their results
#[derive(clap::Args, Debug)]
#[command(
    after_help = "If seeds are swept, a table of averages over them follows. For one page and one chart of all points: deltafl report DIR\n\nExample:\n  \
deltafl sweep list sweeps/quickstart --csv > sweep.csv"
)]
pub(crate) struct ListArgs {
    /// The sweep's folder
    folder: PathBuf,
    /// Print as CSV
    #[arg(long, conflicts_with = "json")]
    csv: bool,
    /// Print as JSON
    #[arg(long)]
    json: bool,
    /// Print averages over the points that differ only in their seeds, instead of the points
    #[arg(long)]
    average: bool,
    /// Print only the results over splits of the devices: differences between tracks, paired by
    /// split and seed
    #[arg(long, conflicts_with_all = ["csv", "average"])]
    splits: bool,
}

/// Merge the folders of one sweep from several machines
#[derive(clap::Args, Debug)]
#[command(
    after_help = "If several folders contain a point, the one with the most rounds is kept. Points with the same data source must have been trained on the same data.

Example:\n  deltafl sweep merge part-1 part-2 --into sweeps/x"
)]
pub(crate) struct MergeArgs {
    /// The folders
    #[arg(required = true, value_name = "DIR")]
    folders: Vec<PathBuf>,
    /// The target folder
    #[arg(long, value_name = "DIR")]
    into: PathBuf,
}

/// Write a Slurm array script for a sweep
#[derive(clap::Args, Debug)]
#[command(
    after_help = "Example:\n  deltafl sweep slurm x.toml --tasks 8 --out sweeps/x && sbatch sweeps/x/sweep.slurm"
)]
pub(crate) struct SlurmArgs {
    #[command(flatten)]
    what: What,
    /// Number of tasks of the array [default: one per point]
    #[arg(long, value_name = "N")]
    tasks: Option<NonZeroUsize>,
}

pub(crate) fn run(command: SweepCommand) -> Result<()> {
    match command {
        SweepCommand::Run(args) => run_points(&args),
        SweepCommand::List(args) => list(&args),
        SweepCommand::Merge(args) => merge_folders(&args),
        SweepCommand::Slurm(args) => write_slurm(&args),
    }
}

fn run_points(args: &RunArgs) -> Result<()> {
    refuse_ranks("give every process a share of the points: --shard I/N")?;
    let (sweep, folder) = args.what.read()?;
    let points: Vec<&SweepPoint> = args.shard.select(&sweep.points).collect();
    let options = SweepOptions { jobs: args.jobs, machine: args.machine.machine() };
    folder.describe(&sweep).map_err(explained)?;
    let mut progress = SweepProgress::unless(args.quiet || args.json);
    let tally = train(&folder, &points, &options, &mut progress).map_err(explained)?;
    let results = listing::results(&folder, &sweep, points.iter().copied()).map_err(explained)?;
    if !args.json {
        print!("{}", listing::rendered(&sweep, &results));
        print!("{}", averages(&folder, &sweep)?);
        print!("{}", over_splits(&folder, &sweep)?);
        println!("\nSweep folder: {}", folder.path().display());
    } else if !tally.interrupted {
        println!("{}", serde_json::to_string_pretty(&results).into_diagnostic()?);
    }
    conclude(tally, folder.path(), args.json)
}

/// Renders the averages over seeds as a table, if seeds are swept.
fn averages(folder: &SweepFolder, sweep: &Sweep) -> Result<String> {
    let averages = listing::averages(folder, sweep).map_err(explained)?;
    Ok(if averages.len() == sweep.points.len() {
        String::new()
    } else {
        format!("\nAverages over seeds\n\n{}", listing::table(sweep, &averages))
    })
}

/// Renders the results over splits of the devices, if splits are swept.
pub(crate) fn over_splits(folder: &SweepFolder, sweep: &Sweep) -> Result<String> {
    if !splits::has_splits(sweep) {
        return Ok(String::new());
    }
    let results = splits::over_splits(folder, sweep).map_err(explained)?;
    Ok(results.iter().map(|result| format!("\n{}", result.rendered())).collect())
}

/// The point at which a sweep was stopped.
#[derive(Debug, serde::Serialize)]
struct StoppedSweep<'a> {
    folder: &'a Path,
    points_finished: usize,
    points_planned: usize,
}

/// Prints the remaining work. Fails if a point failed or the user asked to stop.
pub(crate) fn conclude(tally: Tally, folder: &Path, json: bool) -> Result<()> {
    let place =
        StoppedSweep { folder, points_finished: tally.skipped + tally.trained, points_planned: tally.points };
    let stopped = tally.interrupted.then(|| error::interrupted(json, &place, &error::same_command()));
    if tally.busy > 0 {
        eprintln!("{} points are being trained by another process.", tally.busy);
    }
    let failed = tally.failures.len();
    let mut last: Option<Report> = None;
    for (name, error) in tally.failures {
        let report = explained(error).wrap_err(format!("the point {name} failed"));
        if let Some(before) = last.replace(report) {
            eprintln!("Error: {before:?}");
        }
    }
    match last {
        None => stopped.map_or(Ok(()), Err),
        Some(report) if failed == 1 => Err(report),
        Some(report) => Err(report.wrap_err(format!("{failed} points failed; the others are not affected"))),
    }
}

fn list(args: &ListArgs) -> Result<()> {
    let folder = SweepFolder::at(&args.folder);
    let sweep = folder.sweep().map_err(explained)?;
    if args.splits {
        let results = splits::over_splits(&folder, &sweep).map_err(explained)?;
        if args.json {
            println!("{}", serde_json::to_string_pretty(&results).into_diagnostic()?);
        } else {
            results.iter().for_each(|result| println!("{}", result.rendered()));
        }
        return Ok(());
    }
    let results = if args.average {
        listing::averages(&folder, &sweep)
    } else {
        listing::results(&folder, &sweep, sweep.points.iter())
    };
    let results = results.map_err(explained)?;
    if args.json {
        println!("{}", serde_json::to_string_pretty(&results).into_diagnostic()?);
    } else if args.csv {
        print!("{}", listing::csv(&results).into_diagnostic()?);
    } else if args.average {
        print!("{}", listing::table(&sweep, &results));
    } else {
        print!("{}", listing::rendered(&sweep, &results));
        print!("{}", averages(&folder, &sweep)?);
        print!("{}", over_splits(&folder, &sweep)?);
    }
    Ok(())
}

fn merge_folders(args: &MergeArgs) -> Result<()> {
    let into = SweepFolder::at(&args.into);
    let merged = merge::merge(&args.folders, &into).map_err(explained)?;
    println!("{} points taken, {} known already", merged.taken, merged.known);
    if merged.foreign > 0 {
        println!("{} runs left out: they are not points of this sweep", merged.foreign);
    }
    let sweep = into.sweep().map_err(explained)?;
    let results = listing::results(&into, &sweep, sweep.points.iter()).map_err(explained)?;
    print!("{}", listing::rendered(&sweep, &results));
    Ok(())
}

fn write_slurm(args: &SlurmArgs) -> Result<()> {
    let (sweep, folder) = args.what.read()?;
    folder.describe(&sweep).map_err(explained)?;
    let tasks = args.tasks.map_or(sweep.points.len(), |tasks| tasks.get().min(sweep.points.len()));
    let path = folder.path().join("sweep.slurm");
    fs::write(&path, slurm::script(folder.path(), &sweep.name, tasks))
        .into_diagnostic()
        .wrap_err_with(|| path.display().to_string())?;
    println!("{} points in {tasks} tasks. Submit it with", sweep.points.len());
    println!("  sbatch {}", shell_quoted(&path.display().to_string()));
    Ok(())
}
