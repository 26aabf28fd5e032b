//! `deltafl data info`: a summary of a federation.

use std::fmt::Write;
use std::path::PathBuf;

use deltafl::data::{Federation, FederationSummary, Spread};
use deltafl_run::evaluate::describe_input;
use miette::Result;

use crate::error::bad_input;

/// Show the contents of a federation: devices, examples, classes, label skew
#[derive(clap::Args, Debug)]
#[command(after_help = "Example:\n  deltafl data info shakespeare")]
pub(crate) struct Args {
    /// The federation folder
    federation: PathBuf,
    /// Read all data and verify its hash
    #[arg(long)]
    verify: bool,
    /// Print as JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: Args) -> Result<()> {
    let federation = deltafl_data::open(&args.federation).map_err(|error| bad_input(error.to_string()))?;
    if args.verify {
        let path = args.federation.display();
        federation.verify().map_err(|error| bad_input(format!("{path}: {error}")))?;
    }
    let summary = FederationSummary::new(&federation);
    if args.json {
        println!("{}", serde_json::to_string_pretty(&summary).expect("a summary contains only plain values"));
    } else {
        print!("{}", text(&summary, args.verify));
        print!("{}", columns(&federation));
    }
    Ok(())
}

fn text(summary: &FederationSummary, verified: bool) -> String {
    let mut out = String::new();
    let mut line = |name: &str, value: String| {
        writeln!(out, "{name:>12}  {value}").expect("a string takes any text");
    };
    let splits = &summary.splits;
    line("name", summary.name.clone());
    line("input", describe_input(summary.input));
    line("predicts", predicts(summary));
    line(
        "devices",
        format!(
            "{}: {} train, {} test, {} validation",
            summary.devices, splits.train, splits.test, splits.validation
        ),
    );
    line("examples", summary.examples.to_string());
    line("per device", spread(&summary.examples_per_device, 0));
    match &summary.targets {
        Some(targets) => line("targets", spread(targets, 3)),
        None => {
            line("classes each", spread(&summary.classes_per_device, 0));
            line("label skew", spread(&summary.label_skew, 3));
        }
    }
    line("hash", format!("{}{}", summary.hash, if verified { " (verified)" } else { "" }));
    if let Some(source) = &summary.source {
        line("source", format!("{}: {}", source.importer, source.files.join(", ")));
        for dropped in &source.dropped {
            line("left out", format!("{} {}", dropped.count, dropped.reason));
        }
    }
    out.push('\n');
    out.push_str(&histogram(summary));
    out
}

/// Lists the columns of the table of origin, with their types.
fn columns(federation: &Federation) -> String {
    /// Most columns that are listed.
    const MOST: usize = 60;
    match column_lines(federation, MOST) {
        lines if lines.is_empty() => lines,
        lines => format!("\n     columns\n{lines}"),
    }
}

/// Returns a line for each column of the table of origin, with its type.
pub(super) fn column_lines(federation: &Federation, most: usize) -> String {
    let mut lines = Vec::new();
    if let Some(coding) = federation.coding() {
        lines.extend(coding.device.iter().map(|name| format!("{name}  device")));
        lines.extend(coding.label.iter().map(|name| format!("{name}  label")));
        if let Some(text) = &coding.text {
            lines.extend(text.columns.iter().map(|name| format!("{name}  text")));
        }
    }
    for column in federation.feature_columns() {
        let fill = column.fill.map(|fill| format!(", {fill} if missing")).unwrap_or_default();
        let kind = match column.categories.len() {
            0 if column.date => format!("date{fill}"),
            0 => format!("number{fill}"),
            1..=8 => format!("category: {}", column.categories.join(", ")),
            values => format!("category of {values} values"),
        };
        let other = if column.other { ", and all others" } else { "" };
        lines.push(format!("{}  {kind}{other}", column.name));
    }
    if let Some(coding) = federation.coding() {
        let ignored = coding.ignored.iter();
        lines.extend(ignored.map(|column| format!("{}  not used: {}", column.name, column.reason)));
    }
    let more = lines.len().saturating_sub(most);
    lines.truncate(most);
    if more > 0 {
        lines.push(format!("and {more} more"));
    }
    lines.into_iter().map(|line| format!("    {line}\n")).collect()
}

/// Describes the targets, and how often each named class occurs.
fn predicts(summary: &FederationSummary) -> String {
    if summary.targets.is_some() {
        return "a real number".to_owned();
    }
    let names = summary.class_names.iter().zip(&summary.labels);
    let named: Vec<String> = names.map(|(name, count)| format!("{name} ({count})")).collect();
    if named.is_empty() {
        format!("{} classes", summary.classes)
    } else {
        format!("{} classes: {}", summary.classes, named.join(", "))
    }
}

fn spread(spread: &Spread, digits: usize) -> String {
    let Spread { min, median, mean, max } = spread;
    let finer = digits.max(1);
    format!("min {min:.digits$}, median {median:.digits$}, mean {mean:.finer$}, max {max:.digits$}")
}

/// Renders the devices by their number of examples, with a bar of at most 40 cells per bin.
fn histogram(summary: &FederationSummary) -> String {
    let most = summary.histogram.iter().map(|bin| bin.devices).max().unwrap_or_default().max(1);
    let mut out = String::new();
    for bin in &summary.histogram {
        let cells = (bin.devices * 40).div_ceil(most);
        let range = format!("{}–{}", bin.from, bin.to - 1);
        writeln!(out, "{range:>15}  {:<40} {}", "█".repeat(cells), bin.devices)
            .expect("a string takes any text");
    }
    out
}
