//! `deltafl export`: exports a run for other programs.

use std::path::PathBuf;

use deltafl_run::export::{ExportFormat, export};
use miette::{IntoDiagnostic, WrapErr};

use crate::error::explained;

/// Export a run for TensorBoard, as tables that pandas and polars read, or as models for other
/// programs
#[derive(clap::Args, Debug)]
#[command(
    after_help = "Examples:\n  deltafl export runs/emnist-linear --format tensorboard && tensorboard --logdir runs/emnist-linear/export/tensorboard\n  \
deltafl export runs/emnist-linear --format parquet --out tables\n  deltafl export runs/reviews --format onnx"
)]
pub(crate) struct Args {
    /// The run folder
    #[arg(value_name = "RUN")]
    run: PathBuf,
    /// The format
    #[arg(long, value_enum)]
    format: Format,
    /// The target folder [default: RUN/export/FORMAT]
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
    /// cohorts.csv: the devices drawn in every round of a simulation
    Cohorts,
    /// A network per level that onnxruntime runs, with the preparation of its inputs (opset 17)
    Onnx,
    /// The tensors of each level under PyTorch's names
    Safetensors,
    /// The same tensors, for torch.load
    Torch,
}

impl From<Format> for ExportFormat {
    fn from(format: Format) -> Self {
        match format {
            Format::Tensorboard => Self::Tensorboard,
            Format::Csv => Self::Csv,
            Format::Parquet => Self::Parquet,
            Format::Cohorts => Self::Cohorts,
            Format::Onnx => Self::Onnx,
            Format::Safetensors => Self::Safetensors,
            Format::Torch => Self::Torch,
        }
    }
}

pub(crate) fn run(args: Args) -> miette::Result<()> {
    let format = ExportFormat::from(args.format);
    let out = args.out.unwrap_or_else(|| args.run.join("export").join(format.name()));
    let written = export(&args.run, format, &out).map_err(explained);
    let written = written.wrap_err_with(|| format!("could not export {}", args.run.display()))?;
    if args.json {
        println!("{}", serde_json::to_string_pretty(&written).into_diagnostic()?);
    } else {
        written.iter().for_each(|path| println!("{}", path.display()));
    }
    Ok(())
}
