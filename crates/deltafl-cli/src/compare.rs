//! `deltafl compare`: who got better and who got worse, device by device.

use std::fmt::Write as _;

use clap::builder::RangedU64ValueParser;
use deltafl::data::Split;
use miette::IntoDiagnostic;

#[path = "../../deltafl-run/src/compare/operand.rs"]
mod operand;
#[path = "../../deltafl-run/src/compare/paired.rs"]
mod paired;

use crate::error::bad_input;
use crate::{run_names, table};
use operand::Operand;
use paired::{Bootstrap, Comparison, Difference};

/// Compare two tracks device by device, with bootstrap intervals
#[derive(clap::Args, Debug)]
#[command(
    after_help = "A track is fedavg, a level of θ, or the name that a report gives it. Without tracks, those of \
the same name are compared; with one run, its baseline with every other track.\n\nExamples:\n  \
deltafl compare runs/emnist-linear\n  deltafl compare runs/emnist:fedavg runs/emnist:0.5\n  deltafl compare runs/old runs/new --json"
)]
pub(crate) struct Args {
    /// Before: a run folder, or RUN:TRACK
    #[arg(value_name = "RUN[:TRACK]")]
    before: String,
    /// After [default: the other tracks of the same run]
    #[arg(value_name = "RUN[:TRACK]")]
    after: Option<String>,
    /// Resamples of the devices
    #[arg(long, default_value_t = 2000, value_parser = RangedU64ValueParser::<usize>::new().range(1..=1_000_000))]
    resamples: usize,
    /// Seed of the resamples
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Print the comparison, with every device, as JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: Args) -> miette::Result<()> {
    let bootstrap = Bootstrap { resamples: args.resamples, seed: args.seed };
    let mut before = Operand::read(&args.before)?;
    let mut after = args.after.as_deref().map(Operand::read).transpose()?;
    if let Some(after) = after.as_mut().filter(|after| after.folder != before.folder) {
        tell_apart(&mut before, after);
    }
    let mut comparisons = Vec::new();
    for (a, b) in pairs(&before, after.as_ref())? {
        for split in [Split::Test, Split::Train] {
            comparisons.extend(paired::compare(
                &before,
                a,
                after.as_ref().unwrap_or(&before),
                b,
                split,
                bootstrap,
            ));
        }
    }
    if comparisons.is_empty() {
        return Err(bad_input("the two runs have no device in common").into());
    }
    if args.json {
        println!("{}", serde_json::to_string_pretty(&comparisons).into_diagnostic()?);
    } else {
        print!("{}", comparisons.iter().map(rendered).collect::<String>());
    }
    Ok(())
}

/// Names two runs so that they are not called the same.
fn tell_apart(before: &mut Operand, after: &mut Operand) {
    let names =
        run_names::distinct(&[(&before.folder, &before.experiment), (&after.folder, &after.experiment)]);
    for (run, name) in [before, after].into_iter().zip(names) {
        run.name = name;
    }
}

/// The tracks to compare: indices into the one run and the other.
fn pairs(before: &Operand, after: Option<&Operand>) -> miette::Result<Vec<(usize, usize)>> {
    let Some(after) = after else {
        let from = before.track.unwrap_or_else(|| before.baseline());
        let others: Vec<_> = (0..before.tracks.len()).filter(|&to| to != from).map(|to| (from, to)).collect();
        return if others.is_empty() {
            Err(bad_input(format!("{} has one track only", before.name)).help("name a second run").into())
        } else {
            Ok(others)
        };
    };
    match (before.track, after.track) {
        (Some(a), Some(b)) => Ok(vec![(a, b)]),
        (Some(a), None) => Ok(vec![(a, after.called(&before.tracks[a].label)?)]),
        (None, Some(b)) => Ok(vec![(before.called(&after.tracks[b].label)?, b)]),
        (None, None) => {
            let labels = before.tracks.iter().enumerate();
            let shared: Vec<_> =
                labels.filter_map(|(a, track)| after.called(&track.label).ok().map(|b| (a, b))).collect();
            if shared.is_empty() {
                return Err(bad_input("the two runs have no track of the same name")
                    .help("name the tracks: RUN:TRACK")
                    .into());
            }
            Ok(shared)
        }
    }
}

fn rendered(comparison: &Comparison) -> String {
    let Comparison { before, after, devices, mean, p90, .. } = comparison;
    let mut text = String::new();
    let title = if before.run == after.run {
        format!("{}: {} → {}", before.run, before.track, after.track)
    } else {
        format!("{} {} → {} {}", before.run, before.track, after.run, after.track)
    };
    let (gained, lost) = (comparison.gained(), comparison.lost());
    let unchanged = devices.len() - gained - lost;
    let _ = writeln!(text, "{title}");
    let _ = writeln!(
        text,
        "{} of {} devices: {gained} gained, {lost} lost, {unchanged} unchanged",
        comparison.measure,
        devices.len()
    );
    if before.rounds != after.rounds {
        let _ = writeln!(
            text,
            "the runs are of different length: {} rounds before, {} after",
            before.rounds, after.rounds
        );
    }
    if comparison.unpaired > 0 {
        let _ = writeln!(text, "{} devices are in one of the two only, and left out", comparison.unpaired);
    }
    let _ = writeln!(text, "  {:<16} {:>9} {:>9} {:>9}   95 % interval", "", "before", "after", "change");
    for (name, difference) in [("mean", mean), ("90th percentile", p90)] {
        let _ = writeln!(text, "  {name:<16} {}", row(comparison, difference));
    }
    text.push('\n');
    text
}

fn row(comparison: &Comparison, difference: &Difference) -> String {
    let plain = |x: f64| table::number(x * comparison.shown(), comparison.decimals());
    let signed = |x: f64| {
        let number = plain(x);
        if number.starts_with(['-', 'N', 'i']) { number } else { format!("+{number}") }
    };
    let Difference { before, after, change, interval } = difference;
    format!(
        "{:>9} {:>9} {:>9}   [{}, {}]",
        plain(*before),
        plain(*after),
        signed(*change),
        signed(interval[0]),
        signed(interval[1])
    )
}
