//! `deltafl paper`: the paper's experiments, by name, from imported data to tables.

use std::fs;
use std::num::NonZeroU64;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::ValueEnum;
use deltafl_data::experiment::Experiment;
use miette::{IntoDiagnostic, Report, Result, WrapErr};

#[path = "../../deltafl-run/src/paper/beside.rs"]
mod beside;
#[path = "../../deltafl-run/src/paper/data.rs"]
mod data;
#[path = "../../deltafl-run/src/paper/estimate.rs"]
pub(crate) mod estimate;
#[path = "../../deltafl-run/src/paper/presets.rs"]
mod presets;

use crate::error::BadInput;
use crate::gpu::Wish;
use crate::progress::Show;
use crate::run::Machine;
use crate::session::{self, Ended, Options, Start, Stopped};
use crate::{error, experiment_file, idle, report};
use beside::Beside;
use estimate::{Left, Pace, Spoken};
use presets::{Pair, Preset};

/// Run the paper's experiments: from imported data to its tables, beside the paper's own figures
#[derive(clap::Args, Debug)]
#[command(
    after_help = "Interrupted or killed, the same command goes on where it was. Where the paper and its released code differ, the \
experiment says which it takes (--print shows it), and the other is one --set away.

Examples:
  deltafl data import shakespeare pg100.txt.gz --out data/shakespeare
  deltafl paper shakespeare-gru --seeds 1 --rounds 150
  deltafl paper --estimate
  deltafl paper --all"
)]
pub(crate) struct Args {
    /// The data set and the model [default: all whose data is there]
    #[arg(value_enum)]
    pair: Option<Pair>,
    /// Every pair: it is an error that the data of one is missing
    #[arg(long, conflicts_with = "pair")]
    all: bool,
    /// Seeds 1 to N
    #[arg(long, value_name = "N", default_value = "5")]
    seeds: NonZeroU64,
    /// Rounds [default: the paper's]
    #[arg(long, value_name = "N")]
    rounds: Option<NonZeroU64>,
    /// Where the federations lie: emnist, sent140-mean, sent140, shakespeare; or the one of PAIR itself
    #[arg(long, value_name = "DIR", default_value = "data")]
    data: PathBuf,
    /// The folder for runs and tables
    #[arg(long, value_name = "DIR", default_value = "runs/paper")]
    out: PathBuf,
    /// Override a key of the experiments; may be repeated
    #[arg(long = "set", value_name = "KEY=VALUE")]
    overrides: Vec<String>,
    #[command(flatten)]
    machine: Machine,
    /// Print the estimate of time and train nothing
    #[arg(long)]
    estimate: bool,
    /// Print the experiment file and train nothing
    #[arg(long)]
    print: bool,
    /// Print the figures as JSON
    #[arg(long)]
    json: bool,
    /// Fill the terminal with a dashboard: loss curves, tail, η, percentiles, throughput, time left
    #[arg(long)]
    tui: bool,
    /// Show no progress
    #[arg(long, short)]
    quiet: bool,
}

/// A pair that is ready to run.
struct Job {
    pair: Pair,
    experiment: Experiment,
    out: PathBuf,
}

pub(crate) fn run(args: Args) -> Result<()> {
    let pairs = args.pair.map_or_else(|| Pair::value_variants().to_vec(), |pair| vec![pair]);
    if args.print {
        pairs.iter().for_each(|pair| print!("{}", pair.preset().text));
        return Ok(());
    }
    session::refuse_ranks("mpirun deltafl run experiments/paper/PAIR.toml")?;
    let jobs = jobs(&args, &pairs)?;
    estimate(&args, &jobs)?;
    if args.estimate {
        return Ok(());
    }
    let show = Show::new(args.tui, args.quiet || args.json, session::stop_on_interrupt())?;
    let (mut results, mut stopped) = (Vec::new(), None);
    for job in &jobs {
        match train(&args, job, &show)? {
            Ok(beside) => results.push(beside),
            Err(place) => {
                stopped = Some((job, place));
                break;
            }
        }
    }
    // The dashboard gives the terminal back before anything is said.
    drop(show);
    if let Some((job, place)) = stopped {
        return Err(interrupted(&args, job, Some(place)));
    }
    let markdown: String = results.iter().map(Beside::markdown).collect();
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

/// The pairs whose data is there.
fn jobs(args: &Args, pairs: &[Pair]) -> Result<Vec<Job>> {
    let (mut jobs, mut missing) = (Vec::new(), Vec::new());
    for &pair in pairs {
        let preset = pair.preset();
        match data::find(preset, &args.data, args.pair.is_some()) {
            Some(federation) => {
                let experiment = experiment(args, preset, &federation)?;
                jobs.push(Job { pair, experiment, out: args.out.join(preset.name) });
            }
            None => missing.push(preset),
        }
    }
    if jobs.is_empty() || (args.all && !missing.is_empty()) {
        return Err(data::missing(&missing, &args.data).into());
    }
    for preset in missing {
        say(
            args,
            &format!(
                "{0}: left out, its data is not there; `deltafl paper {0}` says how to get it",
                preset.name
            ),
        );
    }
    Ok(jobs)
}

/// The experiment of a pair, with what the arguments change.
fn experiment(args: &Args, preset: &Preset, federation: &Path) -> Result<Experiment, BadInput> {
    let seeds: Vec<String> = (1..=args.seeds.get()).map(|seed| seed.to_string()).collect();
    let source = toml::Value::from(federation.display().to_string());
    let mut overrides = vec![format!("seeds=[{}]", seeds.join(",")), format!("data.source={source}")];
    overrides.extend(args.rounds.map(|rounds| format!("rounds={rounds}")));
    overrides.extend(args.overrides.iter().cloned());
    experiment_file::parse(&preset_path(preset), preset.text, &overrides)
}

/// The experiment of a pair as the paper has it.
fn experiment_of_paper(preset: &Preset) -> Experiment {
    experiment_file::checked(&preset_path(preset), preset.text)
        .expect("a test parses every embedded experiment")
}

fn preset_path(preset: &Preset) -> PathBuf {
    PathBuf::from(format!("{}.toml", preset.name))
}

/// Where the command was stopped.
#[derive(serde::Serialize)]
struct Place {
    pair: &'static str,
    /// Missing where its time was being estimated.
    #[serde(flatten)]
    run: Option<Stopped>,
}

fn interrupted(args: &Args, job: &Job, run: Option<Stopped>) -> Report {
    let place = Place { pair: job.pair.preset().name, run };
    error::interrupted(args.json, &place, &error::same_command())
}

/// Says how long it will take, from a few rounds of each pair.
fn estimate(args: &Args, jobs: &[Job]) -> Result<()> {
    let mut total = Duration::ZERO;
    for job in jobs {
        let (experiment, name) = (&job.experiment, job.pair.preset().name);
        let left = Left::of(experiment, &job.out)?;
        if left == Left::default() {
            say(args, &format!("{name}: finished"));
            continue;
        }
        if !args.quiet && !args.json {
            eprintln!("timing a few rounds of {name} …");
        }
        let federation = session::load(experiment)?;
        let wish = Wish::for_run(&job.out, args.machine.compute);
        let Some(pace) = Pace::measure(experiment, &federation, &args.machine, wish)? else {
            return Err(interrupted(args, job, None));
        };
        let time = pace.time(left);
        total += time;
        say(
            args,
            &format!(
                "{name}: {} rounds at {} and {} evaluations at {} for {} tracks: {} {}",
                left.rounds,
                Spoken(pace.round),
                left.evaluations,
                Spoken(pace.evaluation),
                experiment.labels().len(),
                if pace.side_by_side { "side by side at most" } else { "about" },
                Spoken(time)
            ),
        );
    }
    if jobs.len() > 1 {
        say(args, &format!("in all about {}", Spoken(total)));
    }
    Ok(())
}

fn say(args: &Args, line: &str) {
    if args.estimate {
        println!("{line}");
    } else if !args.quiet && !args.json {
        eprintln!("{line}");
    }
}

/// Trains a pair and writes its report; where it was stopped, when the user asks for it.
fn train(args: &Args, job: &Job, show: &Show<'_>) -> Result<Result<Beside, Stopped>> {
    let options = Options {
        out: &job.out,
        start: Start::Any,
        threads: args.machine.cpu.threads,
        kernel: args.machine.kernel(),
        compute: args.machine.compute,
        show,
    };
    let federation = session::load(&job.experiment)?;
    let summary = match session::run_on(job.experiment.clone(), &federation, &options)? {
        Ended::Finished(summary) => summary,
        Ended::Interrupted(stopped) => return Ok(Err(stopped)),
        #[cfg(feature = "mpi")]
        Ended::Followed => unreachable!("this command refuses to run on ranks"),
    };
    report::write_report(&[&job.out], &job.out)?;
    idle::warn(&summary, &job.experiment);
    Ok(Ok(Beside::new(job.pair, &summary, federation.len())))
}
