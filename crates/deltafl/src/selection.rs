//! The selection of devices for an update and their weights.
//!
//! A [`Selection`] is the first part of an algorithm. In each round it names the information about
//! the losses that it needs ([`Needs`]), receives it ([`Learned`]), and returns the [`Weighting`]
//! that every device applies to itself. Its state is stored in the track's [`AlgorithmState`].
//!
//! [`Everyone`] is the simplest selection. [`Tail`](crate::algorithm::Tail) is the selection of
//! Δ-FL. [`ByLoss`] weighs each device by its own loss and the mean loss of the previous round.

use std::sync::Arc;

use crate::exchange::{CohortMember, NamedLoss};
use crate::memory::AlgorithmState;
use crate::stream::Stream;
use crate::superquantile::DeviceLoss;
use crate::superquantile::private::Search;

mod by_loss;
mod device_rule;
mod weighting;

pub use by_loss::{ByLoss, LossMean};
pub use device_rule::{DEVICE_RULE, DeviceRule, MAX_REPORTS, OWN_REPORTS};
pub use weighting::{
    DeviceFacts, EVERYONE, LARGEST_SHARE, MAX_NUMBERS, MEAN_LOSS, Report, SMOOTH_TAIL, TAIL, UpdateFacts,
    Weighting, WeightingKind, no_report,
};

/// The name of η in the track's memory. The round loop records it.
pub const ETA: &str = "eta";
/// The name of the round in which η was found, in the track's memory.
pub const ETA_ROUND: &str = "eta.round";
/// The name of μ in the track's memory. It replaces μ of the algorithm's parts.
pub const PROXIMAL: &str = "proximal";

/// The information about the losses F_k(w_t) that a round needs before the update.
#[derive(Clone, Debug)]
pub enum Needs {
    /// Nothing.
    Nothing,
    /// The losses, visible to the server (Algorithm 2, lines 4–5).
    Losses,
    /// The losses with the identities of their devices, visible to the server.
    NamedLosses,
    /// A quantile by secure sums. The server sees no loss (Algorithm 3, line 5).
    Quantile(Search),
}

/// The information that was requested.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Learned<'a> {
    /// Nothing was requested.
    Nothing,
    /// The finite losses of the cohort.
    Losses(&'a [DeviceLoss]),
    /// The finite losses of the cohort with their devices.
    NamedLosses(&'a [NamedLoss]),
    /// A completed quantile search.
    Quantile(&'a Search),
}

/// Information about the tail from the sum of updates of a round.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SummedTail<'a> {
    /// t.
    pub round: u64,
    /// The number of devices with answers in the sum, including those that did not count.
    pub answered: u64,
    /// Σ α_k·ω_k over the tail.
    pub tail_weight: f64,
    /// The sums of the reported numbers ([`WeightingKind::reports`]) over the tail.
    pub reports: &'a [f64],
}

/// Selects the devices that count in an update, and their weights.
pub trait Selection: Send + Sync {
    /// Returns the information that round t needs.
    fn needs(&self, round: u64, memory: &AlgorithmState) -> Needs;

    /// Stores the information of round t.
    fn learn(&self, round: u64, learned: Learned<'_>, memory: &mut AlgorithmState);

    /// Returns the function from the loss of a device to the share ω_k of its weight. It is part of
    /// the question that all devices sign.
    fn weighting(&self, memory: &AlgorithmState) -> Weighting;

    /// Returns a factor of the weight of each cohort member, if the server knows devices by name.
    /// Only algorithms that require [`Open`](crate::algorithm::Requires::Open) return factors.
    fn named_shares(
        &self,
        _cohort: &[CohortMember],
        _stream: &mut Stream,
        _memory: &AlgorithmState,
    ) -> Option<Vec<f64>> {
        None
    }

    /// Returns `true` if a threshold is kept for several rounds.
    fn keeps_threshold(&self) -> bool {
        false
    }

    /// Returns the rule of the simulated devices, if the weighting is [`DEVICE_RULE`]. Only
    /// algorithms that require a [`Simulation`](crate::algorithm::Requires::Simulation) return one.
    fn device_rule(&self, _memory: &AlgorithmState) -> Option<Arc<dyn DeviceRule>> {
        None
    }

    /// Stores the weight of the tail and the reports, after the sum of updates is known.
    fn observe(&self, summed: &SummedTail<'_>, memory: &mut AlgorithmState);
}

/// Every device of the cohort counts with its full weight.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Everyone;

impl Selection for Everyone {
    fn needs(&self, _round: u64, _memory: &AlgorithmState) -> Needs {
        Needs::Nothing
    }

    fn learn(&self, _round: u64, _learned: Learned<'_>, _memory: &mut AlgorithmState) {}

    fn weighting(&self, _memory: &AlgorithmState) -> Weighting {
        Weighting::everyone()
    }

    fn observe(&self, _summed: &SummedTail<'_>, _memory: &mut AlgorithmState) {}
}
