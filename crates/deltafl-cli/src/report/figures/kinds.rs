//! The kinds of figures of the paper.

use deltafl::metrics::{Figures, OverSeeds};

use super::super::results::{Distribution, RunResults, SplitResults};
use super::super::spread::Spread;
use super::bins::Bins;
use super::chart::{Axis, Chart, Layer, MarkPlace};
use super::palette::{Look, look};
use super::{Layout, Plan};

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
            plans.push(stack(format!("{key}-{}", curve.0), vec![curve_over_calls(run, split, curve)]));
        }
        if split.frames.iter().flatten().all(|distribution| distribution.objective().is_some()) {
            let what = "objective F_θ, each track at its own θ";
            let chart = over_calls(run, split, what, |d| d.objective().unwrap_or(UNKNOWN));
            plans.push(stack("objective".to_owned(), vec![chart]));
        }
        plans.push(stack(format!("{key}-histogram"), histograms(run, split)));
        plans.push(stack(format!("{key}-points"), against_points(run, split)));
    }
    if run.kept.iter().any(|track| !track.is_empty()) {
        plans.push(stack("devices-kept".to_owned(), vec![kept(run)]));
    }
    plans
}

fn stack(name: String, charts: Vec<Chart>) -> Plan {
    Plan { name, layout: Layout::Stack(charts) }
}

/// What no line is drawn through.
const UNKNOWN: OverSeeds = OverSeeds { mean: f64::NAN, std: f64::NAN };

/// A figure of the tables against the calls of secure aggregation.
pub(super) fn curve_over_calls(run: &RunResults, split: &SplitResults, (_, what, figure): Curve) -> Chart {
    over_calls(run, split, what, |distribution| distribution.figure(figure))
}

/// A number against the calls of secure aggregation, with a band of one standard deviation over seeds.
fn over_calls(
    run: &RunResults,
    split: &SplitResults,
    what: &str,
    number: impl Fn(&Distribution) -> OverSeeds,
) -> Chart {
    let shown = split.measure.shown();
    // The untrained model would squeeze the rest of the curve into a strip.
    let first = usize::from(run.rounds.len() > 3 && run.rounds[0] == 0);
    let (mut bands, mut lines) = (Vec::new(), Vec::new());
    for track in in_order(run) {
        let look = look_of(run, track);
        let frames = split.frames.iter().enumerate().skip(first);
        let points: Vec<(f64, f64, f64)> = frames
            .map(|(f, tracks)| (run.calls[track][f], number(&tracks[track])))
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

/// The devices of each track as a histogram, the baseline behind it as a line; mean and 90th percentile of both.
pub(super) fn histograms(run: &RunResults, split: &SplitResults) -> Vec<Chart> {
    let shown = split.measure.shown();
    let spreads: Vec<Spread> =
        (0..run.tracks.len()).map(|track| Spread::new(split, split.frames.len() - 1, track)).collect();
    let bins = Bins::over(spreads.iter().flat_map(Spread::values));
    let heights: Vec<Vec<f64>> = spreads.iter().map(|spread| spread.heights(&bins)).collect();
    let greatest = heights.iter().flatten().copied().fold(0.0, f64::max);
    let width = bins.step * shown;
    let chart = |track: usize| {
        let bars = heights[track].iter().enumerate().map(|(i, &height)| (i as f64 * width, height)).collect();
        let (own, grey) = (look_of(run, track), look_of(run, run.baseline));
        let name = |track: usize| Some(run.tracks[track].label.clone());
        let mut layers = vec![Layer::Bars { name: name(track), colour: own.colour, width, bars }];
        if track != run.baseline {
            let steps = heights[run.baseline].iter().enumerate();
            let points =
                steps.flat_map(|(i, &height)| [(i as f64 * width, height), ((i + 1) as f64 * width, height)]);
            layers.push(Layer::Line { name: name(run.baseline), look: grey, points: points.collect() });
        }
        let to = bins.count as f64 * width;
        if track != run.baseline {
            layers.extend(marks(&spreads[run.baseline], grey, 1, (shown, to)));
        }
        layers.extend(marks(&spreads[track], own, 0, (shown, to)));
        let x = Axis { label: split.measure.axis().to_owned(), from: 0.0, to, logarithmic: false };
        // Above the highest bar there is room for the words of the marks.
        Chart { x, y: Axis::from_zero(split.measure.bar_axis(), [1.25 * greatest].into_iter()), layers }
    };
    small_multiples(run).into_iter().map(chart).collect()
}

/// The mean, dotted, and the 90th percentile, dashed, of what the bars show, on an axis that ends at `to`.
fn marks(spread: &Spread, look: Look, row: u32, (shown, to): (f64, f64)) -> [Layer; 2] {
    let mark = |value: f64, what: &str, dash, place| {
        let x = value * shown;
        let text = if shown > 1.0 { format!("{what} {x:.1}") } else { format!("{what} {x:.2}") };
        Layer::Mark { x, look: Look { dash, ..look }, text, place }
    };
    // A word to the right of a line near the right edge would leave the chart.
    let p90_place = if spread.p90() * shown < 0.8 * to {
        MarkPlace { row, left: false }
    } else {
        MarkPlace { row: row + 2, left: true }
    };
    [
        mark(spread.figures.mean, "mean", Some((2, 3)), MarkPlace { row, left: true }),
        mark(spread.p90(), "p90", Some((6, 3)), p90_place),
    ]
}

/// The value of each device against the points it holds, a chart for each track.
fn against_points(run: &RunResults, split: &SplitResults) -> Vec<Chart> {
    small_multiples(run).into_iter().map(|track| against_points_of(run, split, track)).collect()
}

/// The same for one track, beside the baseline.
pub(super) fn against_points_of(run: &RunResults, split: &SplitResults, track: usize) -> Chart {
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
    // The same height in the chart of every track.
    let all = (0..run.tracks.len()).flat_map(dots);
    let greatest = all.map(|(_, y)| y).filter(|y| y.is_finite()).fold(0.0, f64::max);
    let mut layers = vec![layer(run.baseline)];
    if track != run.baseline {
        layers.push(layer(track));
    }
    let x = Axis::around_sizes("points per device", examples.iter().copied());
    Chart { x, y: Axis::from_zero(split.measure.axis(), [greatest].into_iter()), layers }
}

/// Devices kept per round: the mean over seeds, and a band from the fewest to the most.
pub(super) fn kept(run: &RunResults) -> Chart {
    let (mut bands, mut lines) = (Vec::new(), Vec::new());
    for track in in_order(run) {
        let look = look_of(run, track);
        let windows = &run.kept[track];
        let points = windows.iter().map(|kept| (kept.round as f64, kept.min, kept.max)).collect();
        if run.seeds.len() > 1 {
            bands.push(Layer::Band { colour: look.colour, points });
        }
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
