//! Aggregation of the updates of individual devices, for open simulations with adversaries.
//!
//! The mean of updates follows a single device that sends an arbitrary one. A robust
//! [`Aggregation`] replaces the mean. It needs the update of each device, which a secure sum hides.
//! The server step applies the result as it would apply the mean. Bounding the norm of updates
//! ([`Clip`](crate::terms::Clip)) also limits the influence of a device and works under secure
//! sums.

use rayon::prelude::*;

use crate::kernel::Granted;
use crate::kernel::robust::{COLUMNS, add_scaled, add_squared_distance, sort_columns};
use crate::params::UpdateSum;

/// Entries of all updates that are processed together, so that they stay in the cache.
const BLOCK: usize = 256;
/// Parts of the entries whose distances are computed in parallel.
const PARTS: usize = 64;

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
    pub fn new(answer: UpdateSum) -> Option<Self> {
        let weight = answer.tail_weight();
        Some(Self { entries: answer.into_mean()?, weight })
    }

    /// Returns the squared distance from another vector.
    pub fn squared_distance(&self, other: &[f64]) -> f64 {
        squared_distance(&self.entries, other)
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
    mean.par_chunks_mut(BLOCK).enumerate().for_each(|(block, mean)| {
        let range = block * BLOCK..block * BLOCK + mean.len();
        for (update, weight) in updates.iter().zip(weights) {
            add_scaled(Granted::best(), &update.entries[range.clone()], weight / total, mean);
        }
    });
    mean
}

/// Applies a function to the sorted values of each entry.
pub fn by_entry(updates: &[DeviceUpdate], function: impl Fn(&[f64]) -> f64 + Sync) -> Vec<f64> {
    let devices = updates.len();
    let mut aggregate = vec![0.0; updates[0].entries.len()];
    aggregate.par_chunks_mut(COLUMNS).enumerate().for_each_init(
        || (vec![[0.0; COLUMNS]; devices], vec![0.0; devices]),
        |(rows, column), (block, aggregate)| {
            let range = block * COLUMNS..block * COLUMNS + aggregate.len();
            for (row, update) in rows.iter_mut().zip(updates) {
                row[..range.len()].copy_from_slice(&update.entries[range.clone()]);
            }
            sort_columns(Granted::best(), rows);
            for (i, entry) in aggregate.iter_mut().enumerate() {
                column.iter_mut().zip(&*rows).for_each(|(to, row)| *to = row[i]);
                *entry = function(column);
            }
        },
    );
    aggregate
}

/// Returns the squared distance between each two updates: row k contains those from update k.
pub fn squared_distances(updates: &[DeviceUpdate]) -> Vec<Vec<f64>> {
    let (devices, entries) = (updates.len(), updates[0].entries.len());
    // The parts do not depend on the number of threads, so the sums have the same bits for any.
    let part = entries.div_ceil(PARTS).next_multiple_of(BLOCK);
    let of_part = |start: usize| {
        let mut sums = vec![0.0; devices * devices];
        for start in (start..entries.min(start + part)).step_by(BLOCK) {
            let block = start..entries.min(start + BLOCK);
            for k in 0..devices {
                let own = &updates[k].entries[block.clone()];
                for j in k + 1..devices {
                    let other = &updates[j].entries[block.clone()];
                    add_squared_distance(Granted::best(), own, other, &mut sums[k * devices + j]);
                }
            }
        }
        sums
    };
    let parts: Vec<Vec<f64>> = (0..PARTS).into_par_iter().map(|i| of_part(i * part)).collect();
    let distance = |k: usize, j: usize| parts.iter().map(|sums| sums[k.min(j) * devices + k.max(j)]).sum();
    (0..devices).map(|k| (0..devices).map(|j| distance(k, j)).collect()).collect()
}

fn squared_distance(a: &[f64], b: &[f64]) -> f64 {
    let mut sum = 0.0;
    add_squared_distance(Granted::best(), a, b, &mut sum);
    sum
}
