//! The kinds of figures of the paper.

use deltafl::metrics::Figures;

use super::super::results::{RunResults, SplitResults};
use super::Plan;
use super::bins::Bins;
use super::chart::{Axis, Chart, Layer};
use super::palette::{Look, look};

/// What is drawn over the rounds: (of its file, of its axis, what it is).
pub(super) type Curve = (&'static str, &'static str, fn(&Figures) -> f64);
const CURVES: [Curve; 7] = [
    ("mean", "mean", |figures| figures.mean),
    ("p20", "20th percentile", |figures| figures.percentiles[0]),
    ("p50", "median", |figures| figures.percentiles[1]),
    ("p60", "60th percentile", |figures| figures.percentiles[2]),
    ("p80", "80th percentile", |figures| figures.percentiles[3]),
    ("p90", "90th percentile", |figures| figures.percentiles[4]),
    ("p95", "95th percentile", |figures| figures.percentiles[5]),
];
pub(super) const MEAN: Curve = CURVES[0];
pub(super) const P90: Curve = CURVES[5];

/// The figures of one run.
pub(super) fn of_run(run: &RunResults) -> Vec<Plan> {
    let mut plans = Vec::new();
    for split in &run.splits {
        let key = split.measure.key().replace('_', "-");
        for curve in CURVES {
            plans.push(Plan {
                name: format!("{key}-{}", curve.0),
                charts: vec![over_calls(run, split, curve)],
            });
        }
        plans.push(Plan { name: format!("{key}-histogram"), charts: histograms(run, split) });
        plans.push(Plan { name: format!("{key}-points"), charts: against_points(run, split) });
    }
    if run.kept.iter().any(|track| !track.is_empty()) {
        plans.push(Plan { name: "devices-kept".to_owned(), charts: vec![kept(run)] });
    }
    plans
}

/// A figure against the calls of secure aggregation, with a band of one standard deviation over seeds.
fn over_calls(run: &RunResults, split: &SplitResults, (_, what, figure): Curve) -> Chart {
    let shown = split.measure.shown();
    // The untrained model would squeeze the rest of the curve into a strip.
    let first = usize::from(run.rounds.len() > 3 && run.rounds[0] == 0);
    let (mut bands, mut lines) = (Vec::new(), Vec::new());
    for track in in_order(run) {
        let look = look_of(run, track);
        let frames = split.frames.iter().enumerate().skip(first);
        let points: Vec<(f64, f64, f64)> = frames
            .map(|(f, tracks)| (run.calls[track][f], tracks[track].figure(figure)))
            .map(|(calls, over)| (calls, over.mean * shown, over.std * shown))
            .collect();
        if run.seeds.len() > 1 {
            let points = points.iter().map(|&(x, mean, std)| (x, mean - std, mean + std)).collect();
            bands.push(Layer::Band { colour: look.colour, points });
        }
        let points = points.iter().map(|&(x, mean, _)| (x, mean)).collect();
        lines.push(Layer::Line { name: Some(run.tracks[track].label.clone()), look, points });
    }
    bands.extend(lines);
    let x = Axis::from_zero("calls of secure aggregation", run.calls.iter().flatten().copied());
    Chart { x, y: Axis::around(format!("{what}, {}", split.measure.axis()), heights(&bands)), layers: bands }
}

/// The devices of each track as a histogram, the baseline behind it as a line.
fn histograms(run: &RunResults, split: &SplitResults) -> Vec<Chart> {
    let shown = split.measure.shown();
    let tracks = 0..run.tracks.len();
    let bins = Bins::over(tracks.clone().flat_map(|track| split.last(track).values.iter().copied()));
    let counts = |track: usize| -> Vec<f64> {
        let seeds = run.seeds.len() as f64;
        bins.counts(&split.last(track).values).into_iter().map(|count| f64::from(count) / seeds).collect()
    };
    let greatest = tracks.flat_map(counts).fold(0.0, f64::max);
    let width = bins.step * shown;
    let chart = |track: usize| {
        let bars =
            counts(track).into_iter().enumerate().map(|(i, height)| (i as f64 * width, height)).collect();
        let (own, grey) = (look_of(run, track), look_of(run, run.baseline));
        let name = |track: usize| Some(run.tracks[track].label.clone());
        let mut layers = vec![Layer::Bars { name: name(track), colour: own.colour, width, bars }];
        if track != run.baseline {
            let steps = counts(run.baseline).into_iter().enumerate();
            let points =
                steps.flat_map(|(i, height)| [(i as f64 * width, height), ((i + 1) as f64 * width, height)]);
            layers.push(Layer::Line { name: name(run.baseline), look: grey, points: points.collect() });
        }
        let x = split.last(track).figure(P90.2).mean * shown;
        layers.push(Layer::Mark { x, colour: own.colour, text: "90th percentile".to_owned() });
        let x = Axis {
            label: split.measure.axis().to_owned(),
            from: 0.0,
            to: bins.count as f64 * width,
            logarithmic: false,
        };
        Chart { x, y: Axis::from_zero("devices", [greatest].into_iter()), layers }
    };
    small_multiples(run).into_iter().map(chart).collect()
}

/// The value of each device against the points it holds.
fn against_points(run: &RunResults, split: &SplitResults) -> Vec<Chart> {
    let shown = split.measure.shown();
    let examples: Vec<f64> = split.devices.iter().map(|device| device.examples as f64).collect();
    let dots = |track: usize| -> Vec<(f64, f64)> {
        let means = split.last(track).device_means();
        examples.iter().zip(means).map(|(&x, mean)| (x, mean * shown)).collect()
    };
    let layer = |track: usize| {
        let name = Some(run.tracks[track].label.clone());
        Layer::Dots { name, colour: look_of(run, track).colour, points: dots(track) }
    };
    let all = (0..run.tracks.len()).flat_map(dots);
    let greatest = all.map(|(_, y)| y).filter(|y| y.is_finite()).fold(0.0, f64::max);
    let chart = |track: usize| {
        let mut layers = vec![layer(run.baseline)];
        if track != run.baseline {
            layers.push(layer(track));
        }
        let x = Axis::around_sizes("points per device", examples.iter().copied());
        Chart { x, y: Axis::from_zero(split.measure.axis(), [greatest].into_iter()), layers }
    };
    small_multiples(run).into_iter().map(chart).collect()
}

/// Devices kept per round: the mean, and a band from the fewest to the most.
fn kept(run: &RunResults) -> Chart {
    let (mut bands, mut lines) = (Vec::new(), Vec::new());
    for track in in_order(run) {
        let look = look_of(run, track);
        let windows = &run.kept[track];
        let points =
            windows.iter().map(|kept| (kept.round as f64, kept.min as f64, kept.max as f64)).collect();
        bands.push(Layer::Band { colour: look.colour, points });
        let points = windows.iter().map(|kept| (kept.round as f64, kept.mean)).collect();
        lines.push(Layer::Line { name: Some(run.tracks[track].label.clone()), look, points });
    }
    bands.extend(lines);
    let rounds = run.kept.iter().flatten().map(|kept| kept.round as f64);
    Chart {
        x: Axis::around("round", rounds),
        y: Axis::from_zero("devices kept", heights(&bands)),
        layers: bands,
    }
}

/// The baseline, then the others from the greatest θ to the least.
fn in_order(run: &RunResults) -> Vec<usize> {
    let mut order: Vec<usize> = (0..run.tracks.len()).collect();
    order.sort_by(|&a, &b| {
        let rank = |track: usize| (track != run.baseline, -run.tracks[track].theta);
        rank(a).partial_cmp(&rank(b)).unwrap_or(std::cmp::Ordering::Equal).then(a.cmp(&b))
    });
    order
}

/// A chart for each track but the baseline, which stands in every one; or for the baseline, when it is alone.
fn small_multiples(run: &RunResults) -> Vec<usize> {
    let others: Vec<usize> = in_order(run).into_iter().filter(|&track| track != run.baseline).collect();
    if others.is_empty() { vec![run.baseline] } else { others }
}

fn look_of(run: &RunResults, track: usize) -> Look {
    look(in_order(run).iter().position(|&other| other == track).and_then(|place| place.checked_sub(1)))
}

/// Every height that the layers reach.
pub(super) fn heights(layers: &[Layer]) -> impl Iterator<Item = f64> + '_ {
    layers.iter().flat_map(|layer| match layer {
        Layer::Band { points, .. } => points.iter().flat_map(|&(_, low, high)| [low, high]).collect(),
        Layer::Line { points, .. } | Layer::Dots { points, .. } | Layer::Bars { bars: points, .. } => {
            points.iter().map(|&(_, y)| y).collect()
        }
        Layer::Mark { .. } => Vec::new(),
    })
}
