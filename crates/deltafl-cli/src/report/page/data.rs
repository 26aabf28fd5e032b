//! What the page knows, small enough for one file.
//!
//! Curves and histograms are kept of every frame. The value of each device is kept of as many frames as fit in
//! [`DEVICE_VALUES`], evenly spaced and always of the last; it is a 16-bit fraction of the greatest value, stored as
//! the difference to the frame before, which deflates well.

use deltafl::metrics::PERCENTILES;
use serde::Serialize;

use super::super::figures::bins::Bins;
use super::super::headline::best_level;
use super::super::results::{Distribution, Measure, RunResults, SplitResults};
use super::super::spread::Spread;
use super::numbers::{Array, Numbers};

/// Device values in a page, over all runs: about 2 MB of it.
const DEVICE_VALUES: usize = 1_200_000;

/// The page's data, as text.
pub(super) struct PageData {
    /// For a script element.
    pub(super) json: String,
    /// In base64.
    pub(super) numbers: String,
}

#[derive(Serialize)]
struct Page {
    percentiles: [u8; PERCENTILES.len()],
    runs: Vec<Run>,
}

#[derive(Serialize)]
struct Run {
    name: String,
    tracks: Vec<Track>,
    baseline: usize,
    /// The track that the headline is about.
    best: usize,
    seeds: usize,
    rounds: Vec<u64>,
    /// Secure-aggregation calls: track by track, a number per frame.
    calls: Array,
    cohort: usize,
    splits: Vec<Split>,
    /// Devices kept: for each track, (round, mean, min, max) after each other.
    kept: Vec<Array>,
    /// Rounds in a window of `kept`.
    kept_width: u64,
}

#[derive(Serialize)]
struct Track {
    label: String,
    theta: f64,
    eta_every: u64,
}

#[derive(Serialize)]
struct Split {
    key: &'static str,
    name: &'static str,
    axis: &'static str,
    percent: bool,
    weighted: bool,
    /// Whether F_θ stands behind the percentiles.
    objective: bool,
    /// Frame by track by (mean, percentiles…, F_θ) by (mean, std over seeds).
    figures: Array,
    histogram: Histogram,
    devices: Devices,
}

#[derive(Serialize)]
struct Histogram {
    step: f64,
    bins: usize,
    /// Of the height of a bar.
    axis: &'static str,
    /// Frame by track by bin, each device averaged over seeds first.
    heights: Array,
    /// Frame by track by (mean, 90th percentile) of what the bars show.
    marks: Array,
}

#[derive(Serialize)]
struct Devices {
    /// How many there are; `ids` may be an even sample of them.
    all: usize,
    ids: Vec<String>,
    examples: Vec<u64>,
    /// The frames of which values are kept.
    frames: Vec<usize>,
    /// A value of 65535.
    scale: f64,
    /// Frame by track by device, mean over seeds: differences to the frame before, modulo 2¹⁶.
    values: Array,
}

/// Gathers what the page shows.
pub(super) fn page_data(runs: &[RunResults]) -> miette::Result<PageData> {
    let mut numbers = Numbers::default();
    let splits: usize = runs.iter().map(|run| run.splits.len()).sum();
    let budget = DEVICE_VALUES / splits.max(1);
    let runs = runs.iter().map(|run| run_data(run, budget, &mut numbers)).collect();
    let json = serde_json::to_string(&Page { percentiles: PERCENTILES, runs })
        .expect("the page's data has string keys and finite numbers");
    // A device may be called `</script>`.
    Ok(PageData { json: json.replace('<', "\\u003c"), numbers: numbers.encoded()? })
}

fn run_data(run: &RunResults, budget: usize, numbers: &mut Numbers) -> Run {
    let track = |t: &super::super::tracks::TrackInfo| Track {
        label: t.label.clone(),
        theta: t.theta,
        eta_every: t.eta_every,
    };
    let kept = |track: &Vec<super::super::results::Kept>| -> Vec<f64> {
        track.iter().flat_map(|k| [k.round as f64, k.mean, k.min, k.max]).collect()
    };
    Run {
        name: run.name.clone(),
        tracks: run.tracks.iter().map(track).collect(),
        baseline: run.baseline,
        best: best_level(run),
        seeds: run.seeds.len(),
        rounds: run.rounds.clone(),
        calls: numbers.f64s(&run.calls.concat()),
        cohort: run.experiment.cohort.get(),
        splits: run.splits.iter().map(|split| split_data(split, budget, numbers)).collect(),
        kept: run.kept.iter().map(|track| numbers.f64s(&kept(track))).collect(),
        kept_width: run.kept.iter().find_map(|track| Some(track.get(1)?.round - track[0].round)).unwrap_or(1),
    }
}

fn split_data(split: &SplitResults, budget: usize, numbers: &mut Numbers) -> Split {
    let distributions = || split.frames.iter().flatten();
    let objective = distributions().all(|distribution| distribution.objective().is_some());
    let figures: Vec<f64> = distributions().flat_map(|d| figures_of(d, objective)).collect();
    let tracks = split.frames[0].len();
    let spreads: Vec<Spread> = (0..split.frames.len())
        .flat_map(|frame| (0..tracks).map(move |track| Spread::new(split, frame, track)))
        .collect();
    let bins = Bins::over(spreads.iter().flat_map(Spread::values));
    let heights: Vec<f64> = spreads.iter().flat_map(|spread| spread.heights(&bins)).collect();
    let marks: Vec<f64> = spreads.iter().flat_map(|spread| [spread.figures.mean, spread.p90()]).collect();
    Split {
        key: split.measure.key(),
        name: split.measure.name(),
        axis: split.measure.axis(),
        percent: split.measure == Measure::TestError,
        weighted: split.measure == Measure::TrainLoss,
        objective,
        figures: numbers.f64s(&figures),
        histogram: Histogram {
            step: bins.step,
            bins: bins.count,
            axis: split.measure.bar_axis(),
            heights: numbers.f64s(&heights),
            marks: numbers.f64s(&marks),
        },
        devices: devices_data(split, budget, numbers),
    }
}

fn figures_of(distribution: &Distribution, objective: bool) -> Vec<f64> {
    let f = distribution.over_seeds();
    let figures = [f.mean, f.p20, f.p50, f.p60, f.p80, f.p90, f.p95].into_iter();
    let objective = objective.then(|| distribution.objective()).flatten();
    figures.chain(objective).flat_map(|figure| [figure.mean, figure.std]).collect()
}

fn devices_data(split: &SplitResults, budget: usize, numbers: &mut Numbers) -> Devices {
    let tracks = split.frames[0].len();
    let sample = (split.devices.len() * tracks).div_ceil(budget);
    let sampled: Vec<_> = split.devices.iter().step_by(sample).collect();
    let frames = spaced(split.frames.len(), budget / (sampled.len() * tracks));
    let means: Vec<Vec<f64>> = frames
        .iter()
        .map(|&f| split.frames[f].iter().flat_map(|d| d.device_means().into_iter().step_by(sample)).collect())
        .collect();
    let scale = means.iter().flatten().copied().filter(|x| x.is_finite()).fold(f64::MIN_POSITIVE, f64::max);
    let mut before = vec![0u16; sampled.len() * tracks];
    let mut values = Vec::with_capacity(before.len() * frames.len());
    for frame in &means {
        for (before, &mean) in before.iter_mut().zip(frame) {
            // A value that is no number saturates: as bad as can be.
            let now = if mean.is_nan() { u16::MAX } else { (mean / scale * 65535.0).round() as u16 };
            values.push(now.wrapping_sub(*before));
            *before = now;
        }
    }
    Devices {
        all: split.devices.len(),
        ids: sampled.iter().map(|device| device.id.clone()).collect(),
        examples: sampled.iter().map(|device| device.examples).collect(),
        frames,
        scale,
        values: numbers.u16s(&values),
    }
}

/// At most `most` of `frames` frames (at least the last), a fixed stride apart.
fn spaced(frames: usize, most: usize) -> Vec<usize> {
    let stride = frames.div_ceil(most.max(1));
    let mut kept: Vec<usize> = (0..frames).rev().step_by(stride).collect();
    kept.reverse();
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_evenly_spaced_and_end_with_the_last() {
        assert_eq!(spaced(5, 5), [0, 1, 2, 3, 4]);
        assert_eq!(spaced(5, 3), [0, 2, 4]);
        assert_eq!(spaced(6, 3), [1, 3, 5]);
        assert_eq!(spaced(6, 0), [5]);
    }
}
