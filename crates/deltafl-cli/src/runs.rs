//! `deltafl runs`: lists the runs below a folder, one per line.

use std::path::PathBuf;

use deltafl_run::runs::{ListedRun, TrackHeadline, list_runs};
use miette::IntoDiagnostic;

use crate::error::explained;

/// List the runs below a folder
#[derive(clap::Args, Debug)]
#[command(
    after_help = "Errors are mean / 90th percentile of the test error in %, of the baseline and of the track whose \
90th percentile is lowest. Idle rounds changed no params; they are counted over all tracks and seeds.\n\nExample:\n  deltafl runs experiments/sweep --json"
)]
pub(crate) struct Args {
    /// The folder
    #[arg(default_value = "runs", value_name = "DIR")]
    folder: PathBuf,
    /// Print as JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: Args) -> miette::Result<()> {
    let runs = list_runs(&args.folder).map_err(explained)?;
    if args.json {
        println!("{}", serde_json::to_string_pretty(&runs).into_diagnostic()?);
    } else if runs.is_empty() {
        println!("There is no run below {}.", args.folder.display());
    } else {
        print!("{}", rendered(&runs));
    }
    Ok(())
}

fn rendered(runs: &[ListedRun]) -> String {
    let header =
        ["run", "data", "model", "rounds", "seeds", "idle", "baseline", "best tail"].map(str::to_owned);
    let mut rows = vec![header];
    for run in runs {
        let done = |done: u64, planned: u64| {
            if done == planned { done.to_string() } else { format!("{done} of {planned}") }
        };
        let figures = |headline: &Option<TrackHeadline>| {
            headline
                .as_ref()
                .map_or_else(String::new, |headline| format!("{} {}", headline.track, headline.shown))
        };
        rows.push([
            run.path.display().to_string(),
            run.data.clone(),
            run.model.clone(),
            done(run.rounds, run.rounds_planned),
            done(run.seeds as u64, run.seeds_planned as u64),
            match run.idle_rounds.idle() {
                0 => String::new(),
                idle => format!("{idle} of {}", run.idle_rounds.rounds),
            },
            run.problem.clone().unwrap_or_else(|| figures(&run.baseline)),
            figures(&run.best),
        ]);
    }
    let widths: Vec<usize> = (0..rows[0].len())
        .map(|c| rows.iter().map(|row| row[c].chars().count()).max().unwrap_or(0))
        .collect();
    let line = |row: &[String; 8]| {
        let cells: Vec<String> =
            row.iter().zip(&widths).map(|(cell, &width)| format!("{cell:<width$}")).collect();
        format!("{}\n", cells.join("  ").trim_end())
    };
    rows.iter().map(line).collect()
}
