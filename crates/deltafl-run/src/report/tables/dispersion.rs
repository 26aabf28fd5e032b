//! The dispersion of a measure over devices.

use deltafl::metrics::{DispersionBySize, OverSeeds};

use super::super::distribution::Measured;
use super::super::measure::ReportMeasure;
use super::super::results::RunResults;
use super::{Compared, Row, Table};

/// The statistics of dispersion in columns, over all devices and over the small ones, with their
/// names for programs.
const DISPERSION: [(&str, &str); 6] = [
    ("Deviation", "std"),
    ("Worst tenth", "worst_tenth"),
    ("Gini", "gini"),
    ("Deviation, small devices", "small_std"),
    ("Worst tenth, small", "small_worst_tenth"),
    ("Gini, small", "small_gini"),
];

/// Whether a statistic is a Gini coefficient, which has no unit.
pub(in crate::report) fn is_gini(statistic: &str) -> bool {
    statistic.ends_with("gini")
}

/// Returns the statistics of [`DISPERSION`]. Those that are not defined are `None`.
fn cells(dispersion: &DispersionBySize) -> [Option<OverSeeds>; DISPERSION.len()] {
    let DispersionBySize { all, small } = dispersion;
    [
        Some(all.std),
        Some(all.worst_tenth),
        all.gini,
        small.map(|small| small.std),
        small.map(|small| small.worst_tenth),
        small.and_then(|small| small.gini),
    ]
}

/// Returns the statistics of a track by name.
pub(super) fn statistics(measured: &Measured, track: usize) -> impl Iterator<Item = (String, OverSeeds)> {
    let cells = measured.dispersion(track).map(|dispersion| cells(&dispersion));
    let names = DISPERSION.iter().map(|(_, name)| (*name).to_owned());
    names.zip(cells.into_iter().flatten()).filter_map(|(name, over)| Some((name, over?)))
}

/// Returns a table of the dispersion over devices. Small devices have fewer examples than the
/// median device.
pub(super) fn table(group: &[&RunResults], measure: ReportMeasure) -> Option<Table> {
    let mut rows: Vec<(String, [Option<OverSeeds>; DISPERSION.len()])> = Vec::new();
    for run in group {
        let Some(measured) = run.of_measure(measure) else { continue };
        for (t, track) in run.tracks.iter().enumerate() {
            let label =
                if group.len() > 1 { format!("{}: {}", run.name, track.label) } else { track.label.clone() };
            rows.push((label, cells(&measured.dispersion(t)?)));
        }
    }
    // A column is shown if it is defined in every row.
    let shown = |column: &usize| rows.iter().all(|(_, cells)| cells[*column].is_some());
    let columns: Vec<usize> = (0..DISPERSION.len()).filter(shown).collect();
    let (dataset, model) = (&group[0].dataset, &group[0].model);
    let first = rows.first()?.1[1]?.mean;
    let decimals = |&column: &usize| {
        if is_gini(DISPERSION[column].1) && !measure.percent() { 3 } else { measure.decimals([first]) }
    };
    // A smaller deviation is better for every metric.
    let compared = if measure.lower_is_better() { columns.len() } else { 0 };
    Some(Table {
        caption: format!(
            "{} ({dataset}, {model}); small devices have fewer examples than the median device",
            measure.dispersion_caption()
        ),
        measure,
        columns: columns.iter().map(|&column| DISPERSION[column].0.to_owned()).collect(),
        decimals: columns.iter().map(decimals).collect(),
        rows: rows
            .into_iter()
            .map(|(label, cells)| Row {
                label,
                cells: columns.iter().filter_map(|&column| cells[column]).collect(),
                between: Vec::new(),
            })
            .collect(),
        compared: Compared::Columns(compared),
    })
}
