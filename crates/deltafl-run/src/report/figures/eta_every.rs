//! The effect of T_η: mean and tail against the rounds between two updates of η.

use deltafl::metrics::OverSeeds;

use super::super::distribution::Measured;
use super::super::measure::ReportMeasure;
use super::super::results::RunResults;
use super::super::tables::measures;
use super::chart::{Chart, ChartAxis, Layer};
use super::kinds::{MEAN, TAIL, edges, file_name, heights};
use super::palette::{Look, look};
use super::{FigureLayout, FigurePlan};

/// A track of a run.
struct TrackPeriod<'a> {
    /// T_η.
    every: u64,
    measured: &'a Measured,
    track: usize,
}

/// Tracks of one level θ and one rule for η.
struct Level<'a> {
    theta: f64,
    /// Whether η is fixed as in the paper, instead of monitored.
    fixed: bool,
    entries: Vec<TrackPeriod<'a>>,
}

/// Returns a figure for each measure in which tracks of one level differ in T_η. Empty if there are
/// no such tracks.
pub(super) fn eta_every(runs: &[RunResults]) -> Vec<FigurePlan> {
    measures(runs.iter()).into_iter().filter_map(|measure| of_measure(runs, measure)).collect()
}

fn of_measure(runs: &[RunResults], measure: ReportMeasure) -> Option<FigurePlan> {
    let levels = levels(runs, measure);
    let mut layers = Vec::new();
    for (i, level) in levels.iter().enumerate() {
        let colour = look(Some(i)).colour;
        layers.extend(curve(level, TAIL, Look { colour, dash: None }, measure));
        layers.extend(curve(level, MEAN, Look { colour, dash: Some((3, 3)) }, measure));
    }
    let every = levels.iter().flat_map(|level| level.entries.iter().map(|entry| entry.every as f64));
    let x = ChartAxis::around("rounds between two settings of η", every);
    let chart = Chart { x, y: ChartAxis::around(measure.axis(), heights(&layers)), layers };
    let name = format!("eta-every-{}", file_name(measure));
    (!levels.is_empty()).then(|| FigurePlan { name, layout: FigureLayout::Stack(vec![chart]) })
}

/// Returns the levels with tracks of several T_η, in descending order. Fixed and monitored η are
/// separate levels. With T_η = 1 there is no difference, so such a track belongs to both.
fn levels(runs: &[RunResults], measure: ReportMeasure) -> Vec<Level<'_>> {
    let mut levels: Vec<Level<'_>> = Vec::new();
    for run in runs {
        let Some(measured) = run.of_measure(measure) else { continue };
        for (t, track) in run.tracks.iter().enumerate().filter(|(t, _)| *t != run.baseline) {
            for fixed in [false, true] {
                if track.eta_every > 1 && track.eta_fixed != fixed {
                    continue;
                }
                let entry = TrackPeriod { every: track.eta_every, measured, track: t };
                let same = |level: &&mut Level<'_>| {
                    level.theta.total_cmp(&track.theta).is_eq() && level.fixed == fixed
                };
                match levels.iter_mut().find(same) {
                    Some(level) => level.entries.push(entry),
                    None => levels.push(Level { theta: track.theta, fixed, entries: vec![entry] }),
                }
            }
        }
    }
    levels.retain(|level| level.entries.iter().any(|entry| entry.every != level.entries[0].every));
    levels.sort_by(|a, b| b.theta.total_cmp(&a.theta));
    levels.iter_mut().for_each(|level| level.entries.sort_by_key(|entry| entry.every));
    levels
}

/// Returns the curve of a table column for a level, with a band of one standard deviation if there
/// are several seeds.
fn curve(level: &Level<'_>, column: usize, look: Look, measure: ReportMeasure) -> Vec<Layer> {
    let shown = measure.display_scale();
    let rule = if level.fixed { ", fixed" } else { "" };
    let over =
        |entry: &TrackPeriod<'_>| (entry.every as f64, entry.measured.last(entry.track).column(column));
    let points: Vec<(f64, OverSeeds)> = level.entries.iter().map(over).collect();
    let band: Option<Vec<_>> = points.iter().map(|&(x, over)| edges(x, over, shown)).collect();
    let line = Layer::Line {
        name: Some(format!("θ={}{}, {}", level.theta, rule, measure.statistics()[column])),
        look,
        points: points.iter().map(|(x, over)| (*x, over.mean * shown)).collect(),
    };
    band.map(|points| Layer::Band { colour: look.colour, points }).into_iter().chain([line]).collect()
}
