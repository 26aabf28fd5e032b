//! The decisions an algorithm makes in a round.
//!
//! The round loop ([`crate::training`]) is the same for all: what differs is how the threshold η is found and
//! who is admitted to the update. FedAvg admits everyone; Δ-FL admits the upper θ-tail of the losses.

use crate::device::Admission;
use crate::superquantile::private::PrivateQuantile;
use crate::superquantile::{Conformity, DeviceLoss};

pub mod alternating;
mod delta_fl;
mod fed_avg;

pub use delta_fl::{DeltaFl, Quantile};
pub use fed_avg::FedAvg;

/// How a round finds the threshold η_t.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Threshold {
    /// There is none: everyone takes part.
    None,
    /// η of an earlier round still holds (T_η > 1).
    Kept,
    /// From the losses, which the server sees (Algorithm 2, lines 4–5).
    Open,
    /// By secure sums; the server sees no loss (Algorithm 3, line 5).
    Private(PrivateQuantile),
}

/// One way to train a model: a track of a run.
pub trait Algorithm: Send + Sync {
    /// Its name in files and tables.
    fn name(&self) -> &'static str;

    /// θ: the mass of the devices it keeps.
    fn theta(&self) -> Conformity;

    /// How η is found in this round, given the η in force.
    fn threshold(&self, round: u64, eta: Option<f64>) -> Threshold;

    /// η from the losses of the cohort; `None` without devices.
    fn eta(&self, losses: &[DeviceLoss]) -> Option<f64>;

    /// Who takes part in the update.
    fn admission(&self, eta: Option<f64>) -> Admission;
}
