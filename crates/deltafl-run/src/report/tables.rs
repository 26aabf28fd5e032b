//! The tables of a report: Markdown and LaTeX for people, CSV for programs.
//!
//! Cells show mean ± standard deviation over seeds. The best cell of each column is bold. Runs with
//! the same data and model share a table, because only they are comparable.

use deltafl::metrics::{FiguresOverSeeds, OverSeeds, PERCENTILES, SampleError};
use deltafl_data::run_folder::{ClassFigures, GroupFigures};

use super::measure::{ReportMeasure, TAIL};
use super::results::RunResults;
use crate::text_table::number;

mod csv_file;
mod dispersion;
mod text;

pub(super) use csv_file::csv;
pub(super) use dispersion::is_gini;
pub(super) use text::{idle_rounds, latex, markdown};

/// Mean and percentiles: the columns in which tracks are compared.
const COMPARED: usize = PERCENTILES.len() + 1;

/// A table: a measure, a row per track.
pub(super) struct Table {
    pub(super) caption: String,
    pub(super) measure: ReportMeasure,
    pub(super) columns: Vec<String>,
    pub(super) rows: Vec<Row>,
    /// The number of decimals of each column.
    pub(super) decimals: Vec<usize>,
    /// The cells that are compared with each other.
    pub(super) compared: Compared,
}

/// The cells among which the best one is chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Compared {
    /// The first columns, whose rows are tracks. The objectives in the remaining columns are not
    /// compared, because each refers to another θ.
    Columns(usize),
    /// The cells of each row, whose columns are tracks.
    Rows,
}

/// A row of a table.
pub(super) struct Row {
    pub(super) label: String,
    /// A cell per column.
    pub(super) cells: Vec<OverSeeds>,
    /// The bounds of each cell. Empty if the cells are exact.
    pub(super) between: Vec<(f64, f64)>,
}

impl Row {
    /// Returns the minimum and maximum of a cell.
    fn ends(&self, column: usize) -> (f64, f64) {
        let exact = self.cells[column].mean;
        self.between.get(column).copied().unwrap_or((exact, exact))
    }
}

impl Table {
    /// Returns whether the cell is the best of those with which it is compared.
    pub(super) fn is_best(&self, row: usize, column: usize) -> bool {
        // The minimum and maximum cost. With bounds, the best cell must be better in any case.
        let costs = |row: &Row, column: usize| {
            let (lower, upper) = row.ends(column);
            let (a, b) = (self.measure.cost(lower), self.measure.cost(upper));
            (a.min(b), a.max(b))
        };
        let (_, own) = costs(&self.rows[row], column);
        match self.compared {
            Compared::Columns(columns) => {
                let mut others = self.rows.iter().enumerate().filter(|(other, _)| *other != row);
                column < columns
                    && self.rows.len() > 1
                    && others.all(|(_, other)| costs(other, column).0 >= own)
            }
            Compared::Rows => {
                let (row, columns) = (&self.rows[row], self.rows[row].cells.len());
                columns > 1 && (0..columns).all(|other| other == column || costs(row, other).0 >= own)
            }
        }
    }

    /// Formats the mean, and the deviation if there are several seeds.
    pub(super) fn cell(&self, row: usize, column: usize) -> (String, Option<String>) {
        let shown = |x: f64| number(x * self.measure.display_scale(), self.decimals[column]);
        let OverSeeds { mean, std } = self.rows[row].cells[column];
        match self.rows[row].between.get(column) {
            None => (shown(mean), std.map(shown)),
            Some(&(lower, upper)) => {
                let text = match (lower.is_finite(), upper.is_finite()) {
                    (true, true) if shown(lower) == shown(upper) => shown(lower),
                    (true, true) => format!("{}–{}", shown(lower), shown(upper)),
                    (true, false) => format!("≥ {}", shown(lower)),
                    (false, true) => format!("≤ {}", shown(upper)),
                    (false, false) => "?".to_owned(),
                };
                (text, None)
            }
        }
    }
}

/// Returns the tables of some runs.
pub(super) fn tables(runs: &[RunResults]) -> Vec<Table> {
    let mut groups: Vec<Vec<&RunResults>> = Vec::new();
    for run in runs {
        let same = |group: &&mut Vec<&RunResults>| {
            (&group[0].dataset, &group[0].model) == (&run.dataset, &run.model)
        };
        match groups.iter_mut().find(same) {
            Some(group) => group.push(run),
            None => groups.push(vec![run]),
        }
    }
    let of_group = |group: &Vec<&RunResults>| {
        let measures = measures(group.iter().copied());
        let of_measure = |measure| [table(group, measure), dispersion::table(group, measure)];
        let tables = measures.into_iter().flat_map(of_measure).flatten();
        let by_name = |run: &&RunResults| {
            let several = group.len() > 1;
            [by_class(run, several), by_group(run, several)].into_iter().flatten().collect::<Vec<_>>()
        };
        tables.chain(group.iter().flat_map(by_name)).collect::<Vec<_>>()
    };
    groups.iter().flat_map(of_group).collect()
}

/// Returns the measures of some runs in order of first occurrence, with losses last.
pub(super) fn measures<'a>(runs: impl Iterator<Item = &'a RunResults>) -> Vec<ReportMeasure> {
    let mut measures: Vec<ReportMeasure> = Vec::new();
    for measured in runs.flat_map(|run| &run.measured) {
        if !measures.contains(&measured.measure) {
            measures.push(measured.measure);
        }
    }
    measures.sort_by_key(|measure| measure.is_loss());
    measures
}

fn table(group: &[&RunResults], measure: ReportMeasure) -> Option<Table> {
    let mut rows = Vec::new();
    let mut objectives = Vec::new();
    let mut errors = Vec::new();
    for run in group {
        let Some(measured) = run.of_measure(measure) else { continue };
        for (t, track) in run.tracks.iter().enumerate() {
            let label =
                if group.len() > 1 { format!("{}: {}", run.name, track.label) } else { track.label.clone() };
            let distribution = measured.last(t);
            errors.extend(measured.sample_error(t));
            objectives.push(distribution.objective());
            let between = (0..COMPARED).filter_map(|column| distribution.between(column)).collect();
            rows.push(Row { label, cells: cells(&distribution.over_seeds()).to_vec(), between });
        }
    }
    let mut columns = measure.columns();
    if let Some(objectives) = objectives.into_iter().collect::<Option<Vec<OverSeeds>>>() {
        columns.push("F_θ".to_owned());
        rows.iter_mut().zip(objectives).for_each(|(row, objective)| row.cells.push(objective));
    }
    let objective =
        if columns.len() > COMPARED { ", and the objective F_θ at each track’s own θ" } else { "" };
    let (dataset, model) = (&group[0].dataset, &group[0].model);
    let decimals =
        measure.decimals(rows.iter().flat_map(|row| [row.cells[0].mean, row.cells[1 + TAIL].mean]));
    let bounded = rows.iter().any(|row| !row.between.is_empty());
    // The bins of a share are one percentage point wide, so more decimals are not justified.
    let decimals = if bounded && measure.percent() { 1 } else { decimals };
    let known = if bounded { "; from secure sums over cohorts: the known bounds" } else { "" };
    let caption = format!(
        "{} ({dataset}, {model}): mean and percentiles{objective}{}{known}",
        measure.caption(),
        sampled(&errors, measure, decimals)
    );
    (!rows.is_empty()).then_some(Table {
        caption,
        measure,
        decimals: vec![decimals; columns.len()],
        columns,
        rows,
        compared: Compared::Columns(COMPARED),
    })
}

/// Returns a table with a row per class, if classes have names.
fn by_class(run: &RunResults, several: bool) -> Option<Table> {
    let classes = run.classes.as_ref()?;
    let row = |class: &ClassFigures| Row {
        label: format!("{} ({})", class.name, class.examples),
        cells: class.errors.clone(),
        between: Vec::new(),
    };
    let name = if several { format!("{}, ", run.name) } else { String::new() };
    Some(Table {
        caption: format!(
            "Share of the {} examples of each class taken for another, in % ({name}{}, {}); how many there are in brackets",
            classes.split.name(),
            run.dataset,
            run.model
        ),
        measure: run.primary().measure,
        columns: run.tracks.iter().map(|track| track.label.clone()).collect(),
        rows: classes.classes.iter().map(row).collect(),
        decimals: vec![2; run.tracks.len()],
        compared: Compared::Rows,
    })
}

/// Returns a table with a row per group of devices, if devices declare groups.
fn by_group(run: &RunResults, several: bool) -> Option<Table> {
    let groups = run.groups.as_ref()?;
    let row = |group: &GroupFigures| Row {
        label: format!("{} ({})", group.name, group.devices),
        cells: group.values.clone(),
        between: Vec::new(),
    };
    let name = if several { format!("{}, ", run.name) } else { String::new() };
    let primary = run.primary();
    Some(Table {
        caption: format!(
            "Mean {} of the devices of each group ({name}{}, {}); the number of devices in brackets",
            primary.measure.name(),
            run.dataset,
            run.model
        ),
        measure: primary.measure,
        columns: run.tracks.iter().map(|track| track.label.clone()).collect(),
        rows: groups.groups.iter().map(row).collect(),
        decimals: vec![primary.decimals(); run.tracks.len()],
        compared: Compared::Rows,
    })
}

/// Returns a note if the devices are a sample, with the largest standard errors over the rows.
fn sampled(errors: &[SampleError], measure: ReportMeasure, decimals: usize) -> String {
    let Some(SampleError { devices, of, .. }) = errors.first().filter(|error| error.devices < error.of)
    else {
        return String::new();
    };
    let largest = |error: fn(&SampleError) -> f64| {
        let largest = errors.iter().map(error).fold(0.0, f64::max);
        number(largest * measure.display_scale(), decimals)
    };
    format!(
        "; a sample of {devices} of {of} devices, standard error of the mean up to {}, of the {} up to {}",
        largest(|error| error.mean),
        measure.tail(),
        largest(|error| error.p90)
    )
}

fn cells(figures: &FiguresOverSeeds) -> [OverSeeds; COMPARED] {
    [figures.mean, figures.p20, figures.p50, figures.p60, figures.p80, figures.p90, figures.p95]
}

#[cfg(test)]
mod tests {
    use super::*;
    use deltafl::data::Split;
    use deltafl::task::{RegressionLoss, Task};

    fn table() -> Table {
        let measure = ReportMeasure::metrics(Split::Test, Task::Classes).next().unwrap();
        let row = |label: &str, mean: f64| Row {
            label: label.to_owned(),
            cells: vec![OverSeeds { mean, std: Some(0.0125) }; COMPARED + 1],
            between: Vec::new(),
        };
        let rows = vec![row("FedAvg", 0.5), row("Δ-FL θ=0.5", 0.25)];
        let columns = [measure.columns(), vec!["F_θ".to_owned()]].concat();
        Table {
            caption: "Error_% (x)".to_owned(),
            measure,
            columns,
            rows,
            decimals: vec![2; COMPARED + 1],
            compared: Compared::Columns(COMPARED),
        }
    }

    #[test]
    fn the_best_is_bold_in_markdown() {
        let text = markdown(&[table()]);
        assert!(text.contains("| FedAvg | 50.00 ± 1.25 |"), "{text}");
        assert!(text.contains("| Δ-FL θ=0.5 | **25.00 ± 1.25** |"), "{text}");
    }

    #[test]
    fn bounds_are_shown_and_the_best_is_bold_only_if_its_bounds_do_not_overlap() {
        let mut bounded = table();
        bounded.columns.truncate(2);
        bounded.rows[0].between = vec![(0.4, 0.5), (0.3, 0.35)];
        bounded.rows[1].between = vec![(0.2, 0.4), (0.25, f64::INFINITY)];
        let text = markdown(&[bounded]);
        assert!(text.contains("| FedAvg | 40.00–50.00 | 30.00–35.00 |"), "{text}");
        assert!(text.contains("| Δ-FL θ=0.5 | **20.00–40.00** | ≥ 25.00 |"), "{text}");
    }

    #[test]
    fn the_best_of_a_metric_that_is_better_high_is_the_highest() {
        let task = Task::Regression(RegressionLoss::Squared);
        let r_squared = ReportMeasure::metrics(Split::Test, task).nth(2).unwrap();
        let text = markdown(&[Table { measure: r_squared, ..table() }]);
        assert!(text.contains("| FedAvg | **0.50 ± 0.01** |"), "{text}");
    }

    #[test]
    fn the_objectives_of_different_levels_are_not_compared() {
        let text = markdown(&[table()]);
        assert!(text.contains("| 95th | F\\_θ |"), "{text}");
        assert!(text.contains("**25.00 ± 1.25** | 25.00 ± 1.25 |\n"), "{text}");
    }

    #[test]
    fn latex_is_escaped() {
        let text = latex(&[table()]);
        assert!(text.contains("\\caption{Error\\_\\% (x).}"), "{text}");
        assert!(text.contains("& 95th & $F_\\theta$ \\\\"), "{text}");
        assert!(text.contains("$\\Delta$-FL $\\theta$=0.5 & \\textbf{25.00} $\\pm$ 1.25"), "{text}");
    }
}
