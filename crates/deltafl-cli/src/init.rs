//! `deltafl init`: writes an experiment that fits a federation.

use std::fs::File;
use std::io::Write as _;
use std::path::PathBuf;

use deltafl_run::starter::{StarterOptions, starter};
use miette::{IntoDiagnostic, Result, WrapErr};

use crate::error::{bad_input, explained};
use crate::run::CpuArgs;

/// Write an experiment that fits a federation, with a learning rate from a short search
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:
  deltafl init reviews && deltafl run reviews.toml
  deltafl init photos --model linear --theta 0.5,0.1 --out photos-linear.toml")]
pub(crate) struct Args {
    /// The federation folder
    federation: PathBuf,
    /// The experiment file to write [default: FEDERATION.toml in the current folder]
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// The model [default: by the inputs and targets]
    #[arg(long, value_name = "KIND")]
    model: Option<String>,
    /// The learning rate [default: the best of a short search]
    #[arg(long, value_name = "RATE")]
    rate: Option<f64>,
    /// Number of rounds [default: 100; 50 for conv-net]
    #[arg(long, value_name = "N")]
    rounds: Option<u64>,
    /// Devices per round
    #[arg(long, value_name = "N")]
    cohort: Option<u64>,
    /// Examples per step
    #[arg(long, value_name = "N")]
    batch: Option<u64>,
    /// Levels of Δ-FL, in addition to FedAvg [default: 0.5]
    #[arg(long, value_name = "THETA", value_delimiter = ',')]
    theta: Vec<f64>,
    #[command(flatten)]
    cpu: CpuArgs,
}

pub(crate) fn run(args: Args) -> Result<()> {
    let name = args.federation.file_name().map(|name| name.to_string_lossy().into_owned());
    let name = name.unwrap_or_else(|| "federation".to_owned());
    let out = args.out.unwrap_or_else(|| PathBuf::from(format!("{name}.toml")));
    if out.exists() {
        let error = bad_input(format!("{} exists already", out.display()));
        return Err(error.help("remove it, or choose another file with --out").into());
    }
    let options = StarterOptions {
        name,
        model: args.model,
        learning_rate: args.rate,
        rounds: args.rounds,
        cohort: args.cohort,
        batch: args.batch,
        theta: args.theta,
        threads: args.cpu.threads(),
    };
    let written = starter(&args.federation, &options).map_err(explained)?;
    let file = File::options().write(true).create_new(true).open(&out).into_diagnostic();
    let write = file.and_then(|mut file| file.write_all(written.text.as_bytes()).into_diagnostic());
    write.wrap_err_with(|| format!("cannot write {}", out.display()))?;
    println!("{}:", out.display());
    for decision in &written.decisions {
        println!("  {:<13}  {} ({})", decision.name, decision.value, decision.option);
    }
    println!("  next: deltafl run {}", out.display());
    Ok(())
}
