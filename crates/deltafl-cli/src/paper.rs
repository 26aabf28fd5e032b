//! `deltafl paper`: runs the paper's experiments by name, from imported data to tables.

use std::fs;
use std::num::{NonZeroU64, NonZeroUsize};
use std::path::PathBuf;
use std::time::Duration;

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use deltafl_data::experiment::Experiment;
use deltafl_run::paper::estimate::{HumanDuration, RemainingWork, RunPace};
use deltafl_run::paper::{MissingData, Pair, PaperComparison, PaperSplits, find_federation};
use deltafl_run::report::{ReportFigures, write_report};
use deltafl_run::sweep::folder::SweepFolder;
use deltafl_run::sweep::points::{Shard, SweepPoint};
use deltafl_run::sweep::splits::over_splits;
use deltafl_run::sweep::train::{SweepOptions, train as train_points};
use deltafl_run::{Ended, RunOptions, Start, Stopped, session};
use miette::{IntoDiagnostic, Report, Result, WrapErr};

use crate::error::{self, explained};
use crate::interrupt::stop_on_interrupt;
use crate::progress::{Progress, SweepProgress, warn_of_idle_rounds};
use crate::run::{MachineArgs, refuse_ranks};
use crate::sweep::conclude;

/// Run the paper's experiments, from imported data to tables with the paper's results for
/// comparison
#[derive(clap::Args, Debug)]
#[command(
    after_help = "After an interruption, the same command continues the run. If the paper and its released code differ, the \
experiment file states which one it follows (see --print); --set selects the other.

Examples:
  deltafl data import shakespeare pg100.txt.gz --out data/shakespeare
  deltafl paper shakespeare-gru --seeds 1 --rounds 150
  deltafl paper --estimate
  deltafl paper --all
  deltafl paper emnist-linear --splits 5"
)]
pub(crate) struct Args {
    /// The data set and the model [default: all whose data is available]
    #[arg(value_parser = pairs())]
    pair: Option<Pair>,
    /// Run every pair; missing data is an error
    #[arg(long, conflicts_with = "pair")]
    all: bool,
    /// Seeds 1 to N
    #[arg(long, value_name = "N", default_value = "5")]
    seeds: NonZeroU64,
    /// Splits 1 to N of the devices, a run for each split and seed; differences between tracks are
    /// paired by split and seed
    #[arg(long, value_name = "N", conflicts_with_all = ["tui", "estimate"])]
    splits: Option<NonZeroU64>,
    /// With --splits: train the i-th of n shares of the runs: i/n
    #[arg(long, value_name = "I/N", requires = "splits")]
    shard: Option<Shard>,
    /// With --splits: number of runs that train at the same time [default: one per thread]
    #[arg(long, value_name = "N", requires = "splits")]
    jobs: Option<NonZeroUsize>,
    /// Rounds [default: the paper's]
    #[arg(long, value_name = "N")]
    rounds: Option<NonZeroU64>,
    /// The folder of the federations emnist, sent140-mean, sent140 and shakespeare, or the
    /// federation of PAIR itself
    #[arg(long, value_name = "DIR", default_value = "data")]
    data: PathBuf,
    /// The folder for runs and tables
    #[arg(long, value_name = "DIR", default_value = "runs/paper")]
    out: PathBuf,
    /// Override a key of the experiments; may be repeated
    #[arg(long = "set", value_name = "KEY=VALUE")]
    overrides: Vec<String>,
    #[command(flatten)]
    machine: MachineArgs,
    /// Print a time estimate and train nothing
    #[arg(long)]
    estimate: bool,
    /// Print the experiment file and train nothing
    #[arg(long)]
    print: bool,
    /// Print the results as JSON
    #[arg(long)]
    json: bool,
    /// Show a full-screen dashboard: loss curves, tail, η, percentiles, throughput, time left
    #[arg(long)]
    tui: bool,
    /// Show no progress
    #[arg(long, short)]
    quiet: bool,
}

/// Returns a parser for the names of pairs.
fn pairs() -> impl TypedValueParser<Value = Pair> {
    let value = |pair: Pair| PossibleValue::new(pair.preset().name).help(pair.preset().about);
    PossibleValuesParser::new(Pair::ALL.map(value)).map(|name| {
        let named = |pair: &Pair| pair.preset().name == name;
        Pair::ALL.into_iter().find(named).expect("one of the possible values")
    })
}

/// A pair that is ready to run.
struct Job {
    pair: Pair,
    experiment: Experiment,
    federation: PathBuf,
    /// The overrides of the user.
    overrides: Vec<String>,
    out: PathBuf,
}

pub(crate) fn run(args: Args) -> Result<()> {
    let pairs = args.pair.map_or_else(|| Pair::ALL.to_vec(), |pair| vec![pair]);
    if args.print {
        pairs.iter().for_each(|pair| print!("{}", pair.preset().text));
        return Ok(());
    }
    refuse_ranks("mpirun deltafl run experiments/paper/PAIR.toml")?;
    let jobs = jobs(&args, &pairs)?;
    if let Some(splits) = args.splits {
        return run_splits(&args, &jobs, splits);
    }
    estimate(&args, &jobs)?;
    if args.estimate {
        return Ok(());
    }
    let mut progress = Progress::new(args.tui, args.quiet || args.json)?;
    let (mut results, mut stopped) = (Vec::new(), None);
    for job in &jobs {
        match train(&args, job, &mut progress)? {
            Ok(beside) => results.push(beside),
            Err(place) => {
                stopped = Some((job, place));
                break;
            }
        }
    }
    // The dashboard restores the terminal before anything is printed.
    drop(progress);
    if let Some((job, place)) = stopped {
        return Err(interrupted(&args, job, Some(place)));
    }
    let markdown: String = results.iter().map(PaperComparison::markdown).collect();
    let tables = args.out.join("paper.md");
    fs::write(&tables, markdown).into_diagnostic().wrap_err_with(|| tables.display().to_string())?;
    if args.json {
        println!("{}", serde_json::to_string_pretty(&results).into_diagnostic()?);
    } else {
        results.iter().for_each(|result| println!("{}", result.rendered()));
        println!("Tables:  {}", tables.display());
        jobs.iter().for_each(|job| println!("Report:  {}", job.out.join("report.html").display()));
    }
    Ok(())
}

/// Trains every pair on several splits of the devices.
fn run_splits(args: &Args, jobs: &[Job], splits: NonZeroU64) -> Result<()> {
    let mut results = Vec::new();
    for job in jobs {
        let preset = job.pair.preset();
        let sweep = preset
            .sweep_over_splits(&job.federation, args.seeds, splits, &job.overrides)
            .map_err(explained)?;
        let folder = SweepFolder::at(&args.out.join("splits").join(preset.name));
        folder.describe(&sweep).map_err(explained)?;
        let points: Vec<&SweepPoint> = match args.shard {
            Some(shard) => shard.select(&sweep.points).collect(),
            None => sweep.points.iter().collect(),
        };
        let options = SweepOptions { jobs: args.jobs, machine: args.machine.machine() };
        let mut progress = SweepProgress::unless(args.quiet || args.json);
        let tally = train_points(&folder, &points, &options, &mut progress).map_err(explained)?;
        conclude(tally, folder.path(), args.json)?;
        for result in over_splits(&folder, &sweep).map_err(explained)? {
            results.push(PaperSplits::new(job.pair, result));
        }
    }
    let tables = args.out.join("splits").join("paper.md");
    let markdown: String = results.iter().map(PaperSplits::markdown).collect();
    fs::write(&tables, markdown).into_diagnostic().wrap_err_with(|| tables.display().to_string())?;
    if args.json {
        println!("{}", serde_json::to_string_pretty(&results).into_diagnostic()?);
    } else {
        results.iter().for_each(|result| println!("{}", result.rendered()));
        println!("Tables:  {}", tables.display());
    }
    Ok(())
}

/// Returns the pairs whose data is available.
fn jobs(args: &Args, pairs: &[Pair]) -> Result<Vec<Job>> {
    let (mut jobs, mut missing) = (Vec::new(), Vec::new());
    for &pair in pairs {
        let preset = pair.preset();
        match find_federation(preset, &args.data, args.pair.is_some()) {
            Some(federation) => {
                let rounds = args.rounds.map(|rounds| format!("rounds={rounds}"));
                let overrides: Vec<String> = rounds.into_iter().chain(args.overrides.clone()).collect();
                let experiment =
                    preset.experiment_with(&federation, args.seeds, &overrides).map_err(explained)?;
                let out = args.out.join(preset.name);
                jobs.push(Job { pair, experiment, federation, overrides, out });
            }
            None => missing.push(preset),
        }
    }
    if jobs.is_empty() || (args.all && !missing.is_empty()) {
        let can_fetch = cfg!(feature = "fetch");
        return Err(explained(MissingData { presets: missing, data: args.data.clone(), can_fetch }));
    }
    for preset in missing {
        log(
            args,
            &format!(
                "{0}: skipped, its data is missing; `deltafl paper {0}` explains how to get it",
                preset.name
            ),
        );
    }
    Ok(jobs)
}

/// The point at which the command was stopped.
#[derive(serde::Serialize)]
struct StoppedPaper {
    pair: &'static str,
    /// `None` if the command was stopped during the time estimate.
    #[serde(flatten)]
    run: Option<Stopped>,
}

fn interrupted(args: &Args, job: &Job, run: Option<Stopped>) -> Report {
    let place = StoppedPaper { pair: job.pair.preset().name, run };
    error::interrupted(args.json, &place, &error::same_command())
}

/// Prints the estimated duration, measured with a few rounds of each pair.
fn estimate(args: &Args, jobs: &[Job]) -> Result<()> {
    let mut total = Duration::ZERO;
    for job in jobs {
        let (experiment, name) = (&job.experiment, job.pair.preset().name);
        let left = RemainingWork::for_experiment(experiment, &job.out).map_err(explained)?;
        if left == RemainingWork::default() {
            log(args, &format!("{name}: finished"));
            continue;
        }
        if !args.quiet && !args.json {
            eprintln!("measuring a few rounds of {name} …");
        }
        let federation = session::load(experiment).map_err(explained)?;
        let machine = args.machine.machine();
        let pace = RunPace::measure(experiment, &federation, &job.out, &machine, stop_on_interrupt());
        let Some(pace) = pace.map_err(explained)? else {
            return Err(interrupted(args, job, None));
        };
        let time = pace.time(left);
        total += time;
        log(
            args,
            &format!(
                "{name}: {} rounds at {} and {} evaluations at {} for {} tracks: {} {}",
                left.rounds,
                HumanDuration(pace.round),
                left.evaluations,
                HumanDuration(pace.evaluation),
                experiment.labels().len(),
                if pace.side_by_side { "side by side at most" } else { "about" },
                HumanDuration(time)
            ),
        );
    }
    if jobs.len() > 1 {
        log(args, &format!("in all about {}", HumanDuration(total)));
    }
    Ok(())
}

fn log(args: &Args, line: &str) {
    if args.estimate {
        println!("{line}");
    } else if !args.quiet && !args.json {
        eprintln!("{line}");
    }
}

/// Trains a pair and writes its report. Returns the point at which it was stopped, if the user
/// stops it.
fn train(args: &Args, job: &Job, progress: &mut Progress) -> Result<Result<PaperComparison, Stopped>> {
    let options = RunOptions {
        out: &job.out,
        start: Start::Any,
        machine: args.machine.machine(),
        concurrent_seeds: progress.shows_concurrent_seeds(),
        algorithms: None,
    };
    let federation = session::load(&job.experiment).map_err(explained)?;
    let ended = session::run_on(job.experiment.clone(), &federation, &options, progress);
    let summary = match ended.map_err(explained)? {
        Ended::Finished(summary) => summary,
        Ended::Interrupted(stopped) => return Ok(Err(stopped)),
        _ => unreachable!("this command refuses to run on ranks"),
    };
    write_report(&[&job.out], &job.out, ReportFigures::Drawn).map_err(explained)?;
    warn_of_idle_rounds(&summary, &job.experiment);
    Ok(Ok(PaperComparison::new(job.pair, &summary, federation.len())))
}
