//! A run as two tables: a row per (seed, track, round), and a row per device and evaluation.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow_array::{ArrayRef, Float64Array, RecordBatch, StringArray, UInt64Array};
use deltafl::engine::SplitEvaluation;
use deltafl::task::Task;
use deltafl_data::run_folder::{self, EvaluationFile, RoundLine};
use miette::{IntoDiagnostic, WrapErr};
use parquet::arrow::ArrowWriter;
use parquet::basic::Compression;
use parquet::file::properties::WriterProperties;

use crate::report::tracks::{TrackInfo, tracks};

/// A column of some rows.
enum Column {
    Text(Vec<String>),
    Whole(Vec<u64>),
    Real(Vec<Option<f64>>),
}

/// Named columns of equal length.
type Rows = Vec<(&'static str, Column)>;

/// Writes rounds.csv and devices.csv.
pub(super) fn write_csv(run: &Path, out: &Path) -> miette::Result<Vec<PathBuf>> {
    write(run, out, "csv", |path, tables| {
        let mut writer = csv::Writer::from_path(path).into_diagnostic()?;
        for (i, rows) in tables.enumerate() {
            let rows = rows?;
            if i == 0 {
                writer.write_record(rows.iter().map(|(name, _)| name)).into_diagnostic()?;
            }
            for row in 0..length(&rows) {
                writer.write_record(rows.iter().map(|(_, column)| cell(column, row))).into_diagnostic()?;
            }
        }
        writer.flush().into_diagnostic()
    })
}

/// Writes rounds.parquet and devices.parquet.
pub(super) fn write_parquet(run: &Path, out: &Path) -> miette::Result<Vec<PathBuf>> {
    write(run, out, "parquet", |path, tables| {
        let properties = WriterProperties::builder().set_compression(Compression::SNAPPY).build();
        let mut writer = None;
        for rows in tables {
            let batch = record_batch(rows?)?;
            let writer = match &mut writer {
                Some(writer) => writer,
                None => {
                    let file = File::create(path).into_diagnostic()?;
                    let made = ArrowWriter::try_new(file, batch.schema(), Some(properties.clone()));
                    writer.insert(made.into_diagnostic()?)
                }
            };
            writer.write(&batch).into_diagnostic()?;
        }
        if let Some(writer) = writer {
            writer.close().into_diagnostic()?;
        }
        Ok(())
    })
}

/// Writes both tables; that of the devices comes evaluation by evaluation, because it may be large.
fn write(
    run: &Path,
    out: &Path,
    extension: &str,
    table: impl Fn(&Path, &mut dyn Iterator<Item = miette::Result<Rows>>) -> miette::Result<()>,
) -> miette::Result<Vec<PathBuf>> {
    let experiment = run_folder::read_experiment(run).into_diagnostic()?;
    let tracks = tracks(&experiment);
    let files = run_folder::evaluations(run).into_diagnostic()?;
    let lines = run_folder::read_rounds(run).into_diagnostic()?;
    let rounds = out.join(format!("rounds.{extension}"));
    let devices = out.join(format!("devices.{extension}"));
    let mut of_rounds = std::iter::once(Ok(round_rows(&lines, &tracks)));
    table(&rounds, &mut of_rounds).wrap_err_with(|| rounds.display().to_string())?;
    // A run that was not evaluated has a table all the same: its header.
    let none = files.is_empty().then(|| Ok(device_rows(&tracks, 0, 0, &[])));
    let read = |file: &EvaluationFile| {
        let splits = file.read().into_diagnostic()?;
        Ok(device_rows(&tracks, file.seed, file.round, &splits))
    };
    let mut of_devices = none.into_iter().chain(files.iter().map(read));
    table(&devices, &mut of_devices).wrap_err_with(|| devices.display().to_string())?;
    Ok(vec![rounds, devices])
}

fn round_rows(lines: &[RoundLine], tracks: &[TrackInfo]) -> Rows {
    let whole = |value: fn(&RoundLine) -> u64| Column::Whole(lines.iter().map(value).collect());
    let real = |value: fn(&RoundLine) -> Option<f64>| Column::Real(lines.iter().map(value).collect());
    let label = |line: &RoundLine| {
        tracks.get(line.record.track).map_or_else(String::new, |track| track.label.clone())
    };
    vec![
        ("seed", whole(|line| line.record.seed)),
        ("track", Column::Text(lines.iter().map(label).collect())),
        ("algorithm", Column::Text(lines.iter().map(|line| line.record.algorithm.clone()).collect())),
        ("theta", real(|line| Some(line.record.theta.get()))),
        ("round", whole(|line| line.record.round)),
        ("eta", real(|line| line.record.eta)),
        ("loss", real(|line| line.record.loss)),
        ("cohort", whole(|line| line.record.cohort)),
        ("dropped", whole(|line| line.record.dropped)),
        ("tail", whole(|line| line.record.tail)),
        ("weight", real(|line| Some(line.record.weight))),
        ("refused", whole(|line| line.record.refused)),
        ("secure_sums", whole(|line| line.record.sums)),
        ("messages", whole(|line| line.record.messages)),
        ("bytes_up", whole(|line| line.record.bytes_up)),
        ("bytes_down", whole(|line| line.record.bytes_down)),
        ("seconds", real(|line| Some(line.seconds))),
    ]
}

fn device_rows(tracks: &[TrackInfo], seed: u64, round: u64, splits: &[SplitEvaluation]) -> Rows {
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
    let mut columns: Rows = vec![
        ("seed", Column::Whole(vec![seed; count])),
        ("track", Column::Text(rows().map(|row| row.0.label.clone()).collect())),
        ("algorithm", Column::Text(rows().map(|row| row.0.algorithm.clone()).collect())),
        ("theta", Column::Real(rows().map(|row| Some(row.0.theta)).collect())),
        ("round", Column::Whole(vec![round; count])),
        ("split", Column::Text(rows().map(|row| row.1.name().to_owned()).collect())),
        ("device", Column::Text(rows().map(|row| row.2.id.clone()).collect())),
        ("examples", Column::Whole(rows().map(|row| row.2.examples).collect())),
        ("loss", Column::Real(rows().map(|row| Some(row.3.loss)).collect())),
    ];
    for (i, metric) in task.metrics().iter().enumerate() {
        columns.push((metric.name, Column::Real(rows().map(|row| Some(row.3.metrics[i])).collect())));
    }
    columns
}

fn length(rows: &Rows) -> usize {
    rows.first().map_or(0, |(_, column)| match column {
        Column::Text(values) => values.len(),
        Column::Whole(values) => values.len(),
        Column::Real(values) => values.len(),
    })
}

/// A cell of CSV; nothing is an empty one.
fn cell(column: &Column, row: usize) -> String {
    match column {
        Column::Text(values) => values[row].clone(),
        Column::Whole(values) => values[row].to_string(),
        Column::Real(values) => values[row].map_or_else(String::new, |value| value.to_string()),
    }
}

fn record_batch(rows: Rows) -> miette::Result<RecordBatch> {
    let array = |column: Column| -> ArrayRef {
        match column {
            Column::Text(values) => Arc::new(StringArray::from(values)),
            Column::Whole(values) => Arc::new(UInt64Array::from(values)),
            Column::Real(values) => Arc::new(Float64Array::from(values)),
        }
    };
    // The schema must not depend on whether some batch happens to hold no empty cell.
    let columns = rows.into_iter().map(|(name, column)| {
        let nullable = matches!(column, Column::Real(_));
        (name, array(column), nullable)
    });
    RecordBatch::try_from_iter_with_nullable(columns).into_diagnostic()
}
