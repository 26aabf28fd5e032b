//! The table printed at the end of a run: mean and percentiles of the task's metric over the test
//! devices, as in the paper.

use deltafl::data::Split;
use deltafl::metrics::OverSeeds;
use deltafl::task::{Metric, Unit};
use deltafl_data::run_folder::Summary;

use crate::{baseline, idle_rounds};

/// Renders the rows of the paper's tables that fit on a terminal.
pub fn render(summary: &Summary) -> String {
    let devices = if summary.reported == Split::Test { "Test" } else { "Train" };
    titled(&format!("{devices} {}", metric(summary)), summary)
}

/// Returns the name of the metric with its unit.
pub fn metric(summary: &Summary) -> String {
    let metric = summary.task.primary();
    let unit = if metric.unit == Unit::Share { " in %" } else { "" };
    format!("{}{unit}", metric.title)
}

/// Renders the same table with another title.
pub fn titled(title: &str, summary: &Summary) -> String {
    let seeds = summary.tracks.first().map_or(0, |track| track.seeds);
    let rounds = summary.tracks.first().map_or(0, |track| track.rounds);
    let plural = if seeds == 1 { "seed" } else { "seeds" };
    let (metric, no_test_devices) = (summary.task.primary(), summary.reported != Split::Test);
    let mut text =
        format!("{title} after {rounds} rounds, {seeds} {plural} ({}, {})\n", summary.dataset, summary.model);
    if no_test_devices {
        text.push_str(NO_TEST_DEVICES);
    }
    text.push('\n');
    let header = ["", "mean", "median", "90th percentile", "95th percentile"];
    let mut rows: Vec<[String; 5]> = vec![header.map(str::to_owned)];
    let mut labels = Vec::new();
    let figures = summary.tracks.iter().filter_map(|track| track.test);
    let digits = decimals(metric, figures.flat_map(|test| [test.mean.mean, test.p90.mean]));
    for track in &summary.tracks {
        labels.push(track.name.clone());
        let cell = |figure: Option<OverSeeds>| {
            figure.map_or_else(|| "–".to_owned(), |f| formatted(metric, f, digits))
        };
        let error = track.test;
        rows.push([
            track.name.clone(),
            cell(error.map(|e| e.mean)),
            cell(error.map(|e| e.p50)),
            cell(error.map(|e| e.p90)),
            cell(error.map(|e| e.p95)),
        ]);
    }
    if let Some(baseline) = &summary.baseline {
        let test = baseline.test;
        let cell = |figure: OverSeeds| formatted(metric, figure, digits);
        rows.push([baseline.name.clone(), cell(test.mean), cell(test.p50), cell(test.p90), cell(test.p95)]);
    }
    text.push_str(&aligned(&rows));
    let worse = baseline::worse_tracks(summary);
    if !worse.is_empty() {
        text.push('\n');
        text.push_str(&worse);
    }
    let idle = idle_rounds::lines(summary, &labels);
    if !idle.is_empty() {
        text.push('\n');
        text.push_str(&idle);
    }
    text
}

/// The note for a federation without test devices.
const NO_TEST_DEVICES: &str = "The federation has no test devices: these are the devices that trained. Hold some back with \
     [data.split] in the experiment, or with `deltafl data split`.\n";

/// Renders rows as lines with aligned columns: the first column to the left, the others to the
/// right.
pub fn aligned<R: AsRef<[String]>>(rows: &[R]) -> String {
    let width = |c: usize| {
        let cells = rows.iter().filter_map(|row| row.as_ref().get(c));
        cells.map(|cell| cell.chars().count()).max().unwrap_or_default()
    };
    let line = |row: &R| {
        let cells = row.as_ref().iter().enumerate().map(|(c, cell)| {
            let padding = " ".repeat(width(c) - cell.chars().count());
            if c == 0 { format!("{cell}{padding}") } else { format!("{padding}{cell}") }
        });
        format!("  {}\n", cells.collect::<Vec<_>>().join("   "))
    };
    rows.iter().map(line).collect()
}

/// Formats a value of a metric, with its deviation if there is more than one seed. Shares are in
/// per cent.
pub fn formatted(metric: &Metric, figure: OverSeeds, digits: usize) -> String {
    let shown = |value: f64| number(metric.display_value(value), digits);
    let std = figure.std.map_or_else(String::new, |std| format!(" ± {}", shown(std)));
    format!("{}{std}", shown(figure.mean))
}

/// Returns the number of decimals for values of a metric of this magnitude.
pub fn decimals(metric: &Metric, figures: impl IntoIterator<Item = f64>) -> usize {
    if metric.unit == Unit::Share { 2 } else { places(figures) }
}

/// Returns the number of decimals that leaves four significant digits for values without a natural
/// scale, such as an RMSE. The median magnitude decides, so that one diverged value does not affect
/// the others.
pub fn places(figures: impl IntoIterator<Item = f64>) -> usize {
    let sizes = figures.into_iter().map(f64::abs);
    let mut sizes: Vec<f64> = sizes.filter(|size| size.is_finite() && *size > 0.0).collect();
    sizes.sort_unstable_by(f64::total_cmp);
    let middle = sizes.get(sizes.len().saturating_sub(1) / 2).copied().unwrap_or(1.0);
    (3.0 - middle.log10().floor()).clamp(0.0, 12.0) as usize
}

/// Formats a number with this many decimals. Numbers of eight or more digits use scientific
/// notation.
pub fn number(value: f64, digits: usize) -> String {
    if value.abs() >= 1e7 && value.is_finite() { format!("{value:.3e}") } else { format!("{value:.digits$}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_any_magnitude_have_four_significant_digits() {
        assert_eq!(places([51_234.0, 48_000.0]), 0);
        assert_eq!(places([0.000_512]), 7);
        assert_eq!(places([1.5, 1e30, f64::NAN, 0.0]), 3, "a diverged value has no influence");
        assert_eq!(places([]), 3);
        assert_eq!(
            (number(51_234.4, 0).as_str(), number(27_645_862_982.0, 0).as_str()),
            ("51234", "2.765e10")
        );
    }
}
