//! A selection that weighs each device by its own loss.
//!
//! The weight of a device depends on its loss, on constants, and on the mean loss of the track's
//! previous round. Devices report their losses in the sum of the updates ([`LossMean::REPORTS`]),
//! so that the server learns the mean only, and no further sum is needed.

use super::{Learned, Needs, Selection, SummedTail, Weighting};
use crate::memory::AlgorithmState;

/// The names of the statistics in the track's memory.
const NAMES: [&str; 2] = ["loss.mean", "loss.excess"];

/// Statistics of the losses in the previous round of a track.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LossMean {
    /// F̄ = Σ α_k F_k / Σ α_k.
    pub mean: f64,
    /// Σ α_k (F_k − c)₊ / Σ α_k, where c is the mean of the round before, or 0 if it is not
    /// reported.
    pub excess: f64,
}

impl LossMean {
    /// The first numbers that a weighting of [`ByLoss`] reports: 1 and F_k. A third number is the
    /// excess. Numbers after it belong to the server step.
    pub const REPORTS: [&str; 3] = ["weight", "loss", "excess"];

    /// Returns the statistics of the previous round, if there was one.
    pub fn read(memory: &AlgorithmState) -> Option<Self> {
        let [mean, excess] = NAMES.map(|name| memory.number(name));
        Some(Self { mean: mean?, excess: excess.unwrap_or(0.0) })
    }

    /// Computes the statistics from the sums of the reports. Returns `None` without devices.
    pub fn from_reports(reports: &[f64]) -> Option<Self> {
        let [weight, loss, rest @ ..] = reports else { return None };
        let excess = rest.first().map_or(0.0, |excess| excess / weight);
        (*weight > 0.0).then(|| Self { mean: loss / weight, excess })
    }

    /// Stores the statistics for the next round.
    pub fn store(&self, memory: &mut AlgorithmState) {
        memory.set_number(NAMES[0], self.mean);
        memory.set_number(NAMES[1], self.excess);
    }
}

/// A function from the statistics of the previous round to the weighting of the next one.
type Rule = Box<dyn Fn(Option<LossMean>) -> Option<Weighting> + Send + Sync>;

/// Weighs each device by its own loss.
pub struct ByLoss(Rule);

impl ByLoss {
    /// Creates the selection. Every device has its full weight if the rule returns `None`.
    pub fn new(rule: impl Fn(Option<LossMean>) -> Option<Weighting> + Send + Sync + 'static) -> Self {
        Self(Box::new(rule))
    }
}

impl Selection for ByLoss {
    fn needs(&self, _round: u64, _memory: &AlgorithmState) -> Needs {
        Needs::Nothing
    }

    fn learn(&self, _round: u64, _learned: Learned<'_>, _memory: &mut AlgorithmState) {}

    fn weighting(&self, memory: &AlgorithmState) -> Weighting {
        (self.0)(LossMean::read(memory)).unwrap_or_else(Weighting::mean_loss)
    }

    fn observe(&self, summed: &SummedTail<'_>, memory: &mut AlgorithmState) {
        if let Some(losses) = LossMean::from_reports(summed.reports) {
            losses.store(memory);
        }
    }
}
