//! `deltafl tune`: the grid search of the paper, two sweeps one after the other.

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use deltafl_run::sweep::train::SweepOptions;
use deltafl_run::tune::{GridValues, HeatMap, TuneError, TuneOptions, TuneStep, Tuner};
use deltafl_run::{experiment_file, text_table};
use miette::{IntoDiagnostic, Report, Result, miette};

use crate::error::explained;
use crate::progress::SweepProgress;
use crate::run::{MachineArgs, at_least_one, refuse_ranks};
use crate::sweep;

/// Search for the learning rate, its decay and the penalty with the method of the paper
#[derive(clap::Args, Debug)]
#[command(
    after_help = "γ₀ and c minimise the final train loss of FedAvg. For linear models, λ is chosen for each θ by the \
best 90th percentile of the error (or of the RMSE for a regression) over a held-out half of the train devices. After an \
interruption, the same command continues.

Example:
  deltafl tune experiments/paper/emnist-linear.toml --rates 0.1,0.32,1 --set rounds=300
  deltafl run tune/emnist-linear/tuned.toml"
)]
pub(crate) struct Args {
    /// The experiment, a TOML file
    experiment: PathBuf,
    /// Learning rates γ₀ to try [default: 0.1, 0.32, 1, 3.2 and 10 times that of the experiment]
    #[arg(long, value_name = "RATES", value_delimiter = ',')]
    rates: Vec<f64>,
    /// Decays c to try, if the rate decays [default: 1, 1/2, 1/4 and 1/8]
    #[arg(long, value_name = "FACTORS", value_delimiter = ',')]
    decays: Vec<f64>,
    /// Penalties λ to try [default: 1e-8 to 1e-3 for linear models]
    #[arg(long, value_name = "PENALTIES", value_delimiter = ',')]
    l2: Vec<f64>,
    /// Average over the first N seeds of the experiment
    #[arg(long, value_name = "N", default_value = "1")]
    seeds: NonZeroUsize,
    /// Override a key of the experiment; may be repeated
    #[arg(long = "set", value_name = "KEY=VALUE")]
    overrides: Vec<String>,
    /// The folder for the sweeps, the heat maps and tuned.toml [default: tune/NAME]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Number of points that train at the same time [default: one per thread]
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    jobs: Option<NonZeroUsize>,
    #[command(flatten)]
    machine: MachineArgs,
    /// Print the chosen values as JSON
    #[arg(long)]
    json: bool,
    /// Show no progress
    #[arg(long, short)]
    quiet: bool,
}

pub(crate) fn run(args: Args) -> Result<()> {
    refuse_ranks(
        "tune in one process; its sweeps can be distributed: deltafl sweep run DIR/rate/sweep.toml",
    )?;
    let experiment = experiment_file::read(&args.experiment, &args.overrides).map_err(explained)?;
    let name = experiment.name().to_owned();
    let out = args.out.unwrap_or_else(|| Path::new("tune").join(experiment.name()));
    let sweep = SweepOptions { jobs: args.jobs, machine: args.machine.machine() };
    let values = GridValues { rates: args.rates, decays: args.decays, l2: args.l2 };
    let options = TuneOptions { values, seeds: args.seeds, out, sweep };
    let mut tuner = Tuner::new(experiment, options).map_err(explained)?;
    let mut progress = SweepProgress::unless(args.quiet || args.json);
    let print = |step: &TuneStep| {
        if !args.json {
            print!("{}", rendered(step));
        }
    };
    print(&tuner.rate(&mut progress).map_err(|error| tune_error(error, args.json))?);
    if let Some(step) = tuner.l2(&mut progress).map_err(|error| tune_error(error, args.json))? {
        print(&step);
    }
    let chosen = tuner.finish().map_err(explained)?;
    if args.json {
        println!("{}", serde_json::to_string_pretty(&chosen).into_diagnostic()?);
    } else {
        println!("Ready to run:\n  deltafl run {} --out runs/{name}-tuned", chosen.experiment.display());
    }
    Ok(())
}

/// Converts an error of a step. Reports the remaining work if points were not trained.
fn tune_error(error: TuneError, json: bool) -> Report {
    let message = error.to_string();
    match error {
        TuneError::Unfinished { folder, tally } => match sweep::conclude(tally, &folder, json) {
            Err(report) => report,
            Ok(()) => miette!("{message}"),
        },
        error => explained(error),
    }
}

/// Renders the heat map as a table, and the choices.
fn rendered(step: &TuneStep) -> String {
    let TuneStep { map, png, choices } = step;
    let HeatMap { title, x, y, .. } = map;
    let mut rows = vec![[vec![String::new()], x.1.clone()].concat()];
    for (r, row) in map.cells.iter().enumerate() {
        let cell = |(c, figure): (usize, &Option<f64>)| {
            let mark = if map.chosen.contains(&(r, c)) { "*" } else { "" };
            let shown = |figure| format!("{mark}{}", text_table::number(figure, map.decimals));
            figure.map_or_else(|| "–".to_owned(), shown)
        };
        rows.push([vec![y.1[r].clone()], row.iter().enumerate().map(cell).collect()].concat());
    }
    let table = text_table::aligned(&rows);
    let choices: String = choices.iter().map(|choice| format!("{choice}\n")).collect();
    format!("\n{title} ({} across, {} down; {})\n\n{table}\n{choices}", x.0, y.0, png.display())
}
