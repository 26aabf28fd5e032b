//! The measures of a report: a metric of the task, or the loss. The task defines name, unit and
//! direction.

use deltafl::data::Split;
use deltafl::exchange::{Evaluation, SplitEvaluation};
use deltafl::metrics::{Figures, PERCENTILES};
use deltafl::task::{Direction, Metric, Task, Unit};

use crate::text_table;

/// A measure of the devices of a split.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct ReportMeasure {
    split: Split,
    kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    /// A metric of the task and its index there.
    Metric { metric: &'static Metric, place: usize },
    /// The loss of the task. The losses of two tasks are not comparable.
    Loss(Task),
}

impl ReportMeasure {
    /// Returns the metrics of the task for a split, the primary one first.
    pub(super) fn metrics(split: Split, task: Task) -> impl Iterator<Item = Self> {
        let metrics = task.metrics().iter().enumerate();
        metrics.map(move |(place, metric)| Self { split, kind: Kind::Metric { metric, place } })
    }

    /// Returns the loss of the train devices, which training minimises.
    pub(super) fn train_loss(task: Task) -> Self {
        Self::loss(Split::Train, task)
    }

    /// Returns the loss of the devices of a split.
    pub(super) fn loss(split: Split, task: Task) -> Self {
        Self { split, kind: Kind::Loss(task) }
    }

    /// Returns whether it is this metric.
    pub(super) fn is(self, wanted: &Metric) -> bool {
        matches!(self.kind, Kind::Metric { metric, .. } if metric == wanted)
    }

    /// Returns the split of its devices.
    pub(super) fn split(self) -> Split {
        self.split
    }

    /// Returns whether it is the loss.
    pub(super) fn is_loss(self) -> bool {
        matches!(self.kind, Kind::Loss(_))
    }

    /// Returns whether devices are weighted by their examples, as in the training loss.
    pub(super) fn weighted(self) -> bool {
        self.is_loss() && self.split == Split::Train
    }

    /// Returns whether values are shares, displayed in per cent.
    pub(super) fn percent(self) -> bool {
        matches!(self.kind, Kind::Metric { metric, .. } if metric.unit == Unit::Share)
    }

    /// Returns the direction of improvement.
    pub(super) fn direction(self) -> Direction {
        match self.kind {
            Kind::Metric { metric, .. } => metric.direction,
            Kind::Loss(_) => Direction::Lower,
        }
    }

    /// Returns whether smaller values are better.
    pub(super) fn lower_is_better(self) -> bool {
        self.direction() == Direction::Lower
    }

    /// Returns a number that is smaller for better values.
    pub(super) fn cost(self, value: f64) -> f64 {
        if self.lower_is_better() { value } else { -value }
    }

    /// Returns the value of a device.
    pub(super) fn value(self, device: &Evaluation) -> f64 {
        match self.kind {
            Kind::Metric { place, .. } => device.metrics[place],
            Kind::Loss(_) => device.loss,
        }
    }

    /// Returns mean and percentiles over the devices of an evaluation, or `None` without devices
    /// with examples.
    pub(super) fn figures(self, evaluation: &SplitEvaluation, track: usize) -> Option<Figures> {
        let values = evaluation.tracks.get(track)?.iter().map(|device| self.value(device));
        self.figures_of(values.zip(evaluation.devices.iter().map(|device| device.examples)))
    }

    /// Computes mean and percentiles over pairs of value and number of examples.
    ///
    /// The percentile τ is the value that τ per cent of the devices reach or improve on. If greater
    /// values are better, this is the percentile 100 − τ, and [`ReportMeasure::ordinal`] returns
    /// that name. The tail therefore has the same index in both cases.
    pub(super) fn figures_of(self, devices: impl Iterator<Item = (f64, u64)>) -> Option<Figures> {
        let costs = devices.map(|(value, examples)| (self.cost(value), examples));
        let figures = if self.weighted() {
            Figures::weighted(&costs.collect::<Vec<_>>())?
        } else {
            Figures::unweighted(&costs.map(|(cost, _)| cost).collect::<Vec<_>>())?
        };
        let Figures { mean, percentiles } = figures;
        // The conversion from value to cost is its own inverse.
        Some(Figures { mean: self.cost(mean), percentiles: percentiles.map(|cost| self.cost(cost)) })
    }

    /// Returns the name for files and programs.
    pub(super) fn key(self) -> String {
        format!("{}_{}", self.split.name(), self.metric_name())
    }

    fn metric_name(self) -> &'static str {
        match self.kind {
            Kind::Metric { metric, .. } => metric.name,
            Kind::Loss(_) => "loss",
        }
    }

    fn title(self) -> &'static str {
        match self.kind {
            Kind::Metric { metric, .. } => metric.title,
            Kind::Loss(_) => "loss",
        }
    }

    /// Returns the name for people.
    pub(super) fn name(self) -> String {
        format!("{} {}", self.split.name(), self.title())
    }

    /// Returns the name of an axis, with the unit.
    pub(super) fn axis(self) -> String {
        let unit = match self.kind {
            Kind::Metric { metric, .. } => match metric.unit {
                Unit::Share => " (%)",
                Unit::Target => " (unit of the target)",
                Unit::Number => "",
            },
            Kind::Loss(Task::Regression(_)) => "",
            Kind::Loss(_) => " (nats)",
        };
        format!("{}{unit}", self.name())
    }

    /// Returns the caption of a table.
    pub(super) fn caption(self) -> String {
        let what = match self.kind {
            Kind::Metric { metric, .. } => {
                let mut letters = metric.title.chars();
                let first: String = letters.next().into_iter().flat_map(char::to_uppercase).collect();
                let unit = if self.percent() { " in %" } else { "" };
                format!("{first}{}{unit}", letters.as_str())
            }
            Kind::Loss(task) => format!("Loss ({})", task.loss()),
        };
        let alike = if self.weighted() { "weighted by their examples" } else { "every device alike" };
        format!("{what} over the {} devices, {alike}", self.split.name())
    }

    /// Returns the caption of a table of its dispersion over devices.
    pub(super) fn dispersion_caption(self) -> String {
        let unit = if self.percent() { " in %" } else { "" };
        format!("Dispersion of the {} over devices{unit}, every device alike", self.name())
    }

    /// Returns the factor that converts a stored value for display. Shares are displayed in per
    /// cent.
    pub(super) fn display_scale(self) -> f64 {
        if self.percent() { 100.0 } else { 1.0 }
    }

    /// Returns the name of the axis of bar heights in a histogram.
    pub(super) fn bar_axis(self) -> &'static str {
        if self.weighted() { "share of the examples (%)" } else { "devices" }
    }

    /// Returns the number of decimals in a table of these values.
    pub(super) fn decimals(self, figures: impl IntoIterator<Item = f64>) -> usize {
        match self.kind {
            Kind::Metric { metric, .. } => text_table::decimals(metric, figures),
            Kind::Loss(Task::Regression(_)) => text_table::places(figures),
            Kind::Loss(_) => 3,
        }
    }

    /// Returns the percentile at an index of [`Figures::percentiles`].
    fn percentile(self, place: usize) -> u8 {
        if self.lower_is_better() { PERCENTILES[place] } else { 100 - PERCENTILES[place] }
    }

    /// Returns the columns of its tables: the mean, then the percentiles.
    pub(super) fn columns(self) -> Vec<String> {
        let ordinal = |place: usize| match self.percentile(place) {
            50 => "Median".to_owned(),
            tau => format!("{tau}th"),
        };
        std::iter::once("Mean".to_owned()).chain((0..PERCENTILES.len()).map(ordinal)).collect()
    }

    /// Returns the same in words, for axes and sentences.
    pub(super) fn statistics(self) -> Vec<String> {
        let long = |column: String| match column.as_str() {
            "Mean" | "Median" => column.to_lowercase(),
            _ => format!("{column} percentile"),
        };
        self.columns().into_iter().map(long).collect()
    }

    /// Returns the same as keys, for files and programs.
    pub(super) fn statistic_keys(self) -> Vec<String> {
        let percentiles = (0..PERCENTILES.len()).map(|place| format!("p{}", self.percentile(place)));
        std::iter::once("mean".to_owned()).chain(percentiles).collect()
    }

    /// Returns the name of the tail percentile.
    pub(super) fn tail(self) -> String {
        self.statistics().swap_remove(1 + TAIL)
    }
}

/// The index of the tail percentile among the percentiles.
pub(super) const TAIL: usize = 4;

#[cfg(test)]
mod tests {
    use super::*;
    use deltafl::task::RegressionLoss;

    const REGRESSION: Task = Task::Regression(RegressionLoss::Squared);

    fn named(task: Task, key: &str) -> ReportMeasure {
        ReportMeasure::metrics(Split::Test, task).find(|measure| measure.key() == key).unwrap()
    }

    #[test]
    fn the_tail_of_a_metric_that_is_better_high_is_its_low_percentile() {
        let r_squared = named(REGRESSION, "test_r_squared");
        let values: Vec<f64> = (0..=10).map(|k| f64::from(k) / 10.0).collect();
        let figures = r_squared.figures_of(values.iter().map(|&value| (value, 1))).unwrap();
        assert!((figures.mean - 0.5).abs() < 1e-12);
        assert!((figures.percentiles[TAIL] - 0.1).abs() < 1e-12, "{figures:?}");
        assert_eq!(r_squared.columns(), ["Mean", "80th", "Median", "40th", "20th", "10th", "5th"]);
        assert_eq!((r_squared.tail().as_str(), r_squared.lower_is_better()), ("10th percentile", false));
    }

    #[test]
    fn the_task_defines_names_units_and_directions() {
        let rmse = named(REGRESSION, "test_rmse");
        assert_eq!((rmse.name().as_str(), rmse.percent()), ("test RMSE", false));
        assert_eq!(rmse.axis(), "test RMSE (unit of the target)");
        assert_eq!(rmse.decimals([51_234.0]), 0);
        let error = named(Task::Classes, "test_error");
        assert_eq!(
            (error.axis().as_str(), error.decimals([0.3]), error.display_scale()),
            ("test error (%)", 2, 100.0)
        );
        assert_eq!(error.caption(), "Error in % over the test devices, every device alike");
        let loss = ReportMeasure::train_loss(Task::Classes);
        assert_eq!((loss.key().as_str(), loss.axis().as_str()), ("train_loss", "train loss (nats)"));
        let perplexity = named(Task::NextSymbol, "test_perplexity");
        assert_eq!(perplexity.caption(), "Perplexity over the test devices, every device alike");
    }

    #[test]
    fn the_losses_of_two_tasks_are_two_measures() {
        let huber = Task::Regression(RegressionLoss::Huber(1.0));
        assert_ne!(ReportMeasure::train_loss(REGRESSION), ReportMeasure::train_loss(huber));
        assert_eq!(named(REGRESSION, "test_rmse"), named(huber, "test_rmse"));
    }
}
