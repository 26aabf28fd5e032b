//! The price of privacy: mean and tail against ε, over several runs.

use super::super::distribution::Measured;
use super::super::measure::ReportMeasure;
use super::super::results::RunResults;
use super::super::tables::measures;
use super::chart::{Chart, ChartAxis, Layer};
use super::kinds::{MEAN, TAIL, edges, file_name, heights};
use super::palette::{Look, look};
use super::{FigureLayout, FigurePlan};

/// A track in the runs that have noise.
struct TrackByEpsilon<'a> {
    label: &'a str,
    /// ε at the end of a run, its results and the index of the track, in increasing order of ε.
    entries: Vec<(f64, &'a Measured, usize)>,
}

/// Returns a figure for each measure of runs that differ in ε. Empty if there are no such runs.
pub(super) fn by_epsilon(runs: &[RunResults]) -> Vec<FigurePlan> {
    measures(runs.iter()).into_iter().filter_map(|measure| of_measure(runs, measure)).collect()
}

fn of_measure(runs: &[RunResults], measure: ReportMeasure) -> Option<FigurePlan> {
    let tracks = tracks(runs, measure);
    let mut layers = Vec::new();
    for (i, track) in tracks.iter().enumerate() {
        let colour = look(Some(i)).colour;
        layers.extend(curve(track, TAIL, Look { colour, dash: None }, measure));
        layers.extend(curve(track, MEAN, Look { colour, dash: Some((3, 3)) }, measure));
    }
    let epsilons: Vec<f64> =
        tracks.iter().flat_map(|track| track.entries.iter().map(|(epsilon, ..)| *epsilon)).collect();
    let x = ChartAxis::around_sizes("ε of a device over the run", epsilons.into_iter());
    let chart = Chart { x, y: ChartAxis::around(measure.axis(), heights(&layers)), layers };
    let name = format!("by-epsilon-{}", file_name(measure));
    (!tracks.is_empty()).then(|| FigurePlan { name, layout: FigureLayout::Stack(vec![chart]) })
}

/// Returns the tracks with results for several ε. ε is that against the server, or against readers
/// of the models if the server sees sums without noise.
fn tracks(runs: &[RunResults], measure: ReportMeasure) -> Vec<TrackByEpsilon<'_>> {
    let mut tracks: Vec<TrackByEpsilon<'_>> = Vec::new();
    for run in runs {
        let (Some(measured), Some((_, spent))) = (run.of_measure(measure), run.privacy.last()) else {
            continue;
        };
        let epsilon = spent.epsilon_server.unwrap_or(spent.epsilon_readers);
        for (t, track) in run.tracks.iter().enumerate() {
            let entry = (epsilon, measured, t);
            match tracks.iter_mut().find(|known| known.label == track.label) {
                Some(known) => known.entries.push(entry),
                None => tracks.push(TrackByEpsilon { label: &track.label, entries: vec![entry] }),
            }
        }
    }
    tracks.retain(|track| track.entries.iter().any(|entry| entry.0.total_cmp(&track.entries[0].0).is_ne()));
    tracks.iter_mut().for_each(|track| track.entries.sort_by(|a, b| a.0.total_cmp(&b.0)));
    tracks
}

/// Returns the curve of a table column for a track, with a band of one standard deviation if there
/// are several seeds.
fn curve(track: &TrackByEpsilon<'_>, column: usize, look: Look, measure: ReportMeasure) -> Vec<Layer> {
    let shown = measure.display_scale();
    let points: Vec<_> = track
        .entries
        .iter()
        .map(|(epsilon, measured, t)| (*epsilon, measured.last(*t).column(column)))
        .collect();
    let band: Option<Vec<_>> = points.iter().map(|&(x, over)| edges(x, over, shown)).collect();
    let line = Layer::Line {
        name: Some(format!("{}, {}", track.label, measure.statistics()[column])),
        look,
        points: points.iter().map(|(x, over)| (*x, over.mean * shown)).collect(),
    };
    band.map(|points| Layer::Band { colour: look.colour, points }).into_iter().chain([line]).collect()
}
