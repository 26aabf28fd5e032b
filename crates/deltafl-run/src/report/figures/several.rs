//! Comparison of several runs: mean and tail of each track over the runs.

use super::super::measure::ReportMeasure;
use super::super::results::RunResults;
use super::super::tables::measures;
use super::chart::{Chart, ChartAxis, Layer};
use super::kinds::{MEAN, TAIL, file_name, heights};
use super::palette::{Look, look};
use super::{FigureLayout, FigurePlan};

/// Returns a figure for each measure: the tail percentile above, the mean below. Each track has a
/// line through the runs that contain it.
pub(super) fn side_by_side(runs: &[RunResults]) -> Vec<FigurePlan> {
    let plan = |measure: ReportMeasure| FigurePlan {
        name: format!("runs-{}", file_name(measure)),
        layout: FigureLayout::Stack([TAIL, MEAN].map(|column| chart(runs, measure, column)).into()),
    };
    measures(runs.iter()).into_iter().map(plan).collect()
}

fn chart(runs: &[RunResults], measure: ReportMeasure, column: usize) -> Chart {
    let mut layers = Vec::new();
    for (place, (label, is_baseline)) in tracks(runs).into_iter().enumerate() {
        let look = look((!is_baseline).then_some(place));
        let points: Vec<(f64, f64)> = runs
            .iter()
            .enumerate()
            .filter_map(|(i, run)| Some(((i + 1) as f64, value(run, &label, measure, column)?)))
            .collect();
        let dots = Layer::Dots { name: None, colour: look.colour, points: points.clone() };
        layers.extend([Layer::Line { name: Some(label), look: thin(look), points }, dots]);
    }
    let places = (1..=runs.len()).map(|place| place as f64);
    Chart {
        x: ChartAxis::around("run, in the order of the tables", places),
        y: ChartAxis::around(
            format!("{}, {}", measure.statistics()[column], measure.axis()),
            heights(&layers),
        ),
        layers,
    }
}

/// Returns a dashed look, because the runs are not on a continuous scale.
fn thin(look: Look) -> Look {
    Look { dash: look.dash.or(Some((1, 3))), ..look }
}

/// Returns the names of the tracks in order of first occurrence, and whether the first run uses
/// each as its baseline.
fn tracks(runs: &[RunResults]) -> Vec<(String, bool)> {
    let mut names: Vec<(String, bool)> = Vec::new();
    for run in runs {
        for (t, track) in run.tracks.iter().enumerate() {
            if names.iter().all(|(name, _)| *name != track.label) {
                names.push((track.label.clone(), t == run.baseline));
            }
        }
    }
    names
}

fn value(run: &RunResults, label: &str, measure: ReportMeasure, column: usize) -> Option<f64> {
    let track = run.tracks.iter().position(|track| track.label == label)?;
    Some(run.of_measure(measure)?.last(track).column(column).mean * measure.display_scale())
}
