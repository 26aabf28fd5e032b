//! The kinds of figures of the paper.

use deltafl::metrics::OverSeeds;
use deltafl_data::run_folder::Classes;

use super::super::distribution::{Distribution, Measured};
use super::super::measure::{self, ReportMeasure};
use super::super::results::RunResults;
use super::super::spread::DeviceSpread;
use super::bins::HistogramBins;
use super::chart::{Chart, ChartAxis, Layer, MarkPlace};
use super::palette::{Look, look};
use super::{FigureLayout, FigurePlan};
use crate::text_table;

/// Important columns of the tables.
pub(super) const MEAN: usize = 0;
pub(super) const TAIL: usize = 1 + measure::TAIL;

/// Returns the figures of one run.
pub(super) fn of_run(run: &RunResults) -> Vec<FigurePlan> {
    let mut plans = Vec::new();
    for measured in &run.measured {
        let key = file_name(measured.measure);
        // The metric of the tables and the loss have a curve per column, the others only mean and
        // tail.
        let first = measured.measure.is_loss() || measured.measure == run.primary().measure;
        let columns = measured.measure.statistic_keys().into_iter().enumerate();
        for (column, statistic) in columns.filter(|(column, _)| first || [MEAN, TAIL].contains(column)) {
            plans.push(stack(format!("{key}-{statistic}"), vec![curve_over_calls(run, measured, column)]));
        }
        if measured.frames.iter().flatten().all(|distribution| distribution.objective().is_some()) {
            let what = "objective F_θ, each track at its own θ";
            let chart = over_calls(run, measured, what, |d| d.objective().unwrap_or(UNKNOWN), |_| None);
            plans.push(stack("objective".to_owned(), vec![chart]));
        }
        plans.push(stack(format!("{key}-histogram"), histograms(run, measured)));
        if run.cohorts.is_none() {
            plans.push(stack(format!("{key}-examples"), against_examples(run, measured)));
        }
    }
    plans.extend(
        run.classes.as_ref().map(|classes| stack("classes".to_owned(), vec![by_class(run, classes)])),
    );
    if run.tails.iter().any(|track| !track.is_empty()) {
        plans.push(stack("tail".to_owned(), vec![tail_sizes(run)]));
    }
    if !run.privacy.is_empty() {
        plans.push(stack("privacy".to_owned(), vec![privacy_spent(run)]));
    }
    plans
}

/// Returns the name of a measure in file names.
pub(super) fn file_name(measure: ReportMeasure) -> String {
    measure.key().replace('_', "-")
}

fn stack(name: String, charts: Vec<Chart>) -> FigurePlan {
    FigurePlan { name, layout: FigureLayout::Stack(charts) }
}

/// A value through which no line is drawn.
const UNKNOWN: OverSeeds = OverSeeds { mean: f64::NAN, std: None };

/// Plots a table column against the calls of secure aggregation.
pub(super) fn curve_over_calls(run: &RunResults, measured: &Measured, column: usize) -> Chart {
    let what = &measured.measure.statistics()[column];
    let number = |distribution: &Distribution| distribution.column(column);
    over_calls(run, measured, what, number, |distribution| distribution.between(column))
}

/// Plots a value against the calls of secure aggregation. The band shows one standard deviation
/// over seeds, or the bounds of the value.
fn over_calls(
    run: &RunResults,
    measured: &Measured,
    what: &str,
    number: impl Fn(&Distribution) -> OverSeeds,
    ends: impl Fn(&Distribution) -> Option<(f64, f64)>,
) -> Chart {
    let shown = measured.measure.display_scale();
    // The untrained model would compress the rest of the curve.
    let first = usize::from(run.rounds.len() > 3 && run.rounds[0] == 0);
    let (mut bands, mut lines) = (Vec::new(), Vec::new());
    for track in in_order(run) {
        let look = look_of(run, track);
        let frames = measured.frames.iter().enumerate().skip(first);
        let points: Vec<(f64, OverSeeds)> =
            frames.clone().map(|(f, tracks)| (run.calls[track][f], number(&tracks[track]))).collect();
        let known = frames.map(|(f, tracks)| {
            let (lower, upper) = ends(&tracks[track])?;
            (lower.is_finite() && upper.is_finite()).then_some((
                run.calls[track][f],
                lower * shown,
                upper * shown,
            ))
        });
        let edges: Option<Vec<_>> = known
            .collect::<Option<Vec<_>>>()
            .or_else(|| points.iter().map(|&(x, over)| edges(x, over, shown)).collect());
        bands.extend(edges.map(|points| Layer::Band { colour: look.colour, points }));
        let points = points.iter().map(|&(x, over)| (x, over.mean * shown)).collect();
        lines.push(Layer::Line { name: Some(run.tracks[track].label.clone()), look, points });
    }
    bands.extend(lines);
    let x = ChartAxis::from_zero("calls of secure aggregation", run.calls.iter().flatten().copied());
    Chart {
        x,
        y: ChartAxis::around(format!("{what}, {}", measured.measure.axis()), heights(&bands)),
        layers: bands,
    }
}

/// Returns the edges of a band of one standard deviation, or `None` for one seed.
pub(super) fn edges(x: f64, over: OverSeeds, shown: f64) -> Option<(f64, f64, f64)> {
    let std = over.std?;
    Some((x, (over.mean - std) * shown, (over.mean + std) * shown))
}

/// Plots the devices of each track as a histogram, with the baseline as a line behind it, and mean
/// and tail of both.
pub(super) fn histograms(run: &RunResults, measured: &Measured) -> Vec<Chart> {
    let shown = measured.measure.display_scale();
    let spreads: Vec<DeviceSpread> = (0..run.tracks.len())
        .map(|track| DeviceSpread::new(measured, measured.frames.len() - 1, track))
        .collect();
    let bins = HistogramBins::over(spreads.iter().flat_map(DeviceSpread::values));
    let heights: Vec<Vec<f64>> = spreads.iter().map(|spread| spread.heights(&bins)).collect();
    let greatest = heights.iter().flatten().copied().fold(0.0, f64::max);
    let width = bins.step * shown;
    let chart = |track: usize| {
        let edge = |bin: usize| bins.edge(bin) * shown;
        let bars = heights[track].iter().enumerate().map(|(i, &height)| (edge(i), height)).collect();
        let (own, grey) = (look_of(run, track), look_of(run, run.baseline));
        let name = |track: usize| Some(run.tracks[track].label.clone());
        let mut layers = vec![Layer::Bars { name: name(track), colour: own.colour, width, bars }];
        if track != run.baseline {
            let steps = heights[run.baseline].iter().enumerate();
            let points = steps.flat_map(|(i, &height)| [(edge(i), height), (edge(i + 1), height)]);
            layers.push(Layer::Line { name: name(run.baseline), look: grey, points: points.collect() });
        }
        if track != run.baseline {
            layers.extend(marks(&spreads[run.baseline], grey, 1, &bins, measured));
        }
        layers.extend(marks(&spreads[track], own, 0, &bins, measured));
        let label = format!("{}{}", measured.measure.axis(), bins.note());
        let x =
            ChartAxis { label, from: edge(0), to: edge(bins.count), logarithmic: false, names: Vec::new() };
        // The space above the highest bar is for the labels of the marks.
        Chart {
            x,
            y: ChartAxis::from_zero(measured.measure.bar_axis(), [1.25 * greatest].into_iter()),
            layers,
        }
    };
    small_multiples(run).into_iter().map(chart).collect()
}

/// Returns marks for the mean (dotted) and the tail percentile (dashed) of the tables. Values
/// outside the bins are marked at the nearest edge.
fn marks(
    spread: &DeviceSpread,
    look: Look,
    row: u32,
    bins: &HistogramBins,
    measured: &Measured,
) -> [Layer; 2] {
    let measure = measured.measure;
    let shown = measure.display_scale();
    let decimals = if measure.percent() { 1 } else { measured.decimals() };
    let (from, to) = (bins.from, bins.edge(bins.count));
    let mark = |value: f64, what: &str, dash, natural: bool| {
        let at = bins.within(value);
        let x = at * shown;
        // A label next to a line near the edge would exceed the chart.
        let near = if natural { at < from + 0.2 * (to - from) } else { at > from + 0.8 * (to - from) };
        let place =
            if near { MarkPlace { row: row + 2, left: !natural } } else { MarkPlace { row, left: natural } };
        Layer::Mark {
            x,
            look: Look { dash, ..look },
            text: format!("{what} {}", text_table::number(value * shown, decimals)),
            place,
        }
    };
    let tail = &measure.statistic_keys()[TAIL];
    // The tail is on the worse side of the mean.
    let left = measure.lower_is_better();
    [mark(spread.mean, "mean", Some((2, 3)), left), mark(spread.tail, tail, Some((6, 3)), !left)]
}

/// Plots the value of each device against its number of examples, with a chart for each track.
fn against_examples(run: &RunResults, measured: &Measured) -> Vec<Chart> {
    small_multiples(run).into_iter().map(|track| against_examples_of(run, measured, track)).collect()
}

/// Plots one track against the baseline.
pub(super) fn against_examples_of(run: &RunResults, measured: &Measured, track: usize) -> Chart {
    let shown = measured.measure.display_scale();
    let examples: Vec<f64> = measured.devices.iter().map(|device| device.examples as f64).collect();
    let dots = |track: usize| -> Vec<(f64, f64)> {
        let means = measured.last(track).device_means();
        examples.iter().zip(means).map(|(&x, mean)| (x, mean * shown)).collect()
    };
    let layer = |track: usize| {
        let name = Some(run.tracks[track].label.clone());
        Layer::Dots { name, colour: look_of(run, track).colour, points: dots(track) }
    };
    // All charts have the same height.
    let all = (0..run.tracks.len()).flat_map(dots).map(|(_, y)| y);
    let mut layers = vec![layer(run.baseline)];
    if track != run.baseline {
        layers.push(layer(track));
    }
    let x = ChartAxis::around_sizes("examples per device", examples.iter().copied());
    Chart { x, y: ChartAxis::from_zero(measured.measure.axis(), all), layers }
}

/// Plots the error of each class with a dot per track. Dots are placed side by side, so that none
/// covers another.
fn by_class(run: &RunResults, classes: &Classes) -> Chart {
    let shown = run.primary().measure.display_scale();
    let order = in_order(run);
    let dots = |(place, &track): (usize, &usize)| {
        let beside = 0.6 * ((place as f64 + 0.5) / order.len() as f64 - 0.5);
        let errors = classes.classes.iter().enumerate();
        let points = errors.map(|(c, class)| (c as f64 + beside, class.errors[track].mean * shown)).collect();
        Layer::Dots {
            name: Some(run.tracks[track].label.clone()),
            colour: look_of(run, track).colour,
            points,
        }
    };
    let layers: Vec<Layer> = order.iter().enumerate().map(dots).collect();
    let names = classes.classes.iter().map(|class| class.name.clone()).collect();
    Chart {
        x: ChartAxis::of_names("class", names),
        y: ChartAxis::from_zero(
            format!("{} examples taken for another class (%)", classes.split.name()),
            heights(&layers),
        ),
        layers,
    }
}

/// Plots the devices in the tail per round: the mean over seeds, and a band from minimum to
/// maximum.
pub(super) fn tail_sizes(run: &RunResults) -> Chart {
    let (mut bands, mut lines) = (Vec::new(), Vec::new());
    for track in in_order(run) {
        let look = look_of(run, track);
        let windows = &run.tails[track];
        let points = windows.iter().map(|tail| (tail.round as f64, tail.min, tail.max)).collect();
        if run.seeds.len() > 1 {
            bands.push(Layer::Band { colour: look.colour, points });
        }
        let points = windows.iter().map(|tail| (tail.round as f64, tail.mean)).collect();
        lines.push(Layer::Line { name: Some(run.tracks[track].label.clone()), look, points });
    }
    bands.extend(lines);
    let rounds = run.tails.iter().flatten().map(|tail| tail.round as f64);
    Chart {
        x: ChartAxis::around("round", rounds),
        y: ChartAxis::from_zero("devices in the tail", heights(&bands)),
        layers: bands,
    }
}

/// Plots ε against the server and against readers of the models over the rounds.
fn privacy_spent(run: &RunResults) -> Chart {
    let line = |place: Option<usize>, name: &str, points: Vec<(f64, f64)>| {
        (!points.is_empty()).then(|| Layer::Line { name: Some(name.to_owned()), look: look(place), points })
    };
    let server = run.privacy.iter().filter_map(|(round, spent)| Some((*round as f64, spent.epsilon_server?)));
    let readers = run.privacy.iter().map(|(round, spent)| (*round as f64, spent.epsilon_readers));
    let lines = [
        line(Some(0), "against the server", server.collect()),
        line(Some(1), "against readers of the models", readers.collect()),
    ];
    let layers: Vec<Layer> = lines.into_iter().flatten().collect();
    let delta = run.privacy.first().map_or(0.0, |(_, spent)| spent.delta);
    Chart {
        x: ChartAxis::from_zero("round", run.privacy.iter().map(|(round, _)| *round as f64)),
        y: ChartAxis::from_zero(format!("ε at δ = {delta}"), heights(&layers)),
        layers,
    }
}

/// Returns the baseline, then the others in descending order of θ.
fn in_order(run: &RunResults) -> Vec<usize> {
    let mut order: Vec<usize> = (0..run.tracks.len()).collect();
    order.sort_by(|&a, &b| {
        let rank = |track: usize| (track != run.baseline, -run.tracks[track].theta);
        rank(a).partial_cmp(&rank(b)).unwrap_or(std::cmp::Ordering::Equal).then(a.cmp(&b))
    });
    order
}

/// Returns the tracks with a separate chart: all except the baseline, which is part of every chart.
/// A baseline without other tracks has its own chart.
fn small_multiples(run: &RunResults) -> Vec<usize> {
    let others: Vec<usize> = in_order(run).into_iter().filter(|&track| track != run.baseline).collect();
    if others.is_empty() { vec![run.baseline] } else { others }
}

fn look_of(run: &RunResults, track: usize) -> Look {
    look(in_order(run).iter().position(|&other| other == track).and_then(|place| place.checked_sub(1)))
}

/// Returns the heights of all layers.
pub(super) fn heights(layers: &[Layer]) -> impl Iterator<Item = f64> + '_ {
    layers.iter().flat_map(|layer| match layer {
        Layer::Band { points, .. } => points.iter().flat_map(|&(_, low, high)| [low, high]).collect(),
        Layer::Line { points, .. } | Layer::Dots { points, .. } | Layer::Bars { bars: points, .. } => {
            points.iter().map(|&(_, y)| y).collect()
        }
        Layer::Mark { .. } => Vec::new(),
    })
}
