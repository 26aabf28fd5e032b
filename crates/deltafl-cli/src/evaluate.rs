//! `deltafl evaluate`: evaluates the models of a run on other devices.

use std::path::PathBuf;

use deltafl_run::evaluate::{EvaluateOptions, evaluate};
use deltafl_run::{by_class, by_group, text_table};
use miette::{IntoDiagnostic, Result};

use crate::error::explained;
use crate::run::CpuArgs;

/// Evaluate the models of a run on the devices of another federation
#[derive(clap::Args, Debug)]
#[command(
    after_help = "Every device of the federation is evaluated, regardless of its split. Columns, categories, classes and words are found by \
name, and features are normalised with the constants of the run, which its folder contains. A table or a folder of images is converted in the same way.\n\nExamples:\n  deltafl evaluate runs/emnist-linear --data data/other-writers\n  \
deltafl evaluate runs/emnist-linear --data data/other-writers --theta 0.5 --devices devices.csv"
)]
pub(crate) struct Args {
    /// The run folder
    #[arg(value_name = "RUN")]
    run: PathBuf,
    /// The federation folder, a table, or a folder of images
    #[arg(long, value_name = "PATH")]
    data: PathBuf,
    /// Evaluate only the models of these levels; 1 is FedAvg [default: all]
    #[arg(long, value_name = "THETA", value_delimiter = ',')]
    theta: Vec<f64>,
    /// Write loss and error of each device as CSV
    #[arg(long, value_name = "FILE")]
    devices: Option<PathBuf>,
    #[command(flatten)]
    cpu: CpuArgs,
    /// Print the results as JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: Args) -> Result<()> {
    let options =
        EvaluateOptions { levels: args.theta, threads: args.cpu.threads(), kernel: args.cpu.kernel.isa() };
    let evaluation = evaluate(&args.run, &args.data, &options).map_err(explained)?;
    if let Some(path) = &args.devices {
        evaluation.write_devices(path).map_err(explained)?;
    }
    let summary = &evaluation.summary;
    if args.json {
        println!("{}", serde_json::to_string_pretty(summary).into_diagnostic()?);
        return Ok(());
    }
    let title = format!(
        "Test {} over the {} devices of {}",
        text_table::metric(summary),
        evaluation.devices,
        args.data.display()
    );
    print!("{}", text_table::titled(&title, summary));
    if !evaluation.shared.is_empty() {
        println!(
            "\nShared models, because personal models stay on their devices: {}",
            evaluation.shared.join(", ")
        );
    }
    if let Some(classes) = &evaluation.classes {
        let names: Vec<String> = summary.tracks.iter().map(|track| track.name.clone()).collect();
        print!("{}", by_class::rendered(classes, &names));
    }
    if let Some(groups) = &evaluation.groups {
        let names: Vec<String> = summary.tracks.iter().map(|track| track.name.clone()).collect();
        print!("{}", by_group::rendered(groups, summary.task.primary(), &names));
    }
    Ok(())
}
