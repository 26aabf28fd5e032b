//! `deltafl data partition`: assigns examples without devices to devices.

use std::path::PathBuf;

use deltafl_data::{Deal, Partition, PartitionError};
use miette::Result;

use super::target::{report, save_error};
use crate::error::bad_input;

/// Distribute the examples of a federation over new devices
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:
  deltafl data partition mnist --devices 100 --iid --out mnist-iid
  deltafl data partition mnist --devices 100 --shards 2 --out mnist-shards
  deltafl data partition mnist --devices 100 --dirichlet 0.3 --out mnist-skewed")]
pub(crate) struct Args {
    /// The federation folder
    federation: PathBuf,
    /// Number of devices
    #[arg(long, value_name = "N")]
    devices: usize,
    #[command(flatten)]
    deal: DealArgs,
    /// Data seed
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// The federation folder to write
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// Print the manifest as JSON
    #[arg(long)]
    json: bool,
}

#[derive(clap::Args, Debug)]
#[group(required = true, multiple = false)]
struct DealArgs {
    /// At random: all devices have the same distribution
    #[arg(long)]
    iid: bool,
    /// This many shards of one label per device
    #[arg(long, value_name = "PER_DEVICE")]
    shards: Option<usize>,
    /// Random shares of each class with this concentration; smaller values are more skewed
    #[arg(long, value_name = "ALPHA")]
    dirichlet: Option<f64>,
}

pub(crate) fn run(args: Args) -> Result<()> {
    let federation = deltafl_data::open(&args.federation).map_err(|error| bad_input(error.to_string()))?;
    let deal = match (args.deal.shards, args.deal.dirichlet) {
        (Some(per_device), _) => Deal::Shards { per_device },
        (_, Some(alpha)) => Deal::Dirichlet { alpha },
        _ => Deal::Iid,
    };
    let plan = Partition { devices: args.devices, deal, seed: args.seed };
    let manifest = deltafl_data::partition(&federation, &plan, &args.out).map_err(|error| match error {
        PartitionError::Save(error) => save_error(error),
        error => bad_input(error.to_string()).into(),
    })?;
    report(&manifest, &args.out, args.json)
}
