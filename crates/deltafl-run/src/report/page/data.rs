//! The data of the page, small enough for one file.
//!
//! It contains curves and histograms of every frame. The value of each device is included for as
//! many frames as fit ([`super::devices`]).

use deltafl::metrics::PERCENTILES;
use deltafl_data::run_folder::Classes;
use serde::Serialize;

use super::super::distribution::{Distribution, Measured};
use super::super::figures::bins::HistogramBins;
use super::super::headline::best_level;
use super::super::results::RunResults;
use super::super::spread::DeviceSpread;
use super::devices::{DEVICE_VALUES, Devices};
use super::numbers::{Array, PageNumbers};

/// The page's data, as text.
pub(super) struct PageData {
    /// JSON for a script element.
    pub(super) json: String,
    /// The numbers in base64.
    pub(super) numbers: String,
}

#[derive(Serialize)]
struct Page {
    runs: Vec<PageRun>,
}

#[derive(Serialize)]
struct PageRun {
    name: String,
    tracks: Vec<PageTrack>,
    baseline: usize,
    /// The track of the headline.
    best: usize,
    seeds: usize,
    rounds: Vec<u64>,
    /// Secure-aggregation calls: track by track, a number per frame.
    calls: Array,
    cohort: usize,
    measures: Vec<PageMeasure>,
    /// The error of each class, if classes have names.
    classes: Option<Classes>,
    /// Minimum and maximum size of the cohorts that sent histograms, if devices send no individual
    /// results.
    cohorts: Option<(u64, u64)>,
    /// Devices in the tail: for each track, a sequence of (round, mean, min, max).
    tails: Vec<Array>,
    /// Rounds in a window of `tails`.
    tail_width: u64,
    /// The privacy spent; `None` for exact sums.
    privacy: Option<PagePrivacy>,
}

#[derive(Serialize)]
struct PagePrivacy {
    delta: f64,
    /// A sequence of (round, ε against the server, ε against readers). ε against the server is NaN if the
    /// server sees exact sums.
    spent: Array,
}

#[derive(Serialize)]
struct PageTrack {
    label: String,
    /// The kind of the algorithm.
    algorithm: String,
    theta: f64,
    eta_every: u64,
}

#[derive(Serialize)]
struct PageMeasure {
    key: String,
    name: String,
    axis: String,
    /// The split: `test` or `train`.
    split: &'static str,
    percent: bool,
    weighted: bool,
    lower_is_better: bool,
    decimals: usize,
    /// Column names of mean and percentiles, followed by F_θ if it is known.
    columns: Vec<String>,
    /// The same in words.
    statistics: Vec<String>,
    objective: bool,
    /// Frame by track by (mean, percentiles…, F_θ) by (mean, std over seeds).
    figures: Array,
    /// Frame by track by (mean, percentiles…) by (lower, upper), if values are known only by their
    /// bounds.
    bounds: Option<Array>,
    histogram: PageHistogram,
    devices: Devices,
}

#[derive(Serialize)]
struct PageHistogram {
    from: f64,
    step: f64,
    bins: usize,
    /// Whether there are values below the first bin, and above the last.
    open: [bool; 2],
    /// The note for the axis in that case.
    note: &'static str,
    /// The name of the axis of bar heights.
    axis: &'static str,
    /// Frame by track by bin. Each device is first averaged over seeds.
    heights: Array,
    /// Frame by track by (mean, tail percentile) of the bars.
    marks: Array,
}

/// Collects the data of the page.
pub(super) fn page_data(runs: &[RunResults]) -> PageData {
    let mut numbers = PageNumbers::default();
    let measures: usize = runs.iter().map(|run| run.measured.len()).sum();
    let budget = DEVICE_VALUES / measures.max(1);
    let runs = runs.iter().map(|run| run_data(run, budget, &mut numbers)).collect();
    let json =
        serde_json::to_string(&Page { runs }).expect("the page's data has string keys and finite numbers");
    // The name of a device may be `</script>`.
    PageData { json: json.replace('<', "\\u003c"), numbers: numbers.encoded() }
}

fn run_data(run: &RunResults, budget: usize, numbers: &mut PageNumbers) -> PageRun {
    let track = |t: &super::super::tracks::TrackInfo| PageTrack {
        label: t.label.clone(),
        algorithm: t.algorithm.clone(),
        theta: t.theta,
        eta_every: t.eta_every,
    };
    let sizes = |track: &Vec<super::super::results::TailSize>| -> Vec<f64> {
        track.iter().flat_map(|k| [k.round as f64, k.mean, k.min, k.max]).collect()
    };
    PageRun {
        name: run.name.clone(),
        tracks: run.tracks.iter().map(track).collect(),
        baseline: run.baseline,
        best: best_level(run),
        seeds: run.seeds.len(),
        rounds: run.rounds.clone(),
        calls: numbers.f64s(&run.calls.concat()),
        cohort: run.experiment.cohort(),
        measures: run.measured.iter().map(|measured| measure_data(measured, budget, numbers)).collect(),
        classes: run.classes.clone(),
        cohorts: run.cohorts,
        tails: run.tails.iter().map(|track| numbers.f64s(&sizes(track))).collect(),
        tail_width: run
            .tails
            .iter()
            .find_map(|track| Some(track.get(1)?.round - track[0].round))
            .unwrap_or(1),
        privacy: privacy_data(run, numbers),
    }
}

fn privacy_data(run: &RunResults, numbers: &mut PageNumbers) -> Option<PagePrivacy> {
    let delta = run.privacy.first()?.1.delta;
    let spent = run.privacy.iter().flat_map(|(round, spent)| {
        [*round as f64, spent.epsilon_server.unwrap_or(f64::NAN), spent.epsilon_readers]
    });
    Some(PagePrivacy { delta, spent: numbers.f64s(&spent.collect::<Vec<f64>>()) })
}

fn measure_data(measured: &Measured, budget: usize, numbers: &mut PageNumbers) -> PageMeasure {
    let measure = measured.measure;
    let distributions = || measured.frames.iter().flatten();
    let objective = distributions().all(|distribution| distribution.objective().is_some());
    let figures: Vec<f64> = distributions().flat_map(|d| figures_of(d, objective)).collect();
    let bounds: Vec<f64> = distributions().flat_map(bounds_of).collect();
    let tracks = measured.frames[0].len();
    let spreads: Vec<DeviceSpread> = (0..measured.frames.len())
        .flat_map(|frame| (0..tracks).map(move |track| DeviceSpread::new(measured, frame, track)))
        .collect();
    let bins = HistogramBins::over(spreads.iter().flat_map(DeviceSpread::values));
    let heights: Vec<f64> = spreads.iter().flat_map(|spread| spread.heights(&bins)).collect();
    let marks: Vec<f64> = spreads.iter().flat_map(|spread| [spread.mean, spread.tail]).collect();
    PageMeasure {
        key: measure.key(),
        name: measure.name(),
        axis: measure.axis(),
        split: measure.split().name(),
        percent: measure.percent(),
        weighted: measure.weighted(),
        lower_is_better: measure.lower_is_better(),
        decimals: measured.decimals(),
        columns: measure.columns(),
        statistics: measure.statistics(),
        objective,
        figures: numbers.f64s(&figures),
        bounds: (!bounds.is_empty()).then(|| numbers.f64s(&bounds)),
        histogram: PageHistogram {
            from: bins.from,
            step: bins.step,
            bins: bins.count,
            open: bins.open,
            note: bins.note(),
            axis: measure.bar_axis(),
            heights: numbers.f64s(&heights),
            marks: numbers.f64s(&marks),
        },
        devices: Devices::new(measured, budget, numbers),
    }
}

/// Returns the bounds, or an empty list if values are exact.
fn bounds_of(distribution: &Distribution) -> Vec<f64> {
    let columns = (0..=PERCENTILES.len()).filter_map(|column| distribution.between(column));
    columns.flat_map(|(lower, upper)| [lower, upper]).collect()
}

/// Returns the values. Unknown ones are NaN, such as the standard deviation over one seed.
fn figures_of(distribution: &Distribution, objective: bool) -> Vec<f64> {
    let f = distribution.over_seeds();
    let figures = [f.mean, f.p20, f.p50, f.p60, f.p80, f.p90, f.p95].into_iter();
    let objective = objective.then(|| distribution.objective()).flatten();
    figures.chain(objective).flat_map(|figure| [figure.mean, figure.std.unwrap_or(f64::NAN)]).collect()
}
