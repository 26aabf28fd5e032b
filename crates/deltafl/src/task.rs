//! Prediction tasks and their metrics.
//!
//! A model adds a few numbers over the examples of a device ([`Score`]). Its task converts them to
//! metrics with a name, a unit and a direction. Tables, figures and comparisons read all three from
//! here.
//!
//! ```text
//! classes, binary   error  = errors / n
//! next symbol       error, perplexity = exp(mean loss)
//! regression        RMSE = √(Σ(ŷ − y)²/n),  MAE = Σ|ŷ − y|/n,  R² = 1 − Σ(ŷ − y)² / Σ(y − ȳ)²
//! ```

use serde::{Deserialize, Serialize};

use crate::model::Score;

/// A prediction task.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Task {
    /// One of several classes. The loss is the cross-entropy.
    #[default]
    Classes,
    /// One of two classes, with a single logit. The loss is the logistic loss.
    Binary,
    /// The next symbol. The loss is the cross-entropy.
    NextSymbol,
    /// A real number.
    Regression(RegressionLoss),
}

/// The loss of a prediction ŷ of a real number y, with r = ŷ − y.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum RegressionLoss {
    /// r²/2.
    #[default]
    Squared,
    /// r²/2 if |r| ≤ δ, and δ(|r| − δ/2) otherwise. The slope at an outlier is at most δ.
    Huber(f32),
}

impl RegressionLoss {
    /// Computes the loss of a residual.
    pub fn loss(self, residual: f64) -> f64 {
        match self {
            Self::Squared => 0.5 * residual * residual,
            Self::Huber(delta) => {
                let (size, delta) = (residual.abs(), f64::from(delta));
                if size <= delta { 0.5 * size * size } else { delta * (size - 0.5 * delta) }
            }
        }
    }

    /// Computes the derivative of the loss.
    pub fn slope(self, residual: f32) -> f32 {
        match self {
            Self::Squared => residual,
            Self::Huber(delta) => residual.max(-delta).min(delta),
        }
    }
}

/// A measure of the prediction quality of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Metric {
    /// Its name in files, a column of the evaluations.
    pub name: &'static str,
    /// Its name in tables and figures.
    pub title: &'static str,
    /// Its unit.
    pub unit: Unit,
    /// The direction of improvement.
    pub direction: Direction,
}

/// The unit of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Unit {
    /// A fraction of the examples in [0, 1], displayed in percent.
    Share,
    /// The unit of the target.
    Target,
    /// A plain number.
    Number,
}

/// The direction of improvement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Direction {
    /// Smaller values are better.
    Lower,
    /// Larger values are better.
    Higher,
}

/// All metrics of all tasks.
static METRICS: [Metric; 5] = [ERROR, PERPLEXITY, RMSE, MAE, R_SQUARED];

impl Metric {
    /// Returns the metric with this name.
    pub fn named(name: &str) -> Option<&'static Self> {
        METRICS.iter().find(|metric| metric.name == name)
    }

    /// Converts a value for tables: a fraction to percent, others unchanged.
    pub fn display_value(&self, value: f64) -> f64 {
        if self.unit == Unit::Share { 100.0 * value } else { value }
    }

    /// Returns a number that decreases as the value improves.
    pub fn cost(&self, value: f64) -> f64 {
        if self.direction == Direction::Lower { value } else { -value }
    }

    /// Returns the title with its unit, as a heading: "error %", "RMSE".
    pub fn heading(&self) -> String {
        if self.unit == Unit::Share { format!("{} %", self.title) } else { self.title.to_owned() }
    }
}

const ERROR: Metric =
    Metric { name: "error", title: "error", unit: Unit::Share, direction: Direction::Lower };
const PERPLEXITY: Metric =
    Metric { name: "perplexity", title: "perplexity", unit: Unit::Number, direction: Direction::Lower };
const RMSE: Metric = Metric { name: "rmse", title: "RMSE", unit: Unit::Target, direction: Direction::Lower };
const MAE: Metric = Metric { name: "mae", title: "MAE", unit: Unit::Target, direction: Direction::Lower };
const R_SQUARED: Metric =
    Metric { name: "r_squared", title: "R²", unit: Unit::Number, direction: Direction::Higher };

/// The sum in [`Score::sums`] for classification tasks: the number of misclassified examples.
pub const ERRORS: usize = 0;

impl Task {
    /// The maximum number of metrics of a task.
    pub const METRICS: usize = 3;

    /// Returns its metrics. The first is the primary metric.
    ///
    /// ```
    /// use deltafl::task::Task;
    /// let names: Vec<&str> = Task::NextSymbol.metrics().iter().map(|metric| metric.name).collect();
    /// assert_eq!(names, ["error", "perplexity"]);
    /// ```
    pub fn metrics(self) -> &'static [Metric] {
        match self {
            Self::Classes | Self::Binary => &[ERROR],
            Self::NextSymbol => &[ERROR, PERPLEXITY],
            Self::Regression(_) => &[RMSE, MAE, R_SQUARED],
        }
    }

    /// Returns the primary metric, which tables report.
    pub fn primary(self) -> &'static Metric {
        &self.metrics()[0]
    }

    /// Returns its name in files.
    pub fn name(self) -> &'static str {
        match self {
            Self::Classes => "classes",
            Self::Binary => "binary",
            Self::NextSymbol => "next-symbol",
            Self::Regression(_) => "regression",
        }
    }

    /// Returns the name of its loss.
    pub fn loss(self) -> &'static str {
        match self {
            Self::Classes | Self::NextSymbol => "cross-entropy",
            Self::Binary => "logistic loss",
            Self::Regression(RegressionLoss::Squared) => "squared loss",
            Self::Regression(RegressionLoss::Huber(_)) => "Huber loss",
        }
    }

    /// Returns the metrics of a device with this many examples, in the order of [`Task::metrics`],
    /// followed by zeros.
    pub fn values(self, score: &Score, examples: u64) -> [f64; Self::METRICS] {
        let n = examples as f64;
        let [first, second, third, fourth] = score.sums;
        match self {
            Self::Classes | Self::Binary => [first / n, 0.0, 0.0],
            Self::NextSymbol => [first / n, (score.loss / n).exp(), 0.0],
            Self::Regression(_) => [(first / n).sqrt(), second / n, r_squared(first, third, fourth, n)],
        }
    }

    /// Returns the sums of one prediction of a real number, in addition to its loss: r², |r|, y and
    /// y².
    pub fn regression_sums(prediction: f32, target: f32) -> [f64; Score::SUMS] {
        let (residual, y) = (f64::from(prediction) - f64::from(target), f64::from(target));
        [residual * residual, residual.abs(), y, y * y]
    }
}

/// Computes R² from Σr², Σy and Σy². It is undefined if all targets of a device are equal, up to a
/// millionth of their magnitude. It is then 1 for exact predictions and 0 otherwise, as in
/// scikit-learn.
fn r_squared(residuals: f64, sum: f64, squares: f64, n: f64) -> f64 {
    let spread = squares - sum * sum / n;
    // A sum of squares due to rounding alone is not a variance.
    if spread > 1e-12 * squares { 1.0 - residuals / spread } else { f64::from(u8::from(residuals <= 0.0)) }
}

/// The targets of examples.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Targets<'a> {
    /// One class per example.
    Classes(&'a [u32]),
    /// One real number per example.
    Values(&'a [f32]),
}

impl<'a> Targets<'a> {
    /// No targets. The targets of windows are in the text.
    pub const IN_TEXT: Self = Self::Classes(&[]);

    /// Returns the number of targets.
    pub fn len(self) -> usize {
        match self {
            Self::Classes(classes) => classes.len(),
            Self::Values(values) => values.len(),
        }
    }

    /// Returns `true` if there are none.
    pub fn is_empty(self) -> bool {
        self.len() == 0
    }

    /// Returns the classes, for a classification model.
    ///
    /// # Panics
    /// Panics if the targets are real numbers. An experiment checks models against data before
    /// training starts.
    pub fn classes(self) -> &'a [u32] {
        match self {
            Self::Classes(classes) => classes,
            Self::Values(_) => panic!("a classification model was given real-valued targets"),
        }
    }

    /// Returns the numbers, for a regression.
    ///
    /// # Panics
    /// Panics if the targets are classes. An experiment checks models against data before training
    /// starts.
    pub fn values(self) -> &'a [f32] {
        match self {
            Self::Values(values) => values,
            Self::Classes(_) => panic!("a regression model was given class targets"),
        }
    }

    /// Returns a range of the targets.
    pub(crate) fn part(self, range: std::ops::Range<usize>) -> Self {
        match self {
            Self::Classes(classes) => Self::Classes(&classes[range]),
            Self::Values(values) => Self::Values(&values[range]),
        }
    }
}

macro_rules! targets_from {
    ($number:ty, $variant:ident) => {
        impl<'a> From<&'a [$number]> for Targets<'a> {
            fn from(targets: &'a [$number]) -> Self {
                Self::$variant(targets)
            }
        }

        impl<'a> From<&'a Vec<$number>> for Targets<'a> {
            fn from(targets: &'a Vec<$number>) -> Self {
                Self::$variant(targets)
            }
        }

        impl<'a, const N: usize> From<&'a [$number; N]> for Targets<'a> {
            fn from(targets: &'a [$number; N]) -> Self {
                Self::$variant(targets)
            }
        }
    };
}
targets_from!(u32, Classes);
targets_from!(f32, Values);

#[cfg(test)]
mod tests {
    use super::*;

    fn regression(pairs: &[(f32, f32)]) -> [f64; Task::METRICS] {
        let mut score = Score::default();
        for &(prediction, target) in pairs {
            score += Score { loss: 0.0, sums: Task::regression_sums(prediction, target) };
        }
        Task::Regression(RegressionLoss::Squared).values(&score, pairs.len() as u64)
    }

    #[test]
    fn figures_of_a_regression_can_be_checked_by_hand() {
        // Residuals 1, −1, 2, 0; targets 1, 2, 3, 4 with Σ(y − ȳ)² = 5.
        let [rmse, mae, r2] = regression(&[(2.0, 1.0), (1.0, 2.0), (5.0, 3.0), (4.0, 4.0)]);
        assert!((rmse - 1.5f64.sqrt()).abs() < 1e-12 && (mae - 1.0).abs() < 1e-12);
        assert!((r2 - (1.0 - 6.0 / 5.0)).abs() < 1e-12, "{r2}");
    }

    #[test]
    fn targets_that_are_all_the_same_have_no_r_squared_below_zero() {
        assert_eq!(regression(&[(7.1, 7.1), (7.1, 7.1)])[2], 1.0);
        assert_eq!(regression(&[(7.0, 7.1), (7.2, 7.1)])[2], 0.0);
    }

    #[test]
    fn perplexity_is_the_exponential_of_the_mean_loss() {
        let score = Score { loss: 3.0 * 5.0f64.ln(), sums: [2.0, 0.0, 0.0, 0.0] };
        let [error, perplexity, _] = Task::NextSymbol.values(&score, 3);
        assert!((error - 2.0 / 3.0).abs() < 1e-15 && (perplexity - 5.0).abs() < 1e-12);
    }

    #[test]
    fn the_huber_loss_is_the_squared_one_near_zero_and_straight_beyond_delta() {
        let huber = RegressionLoss::Huber(2.0);
        assert_eq!((huber.loss(1.0), huber.loss(2.0), huber.loss(-5.0)), (0.5, 2.0, 8.0));
        assert_eq!((huber.slope(1.0), huber.slope(-5.0)), (1.0, -2.0));
    }

    #[test]
    fn every_task_has_as_many_names_as_values() {
        for task in [Task::Classes, Task::Binary, Task::NextSymbol, Task::Regression(RegressionLoss::Squared)]
        {
            assert!((1..=Task::METRICS).contains(&task.metrics().len()), "{task:?}");
            assert!(
                task.metrics().iter().all(|metric| Metric::named(metric.name) == Some(metric)),
                "{task:?}"
            );
            let json = serde_json::to_string(&task).unwrap();
            assert_eq!(serde_json::from_str::<Task>(&json).unwrap(), task);
        }
    }
}
