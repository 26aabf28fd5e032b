//! Figures of several dataset–model pairs on one page as in the paper, with a row per pair.

use super::super::distribution::Measured;
use super::super::headline::best_level;
use super::super::results::RunResults;
use super::chart::Chart;
use super::kinds::{MEAN, TAIL, against_examples_of, curve_over_calls, histograms, tail_sizes};
use super::{FigureLayout, FigurePlan};

/// A pair and its charts.
pub(super) struct FigureRow {
    pub(super) title: String,
    pub(super) charts: Vec<Chart>,
}

/// The charts of a pair in one figure.
type Charts = fn(&RunResults) -> Vec<Chart>;

/// Returns the combined figures. There are none for a single pair, whose own figures are
/// sufficient.
pub(super) fn combined(runs: &[RunResults]) -> Vec<FigurePlan> {
    let pairs = pairs(runs);
    if pairs.len() < 2 {
        return Vec::new();
    }
    let figures: [(&str, Charts); 4] = [
        ("pairs-histograms", |run| histograms(run, run.primary())),
        ("pairs-curves", curves),
        ("pairs-examples", examples),
        ("pairs-tail", |run| vec![tail_sizes(run)]),
    ];
    let plan = |(name, charts): (&str, Charts)| {
        let row = |run: &&RunResults| FigureRow { title: title(run), charts: charts(run) };
        let rows: Vec<FigureRow> = pairs.iter().map(row).filter(|row| !row.charts.is_empty()).collect();
        (!rows.is_empty())
            .then(|| FigurePlan { name: name.to_owned(), layout: FigureLayout::ChartGrid(rows) })
    };
    figures.into_iter().filter_map(plan).collect()
}

/// Returns the first run of each pair. Other runs of a pair, for example with another T_η, are
/// compared in separate figures.
fn pairs(runs: &[RunResults]) -> Vec<&RunResults> {
    let mut pairs: Vec<&RunResults> = Vec::new();
    for run in runs {
        if pairs.iter().all(|known| (&known.dataset, &known.model) != (&run.dataset, &run.model)) {
            pairs.push(run);
        }
    }
    pairs
}

fn title(run: &RunResults) -> String {
    let seeds = if run.seeds.len() == 1 { "1 seed".to_owned() } else { format!("{} seeds", run.seeds.len()) };
    format!("{}, {}: {} rounds, {seeds}", run.dataset, run.model, run.rounds_done())
}

/// Returns the train loss and the metric of the tables.
fn both(run: &RunResults) -> impl Iterator<Item = &Measured> {
    run.train_loss().into_iter().chain([run.primary()])
}

/// Returns charts of both against the number of examples of a device, for the recommended level.
fn examples(run: &RunResults) -> Vec<Chart> {
    if run.cohorts.is_some() {
        return Vec::new();
    }
    let best = best_level(run);
    both(run).map(|measured| against_examples_of(run, measured, best)).collect()
}

/// Returns charts of the mean and tail of both.
fn curves(run: &RunResults) -> Vec<Chart> {
    let of_measure = |measured| [MEAN, TAIL].map(|column| curve_over_calls(run, measured, column));
    both(run).flat_map(of_measure).collect()
}
