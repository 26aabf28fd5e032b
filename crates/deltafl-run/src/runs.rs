//! The runs below a folder, with their main results.

use std::fs;
use std::path::{Path, PathBuf};

use deltafl::metrics::FiguresOverSeeds;
use deltafl::superquantile::Bounds;
use deltafl::task::{Metric, Unit};
use deltafl_data::run_folder::{self, HeldOutSummary, IdleRounds, RunFolderError, Summary};
use serde::Serialize;

use crate::error::FileError;
use crate::report::tracks::{baseline, tracks};
use crate::text_table;

/// The maximum depth of a run below the folder.
const DEPTH: usize = 5;

/// An entry in the list of runs.
#[derive(Debug, Serialize)]
pub struct ListedRun {
    /// The run folder.
    pub path: PathBuf,
    /// The name of the experiment.
    pub name: String,
    /// The name of the data.
    pub data: String,
    /// The name of the model.
    pub model: String,
    /// Rounds done, by the slowest seed.
    pub rounds: u64,
    /// Rounds planned.
    pub rounds_planned: u64,
    /// Seeds evaluated.
    pub seeds: usize,
    /// Seeds planned.
    pub seeds_planned: usize,
    /// Rounds that changed nothing, over all tracks and seeds.
    pub idle_rounds: IdleRounds,
    /// The baseline.
    pub baseline: Option<TrackHeadline>,
    /// The other track with the best 90th percentile.
    pub best: Option<TrackHeadline>,
    /// The reason why there are no results.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

/// The results of a track.
#[derive(Debug, Serialize)]
pub struct TrackHeadline {
    /// The track.
    pub track: String,
    /// The name of the metric.
    pub metric: &'static str,
    /// The mean; shares are fractions.
    pub mean: f64,
    /// The 90th percentile.
    pub p90: f64,
    /// Both, as text.
    #[serde(skip)]
    pub shown: String,
}

/// Lists the runs below a folder, sorted by path.
///
/// # Errors
///
/// Fails if the folder cannot be read. A damaged run is listed with its problem.
pub fn list_runs(folder: &Path) -> Result<Vec<ListedRun>, FileError> {
    let mut folders = Vec::new();
    find(folder, DEPTH, &mut folders).map_err(FileError::read(folder))?;
    folders.sort();
    Ok(folders.iter().map(|folder| listed(folder)).collect())
}

/// Finds the run folders below a folder. Run folders are not searched for nested runs.
fn find(folder: &Path, depth: usize, found: &mut Vec<PathBuf>) -> std::io::Result<()> {
    if folder.join("experiment.toml").is_file() && folder.join("devices").is_dir() {
        found.push(folder.to_owned());
        return Ok(());
    }
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        // A symbolic link may point to a parent. An unreadable folder is skipped.
        if depth > 0 && entry.file_type()?.is_dir() {
            let _ = find(&entry.path(), depth - 1, found);
        }
    }
    Ok(())
}

fn listed(folder: &Path) -> ListedRun {
    let mut run = ListedRun {
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
        // Devices of a served run do not report individual results.
        RunFolderError::NotEvaluated { .. } if run.rounds > 0 => "no device was evaluated".to_owned(),
        RunFolderError::NotEvaluated { .. } => "not evaluated yet".to_owned(),
        error => error.to_string(),
    });
    run
}

fn fill_in(run: &mut ListedRun) -> Result<(), RunFolderError> {
    let experiment = run_folder::read_experiment(&run.path)?;
    experiment.name().clone_into(&mut run.name);
    run.data = experiment.data().name();
    run.model = experiment.model().spec().name().to_owned();
    run.rounds_planned = experiment.rounds();
    run.seeds_planned = experiment.seeds().iter().len();
    let lines = run_folder::read_rounds(&run.path)?;
    run.idle_rounds = IdleRounds::count(lines.iter().map(|line| &line.record));
    // Counts trained rounds, even if no device was evaluated.
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
        let digits = text_table::decimals(metric, [mean.mean, p90.mean]);
        Some(TrackHeadline {
            track: infos[track].label.clone(),
            metric: metric.name,
            mean: mean.mean,
            p90: p90.mean,
            shown: [mean.mean, p90.mean]
                .map(|x| text_table::number(metric.display_value(x), digits))
                .join(" / "),
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

/// Returns the results from the last cohort of a deployed run: the midpoints of the known
/// intervals, displayed with their bounds.
fn between(track: &str, metric: &'static Metric, told: &HeldOutSummary) -> Option<TrackHeadline> {
    let figures = told.measures.get(metric.name)?;
    let ends = |bounds: &Bounds| Some((bounds.lower?, bounds.upper?));
    let (mean, p90) = (ends(&figures.mean)?, ends(&figures.p90)?);
    let digits = if metric.unit == Unit::Share { 1 } else { text_table::decimals(metric, [mean.0, p90.0]) };
    let number = |x: f64| text_table::number(metric.display_value(x), digits);
    Some(TrackHeadline {
        track: track.to_owned(),
        metric: metric.name,
        mean: mean.0.midpoint(mean.1),
        p90: p90.0.midpoint(p90.1),
        shown: [mean, p90].map(|(lower, upper)| format!("{}–{}", number(lower), number(upper))).join(" / "),
    })
}
