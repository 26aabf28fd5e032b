//! `deltafl predict`: applies a trained model to new data.

use std::collections::HashSet;
use std::path::PathBuf;

use deltafl_run::predict::{Predictions, TrainedModel, predict};
use miette::Result;

use crate::error::explained;
use crate::run::KernelArgs;

/// Predict the targets of new data with a trained model
#[derive(clap::Args, Debug)]
#[command(
    after_help = "DATA is a federation folder, or a table as it is: its columns are found by name and coded with the constants of \
training. A model of images takes PNG and JPEG files, folders of them, or a table with a column of paths. Labels are not read. The \
output has a row per example, with the probability of each class.\n\nExamples:
  deltafl predict runs/reviews new.csv --out predictions.csv
  deltafl predict runs/reviews new.csv --theta 0.5 --out predictions.parquet
  deltafl predict runs/photos new-photos --out predictions.csv"
)]
pub(crate) struct Args {
    /// The run folder, or the file of a pulled model
    #[arg(value_name = "MODEL")]
    model: PathBuf,
    /// The federation folder, the files of a table, or images and their folders; `-` is standard
    /// input
    #[arg(value_name = "DATA", required = true)]
    data: Vec<PathBuf>,
    /// The file to write: Parquet if its name ends in .parquet, CSV otherwise
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
    /// The level of the model; 1 is FedAvg [default: the first of the run]
    #[arg(long, value_name = "THETA")]
    theta: Option<f64>,
    /// The seed of the model [default: the first of the run]
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    #[command(flatten)]
    kernel: KernelArgs,
}

pub(crate) fn run(args: Args) -> Result<()> {
    let (model, levels) = read_model(&args)?;
    let predictions = predict(&model, &args.data, args.kernel.isa()).map_err(explained)?;
    predictions.write(&args.out).map_err(explained)?;
    println!(
        "{}: {} predictions of {}{}",
        args.out.display(),
        predictions.len(),
        model.name,
        counts(&predictions)
    );
    if let Some(unseen) = &predictions.unseen {
        println!("  values that did not occur in training: {unseen}");
    }
    if args.theta.is_none() && levels.len() > 1 {
        println!("  --theta chooses another level: {}", levels.join(", "));
    }
    Ok(())
}

/// Returns the model and the levels of its run.
fn read_model(args: &Args) -> Result<(TrainedModel, Vec<String>)> {
    #[cfg(feature = "net")]
    if args.model.is_file() {
        return Ok((pulled(&args.model)?, Vec::new()));
    }
    let (model, labels) = TrainedModel::of_run(&args.model, args.theta, args.seed).map_err(explained)?;
    let mut levels: Vec<String> = labels.iter().map(|label| label.theta.to_string()).collect();
    let mut seen = HashSet::new();
    levels.retain(|level| seen.insert(level.clone()));
    Ok((model, levels))
}

/// Reads a model that a device pulled from a server.
#[cfg(feature = "net")]
fn pulled(path: &std::path::Path) -> Result<TrainedModel> {
    use crate::error::bad_input;
    let refused = || bad_input(format!("{} is not a pulled model", path.display()));
    let bytes = std::fs::read(path).map_err(|e| refused().because(e))?;
    let (about, params) = deltafl_wire::params_file::read_params(&bytes).map_err(|e| refused().because(e))?;
    let contract = about.contract.ok_or_else(|| refused().help("it has no contract of the data"))?;
    let (name, params) = (about.label.to_string(), params.as_slice().to_vec());
    Ok(TrainedModel { spec: about.model, contract, params, name })
}

/// Describes how often each class is predicted.
fn counts(predictions: &Predictions) -> String {
    const MOST: usize = 10;
    let mut counts = vec![0u64; predictions.classes.len()];
    predictions.most_probable().into_iter().for_each(|class| counts[class] += 1);
    if counts.is_empty() || counts.len() > MOST {
        return String::new();
    }
    let named: Vec<String> =
        predictions.classes.iter().zip(counts).map(|(name, count)| format!("{name}: {count}")).collect();
    format!(" ({})", named.join(", "))
}
