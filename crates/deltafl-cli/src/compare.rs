//! `deltafl compare`: the devices with better and worse results under another model.

use std::fmt::Write as _;

use clap::builder::RangedU64ValueParser;
use deltafl_run::compare::{Bootstrap, Comparison, PairedDifference, compare};
use deltafl_run::text_table;
use miette::IntoDiagnostic;

use crate::error::explained;

/// Compare two tracks device by device, with bootstrap intervals
#[derive(clap::Args, Debug)]
#[command(after_help = "A track is fedavg, a level of θ, or its name in a report. Without tracks, those of \
the same name are compared; with one run, its baseline with every other track.\n\nExamples:\n  \
deltafl compare runs/emnist-linear\n  deltafl compare runs/emnist:fedavg runs/emnist:0.5\n  deltafl compare runs/old runs/new --json")]
pub(crate) struct Args {
    /// Before: a run folder, or RUN:TRACK
    #[arg(value_name = "RUN[:TRACK]")]
    before: String,
    /// After [default: the other tracks of the same run]
    #[arg(value_name = "RUN[:TRACK]")]
    after: Option<String>,
    /// Resamples of the devices
    #[arg(long, default_value_t = Bootstrap::default().resamples, value_parser = RangedU64ValueParser::<usize>::new().range(1..=1_000_000))]
    resamples: usize,
    /// Seed of the resamples
    #[arg(long, default_value_t = Bootstrap::default().seed)]
    seed: u64,
    /// Print the comparison, with every device, as JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: Args) -> miette::Result<()> {
    let bootstrap = Bootstrap { resamples: args.resamples, seed: args.seed };
    let comparisons = compare(&args.before, args.after.as_deref(), bootstrap).map_err(explained)?;
    if args.json {
        println!("{}", serde_json::to_string_pretty(&comparisons).into_diagnostic()?);
    } else {
        print!("{}", comparisons.iter().map(rendered).collect::<String>());
    }
    Ok(())
}

fn rendered(comparison: &Comparison) -> String {
    let Comparison { before, after, devices, mean, p90, std, worst_tenth, gini, .. } = comparison;
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
        let _ = writeln!(text, "{} devices are in only one of the two and omitted", comparison.unpaired);
    }
    if comparison.resized > 0 {
        let _ = writeln!(text, "{} devices have other numbers of examples in the two", comparison.resized);
    }
    let _ = writeln!(text, "  {:<16} {:>9} {:>9} {:>9}   95 % interval", "", "before", "after", "change");
    let digits = comparison.decimals();
    let figures = [
        ("mean", mean, digits),
        ("90th percentile", p90, digits),
        ("deviation", std, digits),
        ("worst tenth", worst_tenth, digits),
        ("Gini", gini, comparison.gini_decimals()),
    ];
    let is_defined = |(name, figure, _): &(&str, &PairedDifference, usize)| {
        !(figure.before.is_nan() || *name == "Gini" && figure.after.is_nan())
    };
    for (name, difference, digits) in figures.into_iter().filter(is_defined) {
        let _ = writeln!(text, "  {name:<16} {}", row(comparison, difference, digits));
    }
    text.push('\n');
    text
}

fn row(comparison: &Comparison, difference: &PairedDifference, digits: usize) -> String {
    let plain = |x: f64| text_table::number(x * comparison.display_scale(), digits);
    let signed = |x: f64| {
        let number = plain(x);
        if number.starts_with(['-', 'N', 'i']) { number } else { format!("+{number}") }
    };
    let PairedDifference { before, after, change, interval } = difference;
    let interval = match interval {
        [lower, _] if lower.is_nan() => "–".to_owned(),
        [lower, upper] => format!("[{}, {}]", signed(*lower), signed(*upper)),
    };
    format!("{:>9} {:>9} {:>9}   {interval}", plain(*before), plain(*after), signed(*change))
}
