//! The results of a run.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow_array::{ArrayRef, Float64Array, RecordBatch, StringArray, UInt32Array, UInt64Array};
use arrow_schema::{Field, Schema};
use deltafl::terms::TrackSchedule;
use deltafl::training::RoundRecord;
use deltafl_data::experiment::Experiment;
use deltafl_data::parquet_table::{self, TableColumn};
use deltafl_data::run_folder::{self, RoundLine, Summary};
use deltafl_run::report::{ReportFigures, write_report};
use deltafl_run::text_table;
use pyo3::prelude::*;

use crate::failure::{chain, exception, folder_exception, raised};
use crate::table::Table;

/// Returns loss and metrics of every device at every evaluation.
#[pyfunction]
pub(crate) fn devices(py: Python<'_>, folder: PathBuf) -> PyResult<Table> {
    let files = run_folder::evaluations(&folder).map_err(|e| folder_exception(py, e))?;
    let mut batches = Vec::new();
    let mut schema = None;
    for file in files {
        let read = py.detach(|| read_parquet(&file.path));
        let read =
            read.map_err(|e| raised(py, "Error", &format!("{}: {}", file.path.display(), chain(&*e))))?;
        schema = Some(read.schema());
        batches.push(read);
    }
    match schema {
        Some(schema) => Ok(Table::new(schema, batches)),
        None => Err(folder_exception(py, run_folder::RunFolderError::NotEvaluated { path: folder })),
    }
}

fn read_parquet(path: &Path) -> Result<RecordBatch, Box<dyn std::error::Error + Send + Sync>> {
    let table = parquet_table::ParquetTable::read(path)?;
    let columns = table.columns.into_iter().map(|(name, column)| {
        let nullable = matches!(column, TableColumn::OptionalF64(_));
        array(column).map(|array| (name, array, nullable))
    });
    Ok(RecordBatch::try_from_iter_with_nullable(columns.collect::<Result<Vec<_>, _>>()?)?)
}

fn array(column: TableColumn) -> Result<ArrayRef, String> {
    Ok(match column {
        TableColumn::Text(values) => Arc::new(StringArray::from(values)),
        TableColumn::U32(values) => Arc::new(UInt32Array::from(values)),
        TableColumn::U64(values) => Arc::new(UInt64Array::from(values)),
        TableColumn::F64(values) => Arc::new(Float64Array::from(values)),
        TableColumn::OptionalF64(values) => Arc::new(Float64Array::from(values)),
        other => return Err(format!("a column of an unknown type: {other:?}")),
    })
}

/// Returns a table with a row per seed, track and round.
#[pyfunction]
pub(crate) fn rounds(py: Python<'_>, folder: PathBuf) -> PyResult<Table> {
    let lines = run_folder::read_rounds(&folder).map_err(|e| folder_exception(py, e))?;
    let whole = |of: fn(&RoundLine) -> u64| -> ArrayRef {
        Arc::new(UInt64Array::from_iter_values(lines.iter().map(of)))
    };
    let real = |of: fn(&RoundLine) -> Option<f64>| -> ArrayRef {
        Arc::new(lines.iter().map(of).collect::<Float64Array>())
    };
    let names = StringArray::from_iter_values(lines.iter().map(|line| &line.record.name));
    let experiment = run_folder::read_experiment(&folder).map_err(|e| folder_exception(py, e))?;
    let reasons = StringArray::from_iter(lines.iter().map(|line| not_counted(&experiment, &line.record)));
    let columns: Vec<(&str, ArrayRef)> = vec![
        ("seed", whole(|line| line.record.seed)),
        ("track", whole(|line| line.record.track as u64)),
        ("name", Arc::new(names)),
        ("round", whole(|line| line.record.round)),
        ("eta", real(|line| line.record.eta)),
        ("loss", real(|line| line.record.loss)),
        ("cohort", whole(|line| line.record.cohort)),
        ("dropped", whole(|line| line.record.dropped)),
        ("tail", whole(|line| line.record.tail)),
        ("tail_weight", real(|line| Some(line.record.tail_weight))),
        ("refused", whole(|line| line.record.refused)),
        ("uncounted", whole(|line| uncounted(&line.record))),
        ("uncounted_reason", Arc::new(reasons)),
        ("bytes_up", whole(|line| line.record.bytes_up)),
        ("bytes_down", whole(|line| line.record.bytes_down)),
        ("seconds", real(|line| Some(line.seconds))),
        ("epsilon_server", real(|line| line.record.privacy.and_then(|spent| spent.epsilon_server))),
        ("epsilon_readers", real(|line| line.record.privacy.map(|spent| spent.epsilon_readers))),
    ];
    let field = |(name, column): &(&str, ArrayRef)| Field::new(*name, column.data_type().clone(), true);
    let schema = Arc::new(Schema::new(columns.iter().map(field).collect::<Vec<_>>()));
    let batch = RecordBatch::try_new(schema.clone(), columns.into_iter().map(|(_, column)| column).collect());
    Ok(Table::new(schema, vec![batch.map_err(|e| raised(py, "Error", &e.to_string()))?]))
}

/// Returns the number of devices that answered without an update in the sum.
fn uncounted(record: &RoundRecord) -> u64 {
    record.cohort.saturating_sub(record.dropped + record.tail + record.refused)
}

/// Returns why devices of a round answered without an update in the sum. Returns `None` if all
/// updates are in the sum.
fn not_counted(experiment: &Experiment, record: &RoundRecord) -> Option<&'static str> {
    if uncounted(record) == 0 {
        return None;
    }
    let is_divided = experiment.schedule() == Some(TrackSchedule::Apart) && experiment.labels().len() > 1;
    Some(match (is_divided, record.eta.is_some()) {
        (true, true) => "the device serves another model in this round, or its loss is below eta",
        (true, false) => "the device serves another model in this round",
        (false, true) => "the loss of the device is below eta",
        (false, false) => "the algorithm gives the device no weight",
    })
}

/// Returns the results of the last evaluation of each seed, as JSON and as a table.
#[pyfunction]
pub(crate) fn summary(py: Python<'_>, folder: PathBuf) -> PyResult<(String, Table)> {
    let summary = py.detach(|| Summary::read(&folder)).map_err(|e| folder_exception(py, e))?;
    let json = serde_json::to_string(&summary).map_err(|e| raised(py, "Error", &e.to_string()))?;
    let tracks = &summary.tracks;
    let text = |of: fn(&run_folder::TrackSummary) -> &str| -> ArrayRef {
        Arc::new(StringArray::from_iter_values(tracks.iter().map(of)))
    };
    let whole = |of: fn(&run_folder::TrackSummary) -> u64| -> ArrayRef {
        Arc::new(UInt64Array::from_iter_values(tracks.iter().map(of)))
    };
    type Pick = fn(&deltafl::metrics::FiguresOverSeeds) -> deltafl::metrics::OverSeeds;
    let figures: [(&str, Pick); 7] = [
        ("mean", |f| f.mean),
        ("p20", |f| f.p20),
        ("p50", |f| f.p50),
        ("p60", |f| f.p60),
        ("p80", |f| f.p80),
        ("p90", |f| f.p90),
        ("p95", |f| f.p95),
    ];
    let metric = summary.task.primary().name;
    let mut columns: Vec<(String, ArrayRef)> = vec![
        ("name".to_owned(), text(|track| &track.name)),
        ("algorithm".to_owned(), text(|track| &track.algorithm)),
        (
            "theta".to_owned(),
            Arc::new(Float64Array::from_iter_values(tracks.iter().map(|track| track.theta.get()))),
        ),
        ("seeds".to_owned(), whole(|track| track.seeds as u64)),
        ("rounds".to_owned(), whole(|track| track.rounds)),
        ("metric".to_owned(), Arc::new(StringArray::from_iter_values(tracks.iter().map(|_| metric)))),
    ];
    for (name, pick) in figures {
        let mean = tracks.iter().map(|track| track.test.as_ref().map(|test| pick(test).mean));
        columns.push((name.to_owned(), Arc::new(mean.collect::<Float64Array>())));
        // A single seed has no deviation.
        let std = tracks.iter().map(|track| track.test.as_ref().and_then(|test| pick(test).std));
        columns.push((format!("{name}_std"), Arc::new(std.collect::<Float64Array>())));
    }
    let loss = tracks.iter().map(|track| track.train_loss.as_ref().map(|loss| loss.mean.mean));
    columns.push(("train_loss".to_owned(), Arc::new(loss.collect::<Float64Array>())));
    let field = |(name, column): &(String, ArrayRef)| Field::new(name, column.data_type().clone(), true);
    let schema = Arc::new(Schema::new(columns.iter().map(field).collect::<Vec<_>>()));
    let batch = RecordBatch::try_new(schema.clone(), columns.into_iter().map(|(_, column)| column).collect());
    let batch = batch.map_err(|e| raised(py, "Error", &e.to_string()))?;
    Ok((json, Table::new(schema, vec![batch])))
}

/// Returns the table printed by the command.
#[pyfunction]
pub(crate) fn text(py: Python<'_>, folder: PathBuf) -> PyResult<String> {
    let summary = py.detach(|| Summary::read(&folder)).map_err(|e| folder_exception(py, e))?;
    Ok(text_table::render(&summary))
}

/// Writes the report of runs into a folder. Returns the path of the page.
#[pyfunction]
pub(crate) fn report(py: Python<'_>, runs: Vec<PathBuf>, out: PathBuf, figures: bool) -> PyResult<PathBuf> {
    let runs: Vec<&Path> = runs.iter().map(PathBuf::as_path).collect();
    let figures = if figures { ReportFigures::Drawn } else { ReportFigures::Omitted };
    let paths = py.detach(|| write_report(&runs, &out, figures)).map_err(|e| exception(py, &e))?;
    Ok(paths.page)
}
