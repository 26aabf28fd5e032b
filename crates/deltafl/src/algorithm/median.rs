//! The coordinate-wise median of the updates (Yin et al., "Byzantine-Robust Distributed Learning",
//! ICML 2018).
//!
//! ```text
//! w_{t+1} = w_t + median of (w_k − w_t), entry by entry, without weights
//! ```
//!
//! The median of an even number of values is the mean of the two in the middle. The server sees the
//! update of each device, so only open simulations can use it.

use super::{Algorithm, AlgorithmParts, Requires};
use crate::aggregation::{Aggregation, DeviceUpdate, by_entry};

/// The reason for which robust aggregation needs open simulations.
pub(super) const EACH_UPDATE: Requires =
    Requires::Open("the server compares the updates of individual devices");

/// The coordinate-wise median.
pub static MEDIAN: Algorithm = Algorithm {
    kind: "median",
    title: "Median",
    about: "the server takes the median of the updates in each entry",
    options: &[],
    build: |_| Ok(AlgorithmParts { aggregation: Some(Box::new(Median)), ..AlgorithmParts::default() }),
    weightings: &[],
    corrections: &[],
    requires: EACH_UPDATE,
};

/// The median of each entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Median;

impl Aggregation for Median {
    fn aggregate(&self, updates: &[DeviceUpdate]) -> Vec<f64> {
        by_entry(updates, |values| f64::midpoint(values[(values.len() - 1) / 2], values[values.len() / 2]))
    }
}
