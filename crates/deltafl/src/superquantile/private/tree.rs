//! A quantile from one sum: a histogram of 2^h bins with the counts of all their ancestors.
//!
//! A device adds its weight to the leaf of its loss and to each ancestor of that leaf. If the sum
//! is noisy, every level is an independent estimate of the same counts. The levels are made
//! consistent by least squares (Hay et al. 2010), which reduces the error of long ranges of leaves.
//! The walk from the root then ends in the leaf that contains the quantile.
//!
//! Losses outside the range count in the first or the last leaf, so that a search always takes one
//! sum.

use serde::{Deserialize, Serialize};

use super::super::smooth::Smoothing;
use super::super::{Conformity, DeviceLoss, kept_mass};
use super::bins::{Bins, InvalidBins};
use super::loss_range::LossRange;
use super::{QuantileQuery, SearchState, whole_weight};

/// The height h of the tree of a search: 256 leaves.
const HEIGHT: u32 = 8;
/// The share of the weight that may be outside the next round's range at either end.
const TRIMMED: f64 = 0.02;

/// A binary tree over 2^h bins of equal width. Entry 0 of an answer is the root, and the children
/// of entry i are 2i + 1 and 2i + 2.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "RawTree", into = "RawTree")]
pub struct TreeBins {
    bins: Bins,
    height: u32,
}

#[derive(Serialize, Deserialize)]
struct RawTree {
    lower: f64,
    upper: f64,
    height: u32,
}

impl TryFrom<RawTree> for TreeBins {
    type Error = InvalidBins;

    fn try_from(raw: RawTree) -> Result<Self, InvalidBins> {
        Self::new(raw.lower, raw.upper, raw.height)
    }
}

impl From<TreeBins> for RawTree {
    fn from(tree: TreeBins) -> Self {
        Self { lower: tree.bins.lower(), upper: tree.bins.upper(), height: tree.height }
    }
}

impl TreeBins {
    /// The largest height that a device accepts.
    pub const MAX_HEIGHT: u32 = 16;

    /// Creates a tree over 2^height bins between two edges.
    ///
    /// # Errors
    ///
    /// The edges are not in order, or the height is above [`MAX_HEIGHT`](Self::MAX_HEIGHT).
    pub fn new(lower: f64, upper: f64, height: u32) -> Result<Self, InvalidBins> {
        if height > Self::MAX_HEIGHT {
            return Err(InvalidBins::Count { got: height });
        }
        Ok(Self { bins: Bins::new(lower, upper, 1 << height)?, height })
    }

    /// Returns the lower edge of the first bin.
    pub fn lower(&self) -> f64 {
        self.bins.lower()
    }

    /// Returns the upper edge of the last bin.
    pub fn upper(&self) -> f64 {
        self.bins.upper()
    }

    /// Returns h.
    pub fn height(&self) -> u32 {
        self.height
    }

    /// Returns the number of entries of an answer, 2^(h+1) − 1.
    pub fn entries(&self) -> usize {
        (2 << self.height) - 1
    }

    fn leaves(&self) -> usize {
        1 << self.height
    }

    /// Returns the leaf of a loss.
    fn leaf(&self, loss: f64) -> usize {
        self.bins.place(loss).saturating_sub(1).min(self.leaves() - 1)
    }

    pub(super) fn answer(&self, device: DeviceLoss, sum: &mut [u64]) {
        let mut node = self.leaves() - 1 + self.leaf(device.loss());
        loop {
            sum[node] = sum[node].wrapping_add(whole_weight(device));
            if node == 0 {
                return;
            }
            node = (node - 1) / 2;
        }
    }
}

/// A search by a tree.
#[derive(Clone, Debug)]
pub(super) struct TreeSearch {
    theta: Conformity,
    nu: Option<Smoothing>,
    tree: TreeBins,
    occupied: Option<(f64, f64)>,
}

impl TreeSearch {
    pub(super) fn new(theta: Conformity, nu: Option<Smoothing>, range: LossRange) -> Self {
        let tree =
            TreeBins::new(range.lower(), range.upper(), HEIGHT).expect("a range has the edges of bins");
        Self { theta, nu, tree, occupied: None }
    }

    pub(super) fn query(&self) -> QuantileQuery {
        QuantileQuery::Tree(self.tree)
    }

    /// Processes the sum of the answers, which may be noisy.
    pub(super) fn take(&mut self, counts: &[f64]) -> SearchState {
        let consistent = consistent(counts, self.tree.height);
        let total = consistent[0];
        if total < 0.5 {
            return SearchState::Nobody;
        }
        let leaves = &consistent[self.tree.leaves() - 1..];
        self.occupied = Some(self.occupied(leaves, total));
        let leaf = leaf_of_quantile(self.theta, &consistent, self.tree.height);
        let (lower, upper) = self.tree.bins.edges_at(leaf + 1);
        let resolution = upper - lower;
        if let Some(nu) = self.nu {
            let middle = |(leaf, &count): (usize, &f64)| {
                let (lower, upper) = self.tree.bins.edges_at(leaf + 1);
                DeviceLoss::new(lower.midpoint(upper), count).ok()
            };
            let losses: Vec<DeviceLoss> = leaves.iter().enumerate().filter_map(middle).collect();
            if let Some(minimisers) = nu.minimisers(self.theta, &losses) {
                return SearchState::Found { eta: minimisers.eta(), resolution };
            }
        }
        SearchState::Found { eta: lower, resolution }
    }

    /// Returns the interval that contains the quantile and most of the weight.
    pub(super) fn range(&self, eta: f64, resolution: f64) -> (f64, f64) {
        let (lower, upper) = self.occupied.unwrap_or((self.tree.lower(), self.tree.upper()));
        // Losses at or above the last leaf are unbounded. The range then doubles.
        let span = self.tree.upper() - self.tree.lower();
        let at_the_end = eta + 1.5 * resolution >= self.tree.upper();
        let upper = if at_the_end { self.tree.upper() + span } else { upper.max(eta + resolution) };
        (lower.min(eta), upper.min(Bins::LIMIT))
    }

    fn occupied(&self, leaves: &[f64], total: f64) -> (f64, f64) {
        let few = TRIMMED * total;
        let (mut below, mut first) = (0.0, 0);
        while first + 1 < leaves.len() && below + leaves[first] <= few {
            below += leaves[first];
            first += 1;
        }
        let (mut above, mut last) = (0.0, leaves.len() - 1);
        while last > first && above + leaves[last] <= few {
            above += leaves[last];
            last -= 1;
        }
        (self.tree.bins.edges_at(first + 1).0, self.tree.bins.edges_at(last + 1).1)
    }
}

/// Returns the leaf that contains the (1−θ)-quantile: the walk from the root keeps θ of the weight
/// at or above it.
fn leaf_of_quantile(theta: Conformity, counts: &[f64], height: u32) -> usize {
    let mut kept = kept_mass(theta, counts[0]);
    let mut node = 0;
    for _ in 0..height {
        let (left, right) = (2 * node + 1, 2 * node + 2);
        // The open quantile is the smallest loss with at most θ of the weight above it.
        if counts[right] > kept {
            node = right;
        } else {
            kept -= counts[right];
            node = left;
        }
    }
    node + 1 - (1 << height)
}

/// Returns the counts closest to `counts` in which every count is the sum of its children.
fn consistent(counts: &[f64], height: u32) -> Vec<f64> {
    // Upwards: the best estimate of a count from its own subtree.
    let mut best = counts.to_vec();
    for level in (0..height).rev() {
        let power = f64::from(1 << (height - level));
        let (own, below) = (power / (2.0 * power - 1.0), (power - 1.0) / (2.0 * power - 1.0));
        for node in (1 << level) - 1..(2 << level) - 1 {
            best[node] = own * counts[node] + below * (best[2 * node + 1] + best[2 * node + 2]);
        }
    }
    // Downwards: the difference is divided evenly between two children.
    for node in 0..(1 << height) - 1 {
        let (left, right) = (2 * node + 1, 2 * node + 2);
        let rest = (best[node] - best[left] - best[right]) / 2.0;
        best[left] += rest;
        best[right] += rest;
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stream::{Purpose, Stream};

    #[test]
    fn the_levels_of_a_noisy_tree_agree_and_are_closer_to_the_truth() {
        let mut stream = Stream::new(1, Purpose::Synthesis, 0, 0);
        let tree = TreeBins::new(0.0, 1.0, 6).unwrap();
        let mut sum = vec![0; tree.entries()];
        (0..1000).for_each(|_| tree.answer(DeviceLoss::new(stream.unit(), 1.0).unwrap(), &mut sum));
        let truth: Vec<f64> = sum.iter().map(|&count| count as f64).collect();
        assert_eq!(truth[0], 1000.0);
        for (one, other) in consistent(&truth, 6).iter().zip(&truth) {
            assert!((one - other).abs() < 1e-9);
        }
        let (mut before, mut after) = (0.0, 0.0);
        for _ in 0..50 {
            let noisy: Vec<f64> = truth.iter().map(|count| count + 10.0 * stream.normal()).collect();
            let found = consistent(&noisy, 6);
            for node in 0..63 {
                assert!((found[node] - found[2 * node + 1] - found[2 * node + 2]).abs() < 1e-9);
            }
            let error = |counts: &[f64]| {
                // Of the number of devices in the upper half.
                (counts[2] - truth[2]).powi(2)
            };
            (before, after) = (before + error(&noisy), after + error(&found));
        }
        assert!(after < 0.7 * before, "{after} {before}");
    }

    #[test]
    fn trees_from_outside_are_checked() {
        for text in [
            r#"{"lower": 1.0, "upper": 1.0, "height": 4}"#,
            r#"{"lower": 0.0, "upper": 1.0, "height": 17}"#,
            r#"{"lower": 0.0, "upper": 1.0, "height": 4000000000}"#,
        ] {
            assert!(serde_json::from_str::<TreeBins>(text).is_err(), "{text}");
        }
    }
}
