//! `deltafl data split`: train, test and validation devices.

use std::path::PathBuf;

use deltafl::data::synthetic::Fraction;
use deltafl::data::{Split, WithinSplit};
use miette::Result;

use super::target::{SplitArgs, report, save_error};
use crate::error::bad_input;

/// Split the devices of a federation into train, test and validation
#[derive(clap::Args, Debug)]
#[command(
    after_help = "Examples:\n  deltafl data split emnist --train 0.5 --seed 1 --min-examples 100 --out emnist-1\n  \
                  deltafl data split emnist --within --train 0.8 --out emnist-within"
)]
pub(crate) struct Args {
    /// The federation folder
    federation: PathBuf,
    /// The federation folder to write
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// Split the examples of each device instead of the devices: --train is the share of its train
    /// examples [default: 0.9], --validation the share held out for validation, and the rest are
    /// test examples
    #[arg(long)]
    within: bool,
    #[command(flatten)]
    split: SplitArgs,
    /// Print the manifest as JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: Args) -> Result<()> {
    let federation = deltafl_data::open(&args.federation).map_err(|error| bad_input(error.to_string()))?;
    let plan = args.split.plan(0.5, 0);
    let all: Vec<(String, u64)> =
        federation.devices().map(|k| (federation.id(k).to_owned(), federation.example_count(k))).collect();
    let split = match args.within {
        false => federation.split_devices(&plan),
        true => federation.split_within(&within(&args.split)?),
    };
    let split = split.map_err(|error| bad_input(error.to_string()))?;
    let manifest = deltafl_data::save(&split, &args.out).map_err(save_error)?;
    report(&manifest, &args.out, args.json)?;
    if !args.json {
        let count = |part| split.split(part).len();
        let (train, test) = (count(Split::Train), count(Split::Test));
        println!("  {train} train, {test} test, {} validation devices", count(Split::Validation));
        let dropped: Vec<_> = all.into_iter().filter(|(_, count)| *count <= plan.min_examples).collect();
        print!("{}", left_out(&dropped, plan.min_examples));
    }
    Ok(())
}

/// Returns the plan of a split within each device.
fn within(args: &SplitArgs) -> Result<WithinSplit> {
    let share = |name: &str, share: f64| {
        Fraction::new(share).ok_or_else(|| bad_input(format!("--{name} must lie in [0, 1], got {share}")))
    };
    let default = WithinSplit::default();
    Ok(WithinSplit {
        train: args.train.map_or(Ok(default.train), |train| share("train", train))?,
        validation: share("validation", args.validation)?,
        seed: args.seed,
        min_examples: args.min_examples.unwrap_or(default.min_examples),
    })
}

/// Describes the omitted devices that were too small, the largest first, to show the effect of the
/// bound.
fn left_out(dropped: &[(String, u64)], min_examples: u64) -> String {
    const NAMED: usize = 5;
    if dropped.is_empty() {
        return String::new();
    }
    let mut largest: Vec<&(String, u64)> = dropped.iter().collect();
    largest.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
    let named: Vec<String> =
        largest.iter().take(NAMED).map(|(id, count)| format!("{id} ({count})")).collect();
    let more = if dropped.len() > NAMED { ", …" } else { "" };
    let examples: u64 = dropped.iter().map(|(_, count)| count).sum();
    format!(
        "  left out: {} devices with no more than {min_examples} examples, {examples} in all: {}{more}\n",
        dropped.len(),
        named.join(", ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn omitted_devices_are_listed_with_the_largest_first() {
        let dropped: Vec<_> = (0..7).map(|k| (format!("d{k}"), k % 4)).collect();
        let text = left_out(&dropped, 3);
        assert_eq!(
            text,
            "  left out: 7 devices with no more than 3 examples, 9 in all: d3 (3), d2 (2), d6 (2), d1 (1), d5 (1), …\n"
        );
        assert_eq!(left_out(&[], 3), "");
    }
}
