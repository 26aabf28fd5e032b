//! All values of a report as CSV.

use std::io;

use deltafl::metrics::OverSeeds;

use super::{COMPARED, cells, dispersion};
use crate::report::results::RunResults;
use crate::report::saved_metrics::SavedMetrics;

/// Renders every value of every track as a row of CSV, in full precision. Shares are fractions.
pub(in crate::report) fn csv(runs: &[RunResults]) -> io::Result<Vec<u8>> {
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
        "idle_rounds",
        "lower",
        "upper",
    ];
    writer.write_record(header)?;
    for run in runs {
        for measured in &run.measured {
            let statistics = measured.measure.statistic_keys();
            for (t, track) in run.tracks.iter().enumerate() {
                let distribution = measured.last(t);
                let figures = statistics.iter().cloned().zip(cells(&distribution.over_seeds()));
                let objective = distribution.objective().map(|over| ("objective".to_owned(), over));
                let all = figures.chain(objective).chain(dispersion::statistics(measured, t));
                for (column, (statistic, OverSeeds { mean, std })) in all.enumerate() {
                    let (lower, upper) = distribution
                        .between(column.min(COMPARED - 1))
                        .map_or_else(Default::default, |(l, u)| (finite(l), finite(u)));
                    writer.write_record([
                        &run.name,
                        &run.dataset,
                        &run.model,
                        &track.algorithm,
                        &track.theta.to_string(),
                        &track.eta_every.to_string(),
                        &track.label,
                        &measured.measure.key(),
                        &statistic,
                        &mean.to_string(),
                        &std.map_or_else(String::new, |std| std.to_string()),
                        &distribution.figures.len().to_string(),
                        &run.rounds_done().to_string(),
                        &run.idle[t].idle().to_string(),
                        &lower,
                        &upper,
                    ])?;
                }
            }
        }
        if let Some(saved) = &run.saved {
            write_saved(&mut writer, run, saved)?;
        }
    }
    writer.into_inner().map_err(csv::IntoInnerError::into_error)
}

/// Writes the values of metrics that a program has stored. They belong to one seed.
fn write_saved(
    writer: &mut csv::Writer<Vec<u8>>,
    run: &RunResults,
    saved: &SavedMetrics,
) -> Result<(), csv::Error> {
    for (metric, model, statistic, value) in saved.values() {
        let Some((t, track)) = run.tracks.iter().enumerate().find(|(_, track)| track.label == model) else {
            continue;
        };
        writer.write_record([
            &run.name,
            &run.dataset,
            &run.model,
            &track.algorithm,
            &track.theta.to_string(),
            &track.eta_every.to_string(),
            &track.label,
            metric,
            statistic,
            &value.to_string(),
            "",
            "1",
            &run.rounds_done().to_string(),
            &run.idle[t].idle().to_string(),
            "",
            "",
        ])?;
    }
    Ok(())
}

/// Formats a number, or returns an empty string if it is not finite.
fn finite(number: f64) -> String {
    if number.is_finite() { number.to_string() } else { String::new() }
}
