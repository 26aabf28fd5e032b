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
//!
//! The range follows the losses from round to round ([`LossRange`]). A quantile outside the range
//! costs one more sum. η is never above the open [`quantile`](super::quantile) of the answering
//! devices, and less than [`Search::resolution`] below it. Therefore the open tail is complete, and
//! contains no other device if no other loss is that close below its threshold.

mod bins;
mod by_means;
mod descent;
mod loss_range;

use serde::{Deserialize, Serialize};

pub use bins::{Bins, InvalidBins};
pub use loss_range::{InvalidLossRange, LossRange};

use self::by_means::ByMeans;
use self::descent::BinDescent;
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
}

#[expect(clippy::len_without_is_empty, reason = "an answer is never empty")]
impl QuantileQuery {
    /// Returns the number of integers in an answer.
    pub fn len(&self) -> usize {
        match self {
            Self::Histogram(bins) => bins.places(),
            Self::MeanStep { .. } => by_means::ANSWER_LEN,
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
        };
        Self { method, state: SearchState::Searching, range: *range, sums: 0 }
    }

    /// Returns the next query, or `None` if the search has ended.
    pub fn query(&self) -> Option<QuantileQuery> {
        (self.state == SearchState::Searching).then(|| match &self.method {
            Method::Descent(descent) => descent.query(),
            Method::ByMeans(by_means) => by_means.query(),
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
        };
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
mod tests {
    use proptest::prelude::*;

    use super::super::tests::{cohort, devices, level, theta};
    use super::*;
    use crate::superquantile::quantile;

    const KINDS: [PrivateQuantile; 4] = [
        PrivateQuantile::TwoLevel,
        PrivateQuantile::OneShot,
        PrivateQuantile::Bisection,
        PrivateQuantile::Mm,
    ];

    fn any_kind() -> impl Strategy<Value = PrivateQuantile> {
        prop::sample::select(KINDS.to_vec())
    }

    fn sum_of_answers(query: &QuantileQuery, cohort: &[DeviceLoss]) -> Vec<u64> {
        let mut sum = vec![0; query.len()];
        cohort.iter().for_each(|&device| query.answer(device, &mut sum));
        sum
    }

    fn run(kind: PrivateQuantile, theta: Conformity, range: LossRange, cohort: &[DeviceLoss]) -> Search {
        let mut search = Search::new(kind, theta, None, &range);
        while let Some(query) = search.query() {
            search.take(&sum_of_answers(&query, cohort)).unwrap();
        }
        search
    }

    #[test]
    fn names_are_those_of_the_experiment_file() {
        let names = KINDS.map(|kind| serde_json::to_string(&kind).unwrap());
        assert_eq!(names, [r#""histogram""#, r#""one-shot""#, r#""bisection""#, r#""mm""#]);
    }

    #[test]
    fn queries_survive_the_wire() {
        for kind in KINDS {
            let query = Search::new(kind, theta(0.5), None, &LossRange::default()).query().unwrap();
            let text = serde_json::to_string(&query).unwrap();
            assert_eq!(serde_json::from_str::<QuantileQuery>(&text).unwrap(), query);
        }
    }

    #[test]
    fn a_sum_of_zeros_ends_the_search_without_a_threshold() {
        for kind in KINDS {
            let search = run(kind, theta(0.5), LossRange::default(), &[]);
            assert_eq!((search.eta(), search.sums()), (None, 1));
            assert_eq!(search.range(), LossRange::default());
        }
    }

    #[test]
    fn a_sum_that_answers_nothing_is_refused() {
        let mut search = Search::new(PrivateQuantile::TwoLevel, theta(0.5), None, &LossRange::default());
        assert_eq!(search.take(&[1; 65]), Err(RefusedSum::WrongLength { expected: 66, got: 65 }));
        assert_eq!(search.sums(), 0);
        search.take(&[0; 66]).unwrap();
        assert_eq!(search.take(&[0; 66]), Err(RefusedSum::NothingAsked));
    }

    #[test]
    fn a_quantile_out_of_the_range_costs_one_more_sum() {
        for (loss, range) in [(30.0, LossRange::default()), (-30.0, LossRange::default())] {
            let search = run(PrivateQuantile::TwoLevel, theta(0.5), range, &devices(&[(loss, 1.0)]));
            assert_eq!(search.sums(), 3);
            assert!(search.eta().unwrap() <= loss && loss - search.eta().unwrap() < search.resolution());
        }
    }

    #[test]
    fn no_finite_loss_is_out_of_reach() {
        for kind in KINDS {
            for loss in [0.0, 1e-300, 1e6, -1e6, 1e100, f64::MAX, f64::MIN] {
                let search = run(kind, theta(0.3), LossRange::default(), &devices(&[(loss, 5.0)]));
                assert!(search.eta().is_some_and(|eta| eta <= loss), "{kind:?} {loss}");
                assert!(search.sums() <= 70, "{kind:?} {loss}: {} sums", search.sums());
                let next = run(kind, theta(0.3), search.range(), &devices(&[(loss, 5.0)]));
                assert!(next.eta().is_some_and(|eta| eta <= loss), "{kind:?} {loss}");
            }
        }
    }

    #[test]
    fn a_loss_of_a_million_is_found_from_the_first_range_to_a_twentieth() {
        for kind in KINDS {
            for loss in [1e6, -1e6] {
                let search = run(kind, theta(0.3), LossRange::default(), &devices(&[(loss, 5.0)]));
                assert!(search.resolution() <= 5e4, "{kind:?}: {}", search.resolution());
            }
        }
    }

    #[test]
    fn a_smoothed_tail_keeps_theta_of_the_weight() {
        let cohort: Vec<_> =
            (0..200).map(|k| (f64::from(k * k) / 20_000.0, 1.0 + f64::from(k % 9))).collect();
        let (cohort, total) = (devices(&cohort), cohort.iter().map(|(_, weight)| weight).sum::<f64>());
        for level in [0.1, 0.5, 0.8] {
            for nu in [0.05, 0.5, 3.0] {
                for kind in [PrivateQuantile::TwoLevel, PrivateQuantile::OneShot] {
                    let nu = Smoothing::try_from(nu).unwrap();
                    let mut search = Search::new(kind, theta(level), Some(nu), &LossRange::default());
                    while let Some(query) = search.query() {
                        search.take(&sum_of_answers(&query, &cohort)).unwrap();
                    }
                    let eta = search.eta().unwrap();
                    let tail: f64 = cohort.iter().map(|d| d.weight() * nu.slope(d.loss() - eta)).sum();
                    assert!(
                        (tail / total - level).abs() < 0.02,
                        "{kind:?} θ={level} ν={nu:?}: {}",
                        tail / total
                    );
                }
            }
        }
    }

    #[test]
    fn the_largest_promised_cohort_does_not_overflow_the_fixed_point() {
        let cohort: Vec<_> = (0..10_000).map(|k| (f64::from(k) * 100.0 + 1.0, 1e6)).collect();
        let cohort = devices(&cohort);
        for theta in [theta(0.9), theta(0.001), Conformity::FULL] {
            let open = quantile(theta, &cohort).unwrap();
            let search = run(PrivateQuantile::Mm, theta, LossRange::default(), &cohort);
            let eta = search.eta().unwrap();
            assert!(eta <= open && open - eta <= search.resolution(), "{eta} for {open}");
        }
    }

    #[test]
    fn one_device_out_of_bounds_does_not_hide_the_others() {
        let query = QuantileQuery::MeanStep { mu: 0.0, floor: 0.08 };
        let mut sum = sum_of_answers(&query, &devices(&[(-1.0, 1e6), (f64::MAX, f64::MAX)]));
        assert_eq!(sum[0] as i64, ((1 << 20) - 1_000_000) << 29);
        sum = sum_of_answers(&QuantileQuery::MeanStep { mu: f64::NAN, floor: 0.0 }, &devices(&[(1.0, 1.0)]));
        assert_eq!(sum[2], 1);
    }

    #[test]
    fn devices_that_leave_between_two_sums_end_the_search_next_to_where_it_was() {
        let (low, high) = (devices(&[(1.0, 10.0); 5]), devices(&[(6.0, 10.0); 5]));
        let everybody = [low.clone(), high.clone()].concat();
        for (left, expected) in [(low, 6.0), (high, 6.125)] {
            let mut search = Search::new(PrivateQuantile::TwoLevel, theta(0.3), None, &LossRange::default());
            let query = search.query().unwrap();
            search.take(&sum_of_answers(&query, &everybody)).unwrap(); // in the bin [6, 6.125)
            let query = search.query().unwrap();
            // Devices with lower losses, or whose losses have risen, now determine the quantile.
            let moved: Vec<_> = left.iter().map(|d| DeviceLoss::new(d.loss() * 1.1, 10.0).unwrap()).collect();
            search.take(&sum_of_answers(&query, &moved)).unwrap();
            assert_eq!(search.eta(), Some(expected));
        }
    }

    #[test]
    fn the_range_settles_to_two_sums_while_losses_fall() {
        let mut range = LossRange::new(0.0, 1e4).unwrap();
        for round in 0..60 {
            let scale = 4.0 * 0.95_f64.powi(round);
            let cohort: Vec<_> = (0..50).map(|k| (scale * (1.0 + f64::from(k * k) / 400.0), 10.0)).collect();
            let search = run(PrivateQuantile::TwoLevel, theta(0.2), range, &devices(&cohort));
            assert_eq!(search.sums(), 2, "round {round}");
            range = search.range();
            if round >= 15 {
                assert!(search.resolution() < scale / 100.0, "round {round}: {}", search.resolution());
            }
        }
    }

    proptest! {
        #[test]
        fn eta_lies_within_the_resolution_below_the_open_quantile(
            kind in any_kind(), theta in level(), cohort in cohort(), lower in -20.0..20.0, span in 1e-3..1e3,
        ) {
            let range = LossRange::new(lower, lower + span).unwrap();
            let search = run(kind, theta, range, &cohort);
            let (eta, open) = (search.eta().unwrap(), quantile(theta, &cohort).unwrap());
            prop_assert!(eta <= open && open - eta <= search.resolution(), "{} for {}", eta, open);
        }

        #[test]
        fn any_sums_end_every_search(kind in any_kind(), theta in level(), sums in prop::collection::vec(any::<u64>(), 1..50)) {
            let mut search = Search::new(kind, theta, None, &LossRange::default());
            let mut garbage = sums.iter().cycle();
            while let Some(query) = search.query() {
                let sum: Vec<u64> = garbage.by_ref().take(query.len()).copied().collect();
                search.take(&sum).unwrap();
                prop_assert!(search.sums() <= 256);
            }
            search.range();
        }
    }
}
