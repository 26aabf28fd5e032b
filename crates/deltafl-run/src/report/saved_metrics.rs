//! Metrics that a program computed from the predictions of the models and stored in the run folder.
//!
//! The Python package writes them (`Run.evaluate(…, save=True)`). The metrics may be functions of
//! the user. Their unit and direction are therefore unknown, and no cell is the best one.

use std::path::Path;

use deltafl::data::Split;
use deltafl::metrics::OverSeeds;
use deltafl::task::Task;
use serde::Deserialize;

use super::measure::ReportMeasure;
use super::results::{ResultsError, RunResults};
use super::tables::{Compared, Row, Table, is_gini};
use crate::text_table::places;

/// The file in the run folder.
const FILE: &str = "metrics.json";

/// The metrics of the models of a run.
#[derive(Debug, Deserialize)]
pub(super) struct SavedMetrics {
    /// The seed of the models.
    seed: u64,
    /// The rounds after which the models were evaluated.
    rounds: u64,
    /// The names of the statistics over devices, for programs.
    statistics: Vec<String>,
    metrics: Vec<SavedMetric>,
}

#[derive(Debug, Deserialize)]
struct SavedMetric {
    name: String,
    models: Vec<SavedModel>,
}

#[derive(Debug, Deserialize)]
struct SavedModel {
    name: String,
    /// The number of devices for which the metric is defined.
    devices: u64,
    /// The statistics. `None` if the metric is not defined for any device.
    values: Vec<Option<f64>>,
}

impl SavedMetrics {
    /// Reads the metrics of a run. Returns `None` if there are none.
    pub(super) fn read(folder: &Path) -> Result<Option<Self>, ResultsError> {
        let path = folder.join(FILE);
        let failed = |problem: String| ResultsError::Evaluation { path: path.clone(), problem };
        let text = match std::fs::read(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(failed(error.to_string())),
        };
        let saved: Self = serde_json::from_slice(&text).map_err(|error| failed(error.to_string()))?;
        let count = saved.statistics.len();
        let mut models = saved.metrics.iter().flat_map(|metric| &metric.models);
        match models.find(|model| model.values.len() != count) {
            Some(model) => {
                Err(failed(format!("{} of {count} statistics of {}", model.values.len(), model.name)))
            }
            None => Ok(Some(saved)),
        }
    }

    /// Returns a table per metric, with a row per model.
    fn tables<'a>(&'a self, run: &'a RunResults, several: bool) -> impl Iterator<Item = Table> + 'a {
        // Only its scale is used: values are printed without a change.
        let measure = ReportMeasure::loss(Split::Test, Task::Classes);
        self.metrics.iter().map(move |metric| {
            let name = if several { format!("{}, ", run.name) } else { String::new() };
            let devices = metric.models.iter().map(|model| model.devices).max().unwrap_or(0);
            let row = |model: &SavedModel| {
                let cell = |value: &Option<f64>| OverSeeds { mean: value.unwrap_or(f64::NAN), std: None };
                let cells = model.values.iter().map(cell).collect();
                Row { label: model.name.clone(), cells, between: Vec::new() }
            };
            let decimals = places(metric.models.iter().filter_map(|model| *model.values.first()?));
            Table {
                caption: format!(
                    "{} ({name}{}, {}): mean, percentiles and dispersion over {devices} devices, seed {}, \
                     after {} rounds",
                    metric.name, run.dataset, run.model, self.seed, self.rounds
                ),
                measure,
                columns: self.statistics.iter().map(|statistic| heading(statistic)).collect(),
                rows: metric.models.iter().map(row).collect(),
                decimals: self
                    .statistics
                    .iter()
                    .map(|name| if is_gini(name) { 3 } else { decimals })
                    .collect(),
                compared: Compared::Columns(0),
            }
        })
    }

    /// Returns each value: the metric, the model, the statistic and the value.
    pub(super) fn values(&self) -> impl Iterator<Item = (&str, &str, &str, f64)> {
        self.metrics.iter().flat_map(move |metric| {
            metric.models.iter().flat_map(move |model| {
                let known = self.statistics.iter().zip(&model.values);
                known.filter_map(|(statistic, value)| {
                    Some((metric.name.as_str(), model.name.as_str(), statistic.as_str(), (*value)?))
                })
            })
        })
    }
}

/// Returns the tables of all runs with saved metrics.
pub(super) fn tables(runs: &[RunResults]) -> Vec<Table> {
    let saved = runs.iter().filter_map(|run| Some((run, run.saved.as_ref()?)));
    saved.flat_map(|(run, saved)| saved.tables(run, runs.len() > 1)).collect()
}

/// Returns the heading of a column: `p90` is the 90th percentile.
fn heading(statistic: &str) -> String {
    match statistic.strip_prefix('p').and_then(|number| number.parse::<u32>().ok()) {
        Some(percentile) => format!("{percentile}th"),
        None => match statistic {
            "mean" => "Mean".to_owned(),
            "std" => "Deviation".to_owned(),
            "spread" => "90th − 10th".to_owned(),
            other => other.to_owned(),
        },
    }
}
