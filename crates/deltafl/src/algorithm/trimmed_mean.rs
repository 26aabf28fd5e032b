//! The coordinate-wise trimmed mean of the updates (Yin et al., "Byzantine-Robust Distributed
//! Learning", ICML 2018).
//!
//! ```text
//! w_{t+1} = w_t + mean of (w_k − w_t) without the ⌊βm⌋ largest and the ⌊βm⌋ smallest values of each entry
//! ```
//!
//! The mean has no weights. The server sees the update of each device, so only open simulations can
//! use it.

use super::median::EACH_UPDATE;
use super::{Algorithm, AlgorithmParts};
use crate::aggregation::{Aggregation, DeviceUpdate, by_entry};
use crate::options::{Interval, OptionSpec};

/// The trimmed mean.
pub static TRIMMED_MEAN: Algorithm = Algorithm {
    kind: "trimmed-mean",
    title: "Trimmed mean",
    about: "the server takes the mean of the updates in each entry without the extreme values",
    options: &[OptionSpec::real(
        "trim",
        "β",
        Interval { least: 0.0, open: false, most: 0.49 },
        0.1,
        "the fraction of the values that is removed at each end",
    )
    .with_grid(&[0.05, 0.1, 0.2])],
    build: |options| {
        let trim = Trimmed { trim: options.real("trim")? };
        Ok(AlgorithmParts { aggregation: Some(Box::new(trim)), ..AlgorithmParts::default() })
    },
    weightings: &[],
    corrections: &[],
    requires: EACH_UPDATE,
};

/// The mean of the middle values of each entry.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Trimmed {
    trim: f64,
}

impl Aggregation for Trimmed {
    fn aggregate(&self, updates: &[DeviceUpdate]) -> Vec<f64> {
        let removed = (self.trim * updates.len() as f64) as usize;
        by_entry(updates, |values| {
            let kept = &values[removed..values.len() - removed];
            kept.iter().sum::<f64>() / kept.len() as f64
        })
    }
}
