//! `deltafl runs`: the runs below a folder, a line each.

use std::fs;
use std::path::{Path, PathBuf};

use deltafl::metrics::FiguresOverSeeds;
use deltafl::superquantile::Bounds;
use deltafl::task::{Metric, Unit};
use deltafl_data::run_folder::{self, HeldOutSummary, IdleRounds, RunFolderError, Summary};
use miette::{IntoDiagnostic, WrapErr};
use serde::Serialize;

use crate::report::tracks::{baseline, tracks};
use crate::table;

/// How deep below the folder a run may lie.
const DEPTH: usize = 5;

/// List the runs below a folder
#[derive(clap::Args, Debug)]
#[command(
    after_help = "Errors are mean / 90th percentile of the test error in %, of the baseline and of the track whose \
90th percentile is lowest. Idle are rounds that moved nothing, over all tracks and seeds.\n\nExample:\n  deltafl runs experiments/sweep --json"
)]
pub(crate) struct Args {
    /// The folder
    #[arg(default_value = "runs", value_name = "DIR")]
    folder: PathBuf,
    /// Print as JSON
    #[arg(long)]
    json: bool,
}

/// A run of the list.
#[derive(Debug, Serialize)]
struct Run {
    path: PathBuf,
    name: String,
    data: String,
    model: String,
    /// Rounds done, by the slowest seed.
    rounds: u64,
    rounds_planned: u64,
    /// Seeds evaluated.
    seeds: usize,
    seeds_planned: usize,
    /// Rounds that moved nothing, over all tracks and seeds.
    idle_rounds: IdleRounds,
    baseline: Option<Headline>,
    best: Option<Headline>,
    /// Why there are no figures.
    #[serde(skip_serializing_if = "Option::is_none")]
    problem: Option<String>,
}

/// The figures of a track.
#[derive(Debug, Serialize)]
struct Headline {
    track: String,
    /// Which metric.
    metric: &'static str,
    /// Shares as fractions.
    mean: f64,
    p90: f64,
    /// Both, for people.
    #[serde(skip)]
    shown: String,
}

pub(crate) fn run(args: Args) -> miette::Result<()> {
    let mut folders = Vec::new();
    find(&args.folder, DEPTH, &mut folders)
        .into_diagnostic()
        .wrap_err_with(|| format!("could not look into {}", args.folder.display()))?;
    folders.sort();
    let runs: Vec<Run> = folders.iter().map(|folder| listed(folder)).collect();
    if args.json {
        println!("{}", serde_json::to_string_pretty(&runs).into_diagnostic()?);
    } else if runs.is_empty() {
        println!("There is no run below {}.", args.folder.display());
    } else {
        print!("{}", rendered(&runs));
    }
    Ok(())
}

/// Run folders below a folder; none lies inside another.
fn find(folder: &Path, depth: usize, found: &mut Vec<PathBuf>) -> std::io::Result<()> {
    if folder.join("experiment.toml").is_file() && folder.join("devices").is_dir() {
        found.push(folder.to_owned());
        return Ok(());
    }
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        // A link may lead back up; a folder that may not be read holds no run for us.
        if depth > 0 && entry.file_type()?.is_dir() {
            let _ = find(&entry.path(), depth - 1, found);
        }
    }
    Ok(())
}

fn listed(folder: &Path) -> Run {
    let mut run = Run {
        path: folder.to_owned(),
        name: String::new(),
        data: String::new(),
        model: String::new(),
        rounds: 0,
        rounds_planned: 0,
        seeds: 0,
        seeds_planned: 0,
        idle_rounds: IdleRounds::default(),
        baseline: None,
        best: None,
        problem: None,
    };
    run.problem = fill_in(&mut run).err().map(|error| match error {
        // Devices of a served run keep their figures to themselves.
        RunFolderError::NotEvaluated { .. } if run.rounds > 0 => "no device was evaluated".to_owned(),
        RunFolderError::NotEvaluated { .. } => "not evaluated yet".to_owned(),
        error => error.to_string(),
    });
    run
}

fn fill_in(run: &mut Run) -> Result<(), RunFolderError> {
    let experiment = run_folder::read_experiment(&run.path)?;
    run.name.clone_from(experiment.name());
    run.data = experiment.data().name();
    run.model = experiment.model().spec().name().to_owned();
    run.rounds_planned = experiment.rounds();
    run.seeds_planned = experiment.seeds().iter().len();
    let lines = run_folder::read_rounds(&run.path)?;
    run.idle_rounds = IdleRounds::count(lines.iter().map(|line| &line.record));
    // What was trained, whether or not anybody was evaluated.
    let rounds_of = |seed: u64| {
        let of_seed = lines.iter().filter(|line| line.record.seed == seed);
        of_seed.map(|line| line.record.round + 1).max().unwrap_or(0)
    };
    run.rounds = experiment.seeds().iter().map(|&seed| rounds_of(seed)).min().unwrap_or(0);
    let summary = Summary::read(&run.path)?;
    let infos = tracks(&experiment);
    let metric = summary.task.primary();
    let headline = |track: usize| {
        let of_track = summary.tracks.get(track)?;
        if let Some(told) = of_track.held_out.first() {
            return between(&infos[track].label, metric, told);
        }
        let FiguresOverSeeds { mean, p90, .. } = of_track.test?;
        let digits = table::decimals(metric, [mean.mean, p90.mean]);
        Some(Headline {
            track: infos[track].label.clone(),
            metric: metric.name,
            mean: mean.mean,
            p90: p90.mean,
            shown: [mean.mean, p90.mean].map(|x| table::number(metric.shown(x), digits)).join(" / "),
        })
    };
    if let Some(first) = summary.tracks.first() {
        run.rounds = first.rounds;
        run.seeds = first.seeds;
    }
    let base = baseline(&infos);
    run.baseline = headline(base);
    let others = (0..infos.len()).filter(|&track| track != base).filter_map(headline);
    run.best = others.min_by(|a, b| metric.cost(a.p90).total_cmp(&metric.cost(b.p90)));
    Ok(())
}

/// What the last cohort of a deployed run told: the middles of what is known, shown by its ends.
fn between(track: &str, metric: &'static Metric, told: &HeldOutSummary) -> Option<Headline> {
    let figures = told.measures.get(metric.name)?;
    let ends = |bounds: &Bounds| Some((bounds.lower?, bounds.upper?));
    let (mean, p90) = (ends(&figures.mean)?, ends(&figures.p90)?);
    let digits = if metric.unit == Unit::Share { 1 } else { table::decimals(metric, [mean.0, p90.0]) };
    let number = |x: f64| table::number(metric.shown(x), digits);
    Some(Headline {
        track: track.to_owned(),
        metric: metric.name,
        mean: mean.0.midpoint(mean.1),
        p90: p90.0.midpoint(p90.1),
        shown: [mean, p90].map(|(lower, upper)| format!("{}–{}", number(lower), number(upper))).join(" / "),
    })
}

fn rendered(runs: &[Run]) -> String {
    let header =
        ["run", "data", "model", "rounds", "seeds", "idle", "baseline", "best tail"].map(str::to_owned);
    let mut rows = vec![header];
    for run in runs {
        let done = |done: u64, planned: u64| {
            if done == planned { done.to_string() } else { format!("{done} of {planned}") }
        };
        let figures = |headline: &Option<Headline>| {
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
