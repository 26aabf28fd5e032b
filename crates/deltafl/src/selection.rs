//! The selection of devices for an update and their weights.
//!
//! A [`Selection`] is the first part of an algorithm. In each round it returns the required
//! information about the losses ([`Needs`]) and receives it ([`Learned`]). It then returns the
//! [`Weighting`] that every device applies to itself. It stores its state for the next round in the
//! track's [`Memory`].
//!
//! [`Everyone`] is the simplest selection. [`Tail`](crate::algorithm::Tail) is the selection of
//! Δ-FL.

use crate::memory::Memory;
use crate::superquantile::DeviceLoss;
use crate::superquantile::private::Search;

mod weighting;

pub use weighting::{EVERYONE, MAX_NUMBERS, SMOOTH_TAIL, TAIL, Weighting, WeightingKind};

/// The name of η in the track's memory. The round loop records it.
pub const ETA: &str = "eta";
/// The name of the round in which η was found, in the track's memory.
pub const ETA_ROUND: &str = "eta.round";

/// The information about the losses F_k(w_t) that a round needs before the update.
#[derive(Clone, Debug)]
pub enum Needs {
    /// Nothing.
    Nothing,
    /// The losses, visible to the server (Algorithm 2, lines 4–5).
    Losses,
    /// A quantile by secure sums. The server sees no loss (Algorithm 3, line 5).
    Quantile(Search),
}

/// The information that was requested.
#[derive(Clone, Copy, Debug)]
pub enum Learned<'a> {
    /// Nothing was requested.
    Nothing,
    /// The finite losses of the cohort.
    Losses(&'a [DeviceLoss]),
    /// A completed quantile search.
    Quantile(&'a Search),
}

/// Information about the tail from the sum of updates of a round.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SummedTail {
    /// t.
    pub round: u64,
    /// The number of devices with answers in the sum, including those that did not count.
    pub answered: u64,
    /// Σ α_k·ω_k over the tail.
    pub tail_weight: f64,
}

/// Selects the devices that count in an update, and their weights.
pub trait Selection: Send + Sync {
    /// Returns the information that round t needs.
    fn needs(&self, round: u64, memory: &Memory) -> Needs;

    /// Receives the information for round t.
    fn learn(&self, round: u64, learned: Learned<'_>, memory: &mut Memory);

    /// Returns the function from a device's loss to the fraction ω_k of its weight. It is part of
    /// the question that all devices sign.
    fn weighting(&self, memory: &Memory) -> Weighting;

    /// Receives the weight of the tail after the sum of updates is known.
    fn observe(&self, summed: &SummedTail, memory: &mut Memory);
}

/// Every device of the cohort counts with its full weight.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Everyone;

impl Selection for Everyone {
    fn needs(&self, _round: u64, _memory: &Memory) -> Needs {
        Needs::Nothing
    }

    fn learn(&self, _round: u64, _learned: Learned<'_>, _memory: &mut Memory) {}

    fn weighting(&self, _memory: &Memory) -> Weighting {
        Weighting::everyone()
    }

    fn observe(&self, _summed: &SummedTail, _memory: &mut Memory) {}
}
