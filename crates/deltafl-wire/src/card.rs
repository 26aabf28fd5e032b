//! Model cards: what is known of a model, as far as privacy allows.

use deltafl::evaluation::{CohortEvaluation, FigureBounds, Measure};
use deltafl::superquantile::{Bounds, Conformity, Histogram, LossDistribution};
use serde::{Deserialize, Serialize};

/// Devices below which no percentile of a cohort is shown: among so few it is somebody.
pub const FEWEST_SHOWN: u64 = 5;

/// What is known of a model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Card {
    /// The federation.
    pub federation: String,
    /// The level that it was trained at.
    pub theta: Conformity,
    /// The algorithm.
    pub algorithm: String,
    /// Rounds behind it: its version.
    pub version: u64,
    /// The seed of its run.
    pub seed: u64,
    /// BLAKE3 of its file, and its ETag.
    pub blake3: String,
    /// Size of its file.
    pub bytes: u64,
    /// η in force: the (1−θ)-quantile of the cohort's losses, which the server learns in private mode too.
    pub eta: Option<f64>,
    /// BLAKE3 of the contract of its data, which is in its file: what must be done to examples before it sees them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub contract: Option<String>,
    /// How the losses of devices lie under it.
    pub losses: CardLosses,
    /// How it serves the examples that devices hold out: a list of the task's metrics, the primary one first, and the loss. Empty
    /// where no cohort was asked, or too few devices told.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub held_out: Vec<HeldOutFigures>,
}

/// Between which numbers a measure lies over the devices of a cohort, on examples that they hold out.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HeldOutFigures {
    /// Rounds behind the params that the cohort was asked about.
    pub version: u64,
    /// Devices that told.
    pub devices: u64,
    /// What is measured.
    pub measure: Measure,
    /// Mean and percentiles over devices.
    #[serde(flatten)]
    pub figures: FigureBounds,
}

impl HeldOutFigures {
    /// What may be shown of what a cohort told: figures of every measure, the primary metric first; nothing where too few
    /// devices told.
    pub fn of(told: &CohortEvaluation) -> Vec<Self> {
        let (version, devices) = (told.version, told.devices());
        if devices < FEWEST_SHOWN {
            return Vec::new();
        }
        let measures = told.measures.iter();
        let figures = measures.filter_map(|histogram| Some((histogram.measure, histogram.figures()?)));
        figures.map(|(measure, figures)| Self { version, devices, measure, figures }).collect()
    }
}

/// The losses of a cohort, weighted by the devices' numbers of examples.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "mode", rename_all = "lowercase")]
pub enum CardLosses {
    /// Devices told their losses: percentiles are exact.
    Open(Measured),
    /// The server knows secure sums of histograms: a percentile lies within the bounds of a bin.
    Private {
        /// Percentiles.
        #[serde(flatten)]
        measured: Measured,
        /// The sums: over the whole range of losses first, then inside the bin that the search for η chose. A list of cards
        /// leaves them out.
        histograms: Vec<CardHistogram>,
    },
    /// Nobody asked for them, or too few told.
    None {
        /// Why.
        reason: String,
    },
}

/// When and on whom losses were measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// The version of the model that the cohort was asked about: the card's, or one shortly before it.
    pub version: u64,
    /// Devices that answered.
    pub devices: u64,
    /// Percentiles of the loss.
    pub percentiles: Vec<Percentile>,
}

/// A percentile and where it lies; an end that is not known is null.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Percentile {
    /// In percent.
    pub percentile: u8,
    /// Where it lies; both ends are the same where it is exact.
    #[serde(flatten)]
    pub bounds: Bounds,
}

/// A histogram of losses.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CardHistogram {
    /// Devices in it: fewer than in the one before if some dropped out.
    pub devices: u64,
    /// The bins that are not empty, from the lowest; the outermost may have no end.
    pub bins: Vec<CardBin>,
}

/// A bin.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct CardBin {
    /// From `lower`, up to and without `upper`.
    #[serde(flatten)]
    pub bounds: Bounds,
    /// Its share of the weight, to a thousandth: finer, it would give away numbers of examples.
    pub share: f64,
}

impl Card {
    /// The card without its histograms, for a list of many.
    #[must_use]
    pub fn in_brief(mut self) -> Self {
        if let CardLosses::Private { histograms, .. } = &mut self.losses {
            histograms.clear();
        }
        self
    }
}

impl CardLosses {
    /// What a card says of the losses that the cohort of a version told; `None` where no cohort was asked.
    pub fn of(known: Option<(u64, &LossDistribution)>) -> Self {
        let Some((version, distribution)) = known else {
            return Self::None { reason: "no cohort was asked for its losses at this level".to_owned() };
        };
        if distribution.devices() < FEWEST_SHOWN {
            let reason =
                format!("fewer than {FEWEST_SHOWN} devices told: among so few a percentile is a device");
            return Self::None { reason };
        }
        let percentile = |(percentile, bounds)| Percentile { percentile, bounds };
        let measured = Measured {
            version,
            devices: distribution.devices(),
            percentiles: distribution.percentiles().into_iter().map(percentile).collect(),
        };
        match distribution {
            LossDistribution::Open { .. } => Self::Open(measured),
            LossDistribution::Private { histograms } => {
                Self::Private { measured, histograms: histograms.iter().map(CardHistogram::of).collect() }
            }
        }
    }

    /// When and on whom they were measured, if at all.
    pub fn measured(&self) -> Option<&Measured> {
        match self {
            Self::Open(measured) | Self::Private { measured, .. } => Some(measured),
            Self::None { .. } => None,
        }
    }
}

impl CardHistogram {
    fn of(histogram: &Histogram) -> Self {
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
        let losses = CardLosses::of(Some((7, &distribution)));
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
        let losses = CardLosses::of(Some((7, &distribution)));
        assert!(matches!(losses, CardLosses::None { reason } if reason.contains("fewer than 5")));
    }

    /// What so many devices told: errors of 0.105, 0.205 and so on, and twice that as losses.
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
        let shown = HeldOutFigures::of(&told(5));
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
        assert!(HeldOutFigures::of(&told(4)).is_empty());
    }

    #[test]
    fn a_level_that_nobody_was_asked_about_says_so() {
        let value = serde_json::to_value(CardLosses::of(None)).unwrap();
        assert_eq!(value["mode"], "none");
        assert!(value["reason"].as_str().is_some_and(|reason| reason.contains("no cohort")));
    }
}
