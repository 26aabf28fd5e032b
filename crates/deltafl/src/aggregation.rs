//! Aggregation of the updates of individual devices, for open simulations with adversaries.
//!
//! The mean of updates follows a single device that sends an arbitrary one. A robust
//! [`Aggregation`] replaces the mean. It needs the update of each device, which a secure sum hides.
//! The server step applies the result as it would apply the mean. Bounding the norm of updates
//! ([`Clip`](crate::terms::Clip)) also limits the influence of a device and works under secure
//! sums.

use crate::params::UpdateSum;

/// The update of one device.
#[derive(Clone, Debug, PartialEq)]
pub struct DeviceUpdate {
    /// w_k − w, followed by the changes of the vectors sent with w.
    pub entries: Vec<f64>,
    /// α_k·ω_k.
    pub weight: f64,
}

impl DeviceUpdate {
    /// Decodes the answer of one device. Returns `None` if it contains no update.
    pub fn new(answer: &UpdateSum) -> Option<Self> {
        Some(Self { entries: answer.mean()?.collect(), weight: answer.tail_weight() })
    }

    /// Returns the squared distance from another vector.
    pub fn squared_distance(&self, other: &[f64]) -> f64 {
        self.entries.iter().zip(other).map(|(a, b)| (a - b).powi(2)).sum()
    }
}

/// Computes one update from those of all devices.
pub trait Aggregation: Send + Sync {
    /// Returns the aggregate of at least one update. All updates have the same length.
    fn aggregate(&self, updates: &[DeviceUpdate]) -> Vec<f64>;
}

/// Returns Σ c_k u_k / Σ c_k.
pub fn weighted_mean(updates: &[DeviceUpdate], weights: &[f64]) -> Vec<f64> {
    let total: f64 = weights.iter().sum();
    let mut mean = vec![0.0; updates[0].entries.len()];
    for (update, weight) in updates.iter().zip(weights) {
        mean.iter_mut().zip(&update.entries).for_each(|(mean, entry)| *mean += weight / total * entry);
    }
    mean
}

/// Applies a function to the sorted values of each entry.
pub fn by_entry(updates: &[DeviceUpdate], function: impl Fn(&[f64]) -> f64) -> Vec<f64> {
    let mut column = vec![0.0; updates.len()];
    let aggregate = |i: usize| {
        column.iter_mut().zip(updates).for_each(|(value, update)| *value = update.entries[i]);
        column.sort_unstable_by(f64::total_cmp);
        function(&column)
    };
    (0..updates[0].entries.len()).map(aggregate).collect()
}
