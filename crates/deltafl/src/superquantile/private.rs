//! The quantile of losses that are not revealed individually (Algorithm 3, line 5; appendix).
//!
//! The server sends a [`QuantileQuery`] to the cohort. Each device answers with a short vector of
//! integers that is only revealed as part of a secure sum over Z_2^64. A [`Search`] processes the
//! sum and returns the next query, until η is known. Devices then test F_k ≥ η themselves. The
//! module performs no I/O, so that several tracks share one secure sum, and simulation and
//! deployment run the same code.
//!
//! | [`PrivateQuantile`] | secure sums | integers per sum | resolution |
//! |---|---|---|---|
//! | `TwoLevel` (default) | 2 | 66 | 1/4096 of the range of losses |
//! | `OneShot` | 1 | 4098 | 1/4096 |
//! | `Bisection` | 12 | 4 | 1/4096 |
//! | `Mm`, the paper's | about 12 | 3 | 1/40 |
//! | `Tree` | 1, which may be noisy | 511 | 1/256 |
//!
//! The range follows the losses from round to round ([`LossRange`]). A quantile outside the range
//! costs one more sum. η is never above the open [`quantile`](super::quantile) of the answering
//! devices, and less than [`Search::resolution`] below it. Therefore the open tail is complete, and
//! contains no other device if no other loss is that close below its threshold.

mod bins;
mod by_means;
mod descent;
mod loss_range;
mod tree;

use serde::{Deserialize, Serialize};

pub use bins::{Bins, InvalidBins};
pub use loss_range::{InvalidLossRange, LossRange};
pub use tree::TreeBins;

use self::by_means::ByMeans;
use self::descent::BinDescent;
use self::tree::TreeSearch;
use super::smooth::Smoothing;
use super::{Conformity, DeviceLoss};

/// The algorithm of the private quantile.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum PrivateQuantile {
    /// A histogram of 64 bins, then one of 64 bins inside the bin that contains the quantile.
    #[default]
    #[serde(rename = "histogram")]
    TwoLevel,
    /// One histogram of 4096 bins.
    OneShot,
    /// Twelve bisections of the range.
    Bisection,
    /// The paper's majorisation-minimisation, an iterated weighted mean.
    Mm,
    /// One histogram of 256 bins with the counts of all levels of a binary tree above them. The sum
    /// may be noisy.
    Tree,
}

/// A query to the devices. Each answers with an integer vector that is only revealed as part of a
/// sum.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum QuantileQuery {
    /// The device's weight at the place of its loss among the bins. The first place is below all
    /// bins, the last above.
    Histogram(Bins),
    /// β_k (x_k − μ), β_k and α_k of the paper's majorisation-minimisation, with β_k = α_k / |x_k −
    /// μ|.
    ///
    /// The distance |x_k − μ| is at least `floor`, and β_k is sent as a multiple of 1/`floor`.
    /// Therefore both sums are bounded by Σ α_k and fit in fixed point with 29 fractional bits, for
    /// up to 10,000 devices of weight up to 2²⁰. Larger weights are clamped to 2²⁰.
    MeanStep {
        /// The current estimate μ of the quantile.
        mu: f64,
        /// The smallest distance |x_k − μ| that is distinguished from zero.
        floor: f64,
    },
    /// The device's weight at the leaf of its loss and at all ancestors of that leaf.
    Tree(TreeBins),
}

#[expect(clippy::len_without_is_empty, reason = "an answer is never empty")]
impl QuantileQuery {
    /// Returns the number of integers in an answer.
    pub fn len(&self) -> usize {
        match self {
            Self::Histogram(bins) => bins.places(),
            Self::MeanStep { .. } => by_means::ANSWER_LEN,
            Self::Tree(tree) => tree.entries(),
        }
    }

    /// Adds the answer of a device with this loss to `sum`, modulo 2⁶⁴.
    ///
    /// # Panics
    ///
    /// If `sum` is shorter than [`Self::len`].
    pub fn answer(&self, device: DeviceLoss, sum: &mut [u64]) {
        match self {
            Self::Histogram(bins) => {
                let place = &mut sum[bins.place(device.loss())];
                *place = place.wrapping_add(whole_weight(device));
            }
            Self::MeanStep { mu, floor } => {
                for (total, term) in
                    sum[..by_means::ANSWER_LEN].iter_mut().zip(by_means::answer(*mu, *floor, device))
                {
                    *total = total.wrapping_add(term);
                }
            }
            Self::Tree(tree) => tree.answer(device, sum),
        }
    }
}

/// Returns the weight of a device as an integer of at least one.
fn whole_weight(device: DeviceLoss) -> u64 {
    (device.weight().round() as u64).max(1) // the cast saturates
}

/// A search for a quantile.
///
/// ```
/// use deltafl::superquantile::private::{LossRange, PrivateQuantile, Search};
/// use deltafl::superquantile::{Conformity, DeviceLoss};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let cohort = [DeviceLoss::new(1.0, 30.0)?, DeviceLoss::new(2.0, 30.0)?, DeviceLoss::new(5.0, 40.0)?];
/// let range = LossRange::default();
/// let mut search = Search::new(PrivateQuantile::TwoLevel, Conformity::try_from(0.5)?, None, &range);
/// while let Some(query) = search.query() {
///     let mut sum = vec![0; query.len()]; // in a deployment, a secure sum
///     for device in cohort {
///         query.answer(device, &mut sum);
///     }
///     search.take(&sum)?;
/// }
/// // The open quantile is 2: P(F > 2) = 0.4 ≤ θ, and P(F > 1) = 0.7 is not.
/// let eta = search.eta().ok_or("no device answered")?;
/// assert!(eta <= 2.0 && 2.0 - eta < search.resolution());
/// assert_eq!(search.sums(), 2);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Search {
    method: Method,
    state: SearchState,
    range: LossRange,
    sums: u32,
}

#[derive(Clone, Debug)]
enum Method {
    Descent(BinDescent),
    ByMeans(ByMeans),
    Tree(TreeSearch),
}

/// The state of a search.
#[derive(Clone, Copy, Debug, PartialEq)]
enum SearchState {
    Searching,
    /// No device answered.
    Nobody,
    /// The quantile is in [eta, eta + resolution).
    Found {
        eta: f64,
        resolution: f64,
    },
}

impl Search {
    /// Creates a search for the (1−θ)-quantile, expected within `range`.
    ///
    /// With ν the tail is smoothed, and η is where K(η) = Σ α_k g'_ν(F_k − η) is θ of the weight.
    /// Histograms of 64 or 4096 bins determine it, so bisection uses two levels of 64 instead, and
    /// `Mm` ignores ν.
    pub fn new(kind: PrivateQuantile, theta: Conformity, nu: Option<Smoothing>, range: &LossRange) -> Self {
        let method = match (kind, nu) {
            (PrivateQuantile::TwoLevel, _) | (PrivateQuantile::Bisection, Some(_)) => {
                Method::Descent(BinDescent::new(theta, nu, *range, 64, 2))
            }
            (PrivateQuantile::OneShot, _) => Method::Descent(BinDescent::new(theta, nu, *range, 4096, 1)),
            (PrivateQuantile::Bisection, None) => {
                Method::Descent(BinDescent::new(theta, None, *range, 2, 12))
            }
            (PrivateQuantile::Mm, _) => Method::ByMeans(ByMeans::new(theta, *range)),
            (PrivateQuantile::Tree, _) => Method::Tree(TreeSearch::new(theta, nu, *range)),
        };
        Self { method, state: SearchState::Searching, range: *range, sums: 0 }
    }

    /// Returns the next query, or `None` if the search has ended.
    pub fn query(&self) -> Option<QuantileQuery> {
        (self.state == SearchState::Searching).then(|| match &self.method {
            Method::Descent(descent) => descent.query(),
            Method::ByMeans(by_means) => by_means.query(),
            Method::Tree(tree) => tree.query(),
        })
    }

    /// Processes the sum of the answers to the last query.
    ///
    /// A sum of zeros, if no device answered, ends the search without an `eta`.
    ///
    /// # Errors
    ///
    /// Returns an error if the sum does not match the query. The search is then unchanged.
    pub fn take(&mut self, sum: &[u64]) -> Result<(), RefusedSum> {
        let expected = self.query().ok_or(RefusedSum::NothingAsked)?.len();
        if sum.len() != expected {
            return Err(RefusedSum::WrongLength { expected, got: sum.len() });
        }
        self.sums += 1;
        self.state = match &mut self.method {
            _ if sum.iter().all(|&total| total == 0) => SearchState::Nobody,
            Method::Descent(descent) => descent.take(sum),
            Method::ByMeans(by_means) => by_means.take(sum),
            Method::Tree(tree) => {
                let counts: Vec<f64> = sum.iter().map(|&count| count as f64).collect();
                tree.take(&counts)
            }
        };
        Ok(())
    }

    /// Processes the noisy counts of the answers to the last query.
    ///
    /// # Errors
    ///
    /// Returns an error if the counts do not match the query, or if the search cannot use noisy
    /// counts. The search is then unchanged.
    pub fn take_noisy(&mut self, counts: &[f64]) -> Result<(), RefusedSum> {
        let expected = self.query().ok_or(RefusedSum::NothingAsked)?.len();
        if counts.len() != expected {
            return Err(RefusedSum::WrongLength { expected, got: counts.len() });
        }
        let Method::Tree(tree) = &mut self.method else { return Err(RefusedSum::Noisy) };
        self.sums += 1;
        self.state = tree.take(counts);
        Ok(())
    }

    /// Returns the threshold η: devices with F_k ≥ η are the tail. Returns `None` during the
    /// search, and if no device answered.
    pub fn eta(&self) -> Option<f64> {
        match self.state {
            SearchState::Found { eta, .. } => Some(eta),
            SearchState::Searching | SearchState::Nobody => None,
        }
    }

    /// Returns how far `eta` may be below the open quantile. Infinite while `eta` is unknown.
    pub fn resolution(&self) -> f64 {
        match self.state {
            SearchState::Found { resolution, .. } => resolution,
            SearchState::Searching | SearchState::Nobody => f64::INFINITY,
        }
    }

    /// Returns the range in which the next round's quantile is expected.
    pub fn range(&self) -> LossRange {
        let SearchState::Found { eta, resolution } = self.state else { return self.range };
        let (lower, upper) = match &self.method {
            Method::Descent(descent) => descent.occupied(eta, resolution),
            Method::ByMeans(by_means) => by_means.occupied(),
            Method::Tree(tree) => tree.range(eta, resolution),
        };
        self.range.follow(lower, upper)
    }

    /// Returns the number of sums processed.
    pub fn sums(&self) -> u32 {
        self.sums
    }
}

/// The reason why a sum is not the answer to the last query.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RefusedSum {
    /// The search has ended.
    #[error("a sum for a quantile search that has ended")]
    NothingAsked,
    /// The search needs exact sums.
    #[error("a noisy sum for a quantile search that needs exact sums")]
    Noisy,
    /// The sum has the wrong length.
    #[error("a sum of {got} integers where the query asks for {expected}")]
    WrongLength {
        /// The length of an answer.
        expected: usize,
        /// The length of the sum.
        got: usize,
    },
}

#[cfg(test)]
mod tests;
