//! The table at the end of a run: mean and 90th percentile of the test error, as in the paper.

use deltafl::experiment::TrackLabel;
use deltafl::metrics::OverSeeds;
use deltafl::run_folder::Summary;

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
        let label = TrackLabel { algorithm: track.algorithm.clone(), theta: track.theta }.to_string();
        let cell = |figure: Option<OverSeeds>| figure.map_or_else(|| "–".to_owned(), |f| percent(f, seeds));
        let error = track.test_error;
        rows.push([
            label,
            cell(error.map(|e| e.mean)),
            cell(error.map(|e| e.p50)),
            cell(error.map(|e| e.p90)),
            cell(error.map(|e| e.p95)),
        ]);
    }
    let widths: [usize; 5] =
        std::array::from_fn(|c| rows.iter().map(|row| row[c].chars().count()).max().unwrap_or_default());
    for row in &rows {
        let cells = row.iter().zip(widths).enumerate();
        let line: Vec<String> = cells
            .map(|(c, (cell, width))| {
                let padding = " ".repeat(width - cell.chars().count());
                if c == 0 { format!("{cell}{padding}") } else { format!("{padding}{cell}") }
            })
            .collect();
        text.push_str(&format!("  {}\n", line.join("   ")));
    }
    text
}

fn percent(figure: OverSeeds, seeds: usize) -> String {
    if seeds > 1 {
        format!("{:.2} ± {:.2}", 100.0 * figure.mean, 100.0 * figure.std)
    } else {
        format!("{:.2}", 100.0 * figure.mean)
    }
}
