//! `deltafl export`: a run for other programs.

use std::path::PathBuf;

use miette::{IntoDiagnostic, WrapErr};

#[path = "../../deltafl-run/src/export/cohorts.rs"]
mod cohorts;
#[path = "../../deltafl-run/src/export/event.rs"]
mod event;
#[path = "../../deltafl-run/src/export/tabular.rs"]
mod tabular;
#[path = "../../deltafl-run/src/export/tensorboard.rs"]
mod tensorboard;

use crate::error::make_folder;

/// Export a run for TensorBoard, or as tables that pandas and polars read
#[derive(clap::Args, Debug)]
#[command(
    after_help = "Examples:\n  deltafl export runs/emnist-linear --format tensorboard && tensorboard --logdir runs/emnist-linear/export/tensorboard\n  \
deltafl export runs/emnist-linear --format parquet --out tables"
)]
pub(crate) struct Args {
    /// The run folder
    #[arg(value_name = "RUN")]
    run: PathBuf,
    /// What to write
    #[arg(long, value_enum)]
    format: Format,
    /// Where to write [default: RUN/export/FORMAT]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Print the paths written as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Format {
    /// Event files: a TensorBoard run per track and seed
    Tensorboard,
    /// rounds.csv, evaluations.csv and devices.csv
    Csv,
    /// rounds.parquet, evaluations.parquet and devices.parquet
    Parquet,
    /// cohorts.csv: who was drawn in every round of a simulation
    Cohorts,
}

impl Format {
    fn name(self) -> &'static str {
        match self {
            Self::Tensorboard => "tensorboard",
            Self::Csv => "csv",
            Self::Parquet => "parquet",
            Self::Cohorts => "cohorts",
        }
    }
}

pub(crate) fn run(args: Args) -> miette::Result<()> {
    let out = args.out.unwrap_or_else(|| args.run.join("export").join(args.format.name()));
    make_folder(&out)?;
    let written = match args.format {
        Format::Tensorboard => tensorboard::write(&args.run, &out),
        Format::Csv => tabular::write_csv(&args.run, &out),
        Format::Parquet => tabular::write_parquet(&args.run, &out),
        Format::Cohorts => cohorts::write(&args.run, &out),
    };
    let written = written.wrap_err_with(|| format!("could not export {}", args.run.display()))?;
    if args.json {
        println!("{}", serde_json::to_string_pretty(&written).into_diagnostic()?);
    } else {
        written.iter().for_each(|path| println!("{}", path.display()));
    }
    Ok(())
}
