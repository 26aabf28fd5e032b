//! The tables of a report: Markdown and LaTeX for people, CSV for programs.
//!
//! Mean ± standard deviation over seeds; the best of each column is bold. Runs on the same data with the same model
//! stand in one table, because only they can be compared.

use std::fmt::Write as _;

use deltafl::metrics::{FiguresOverSeeds, OverSeeds, PERCENTILES, SampleError};
use miette::IntoDiagnostic;

use super::results::{Measure, RunResults};

/// The columns of every table.
const COLUMNS: [&str; PERCENTILES.len() + 1] = ["Mean", "20th", "Median", "60th", "80th", "90th", "95th"];

/// A table: a measure, a row per track.
pub(super) struct Table {
    pub(super) caption: String,
    pub(super) measure: Measure,
    pub(super) columns: Vec<&'static str>,
    pub(super) rows: Vec<Row>,
}

/// A row of a table.
pub(super) struct Row {
    pub(super) label: String,
    pub(super) seeds: usize,
    /// A cell per column.
    pub(super) cells: Vec<OverSeeds>,
}

impl Table {
    /// Whether the row is the best of the column. The objectives of two levels are not compared: each is of its own θ.
    pub(super) fn is_best(&self, row: usize, column: usize) -> bool {
        let value = |row: &Row| row.cells[column].mean;
        let comparable = self.rows.len() > 1 && column < COLUMNS.len();
        comparable && self.rows.iter().all(|other| value(other) >= value(&self.rows[row]))
    }

    /// Mean, and deviation where there are seeds enough for one.
    pub(super) fn cell(&self, row: usize, column: usize) -> (String, Option<String>) {
        let row = &self.rows[row];
        let shown = |x: f64| format!("{:.*}", self.measure.decimals(), x * self.measure.shown());
        let OverSeeds { mean, std } = row.cells[column];
        (shown(mean), (row.seeds > 1).then(|| shown(std)))
    }
}

/// The tables of some runs.
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
    let measures = [Measure::TestError, Measure::TrainLoss];
    groups.iter().flat_map(|group| measures.map(|measure| table(group, measure))).flatten().collect()
}

fn table(group: &[&RunResults], measure: Measure) -> Option<Table> {
    let mut rows = Vec::new();
    let mut objectives = Vec::new();
    let mut errors = Vec::new();
    for run in group {
        let Some(split) = run.splits.iter().find(|split| split.measure == measure) else { continue };
        for (t, track) in run.tracks.iter().enumerate() {
            let label =
                if group.len() > 1 { format!("{}: {}", run.name, track.label) } else { track.label.clone() };
            let distribution = split.last(t);
            errors.extend(split.sample_error(t));
            objectives.push(distribution.objective());
            rows.push(Row {
                label,
                seeds: distribution.figures.len(),
                cells: cells(&distribution.over_seeds()).to_vec(),
            });
        }
    }
    let mut columns = COLUMNS.to_vec();
    if let Some(objectives) = objectives.into_iter().collect::<Option<Vec<OverSeeds>>>() {
        columns.push("F_θ");
        rows.iter_mut().zip(objectives).for_each(|(row, objective)| row.cells.push(objective));
    }
    let (what, over) = match measure {
        Measure::TestError => ("Misclassification error in %", "test devices, every device alike"),
        Measure::TrainLoss => ("Loss", "train devices, weighted by their points"),
    };
    let objective =
        if columns.len() > COLUMNS.len() { ", and the objective F_θ at each track’s own θ" } else { "" };
    let (dataset, model) = (&group[0].dataset, &group[0].model);
    let caption = format!(
        "{what} over the {over} ({dataset}, {model}): mean and percentiles{objective}{}",
        sampled(&errors, measure)
    );
    (!rows.is_empty()).then_some(Table { caption, measure, columns, rows })
}

/// Says so when the devices are a sample, with the largest standard errors over the rows.
fn sampled(errors: &[SampleError], measure: Measure) -> String {
    let Some(SampleError { devices, of, .. }) = errors.first().filter(|error| error.devices < error.of)
    else {
        return String::new();
    };
    let largest = |error: fn(&SampleError) -> f64| {
        let largest = errors.iter().map(error).fold(0.0, f64::max);
        format!("{:.*}", measure.decimals(), largest * measure.shown())
    };
    format!(
        "; a sample of {devices} of {of} devices, standard error of the mean up to {}, of the 90th percentile up to {}",
        largest(|error| error.mean),
        largest(|error| error.p90)
    )
}

fn cells(figures: &FiguresOverSeeds) -> [OverSeeds; COLUMNS.len()] {
    [figures.mean, figures.p20, figures.p50, figures.p60, figures.p80, figures.p90, figures.p95]
}

/// The tables as Markdown.
pub(super) fn markdown(tables: &[Table]) -> String {
    let mut text = String::new();
    for table in tables {
        let _ = writeln!(text, "**{}**\n", markdown_escaped(&table.caption));
        let columns: Vec<String> = table.columns.iter().map(|column| markdown_escaped(column)).collect();
        let _ = writeln!(text, "| | {} |", columns.join(" | "));
        let _ = writeln!(text, "|---|{}", "---:|".repeat(table.columns.len()));
        for (r, row) in table.rows.iter().enumerate() {
            let _ = write!(text, "| {} |", markdown_escaped(&row.label));
            for c in 0..table.columns.len() {
                let cell = match table.cell(r, c) {
                    (mean, Some(std)) => format!("{mean} ± {std}"),
                    (mean, None) => mean,
                };
                let bold = if table.is_best(r, c) { "**" } else { "" };
                let _ = write!(text, " {bold}{cell}{bold} |");
            }
            text.push('\n');
        }
        text.push('\n');
    }
    text
}

/// The tables as LaTeX, for `booktabs`.
pub(super) fn latex(tables: &[Table]) -> String {
    let mut text = String::from("% Needs \\usepackage{booktabs}.\n");
    for table in tables {
        let _ = writeln!(
            text,
            "\\begin{{table}}\n  \\centering\n  \\caption{{{}.}}",
            latex_escaped(&table.caption)
        );
        let _ = writeln!(text, "  \\begin{{tabular}}{{l{}}}\n    \\toprule", "r".repeat(table.columns.len()));
        let columns: Vec<String> = table.columns.iter().map(|column| latex_escaped(column)).collect();
        let _ = writeln!(text, "    & {} \\\\\n    \\midrule", columns.join(" & "));
        for (r, row) in table.rows.iter().enumerate() {
            let _ = write!(text, "    {}", latex_escaped(&row.label));
            for c in 0..table.columns.len() {
                let (mean, std) = table.cell(r, c);
                let mean = if table.is_best(r, c) { format!("\\textbf{{{mean}}}") } else { mean };
                let std = std.map_or_else(String::new, |std| format!(" $\\pm$ {std}"));
                let _ = write!(text, " & {mean}{std}");
            }
            text.push_str(" \\\\\n");
        }
        text.push_str("    \\bottomrule\n  \\end{tabular}\n\\end{table}\n");
    }
    text
}

/// Every figure of every track as a row of CSV, in full precision; errors are fractions.
pub(super) fn csv(runs: &[RunResults]) -> miette::Result<String> {
    let mut writer = csv::Writer::from_writer(Vec::new());
    let header = [
        "run",
        "dataset",
        "model",
        "algorithm",
        "theta",
        "eta_every",
        "track",
        "measure",
        "statistic",
        "mean",
        "std",
        "seeds",
        "rounds",
    ];
    writer.write_record(header).into_diagnostic()?;
    let statistics: Vec<String> =
        std::iter::once("mean".to_owned()).chain(PERCENTILES.iter().map(|tau| format!("p{tau}"))).collect();
    for run in runs {
        for split in &run.splits {
            for (t, track) in run.tracks.iter().enumerate() {
                let distribution = split.last(t);
                let figures = statistics.iter().cloned().zip(cells(&distribution.over_seeds()));
                let objective = distribution.objective().map(|over| ("objective".to_owned(), over));
                for (statistic, OverSeeds { mean, std }) in figures.chain(objective) {
                    writer
                        .write_record([
                            &run.name,
                            &run.dataset,
                            &run.model,
                            &track.algorithm,
                            &track.theta.to_string(),
                            &track.eta_every.to_string(),
                            &track.label,
                            split.measure.key(),
                            &statistic,
                            &mean.to_string(),
                            &std.to_string(),
                            &distribution.figures.len().to_string(),
                            &run.rounds_done().to_string(),
                        ])
                        .into_diagnostic()?;
                }
            }
        }
    }
    let bytes = writer.into_inner().into_diagnostic()?;
    String::from_utf8(bytes).into_diagnostic()
}

fn markdown_escaped(text: &str) -> String {
    text.replace('|', "\\|").replace('_', "\\_").replace('*', "\\*")
}

fn latex_escaped(text: &str) -> String {
    let mut escaped = String::new();
    for c in text.chars() {
        match c {
            '\\' => escaped.push_str("\\textbackslash{}"),
            '&' | '%' | '$' | '#' | '_' | '{' | '}' => {
                escaped.push('\\');
                escaped.push(c);
            }
            '~' => escaped.push_str("\\textasciitilde{}"),
            '^' => escaped.push_str("\\textasciicircum{}"),
            'Δ' => escaped.push_str("$\\Delta$"),
            'θ' => escaped.push_str("$\\theta$"),
            'η' => escaped.push_str("$\\eta$"),
            'ν' => escaped.push_str("$\\nu$"),
            'λ' => escaped.push_str("$\\lambda$"),
            _ => escaped.push(c),
        }
    }
    escaped.replace("F\\_$\\theta$", "$F_\\theta$")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Table {
        let row = |label: &str, mean: f64| Row {
            label: label.to_owned(),
            seeds: 2,
            cells: vec![OverSeeds { mean, std: 0.0125 }; COLUMNS.len() + 1],
        };
        let rows = vec![row("FedAvg", 0.5), row("Δ-FL θ=0.5", 0.25)];
        let columns = [COLUMNS.as_slice(), &["F_θ"]].concat();
        Table { caption: "Error_% (x)".to_owned(), measure: Measure::TestError, columns, rows }
    }

    #[test]
    fn the_best_is_bold_in_markdown() {
        let text = markdown(&[table()]);
        assert!(text.contains("| FedAvg | 50.00 ± 1.25 |"), "{text}");
        assert!(text.contains("| Δ-FL θ=0.5 | **25.00 ± 1.25** |"), "{text}");
    }

    #[test]
    fn the_objective_of_one_level_is_not_held_against_that_of_another() {
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
