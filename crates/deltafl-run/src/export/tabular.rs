//! A run as three tables:
//!
//! - a row per (seed, track, round);
//! - a row per (seed, track, evaluation, split) with the values of the paper's tables and the
//!   objective F_θ;
//! - a row per device and evaluation.

use std::fs::File;
use std::path::{Path, PathBuf};

use deltafl::data::Split;
use deltafl::exchange::SplitEvaluation;
use deltafl::metrics::{Figures, objective};
use deltafl::superquantile::Conformity;
use deltafl::task::Task;
use deltafl_data::parquet_table::{TableColumn as Column, TableWriter};
use deltafl_data::run_folder::{self, EvaluationFile, RoundLine};
use parquet::basic::Compression;

use super::ExportError;
use crate::error::FileError;
use crate::report::tracks::{TrackInfo, tracks};

/// Rows in a row group, unless one evaluation has more.
const ROW_GROUP: usize = 1 << 20;

/// Named columns of equal length.
type NamedColumns = Vec<(&'static str, Column)>;

/// Writes a table from batches of rows.
type WriteTable<'a> =
    &'a dyn Fn(&Path, &mut dyn Iterator<Item = Result<NamedColumns, ExportError>>) -> Result<(), ExportError>;

/// Writes rounds.csv, evaluations.csv and devices.csv.
pub(super) fn write_csv(run: &Path, out: &Path) -> Result<Vec<PathBuf>, ExportError> {
    write(run, out, "csv", |path, tables| {
        let failed = |e: csv::Error| FileError::write(path)(e.into());
        let mut writer = csv::Writer::from_path(path).map_err(failed)?;
        for (i, rows) in tables.enumerate() {
            let rows = rows?;
            if i == 0 {
                writer.write_record(rows.iter().map(|(name, _)| name)).map_err(failed)?;
            }
            for row in 0..length(&rows) {
                writer.write_record(rows.iter().map(|(_, column)| cell(column, row))).map_err(failed)?;
            }
        }
        Ok(writer.flush().map_err(FileError::write(path))?)
    })
}

/// Writes rounds.parquet, evaluations.parquet and devices.parquet.
pub(super) fn write_parquet(run: &Path, out: &Path) -> Result<Vec<PathBuf>, ExportError> {
    write(run, out, "parquet", |path, tables| {
        let failed = |source| ExportError::Parquet { path: path.to_owned(), source };
        let mut writer = None;
        while let Some(rows) = tables.next() {
            let mut rows = rows?;
            while length(&rows) < ROW_GROUP
                && let Some(more) = tables.next()
            {
                for ((_, column), (_, more)) in rows.iter_mut().zip(more?) {
                    column.append(more);
                }
            }
            let writer = match &mut writer {
                Some(writer) => writer,
                None => {
                    let file = File::create(path).map_err(FileError::write(path))?;
                    let made = TableWriter::new(file, &rows, &[], Compression::SNAPPY);
                    writer.insert(made.map_err(failed)?)
                }
            };
            writer.write(&rows).map_err(failed)?;
        }
        if let Some(writer) = writer {
            writer.finish().map_err(failed)?;
        }
        Ok(())
    })
}

/// Writes the tables. The device table is written one evaluation at a time, because it may be
/// large.
fn write(
    run: &Path,
    out: &Path,
    extension: &str,
    table: impl Fn(&Path, &mut dyn Iterator<Item = Result<NamedColumns, ExportError>>) -> Result<(), ExportError>,
) -> Result<Vec<PathBuf>, ExportError> {
    let experiment = run_folder::read_experiment(run)?;
    let tracks = tracks(&experiment);
    let files = run_folder::evaluations(run)?;
    let lines = run_folder::read_rounds(run)?;
    let rounds = out.join(format!("rounds.{extension}"));
    let evaluations = out.join(format!("evaluations.{extension}"));
    let devices = out.join(format!("devices.{extension}"));
    let mut of_rounds = std::iter::once(Ok(round_rows(&lines, &tracks)));
    table(&rounds, &mut of_rounds)?;
    write_each(&evaluations, &files, &|e| evaluation_rows(&tracks, e), &table)?;
    write_each(&devices, &files, &|e| device_rows(&tracks, e), &table)?;
    Ok(vec![rounds, evaluations, devices])
}

/// One evaluation of a run.
struct StoredEvaluation {
    seed: u64,
    round: u64,
    splits: Vec<SplitEvaluation>,
}

/// Writes a table with one batch of rows per evaluation.
fn write_each(
    path: &Path,
    files: &[EvaluationFile],
    rows: &dyn Fn(&StoredEvaluation) -> NamedColumns,
    table: WriteTable<'_>,
) -> Result<(), ExportError> {
    // A run without evaluations also has a table, with a header only.
    let none =
        files.is_empty().then(|| Ok(rows(&StoredEvaluation { seed: 0, round: 0, splits: Vec::new() })));
    let read = |file: &EvaluationFile| {
        let splits = file.read()?;
        Ok(rows(&StoredEvaluation { seed: file.seed, round: file.round, splits }))
    };
    let mut all = none.into_iter().chain(files.iter().map(read));
    table(path, &mut all)
}

/// Returns the values of the tables, and F_θ of the train devices.
fn evaluation_rows(tracks: &[TrackInfo], evaluated: &StoredEvaluation) -> NamedColumns {
    let rows: Vec<(&TrackInfo, &SplitEvaluation, Figures, Option<f64>)> = tracks
        .iter()
        .enumerate()
        .flat_map(|(t, track)| {
            let splits = evaluated.splits.iter().filter(move |split| t < split.tracks.len());
            splits.filter_map(move |split| {
                let theta = Conformity::try_from(track.theta).ok();
                let objective = theta.and_then(|theta| objective(split, t, theta));
                Some((track, split, Figures::of_track(split, t)?, objective))
            })
        })
        .collect();
    let real = |value: &dyn Fn(&Figures) -> f64| {
        Column::OptionalF64(rows.iter().map(|row| Some(value(&row.2))).collect())
    };
    let measure = |split: &SplitEvaluation| match split.split {
        Split::Train => "loss".to_owned(),
        Split::Test | Split::Validation => split.task.primary().name.to_owned(),
    };
    vec![
        ("seed", Column::U64(vec![evaluated.seed; rows.len()])),
        ("track", Column::Text(rows.iter().map(|row| row.0.label.clone()).collect())),
        ("algorithm", Column::Text(rows.iter().map(|row| row.0.algorithm.clone()).collect())),
        ("theta", Column::OptionalF64(rows.iter().map(|row| Some(row.0.theta)).collect())),
        ("round", Column::U64(vec![evaluated.round; rows.len()])),
        ("split", Column::Text(rows.iter().map(|row| row.1.split.name().to_owned()).collect())),
        ("measure", Column::Text(rows.iter().map(|row| measure(row.1)).collect())),
        ("mean", real(&|figures| figures.mean)),
        ("p20", real(&|figures| figures.percentiles[0])),
        ("p50", real(&|figures| figures.percentiles[1])),
        ("p60", real(&|figures| figures.percentiles[2])),
        ("p80", real(&|figures| figures.percentiles[3])),
        ("p90", real(&|figures| figures.percentiles[4])),
        ("p95", real(&|figures| figures.percentiles[5])),
        ("objective", Column::OptionalF64(rows.iter().map(|row| row.3).collect())),
    ]
}

fn round_rows(lines: &[RoundLine], tracks: &[TrackInfo]) -> NamedColumns {
    let whole = |value: fn(&RoundLine) -> u64| Column::U64(lines.iter().map(value).collect());
    let real = |value: fn(&RoundLine) -> Option<f64>| Column::OptionalF64(lines.iter().map(value).collect());
    let of_track = |value: fn(&TrackInfo) -> String| {
        let text = |line: &RoundLine| tracks.get(line.record.track).map_or_else(String::new, value);
        Column::Text(lines.iter().map(text).collect())
    };
    let theta = |line: &RoundLine| tracks.get(line.record.track).map(|track| track.theta);
    vec![
        ("seed", whole(|line| line.record.seed)),
        ("track", of_track(|track| track.label.clone())),
        ("algorithm", of_track(|track| track.algorithm.clone())),
        ("theta", Column::OptionalF64(lines.iter().map(theta).collect())),
        ("round", whole(|line| line.record.round)),
        ("eta", real(|line| line.record.eta)),
        ("eta_age", real(|line| line.record.eta_age.map(|age| age as f64))),
        ("loss", real(|line| line.record.loss)),
        ("cohort", whole(|line| line.record.cohort)),
        ("dropped", whole(|line| line.record.dropped)),
        ("tail", whole(|line| line.record.tail)),
        ("tail_weight", real(|line| Some(line.record.tail_weight))),
        ("refused", whole(|line| line.record.refused)),
        ("secure_sums", whole(|line| line.record.sums)),
        ("messages", whole(|line| line.record.messages)),
        ("bytes_up", whole(|line| line.record.bytes_up)),
        ("bytes_down", whole(|line| line.record.bytes_down)),
        ("seconds", real(|line| Some(line.seconds))),
    ]
}

fn device_rows(tracks: &[TrackInfo], evaluated: &StoredEvaluation) -> NamedColumns {
    let StoredEvaluation { seed, round, splits } = evaluated;
    let rows = || {
        tracks.iter().enumerate().flat_map(move |(t, track)| {
            splits.iter().filter(move |split| t < split.tracks.len()).flat_map(move |split| {
                let devices = split.devices.iter().zip(&split.tracks[t]);
                devices.map(move |(device, evaluation)| (track, split.split, device, evaluation))
            })
        })
    };
    let count = rows().count();
    let task = splits.first().map_or(Task::Classes, |split| split.task);
    let mut columns: NamedColumns = vec![
        ("seed", Column::U64(vec![*seed; count])),
        ("track", Column::Text(rows().map(|row| row.0.label.clone()).collect())),
        ("algorithm", Column::Text(rows().map(|row| row.0.algorithm.clone()).collect())),
        ("theta", Column::OptionalF64(rows().map(|row| Some(row.0.theta)).collect())),
        ("round", Column::U64(vec![*round; count])),
        ("split", Column::Text(rows().map(|row| row.1.name().to_owned()).collect())),
        ("device", Column::Text(rows().map(|row| row.2.id.clone()).collect())),
        ("examples", Column::U64(rows().map(|row| row.2.examples).collect())),
        ("loss", Column::OptionalF64(rows().map(|row| Some(row.3.loss)).collect())),
    ];
    for (i, metric) in task.metrics().iter().enumerate() {
        columns.push((metric.name, Column::OptionalF64(rows().map(|row| Some(row.3.metrics[i])).collect())));
    }
    columns
}

fn length(rows: &NamedColumns) -> usize {
    rows.first().map_or(0, |(_, column)| column.len())
}

/// Formats a CSV cell. A missing value is an empty cell.
fn cell(column: &Column, row: usize) -> String {
    match column {
        Column::Text(values) => values[row].clone(),
        Column::U64(values) => values[row].to_string(),
        Column::OptionalF64(values) => values[row].map_or_else(String::new, |value| value.to_string()),
        _ => unreachable!("the tables have only columns of these types"),
    }
}
