//! The effect of T_η: mean and 90th percentile against the rounds between two settings of η.

use super::super::results::{Measure, RunResults, SplitResults};
use super::chart::{Axis, Chart, Layer};
use super::kinds::{Curve, MEAN, P90, heights};
use super::palette::{Look, look};
use super::{Layout, Plan};

/// A track of some run.
struct Entry<'a> {
    /// T_η.
    every: u64,
    split: &'a SplitResults,
    track: usize,
}

/// Tracks of one level θ.
struct Level<'a> {
    theta: f64,
    entries: Vec<Entry<'a>>,
}

/// A figure for each measure in which tracks of one level differ in T_η; none when no level has such tracks.
pub(super) fn eta_every(runs: &[RunResults]) -> Vec<Plan> {
    [Measure::TestError, Measure::TrainLoss]
        .into_iter()
        .filter_map(|measure| of_measure(runs, measure))
        .collect()
}

fn of_measure(runs: &[RunResults], measure: Measure) -> Option<Plan> {
    let levels = levels(runs, measure);
    let mut layers = Vec::new();
    for (i, level) in levels.iter().enumerate() {
        let colour = look(Some(i)).colour;
        layers.extend(curve(level, P90, Look { colour, dash: None }, measure));
        layers.extend(curve(level, MEAN, Look { colour, dash: Some((3, 3)) }, measure));
    }
    let every = levels.iter().flat_map(|level| level.entries.iter().map(|entry| entry.every as f64));
    let x = Axis::around("rounds between two settings of η", every);
    let chart = Chart { x, y: Axis::around(measure.axis(), heights(&layers)), layers };
    let name = format!("eta-every-{}", measure.key().replace('_', "-"));
    (!levels.is_empty()).then(|| Plan { name, layout: Layout::Stack(vec![chart]) })
}

/// The levels that tracks of several T_η share, from the greatest.
fn levels(runs: &[RunResults], measure: Measure) -> Vec<Level<'_>> {
    let mut levels: Vec<Level<'_>> = Vec::new();
    for run in runs {
        let Some(split) = run.splits.iter().find(|split| split.measure == measure) else { continue };
        for (t, track) in run.tracks.iter().enumerate().filter(|(t, _)| *t != run.baseline) {
            let entry = Entry { every: track.eta_every, split, track: t };
            match levels.iter_mut().find(|level| level.theta.total_cmp(&track.theta).is_eq()) {
                Some(level) => level.entries.push(entry),
                None => levels.push(Level { theta: track.theta, entries: vec![entry] }),
            }
        }
    }
    levels.retain(|level| level.entries.iter().any(|entry| entry.every != level.entries[0].every));
    levels.sort_by(|a, b| b.theta.total_cmp(&a.theta));
    levels.iter_mut().for_each(|level| level.entries.sort_by_key(|entry| entry.every));
    levels
}

/// A figure of a level, with a band of one standard deviation over seeds.
fn curve(level: &Level<'_>, (_, what, figure): Curve, look: Look, measure: Measure) -> [Layer; 2] {
    let shown = measure.shown();
    let over = |entry: &Entry<'_>| (entry.every as f64, entry.split.last(entry.track).figure(figure));
    let points: Vec<_> = level.entries.iter().map(over).collect();
    let edge = |&(x, over): &(f64, deltafl::metrics::OverSeeds)| {
        (x, (over.mean - over.std) * shown, (over.mean + over.std) * shown)
    };
    [
        Layer::Band { colour: look.colour, points: points.iter().map(edge).collect() },
        Layer::Line {
            name: Some(format!("θ={}, {what}", level.theta)),
            look,
            points: points.iter().map(|(x, over)| (*x, over.mean * shown)).collect(),
        },
    ]
}
