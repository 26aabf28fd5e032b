//! Figures of several dataset–model pairs on one page, as the paper's: a row per pair.

use super::super::headline::best_level;
use super::super::results::{Measure, RunResults, SplitResults};
use super::chart::Chart;
use super::kinds::{MEAN, P90, against_points_of, curve_over_calls, histograms, kept};
use super::{Layout, Plan};

/// A pair and its charts.
pub(super) struct Row {
    pub(super) title: String,
    pub(super) charts: Vec<Chart>,
}

/// The charts of a pair in one figure.
type Charts = fn(&RunResults) -> Vec<Chart>;

/// The combined figures; none of a single pair, whose own figures say it all.
pub(super) fn combined(runs: &[RunResults]) -> Vec<Plan> {
    let pairs = pairs(runs);
    if pairs.len() < 2 {
        return Vec::new();
    }
    let figures: [(&str, Charts); 4] = [
        ("pairs-histograms", |run| of_split(run, Measure::TestError, histograms)),
        ("pairs-curves", curves),
        ("pairs-points", points),
        ("pairs-devices-kept", |run| vec![kept(run)]),
    ];
    let plan = |(name, charts): (&str, Charts)| {
        let row = |run: &&RunResults| Row { title: title(run), charts: charts(run) };
        let rows: Vec<Row> = pairs.iter().map(row).filter(|row| !row.charts.is_empty()).collect();
        (!rows.is_empty()).then(|| Plan { name: name.to_owned(), layout: Layout::Grid(rows) })
    };
    figures.into_iter().filter_map(plan).collect()
}

/// The first run of each pair: others of it, with another T_η say, are held against it in figures of their own.
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

fn of_split(
    run: &RunResults,
    measure: Measure,
    charts: fn(&RunResults, &SplitResults) -> Vec<Chart>,
) -> Vec<Chart> {
    let split = run.splits.iter().find(|split| split.measure == measure);
    split.map(|split| charts(run, split)).unwrap_or_default()
}

/// Train loss and test error against the points of a device, for the level that serves best.
fn points(run: &RunResults) -> Vec<Chart> {
    let best = best_level(run);
    let both = [Measure::TrainLoss, Measure::TestError].into_iter();
    let splits = both.filter_map(|measure| run.splits.iter().find(|split| split.measure == measure));
    splits.map(|split| against_points_of(run, split, best)).collect()
}

/// Mean and 90th percentile of the train loss, then of the test error.
fn curves(run: &RunResults) -> Vec<Chart> {
    let both = [Measure::TrainLoss, Measure::TestError];
    let of_measure = |measure| {
        of_split(run, measure, |run, split| {
            [MEAN, P90].map(|curve| curve_over_calls(run, split, curve)).into()
        })
    };
    both.into_iter().flat_map(of_measure).collect()
}
