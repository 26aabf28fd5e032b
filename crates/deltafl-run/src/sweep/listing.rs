//! The points of a sweep with their results, as a table, CSV and JSON.

use std::io;
use std::path::{Path, PathBuf};

use deltafl::metrics::{FiguresOverSeeds, OverSeeds};
use deltafl::task::Task;
use deltafl_data::run_folder::{Summary, TrackSummary};
use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};

use super::SweepError;
use super::axes::SPLIT;
use super::folder::{Standing, SweepFolder};
use super::points::{SEEDS, Sweep, SweepPoint};
use crate::report::tracks::tracks;
use crate::text_table;

/// The results of a point, or of several that differ only in their seeds.
#[derive(Debug, Serialize)]
pub struct PointResults {
    settings: Settings,
    /// The addresses of the run folders, several if points are averaged.
    addresses: Vec<String>,
    /// Rounds done, over all seeds.
    rounds: u64,
    rounds_planned: u64,
    finished: bool,
    /// The task of the results.
    task: Task,
    tracks: Vec<TrackResults>,
}

/// The value of each axis, in the order of the axes.
#[derive(Debug)]
struct Settings(Vec<Setting>);

#[derive(Debug)]
struct Setting {
    key: String,
    shown: String,
    typed: serde_json::Value,
}

impl Serialize for Settings {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        self.0.iter().try_for_each(|setting| map.serialize_entry(&setting.key, &setting.typed))?;
        map.end()
    }
}

/// A track of a point.
#[derive(Debug, Serialize)]
struct TrackResults {
    track: String,
    #[serde(flatten)]
    summary: TrackSummary,
}

/// Reads the results of some points.
///
/// # Errors
///
/// Fails if the run folder of a point cannot be used.
pub fn results<'a>(
    folder: &SweepFolder,
    sweep: &Sweep,
    points: impl Iterator<Item = &'a SweepPoint>,
) -> Result<Vec<PointResults>, SweepError> {
    points.map(|point| of_points(folder, sweep, &[point])).collect()
}

/// Reads the results of all points. Points that differ only in their seeds are averaged.
///
/// # Errors
///
/// Fails if the run folder of a point cannot be used.
pub fn averages(folder: &SweepFolder, sweep: &Sweep) -> Result<Vec<PointResults>, SweepError> {
    let mut groups: Vec<Vec<&SweepPoint>> = Vec::new();
    for point in &sweep.points {
        let same =
            |group: &&mut Vec<&SweepPoint>| without_seeds(sweep, group[0]) == without_seeds(sweep, point);
        match groups.iter_mut().find(same) {
            Some(group) => group.push(point),
            None => groups.push(vec![point]),
        }
    }
    groups.iter().map(|group| of_points(folder, sweep, group)).collect()
}

/// Returns the values of all axes except the seeds.
fn without_seeds<'a>(sweep: &'a Sweep, point: &'a SweepPoint) -> Vec<&'a str> {
    let values = sweep.axes.iter().zip(&point.values);
    values.filter(|(axis, _)| axis.key != SEEDS).map(|(_, value)| value.as_str()).collect()
}

fn of_points(
    folder: &SweepFolder,
    sweep: &Sweep,
    points: &[&SweepPoint],
) -> Result<PointResults, SweepError> {
    let first = points[0];
    let setting = |(i, axis): (usize, &super::axes::SweepAxis)| {
        (points.len() == 1 || axis.key != SEEDS).then(|| Setting {
            key: axis.key.clone(),
            shown: first.values[i].clone(),
            typed: first.typed[i].clone(),
        })
    };
    let (mut rounds, mut planned, mut finished) = (0, 0, true);
    for point in points {
        let of_this = point.experiment.rounds() * point.experiment.seeds().iter().len() as u64;
        let standing = folder.standing(point)?;
        finished &= standing == Standing::Finished;
        planned += of_this;
        rounds += match standing {
            Standing::Missing => 0,
            Standing::Rounds(rounds) => rounds,
            Standing::Finished => of_this,
        };
    }
    let labels = tracks(&first.experiment).into_iter().map(|track| track.label);
    let (task, summaries) =
        summary(folder, points).map_or_else(Default::default, |summary| (summary.task, summary.tracks));
    Ok(PointResults {
        settings: Settings(sweep.axes.iter().enumerate().filter_map(setting).collect()),
        addresses: points.iter().map(|point| point.address.clone()).collect(),
        rounds,
        rounds_planned: planned,
        finished,
        task,
        tracks: labels.zip(summaries).map(|(track, summary)| TrackResults { track, summary }).collect(),
    })
}

/// Returns the summary of the points that have been evaluated.
fn summary(folder: &SweepFolder, points: &[&SweepPoint]) -> Option<Summary> {
    let folders: Vec<PathBuf> = points.iter().map(|point| folder.point(&point.address)).collect();
    let begun: Vec<&Path> =
        folders.iter().map(PathBuf::as_path).filter(|folder| folder.join("devices").is_dir()).collect();
    Summary::over(points[0].experiment.clone(), &begun).ok()
}

/// Renders the number of finished points and a row per point and track for people.
pub fn rendered(sweep: &Sweep, results: &[PointResults]) -> String {
    let done = results.iter().filter(|point| point.finished).count();
    let idle = results.iter().flat_map(|point| &point.tracks);
    let idle = idle.filter(|track| track.summary.idle_rounds.cause_of_most().is_some()).count();
    let note = if idle > 0 {
        format!("\nIn {idle} rows most rounds moved nothing; see idle_rounds of --json for the reason.\n")
    } else {
        String::new()
    };
    format!("{}: {done} of {} points finished\n\n{}{note}", sweep.name, results.len(), table(sweep, results))
}

/// Renders an aligned table with a row per point and track.
pub fn table(sweep: &Sweep, results: &[PointResults]) -> String {
    let keys: Vec<&str> = results
        .first()
        .map_or_else(Vec::new, |point| point.settings.0.iter().map(|s| s.key.as_str()).collect());
    let mut header = short_keys(&keys);
    let averaged =
        results.len() < sweep.points.len() && results.iter().any(|point| point.addresses.len() > 1);
    let metric = format!("test {}", task_of(results).primary().heading());
    let figures = ["track", "rounds, all seeds", "train loss", &metric, "90th percentile"];
    header.extend(figures.map(str::to_owned));
    header.push(if averaged { "points" } else { "folder" }.to_owned());
    let mut rows = vec![header];
    for point in results {
        let rounds = if point.finished {
            point.rounds.to_string()
        } else {
            format!("{} of {}", point.rounds, point.rounds_planned)
        };
        let row = |track: &str, figures: [String; 3]| {
            let mut row: Vec<String> = point.settings.0.iter().map(|setting| setting.shown.clone()).collect();
            row.extend([track.to_owned(), rounds.clone()]);
            row.extend(figures);
            row.push(match point.addresses.as_slice() {
                [address] if !averaged => address.clone(),
                addresses => addresses.len().to_string(),
            });
            row
        };
        if point.tracks.is_empty() {
            rows.push(row("", [(); 3].map(|()| "–".to_owned())));
        }
        let cells = |track: &TrackSummary| cells(point.task, track, averaged);
        rows.extend(point.tracks.iter().map(|track| row(&track.track, cells(&track.summary))));
    }
    text_table::aligned(&rows)
}

/// Returns the task of the results.
fn task_of(results: &[PointResults]) -> Task {
    results.iter().find(|point| !point.tracks.is_empty()).map_or(Task::Classes, |point| point.task)
}

/// Formats the mean train loss, and mean and 90th percentile of the test metric. Includes
/// deviations if seeds are averaged.
fn cells(task: Task, track: &TrackSummary, averaged: bool) -> [String; 3] {
    let metric = task.primary();
    let loss = track.train_loss.map(|FiguresOverSeeds { mean: OverSeeds { mean, std }, .. }| {
        let digits = if matches!(task, Task::Regression(_)) { text_table::places([mean]) } else { 4 };
        match std.filter(|_| averaged) {
            None => text_table::number(mean, digits),
            Some(std) => {
                format!("{} ± {}", text_table::number(mean, digits), text_table::number(std, digits))
            }
        }
    });
    let test = |figure: fn(&FiguresOverSeeds) -> OverSeeds| {
        let test = track.test.as_ref()?;
        let digits = text_table::decimals(metric, [test.mean.mean, test.p90.mean]);
        let shown = figure(test);
        Some(text_table::formatted(
            metric,
            OverSeeds { std: shown.std.filter(|_| averaged), ..shown },
            digits,
        ))
    };
    [loss, test(|figures| figures.mean), test(|figures| figures.p90)]
        .map(|cell| cell.unwrap_or_else(|| "–".to_owned()))
}

/// Returns the last part of each key, or the whole key if two would be the same.
fn short_keys(keys: &[&str]) -> Vec<String> {
    let last = |key: &str| match key {
        SPLIT => "split".to_owned(),
        key => key.rsplit('.').next().unwrap_or_default().to_owned(),
    };
    let shared = |key: &str| keys.iter().filter(|other| last(other) == last(key)).count() > 1;
    keys.iter().map(|key| if shared(key) { (*key).to_owned() } else { last(key) }).collect()
}

/// Renders CSV for programs: a row per point and track, with errors as fractions. Column names are
/// unique: axes use their keys, none of which is a fixed column name.
///
/// # Errors
///
/// Fails if a row cannot be encoded.
pub fn csv(results: &[PointResults]) -> io::Result<String> {
    let mut writer = csv::Writer::from_writer(Vec::new());
    let keys: Vec<&str> = results
        .first()
        .map_or_else(Vec::new, |point| point.settings.0.iter().map(|s| s.key.as_str()).collect());
    let metric = task_of(results).primary().name;
    let of_metric = ["mean", "std", "p90", "p90_std"].map(|figure| format!("test_{metric}_{figure}"));
    let figures = [
        "folder",
        "finished",
        "algorithm",
        "theta",
        "track",
        "seeds_evaluated",
        "rounds_evaluated",
        "idle_rounds",
        "train_loss_mean",
    ];
    let names = keys.into_iter().chain(figures).chain(of_metric.iter().map(String::as_str));
    writer.write_record(names)?;
    for point in results {
        for TrackResults { summary, track } in &point.tracks {
            let figure = |figures: Option<FiguresOverSeeds>, figure: fn(&FiguresOverSeeds) -> Option<f64>| {
                figures.as_ref().and_then(figure).map_or_else(String::new, |figure| figure.to_string())
            };
            let mut row: Vec<String> = point.settings.0.iter().map(|setting| setting.shown.clone()).collect();
            row.extend([
                point.addresses.join(" "),
                point.finished.to_string(),
                summary.algorithm.clone(),
                summary.theta.to_string(),
                track.clone(),
                summary.seeds.to_string(),
                summary.rounds.to_string(),
                summary.idle_rounds.idle().to_string(),
                figure(summary.train_loss, |loss| Some(loss.mean.mean)),
                figure(summary.test, |test| Some(test.mean.mean)),
                figure(summary.test, |test| test.mean.std),
                figure(summary.test, |test| Some(test.p90.mean)),
                figure(summary.test, |test| test.p90.std),
            ]);
            writer.write_record(&row)?;
        }
    }
    let bytes = writer.into_inner().map_err(csv::IntoInnerError::into_error)?;
    String::from_utf8(bytes).map_err(io::Error::other)
}
