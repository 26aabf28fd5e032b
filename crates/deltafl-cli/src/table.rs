//! The table at the end of a run: mean and 90th percentile of the test error, as in the paper.

use deltafl::metrics::OverSeeds;
use deltafl_data::run_folder::Summary;

/// The rows of the paper's tables that fit on a terminal.
pub(crate) fn render(summary: &Summary) -> String {
    let seeds = summary.tracks.first().map_or(0, |track| track.seeds);
    let rounds = summary.tracks.first().map_or(0, |track| track.rounds);
    let plural = if seeds == 1 { "seed" } else { "seeds" };
    let mut text = format!(
        "Test error in % after {rounds} rounds, {seeds} {plural} ({}, {})\n\n",
        summary.dataset, summary.model
    );
    let header = ["", "mean", "median", "90th percentile", "95th percentile"];
    let mut rows: Vec<[String; 5]> = vec![header.map(str::to_owned)];
    for track in &summary.tracks {
        let cell = |figure: Option<OverSeeds>| figure.map_or_else(|| "–".to_owned(), |f| percent(f, seeds));
        let error = track.test_error;
        rows.push([
            track.name.clone(),
            cell(error.map(|e| e.mean)),
            cell(error.map(|e| e.p50)),
            cell(error.map(|e| e.p90)),
            cell(error.map(|e| e.p95)),
        ]);
    }
    text.push_str(&aligned(&rows));
    text
}

/// Rows as lines, in columns: the first to the left, the others to the right.
pub(crate) fn aligned<R: AsRef<[String]>>(rows: &[R]) -> String {
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

/// A fraction in per cent, with its deviation where there are seeds enough for one.
pub(crate) fn percent(figure: OverSeeds, seeds: usize) -> String {
    if seeds > 1 {
        format!("{:.2} ± {:.2}", 100.0 * figure.mean, 100.0 * figure.std)
    } else {
        format!("{:.2}", 100.0 * figure.mean)
    }
}
