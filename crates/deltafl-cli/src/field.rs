//! `deltafl field`: many algorithms on one federation, tuned with the same budget and compared.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use clap::ValueEnum;
use deltafl_run::compare::Bootstrap;
use deltafl_run::error::{ErrorKind, Explain};
use deltafl_run::field::{CANDIDATES, Criterion, Field, FieldError, FieldMethod, FieldOptions, RUNGS};
use deltafl_run::paper::estimate::HumanDuration;
use deltafl_run::sweep::points::Shard;
use deltafl_run::sweep::train::SweepOptions;
use miette::{IntoDiagnostic, Report, Result, miette};

use crate::error::{self, explained};
use crate::interrupt::stop_on_interrupt;
use crate::progress::SweepProgress;
use crate::run::MachineArgs;
use crate::sweep;

/// Tune and train many algorithms on one federation, and compare them
#[derive(clap::Args, Debug)]
#[command(
    after_help = "Every method tries the same number of candidates on held-out train devices, and the best one trains on every \
split with the same seeds, cohorts and local work. The table and the picture show the mean error against the 90th \
percentile. After an interruption, the same command continues. With mpirun, every rank trains a share of the methods.

Examples:
  deltafl field glyphs
  deltafl field 'synthetic(1,1)' --algorithms fedavg,delta-fl,q-ffl,term --set rounds=100
  deltafl field data/mine --algorithms fedavg,delta-fl:theta=0.5 --model perceptron
  deltafl field experiments/paper/emnist-linear.toml --set rounds=300 --shard 1/4"
)]
pub(crate) struct Args {
    /// A federation folder, a synthetic federation (glyphs, logistic, roles, tweets,
    /// synthetic(α,β), or an inline table), or an experiment file
    federation: String,
    /// Algorithms, each as KIND or KIND:OPTION=VALUE with an option that is not tuned [default: all
    /// that fit the federation]
    #[arg(long, value_name = "KINDS", value_delimiter = ',')]
    algorithms: Vec<String>,
    /// The kind of model [default: linear for features, lstm for words, gru for symbols]
    #[arg(long, value_name = "KIND")]
    model: Option<String>,
    /// Number of random splits of the devices on which the chosen candidates train; a split by lists of
    /// devices is one
    #[arg(long, value_name = "N", default_value = "3")]
    splits: NonZeroUsize,
    /// The statistic over validation devices that chooses a candidate
    #[arg(long, value_name = "STATISTIC", value_enum, default_value_t = TuneBy::P90)]
    by: TuneBy,
    /// Report rounds, sums and bytes until the mean error is at most this, in the unit of the table
    /// [default: a tenth above FedAvg]
    #[arg(long, value_name = "ERROR")]
    target: Option<f64>,
    /// Train the i-th of n shares of the methods: i/n
    #[arg(long, value_name = "I/N", default_value = "1/1", hide_default_value = true)]
    shard: Shard,
    /// Override a key of the shared experiment; may be repeated
    #[arg(long = "set", value_name = "KEY=VALUE")]
    overrides: Vec<String>,
    /// The folder for points, tables, picture and page [default: fields/NAME]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Number of points that train at the same time [default: one per thread]
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    jobs: usize,
    #[command(flatten)]
    machine: MachineArgs,
    /// Print a time estimate and train nothing
    #[arg(long)]
    estimate: bool,
    /// Print the values that each method tries and train nothing
    #[arg(long)]
    grid: bool,
    /// Print the results as JSON
    #[arg(long)]
    json: bool,
    /// Show no progress
    #[arg(long, short)]
    quiet: bool,
}

/// The statistic that chooses between candidates.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum TuneBy {
    /// The 90th percentile
    P90,
    /// The mean
    Mean,
}

pub(crate) fn run(args: Args) -> Result<()> {
    #[cfg(feature = "mpi")]
    if deltafl_run::cluster::launched() {
        return on_ranks(&args);
    }
    let field = plan(&args, args.shard, args.machine.machine())?;
    if args.grid {
        print!("{}", grids(&field));
        return Ok(());
    }
    print_estimate(&args, &field)?;
    if args.estimate {
        return Ok(());
    }
    train(&args, &field)?;
    print_results(&args, &field)
}

/// Trains a share of the methods on every rank. Rank 0 prints the results.
#[cfg(feature = "mpi")]
fn on_ranks(args: &Args) -> Result<()> {
    let ranks = deltafl_run::cluster::RankShares::init().map_err(explained)?;
    let mut machine = args.machine.machine();
    machine.threads = Some(ranks.threads(machine.threads));
    let planned = plan(args, ranks.shard(), machine);
    let trained = planned.and_then(|field| train(args, &field).map(|()| field));
    let all_succeeded = ranks.all_succeeded(trained.is_ok());
    match trained {
        Ok(field) if all_succeeded && ranks.is_root() => print_results(args, &field),
        Ok(_) => Ok(()),
        Err(report) => Err(report),
    }
}

fn plan(args: &Args, shard: Shard, machine: deltafl_run::Machine) -> Result<Field> {
    let methods: Result<Vec<FieldMethod>, FieldError> =
        args.algorithms.iter().map(|text| text.parse()).collect();
    let options = FieldOptions {
        methods: methods.map_err(explained)?,
        model: args.model.clone(),
        overrides: args.overrides.clone(),
        splits: args.splits,
        criterion: match args.by {
            TuneBy::P90 => Criterion::P90,
            TuneBy::Mean => Criterion::Mean,
        },
        target: args.target,
        shard,
        out: args.out.clone(),
        sweep: SweepOptions { jobs: NonZeroUsize::new(args.jobs), machine },
        bootstrap: Bootstrap::default(),
    };
    Field::new(&args.federation, options).map_err(explained)
}

fn train(args: &Args, field: &Field) -> Result<()> {
    let mut progress = SweepProgress::unless(args.quiet || args.json);
    field.train(&mut progress).map_err(|error| field_error(error, args.json))
}

fn print_results(args: &Args, field: &Field) -> Result<()> {
    let results = match field.results() {
        Ok(results) => results,
        // The methods of other shards.
        Err(error) if error.kind() == ErrorKind::Busy => {
            eprintln!("{error}\n{}", error.help().unwrap_or_default());
            return Ok(());
        }
        Err(error) => return Err(explained(error)),
    };
    let paths = results.write(field).map_err(explained)?;
    if args.json {
        println!("{}", serde_json::to_string_pretty(&results).into_diagnostic()?);
    } else {
        print!("{}", results.rendered());
        println!("\nPicture: {}", paths.pictures[0].display());
        println!("Page:    {}", paths.page.display());
    }
    Ok(())
}

/// Prints the remaining work and its estimated time.
fn print_estimate(args: &Args, field: &Field) -> Result<()> {
    if !args.estimate && (args.quiet || args.json) {
        return Ok(());
    }
    let Some(estimate) = field.estimate(stop_on_interrupt()).map_err(explained)? else {
        let stopped = serde_json::json!({ "folder": field.out() });
        return Err(error::interrupted(args.json, &stopped, &error::same_command()));
    };
    let text = match estimate.time {
        None => "all points are trained".to_owned(),
        Some(time) => format!(
            "{} methods: {} points with {} rounds, about {}",
            field.methods().len(),
            estimate.points,
            estimate.rounds,
            HumanDuration(time)
        ),
    };
    if args.estimate {
        println!("{text}");
    } else {
        eprintln!("{text}");
    }
    Ok(())
}

/// Converts an error of training. Reports the remaining work if points were not trained.
fn field_error(error: FieldError, json: bool) -> Report {
    let message = error.to_string();
    match error {
        FieldError::Unfinished { folder, tally } => match sweep::conclude(tally, &folder, json) {
            Err(report) => report,
            Ok(()) => miette!("{message}"),
        },
        error => explained(error),
    }
}

/// Renders the values that each method tries.
fn grids(field: &Field) -> String {
    let listed = |values: &[f64]| values.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    let mut text = format!("{CANDIDATES} candidates of each method");
    for (candidates, (numerator, denominator)) in RUNGS {
        let rounds = (field.base().rounds() * numerator).div_ceil(denominator);
        text.push_str(&format!("; {candidates} train {rounds} rounds"));
    }
    text.push_str(&format!("; the best trains {} rounds on each split\n\n", field.base().rounds()));
    for (name, grid) in field.grids() {
        text.push_str(&format!("{name}: γ = {}", listed(&grid.rates)));
        for (option, values) in &grid.options {
            text.push_str(&format!("; {option} = {}", listed(values)));
        }
        text.push('\n');
    }
    text
}
