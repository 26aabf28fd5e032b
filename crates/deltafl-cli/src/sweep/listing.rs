//! The points of a sweep with their results, as a table, as CSV and as JSON.

use deltafl::metrics::{FiguresOverSeeds, OverSeeds};
use deltafl::task::{Metric, Task};
use deltafl_data::run_folder::TrackSummary;
use miette::{IntoDiagnostic, Result};
use serde::Serialize;

use super::folder::{Standing, SweepFolder};
use super::points::{Point, Sweep};
use crate::report::tracks::tracks;
use crate::table;

/// A point, and what it came to.
#[derive(Debug, Serialize)]
pub(crate) struct PointResults {
    /// Key and value of each axis.
    settings: Vec<(String, String)>,
    address: String,
    /// Rounds done, over all seeds.
    rounds: u64,
    rounds_planned: u64,
    finished: bool,
    /// What the figures are of.
    task: Task,
    tracks: Vec<TrackResults>,
}

/// A track of a point.
#[derive(Debug, Serialize)]
struct TrackResults {
    track: String,
    #[serde(flatten)]
    summary: TrackSummary,
}

/// Reads the results of some points.
pub(crate) fn results<'a>(
    folder: &SweepFolder,
    sweep: &Sweep,
    points: impl Iterator<Item = &'a Point>,
) -> Result<Vec<PointResults>> {
    points.map(|point| of_point(folder, sweep, point)).collect()
}

fn of_point(folder: &SweepFolder, sweep: &Sweep, point: &Point) -> Result<PointResults> {
    let planned = point.experiment.rounds.get() * point.experiment.seeds.iter().len() as u64;
    let standing = folder.standing(point)?;
    let labels = tracks(&point.experiment).into_iter().map(|track| track.label);
    let (task, summaries) =
        folder.summary(point).map_or_else(Default::default, |summary| (summary.task, summary.tracks));
    Ok(PointResults {
        settings: sweep.axes.iter().map(|axis| axis.key.clone()).zip(point.values.iter().cloned()).collect(),
        address: point.address.clone(),
        rounds: match standing {
            Standing::Missing => 0,
            Standing::Rounds(rounds) => rounds,
            Standing::Finished => planned,
        },
        rounds_planned: planned,
        finished: standing == Standing::Finished,
        task,
        tracks: labels.zip(summaries).map(|(track, summary)| TrackResults { track, summary }).collect(),
    })
}

/// For people: a row per point and track.
pub(crate) fn rendered(sweep: &Sweep, results: &[PointResults]) -> String {
    let mut header = short_keys(sweep);
    let metric = format!("test {}", task_of(results).primary().heading());
    let figures = ["track", "rounds, all seeds", "train loss", &metric, "90th percentile", "folder"];
    header.extend(figures.map(str::to_owned));
    let mut rows = vec![header];
    for point in results {
        let settings: Vec<String> = point.settings.iter().map(|(_, value)| value.clone()).collect();
        let rounds = if point.finished {
            point.rounds.to_string()
        } else {
            format!("{} of {}", point.rounds, point.rounds_planned)
        };
        let row = |track: &str, figures: [String; 3]| {
            let mut row = settings.clone();
            row.extend([track.to_owned(), rounds.clone()]);
            row.extend(figures);
            row.push(point.address.clone());
            row
        };
        if point.tracks.is_empty() {
            rows.push(row("", [(); 3].map(|()| "–".to_owned())));
        }
        rows.extend(
            point.tracks.iter().map(|track| row(&track.track, cells(point.task.primary(), &track.summary))),
        );
    }
    let done = results.iter().filter(|point| point.finished).count();
    format!("{}: {done} of {} points finished\n\n{}", sweep.name, results.len(), table::aligned(&rows))
}

/// What the figures of the points are of.
fn task_of(results: &[PointResults]) -> Task {
    results.iter().find(|point| !point.tracks.is_empty()).map_or(Task::Classes, |point| point.task)
}

/// Mean train loss; mean and 90th percentile of the test metric.
fn cells(metric: &Metric, track: &TrackSummary) -> [String; 3] {
    let none = || "–".to_owned();
    let test = |figure: fn(&FiguresOverSeeds) -> OverSeeds| {
        track.test.as_ref().map_or_else(none, |test| table::shown(metric, figure(test), 1))
    };
    [
        track.train_loss.map_or_else(none, |loss| format!("{:.4}", loss.mean.mean)),
        test(|figures| figures.mean),
        test(|figures| figures.p90),
    ]
}

/// The last part of each key, or all of it where two would be called the same.
fn short_keys(sweep: &Sweep) -> Vec<String> {
    let keys: Vec<&str> = sweep.axes.iter().map(|axis| axis.key.as_str()).collect();
    let last = |key: &str| key.rsplit('.').next().unwrap_or_default().to_owned();
    let shared = |key: &str| keys.iter().filter(|other| last(other) == last(key)).count() > 1;
    keys.iter().map(|key| if shared(key) { (*key).to_owned() } else { last(key) }).collect()
}

/// For programs: a row per point and track, errors as fractions.
pub(crate) fn csv(sweep: &Sweep, results: &[PointResults]) -> Result<String> {
    let mut writer = csv::Writer::from_writer(Vec::new());
    let axes = sweep.axes.iter().map(|axis| axis.key.as_str());
    let metric = task_of(results).primary().name;
    let of_metric = ["mean", "std", "p90", "p90_std"].map(|figure| format!("test_{metric}_{figure}"));
    let figures = ["folder", "finished", "algorithm", "theta", "seeds", "rounds", "train_loss_mean"];
    writer.write_record(axes.chain(figures).chain(of_metric.iter().map(String::as_str))).into_diagnostic()?;
    for point in results {
        for TrackResults { summary, .. } in &point.tracks {
            let figure = |figures: Option<FiguresOverSeeds>, figure: fn(&FiguresOverSeeds) -> f64| {
                figures.as_ref().map_or_else(String::new, |figures| figure(figures).to_string())
            };
            let mut row: Vec<String> = point.settings.iter().map(|(_, value)| value.clone()).collect();
            row.extend([
                point.address.clone(),
                point.finished.to_string(),
                summary.algorithm.clone(),
                summary.theta.to_string(),
                summary.seeds.to_string(),
                summary.rounds.to_string(),
                figure(summary.train_loss, |loss| loss.mean.mean),
                figure(summary.test, |error| error.mean.mean),
                figure(summary.test, |error| error.mean.std),
                figure(summary.test, |error| error.p90.mean),
                figure(summary.test, |error| error.p90.std),
            ]);
            writer.write_record(&row).into_diagnostic()?;
        }
    }
    String::from_utf8(writer.into_inner().into_diagnostic()?).into_diagnostic()
}
