//! Model cards: the metadata and metrics of a model, as far as privacy allows.

use deltafl::evaluation::{CohortEvaluation, FigureBounds, Measure};
use deltafl::superquantile::{Bounds, Conformity, Histogram, LossDistribution};
use serde::{Deserialize, Serialize};

/// The minimum number of devices for a percentile. With fewer, a percentile identifies a device.
pub const FEWEST_SHOWN: u64 = 5;

/// The metadata and metrics of a model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Card {
    /// The name of the federation.
    pub federation: String,
    /// The conformity level of the model.
    pub theta: Conformity,
    /// The name of the algorithm.
    pub algorithm: String,
    /// The version: the number of rounds that trained the model.
    pub version: u64,
    /// The seed of the run.
    pub seed: u64,
    /// The BLAKE3 hash of the model's file, which is also its ETag.
    pub blake3: String,
    /// The size of the model's file, in bytes.
    pub bytes: u64,
    /// η: the (1−θ)-quantile of the cohort's losses. The server learns it in private mode, too.
    pub eta: Option<f64>,
    /// The BLAKE3 hash of the data contract. The model's file contains the contract.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub contract: Option<String>,
    /// The distribution of the devices' losses.
    pub losses: CardLosses,
    /// The task's metrics (the primary one first) and the loss, on held-out examples.
    ///
    /// Empty if no cohort was evaluated or too few devices answered.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub held_out: Vec<HeldOutFigures>,
}

/// Bounds of a metric over the devices of a cohort, on held-out examples.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HeldOutFigures {
    /// The version of the evaluated params.
    pub version: u64,
    /// The number of devices that answered.
    pub devices: u64,
    /// The metric.
    pub measure: Measure,
    /// The bounds of its mean and percentiles over the devices.
    #[serde(flatten)]
    pub figures: FigureBounds,
}

impl HeldOutFigures {
    /// Returns the bounds of every metric, the primary one first.
    ///
    /// Returns an empty list if fewer than [`FEWEST_SHOWN`] devices answered.
    pub fn from_evaluation(told: &CohortEvaluation) -> Vec<Self> {
        let (version, devices) = (told.version, told.devices());
        if devices < FEWEST_SHOWN {
            return Vec::new();
        }
        let measures = told.measures.iter();
        let figures = measures.filter_map(|histogram| Some((histogram.measure, histogram.figures()?)));
        figures.map(|(measure, figures)| Self { version, devices, measure, figures }).collect()
    }
}

/// The distribution of a cohort's losses, weighted by the numbers of examples.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "mode", rename_all = "lowercase")]
pub enum CardLosses {
    /// Exact percentiles, from the losses that the devices sent.
    Open(LossPercentiles),
    /// Bounds of percentiles, from secure sums of histograms.
    Private {
        /// The percentiles.
        #[serde(flatten)]
        measured: LossPercentiles,
        /// The histograms: first over the whole range of losses, then inside the bin that contains
        /// η. Lists of cards omit them.
        histograms: Vec<CardHistogram>,
    },
    /// No cohort was asked, or too few devices answered.
    None {
        /// The reason.
        reason: String,
    },
}

/// Percentiles of the loss over the devices of a cohort.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LossPercentiles {
    /// The evaluated version of the model: the card's, or an earlier one.
    pub version: u64,
    /// The number of devices that answered.
    pub devices: u64,
    /// The percentiles.
    pub percentiles: Vec<Percentile>,
}

/// Bounds of a percentile. An unknown bound is null.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Percentile {
    /// The percentile, in percent.
    pub percentile: u8,
    /// Its bounds, which are equal if the value is exact.
    #[serde(flatten)]
    pub bounds: Bounds,
}

/// A histogram of losses.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CardHistogram {
    /// The number of devices counted. It may be smaller than in the first histogram after
    /// drop-outs.
    pub devices: u64,
    /// The non-empty bins in ascending order. The outermost bins may be unbounded.
    pub bins: Vec<CardBin>,
}

/// A bin of a histogram.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct CardBin {
    /// The half-open interval from `lower` to `upper`.
    #[serde(flatten)]
    pub bounds: Bounds,
    /// Its share of the weight, rounded to a thousandth so that it reveals no number of examples.
    pub share: f64,
}

impl Card {
    /// Removes the histograms, for lists of cards.
    #[must_use]
    pub fn in_brief(mut self) -> Self {
        if let CardLosses::Private { histograms, .. } = &mut self.losses {
            histograms.clear();
        }
        self
    }
}

impl CardLosses {
    /// Summarises the loss distribution of a version, or states that no cohort was asked.
    pub fn from_distribution(known: Option<(u64, &LossDistribution)>) -> Self {
        let Some((version, distribution)) = known else {
            return Self::None { reason: "no cohort was asked for its losses at this level".to_owned() };
        };
        if distribution.devices() < FEWEST_SHOWN {
            let reason =
                format!("fewer than {FEWEST_SHOWN} devices answered: a percentile would identify a device");
            return Self::None { reason };
        }
        let percentile = |(percentile, bounds)| Percentile { percentile, bounds };
        let measured = LossPercentiles {
            version,
            devices: distribution.devices(),
            percentiles: distribution.percentiles().into_iter().map(percentile).collect(),
        };
        match distribution {
            LossDistribution::Open { .. } => Self::Open(measured),
            LossDistribution::Private { histograms } => {
                Self::Private { measured, histograms: histograms.iter().map(CardHistogram::new).collect() }
            }
        }
    }

    /// Returns the percentiles, if there are any.
    pub fn measured(&self) -> Option<&LossPercentiles> {
        match self {
            Self::Open(measured) | Self::Private { measured, .. } => Some(measured),
            Self::None { .. } => None,
        }
    }
}

impl CardHistogram {
    fn new(histogram: &Histogram) -> Self {
        let bin =
            |(bounds, share): (Bounds, f64)| CardBin { bounds, share: (1000.0 * share).round() / 1000.0 };
        Self { devices: histogram.devices(), bins: histogram.shares().map(bin).collect() }
    }
}

#[cfg(test)]
mod tests {
    use deltafl::evaluation::{answer, answer_len};
    use deltafl::exchange::Evaluation;
    use deltafl::superquantile::DeviceLoss;
    use deltafl::superquantile::private::Bins;
    use deltafl::task::Task;
    use serde_json::json;

    use super::*;

    #[test]
    fn a_private_card_gives_shares_and_bounds_and_no_number_of_examples() {
        let bins = Bins::new(0.0, 2.0, 2).unwrap();
        let histogram = Histogram::new(bins, 5, &[0, 6666, 3334, 0]);
        let distribution = LossDistribution::private(vec![histogram]).unwrap();
        let losses = CardLosses::from_distribution(Some((7, &distribution)));
        let value = serde_json::to_value(&losses).unwrap();
        assert_eq!(
            (&value["mode"], &value["version"], &value["devices"]),
            (&json!("private"), &json!(7), &json!(5))
        );
        assert_eq!(
            value["histograms"][0]["bins"],
            json!([{"lower": 0.0, "upper": 1.0, "share": 0.667}, {"lower": 1.0, "upper": 2.0, "share": 0.333}])
        );
        assert_eq!(value["percentiles"][2], json!({"percentile": 50, "lower": 0.0, "upper": 1.0}));
        assert_eq!(serde_json::from_value::<CardLosses>(value).unwrap(), losses);
    }

    #[test]
    fn the_losses_of_a_few_devices_are_not_shown() {
        let told: Vec<_> = (1..=4).map(|k| DeviceLoss::new(f64::from(k), 1.0).unwrap()).collect();
        let distribution = LossDistribution::open(&told).unwrap();
        let losses = CardLosses::from_distribution(Some((7, &distribution)));
        assert!(matches!(losses, CardLosses::None { reason } if reason.contains("fewer than 5")));
    }

    /// Returns the evaluation of this many devices: errors of 0.105, 0.205 and so on, and twice
    /// that as losses.
    fn told(devices: u32) -> CohortEvaluation {
        let asked = Measure::of_task(Task::Classes);
        let mut sum = vec![0; answer_len(&asked)];
        for k in 0..devices {
            let error = 0.105 + 0.1 * f64::from(k);
            answer(&asked, Task::Classes, &Evaluation::of_primary(2.0 * error, error), &mut sum);
        }
        CohortEvaluation::new(4, Task::Classes, &sum).unwrap()
    }

    #[test]
    fn the_metrics_of_a_cohort_are_shown_between_bounds_and_those_of_a_few_devices_are_not() {
        let shown = HeldOutFigures::from_evaluation(&told(5));
        let names: Vec<&str> = shown.iter().map(|figures| figures.measure.name()).collect();
        assert_eq!(names, ["error", "loss"]);
        let value = serde_json::to_value(&shown[0]).unwrap();
        assert_eq!(
            (&value["measure"], &value["devices"], &value["version"]),
            (&json!("error"), &json!(5), &json!(4))
        );
        // The third of five errors.
        let (lower, upper) =
            (value["p50"]["lower"].as_f64().unwrap(), value["p50"]["upper"].as_f64().unwrap());
        assert!(lower <= 0.305 && 0.305 <= upper && upper - lower < 0.011, "{value}");
        assert_eq!(serde_json::from_value::<HeldOutFigures>(value).unwrap(), shown[0]);
        assert!(HeldOutFigures::from_evaluation(&told(4)).is_empty());
    }

    #[test]
    fn a_level_that_nobody_was_asked_about_says_so() {
        let value = serde_json::to_value(CardLosses::from_distribution(None)).unwrap();
        assert_eq!(value["mode"], "none");
        assert!(value["reason"].as_str().is_some_and(|reason| reason.contains("no cohort")));
    }
}
