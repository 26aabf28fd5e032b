//! Evaluation on held-out examples through secure sums.
//!
//! If devices keep their figures private, a cohort is periodically asked for histograms. Each
//! device adds 1 to the bin of its loss and of each metric of its task, on its held-out examples.
//! The bins are constants that no server can choose, so that one answer about one w contains all
//! the information.
//!
//! ```text
//! shares          100 bins over [0, 1]; an error of 1 has its own bin
//! other measures  8 bins to an octave, from 2⁻²⁰ to 2²⁰, and a place below and above;  R² by 1 − R²
//! ```
//!
//! A device's value x_k is then in [l_k, u_k], the bounds of its bin. Every figure that is monotone
//! in the values (the mean and each percentile) is between the same figure of the lower bounds and
//! that of the upper bounds.

use serde::{Deserialize, Serialize};

use crate::exchange::Evaluation;
use crate::metrics::Figures;
use crate::superquantile::Bounds;
use crate::task::{Direction, Metric, Task, Unit};

/// The number of bins of a share.
const SHARES: usize = 100;
/// The number of bins of another measure: 40 octaves.
const RATIOS: usize = 320;
/// The maximum number of integers in an answer about the measures of a task.
pub const LONGEST: usize = (Task::METRICS + 1) * (RATIOS + 2);
/// 2^(j/8), the edges within an octave. They are literals because powers differ between machines.
const EIGHTHS: [f64; 8] = [
    1.0,
    1.090_507_732_665_257_7,
    1.189_207_115_002_721,
    1.296_839_554_651_009_6,
    std::f64::consts::SQRT_2,
    1.542_210_825_407_940_7,
    1.681_792_830_507_429,
    1.834_008_086_409_342_4,
];

/// A measure of a device on its held-out examples.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Measure {
    /// Its mean loss.
    Loss,
    /// A metric of its task.
    Metric(&'static Metric),
}

/// The error for an unknown name of a measure.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown measure {0:?}")]
pub struct UnknownMeasure(pub String);

impl TryFrom<String> for Measure {
    type Error = UnknownMeasure;

    fn try_from(name: String) -> Result<Self, UnknownMeasure> {
        Self::named(&name).ok_or(UnknownMeasure(name))
    }
}

impl From<Measure> for String {
    fn from(measure: Measure) -> Self {
        measure.name().to_owned()
    }
}

impl Measure {
    /// Returns the measures of this task: its metrics, the primary one first, and the loss.
    pub fn of_task(task: Task) -> Vec<Self> {
        task.metrics().iter().map(Self::Metric).chain([Self::Loss]).collect()
    }

    /// Returns the measure with this name.
    pub fn named(name: &str) -> Option<Self> {
        if name == "loss" { Some(Self::Loss) } else { Metric::named(name).map(Self::Metric) }
    }

    /// Returns its name in files and in questions.
    pub fn name(self) -> &'static str {
        match self {
            Self::Loss => "loss",
            Self::Metric(metric) => metric.name,
        }
    }

    /// Returns the value of a device, or `None` if its task has no such metric.
    pub fn value(self, task: Task, evaluation: &Evaluation) -> Option<f64> {
        match self {
            Self::Loss => Some(evaluation.loss),
            Self::Metric(metric) => {
                let place = task.metrics().iter().position(|known| known == metric)?;
                Some(evaluation.metrics[place])
            }
        }
    }

    /// Returns the number of integers of its histogram: its bins, one below them and one above.
    pub fn places(self) -> usize {
        self.bins() + 2
    }

    /// Returns the bin of a value. NaN counts as the worst value.
    ///
    /// ```
    /// use deltafl::evaluation::Measure;
    /// let error = Measure::named("error").unwrap();
    /// assert_eq!([0.0, 0.125, 1.0].map(|value| error.place(value)), [1, 13, 101]);
    /// assert_eq!(error.ends(13), (0.12, 0.13));
    /// ```
    pub fn place(self, value: f64) -> usize {
        if value.is_nan() {
            return self.places() - 1;
        }
        let reached = |i: &usize| {
            if self.falls() { value <= 1.0 - self.edge(*i) } else { self.edge(*i) <= value }
        };
        // Edges are increasing, so the edges at or below a value come first.
        let (mut below, mut above) = (0, self.bins() + 1);
        while below < above {
            let middle = below.midpoint(above);
            if reached(&middle) { below = middle + 1 } else { above = middle }
        }
        below
    }

    /// Returns the bounds of the values in a bin. An unknown bound is infinite.
    pub fn ends(self, place: usize) -> (f64, f64) {
        let (least, most) = if self.is_share() { (0.0, 1.0) } else { (0.0, f64::INFINITY) };
        let lower = if place == 0 { least } else { self.edge(place - 1) };
        let upper = if place > self.bins() { most } else { self.edge(place) };
        if self.falls() { (1.0 - upper, 1.0 - lower) } else { (lower, upper) }
    }

    /// Returns `true` if greater values are better. The bins are then those of 1 − value.
    fn falls(self) -> bool {
        matches!(self, Self::Metric(metric) if metric.direction == Direction::Higher)
    }

    fn is_share(self) -> bool {
        matches!(self, Self::Metric(metric) if metric.unit == Unit::Share)
    }

    fn bins(self) -> usize {
        if self.is_share() { SHARES } else { RATIOS }
    }

    /// Returns edge i of 0 ..= bins.
    fn edge(self, i: usize) -> f64 {
        if self.is_share() {
            return i as f64 / SHARES as f64;
        }
        let octave = (i / 8) as u64 + 1023 - (RATIOS as u64 / 16);
        EIGHTHS[i % 8] * f64::from_bits(octave << 52)
    }
}

/// Returns the number of integers in the answer to a question for these measures.
pub fn answer_len(measures: &[Measure]) -> usize {
    measures.iter().map(|measure| measure.places()).sum()
}

/// Adds the answer of a device to `sum`. Adds nothing if its task lacks one of the measures.
///
/// # Panics
/// Panics if `sum` is shorter than [`answer_len`].
pub fn answer(measures: &[Measure], task: Task, evaluation: &Evaluation, sum: &mut [u64]) {
    let values: Option<Vec<f64>> = measures.iter().map(|measure| measure.value(task, evaluation)).collect();
    let mut start = 0;
    for (measure, value) in measures.iter().zip(values.unwrap_or_default()) {
        let place = &mut sum[start + measure.place(value)];
        *place = place.wrapping_add(1);
        start += measure.places();
    }
}

/// The evaluation of one model by the devices of a cohort, from a secure sum.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CohortEvaluation {
    /// The number of rounds that led to the params.
    pub version: u64,
    /// The task of the devices.
    pub task: Task,
    /// One histogram per measure, the primary metric of the task first.
    pub measures: Vec<MeasureHistogram>,
}

/// The distribution of a measure over the devices of a cohort.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MeasureHistogram {
    /// The measure.
    pub measure: Measure,
    /// The non-empty bins, in increasing order.
    pub bins: Vec<DeviceBin>,
}

/// A bin of a histogram.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct DeviceBin {
    /// The bounds of the values.
    #[serde(flatten)]
    pub bounds: Bounds,
    /// The number of devices.
    pub devices: u64,
}

impl CohortEvaluation {
    /// Creates the evaluation from the sum of the answers to a question for the measures of a task.
    /// Returns `None` if no device has held-out examples or if the sum has a different length.
    pub fn new(version: u64, task: Task, sum: &[u64]) -> Option<Self> {
        let measures = Measure::of_task(task);
        if sum.len() != answer_len(&measures) {
            return None;
        }
        let mut rest = sum;
        let histogram = |measure: Measure| {
            let (own, behind) = rest.split_at(measure.places());
            rest = behind;
            MeasureHistogram::new(measure, own)
        };
        let measures: Vec<MeasureHistogram> = measures.into_iter().map(histogram).collect();
        measures.iter().all(|histogram| histogram.devices() > 0).then_some(Self { version, task, measures })
    }

    /// Returns the number of devices that answered.
    pub fn devices(&self) -> u64 {
        self.measures.first().map_or(0, MeasureHistogram::devices)
    }

    /// Returns the histogram of the primary metric.
    pub fn primary(&self) -> Option<&MeasureHistogram> {
        self.measures.first()
    }
}

impl MeasureHistogram {
    /// Creates the histogram from the sum of the answers of devices.
    pub fn new(measure: Measure, sum: &[u64]) -> Self {
        let filled = sum.iter().enumerate().filter(|&(_, &devices)| devices > 0);
        let bin = |(place, &devices): (usize, &u64)| {
            let (lower, upper) = measure.ends(place);
            DeviceBin { bounds: bounds(lower, upper), devices }
        };
        let mut bins: Vec<DeviceBin> = filled.map(bin).collect();
        if measure.falls() {
            bins.reverse();
        }
        Self { measure, bins }
    }

    /// Returns the number of devices in the histogram.
    pub fn devices(&self) -> u64 {
        self.bins.iter().map(|bin| bin.devices).fold(0, u64::saturating_add)
    }

    /// Returns the bounds of each device's bin. An unknown bound is infinite.
    pub fn ends(&self) -> (Vec<f64>, Vec<f64>) {
        let each = |end: fn(&Bounds) -> f64| {
            let of_bin = |bin: &DeviceBin| std::iter::repeat_n(end(&bin.bounds), bin.devices as usize);
            self.bins.iter().flat_map(of_bin).collect()
        };
        (
            each(|bounds| bounds.lower.unwrap_or(f64::NEG_INFINITY)),
            each(|bounds| bounds.upper.unwrap_or(f64::INFINITY)),
        )
    }

    /// Returns bounds of the mean and percentiles of the devices' values, by the rule of
    /// [`Figures::unweighted`]. Returns `None` without devices.
    pub fn figures(&self) -> Option<FigureBounds> {
        let (lower, upper) = self.ends();
        let (lower, upper) = (Figures::unweighted(&lower)?, Figures::unweighted(&upper)?);
        Some(FigureBounds::between(&lower, &upper))
    }
}

/// Bounds of the figures in the tables.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct FigureBounds {
    /// The mean over devices.
    pub mean: Bounds,
    /// 20th percentile.
    pub p20: Bounds,
    /// Median.
    pub p50: Bounds,
    /// 60th percentile.
    pub p60: Bounds,
    /// 80th percentile.
    pub p80: Bounds,
    /// 90th percentile.
    pub p90: Bounds,
    /// 95th percentile.
    pub p95: Bounds,
}

impl FigureBounds {
    fn between(lower: &Figures, upper: &Figures) -> Self {
        let percentile = |i: usize| bounds(lower.percentiles[i], upper.percentiles[i]);
        Self {
            mean: bounds(lower.mean, upper.mean),
            p20: percentile(0),
            p50: percentile(1),
            p60: percentile(2),
            p80: percentile(3),
            p90: percentile(4),
            p95: percentile(5),
        }
    }

    /// The mean, then the percentiles at [`PERCENTILES`](crate::metrics::PERCENTILES).
    pub fn columns(&self) -> [Bounds; 7] {
        [self.mean, self.p20, self.p50, self.p60, self.p80, self.p90, self.p95]
    }
}

/// Converts a bound. A non-finite bound is unknown.
fn bounds(lower: f64, upper: f64) -> Bounds {
    Bounds { lower: Some(lower).filter(|x| x.is_finite()), upper: Some(upper).filter(|x| x.is_finite()) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::metrics::PERCENTILES;
    use crate::task::RegressionLoss;

    const TASKS: [Task; 4] =
        [Task::Classes, Task::Binary, Task::NextSymbol, Task::Regression(RegressionLoss::Squared)];

    fn measures() -> impl Strategy<Value = Measure> {
        let all: Vec<Measure> = TASKS.into_iter().flat_map(Measure::of_task).collect();
        prop::sample::select(all)
    }

    /// Returns a value that the measure can have.
    fn value(measure: Measure, share: f64, octave: f64) -> f64 {
        let ratio = share * octave.exp2();
        if measure.is_share() {
            share
        } else if measure.falls() {
            1.0 - ratio
        } else {
            ratio
        }
    }

    #[test]
    fn edges_are_eight_to_an_octave_and_grow() {
        let edges: Vec<f64> = (0..=RATIOS).map(|i| Measure::Loss.edge(i)).collect();
        assert_eq!((edges[0], edges[160], edges[RATIOS]), (2f64.powi(-20), 1.0, 2f64.powi(20)));
        for pair in edges.windows(2) {
            assert!((pair[1] / pair[0] - 2f64.powf(0.125)).abs() < 1e-14, "{pair:?}");
        }
    }

    #[test]
    fn what_is_no_number_counts_as_the_worst() {
        let r_squared = Measure::named("r_squared").unwrap();
        assert_eq!(Measure::Loss.ends(Measure::Loss.place(f64::NAN)), (2f64.powi(20), f64::INFINITY));
        assert_eq!(r_squared.ends(r_squared.place(f64::NAN)).0, f64::NEG_INFINITY);
        assert_eq!(r_squared.ends(r_squared.place(1.0)), (1.0 - 2f64.powi(-20), 1.0));
        let error = Measure::named("error").unwrap();
        assert_eq!(error.ends(error.place(1.0)), (1.0, 1.0));
    }

    #[test]
    fn figures_of_four_devices_can_be_checked_by_hand() {
        let error = Measure::named("error").unwrap();
        let mut sum = vec![0; error.places()];
        [0.0, 0.105, 0.3, 1.0].iter().for_each(|&value| sum[error.place(value)] += 1);
        let figures = MeasureHistogram::new(error, &sum).figures().unwrap();
        // Between the means of 0, 0.10, 0.30, 1 and of 0.01, 0.11, 0.31, 1.
        let close = |bounds: Bounds, lower: f64, upper: f64| {
            (bounds.lower.unwrap() - lower).abs() < 1e-12 && (bounds.upper.unwrap() - upper).abs() < 1e-12
        };
        assert!(close(figures.mean, 0.35, 0.3575), "{figures:?}");
        assert!(close(figures.p50, 0.2, 0.21), "{figures:?}");
    }

    #[test]
    fn a_device_of_another_task_adds_nothing() {
        let evaluation = Evaluation::of_primary(0.5, 0.25);
        let asked = Measure::of_task(Task::NextSymbol);
        let mut sum = vec![0; answer_len(&asked)];
        answer(&asked, Task::Classes, &evaluation, &mut sum);
        assert!(sum.iter().all(|&devices| devices == 0));
        assert_eq!(CohortEvaluation::new(3, Task::NextSymbol, &sum), None, "nobody told");
        answer(&asked, Task::NextSymbol, &evaluation, &mut sum);
        assert_eq!(CohortEvaluation::new(3, Task::NextSymbol, &sum).unwrap().devices(), 1);
        assert_eq!(CohortEvaluation::new(3, Task::Classes, &sum), None, "of another length");
    }

    #[test]
    fn an_evaluation_survives_being_written_down() {
        let task = Task::Regression(RegressionLoss::Huber(0.5));
        let asked = Measure::of_task(task);
        let mut sum = vec![0; answer_len(&asked)];
        let evaluation = Evaluation { loss: f64::INFINITY, metrics: [3.0, 0.0, -2.0] };
        answer(&asked, task, &evaluation, &mut sum);
        let known = CohortEvaluation::new(7, task, &sum).unwrap();
        let text = serde_json::to_string(&known).unwrap();
        assert_eq!(serde_json::from_str::<CohortEvaluation>(&text).unwrap(), known);
        assert!(serde_json::from_str::<Measure>("\"errors\"").is_err());
    }

    proptest! {
        #[test]
        fn a_value_lies_between_the_ends_of_its_place(
            measure in measures(), share in 0.0..=1.0, octave in -30.0..30.0,
        ) {
            let value = value(measure, share, octave);
            let (lower, upper) = measure.ends(measure.place(value));
            prop_assert!(lower <= value && value <= upper, "{} in {}..{}", value, lower, upper);
        }

        #[test]
        fn the_figures_of_the_devices_lie_within_the_bounds(
            measure in measures(), cohort in prop::collection::vec((0.0..=1.0, -30.0..30.0), 1..60),
        ) {
            let values: Vec<f64> = cohort.iter().map(|&(share, octave)| value(measure, share, octave)).collect();
            let mut sum = vec![0; measure.places()];
            values.iter().for_each(|&value| sum[measure.place(value)] += 1);
            let open = Figures::unweighted(&values).unwrap();
            let known = MeasureHistogram::new(measure, &sum).figures().unwrap().columns();
            let exact = std::iter::once(open.mean).chain(open.percentiles);
            for (i, (value, bounds)) in exact.zip(known).enumerate() {
                let rounding = 1e-12 * value.abs();
                prop_assert!(bounds.lower.is_none_or(|lower| lower <= value + rounding), "{} {:?} {}", i, bounds, value);
                prop_assert!(bounds.upper.is_none_or(|upper| value <= upper + rounding), "{} {:?} {}", i, bounds, value);
            }
            prop_assert_eq!(known.len(), 1 + PERCENTILES.len());
        }
    }
}
