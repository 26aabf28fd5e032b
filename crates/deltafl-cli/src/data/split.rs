//! `deltafl data split`: train, test and validation devices.

use std::path::PathBuf;

use deltafl::data::Split;
use miette::Result;

use super::target::{SplitArgs, report, save_error};
use crate::error::bad_input;

/// Split the devices of a federation into train, test and validation
#[derive(clap::Args, Debug)]
#[command(
    after_help = "Example:\n  deltafl data split emnist --train 0.5 --seed 1 --min-points 100 --out emnist-1"
)]
pub(crate) struct Args {
    /// The federation folder
    federation: PathBuf,
    /// The federation folder to write
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    #[command(flatten)]
    split: SplitArgs,
    /// Print the manifest as JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: Args) -> Result<()> {
    let federation = deltafl_data::open(&args.federation).map_err(|error| bad_input(error.to_string()))?;
    let plan = args.split.plan(0.5, 0);
    let split = federation.split_devices(&plan).map_err(|error| bad_input(error.to_string()))?;
    let manifest = deltafl_data::save(&split, &args.out).map_err(save_error)?;
    report(&manifest, &args.out, args.json)?;
    if !args.json {
        let count = |part| split.split(part).len();
        let (train, test) = (count(Split::Train), count(Split::Test));
        println!("  {train} train, {test} test, {} validation devices", count(Split::Validation));
    }
    Ok(())
}
