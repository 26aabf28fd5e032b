//! The distribution of the losses of a cohort, as far as the search for η reveals it to the server.
//!
//! In open mode the server knows every loss, and percentiles are exact. In private mode it knows
//! the histograms that Algorithm 3 has summed, so that a percentile is known up to a bin. This
//! module reveals no more than the search.

use serde::{Deserialize, Serialize};

use super::private::Bins;
use super::{Conformity, DeviceLoss, quantile};

/// The reported percentiles.
pub const LOSS_PERCENTILES: [u8; 5] = [10, 25, 50, 75, 90];

/// The losses F_k(w) of a cohort at one w, weighted by α_k.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "mode", rename_all = "kebab-case")]
pub enum LossDistribution {
    /// From individually reported losses.
    Open {
        /// The number of devices that reported a loss.
        devices: u64,
        /// Each percentile and its value.
        percentiles: Vec<(u8, f64)>,
    },
    /// From secure sums, in the order of the requests.
    Private {
        /// The first covers the whole range of losses, the next one the bin that contains the
        /// quantile.
        histograms: Vec<Histogram>,
    },
}

/// An interval. An unknown end is `None`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Bounds {
    /// The lower bound.
    pub lower: Option<f64>,
    /// The upper bound.
    pub upper: Option<f64>,
}

impl LossDistribution {
    /// Computes the distribution of the losses of a cohort. Returns `None` without losses.
    pub fn open(losses: &[DeviceLoss]) -> Option<Self> {
        let value = |percent| Some((percent, quantile(kept_above(percent), losses)?));
        let percentiles: Option<Vec<_>> = LOSS_PERCENTILES.into_iter().map(value).collect();
        Some(Self::Open { devices: losses.len() as u64, percentiles: percentiles? })
    }

    /// Computes the distribution from the histograms of a search. Returns `None` without
    /// histograms.
    pub fn private(histograms: Vec<Histogram>) -> Option<Self> {
        (!histograms.is_empty()).then_some(Self::Private { histograms })
    }

    /// Returns the number of devices.
    pub fn devices(&self) -> u64 {
        match self {
            Self::Open { devices, .. } => *devices,
            Self::Private { histograms } => histograms.first().map_or(0, |histogram| histogram.devices),
        }
    }

    /// Returns [`LOSS_PERCENTILES`] with the bounds of each.
    pub fn percentiles(&self) -> Vec<(u8, Bounds)> {
        match self {
            Self::Open { percentiles, .. } => {
                let exactly = |&(percent, value): &(u8, f64)| {
                    (percent, Bounds { lower: Some(value), upper: Some(value) })
                };
                percentiles.iter().map(exactly).collect()
            }
            Self::Private { histograms } => {
                LOSS_PERCENTILES.into_iter().map(|percent| (percent, within(histograms, percent))).collect()
            }
        }
    }
}

/// Returns the mass above the p-th percentile: the θ of that quantile.
fn kept_above(percent: u8) -> Conformity {
    Conformity::try_from(1.0 - f64::from(percent) / 100.0).expect("percentiles reported are below 100")
}

/// Intersects the bounds of all histograms on a percentile. A device may drop out between two
/// histograms, so those with a different total weight than the first are ignored.
fn within(histograms: &[Histogram], percent: u8) -> Bounds {
    let whole = histograms.first().map(Histogram::weight);
    let of_all = histograms.iter().filter(|histogram| Some(histogram.weight()) == whole);
    of_all.filter_map(|histogram| histogram.quantile(kept_above(percent))).fold(Bounds::default(), |a, b| {
        let pick = |x: Option<f64>, y: Option<f64>, best: fn(f64, f64) -> f64| match (x, y) {
            (Some(x), Some(y)) => Some(best(x, y)),
            (known, None) | (None, known) => known,
        };
        Bounds { lower: pick(a.lower, b.lower, f64::max), upper: pick(a.upper, b.upper, f64::min) }
    })
}

/// A secure sum of histograms: the weight of a cohort per bin.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Histogram {
    bins: Bins,
    devices: u64,
    /// The nonempty places and their weights: few of thousands.
    filled: Vec<(u32, u64)>,
}

impl Histogram {
    /// Creates a histogram from the sum of the answers of this many devices for these bins.
    pub fn new(bins: Bins, devices: u64, sum: &[u64]) -> Self {
        let places = (0..).zip(sum).take(bins.places());
        let filled = places.filter(|&(_, &weight)| weight > 0).map(|(place, &weight)| (place, weight));
        Self { bins, devices, filled: filled.collect() }
    }

    /// Returns the number of devices in the sum.
    pub fn devices(&self) -> u64 {
        self.devices
    }

    /// Returns the nonempty bins with their share of the weight.
    pub fn shares(&self) -> impl Iterator<Item = (Bounds, f64)> {
        let whole = self.weight() as f64;
        self.filled.iter().map(move |&(place, weight)| (self.at(place), weight as f64 / whole))
    }

    /// Returns the bin of the (1−θ)-quantile, or `None` without devices.
    pub fn quantile(&self, theta: Conformity) -> Option<Bounds> {
        // The rule of the open quantile, applied to places.
        let loss = |&(place, weight): &(u32, u64)| DeviceLoss::new(f64::from(place), weight as f64).ok();
        let places: Vec<DeviceLoss> = self.filled.iter().filter_map(loss).collect();
        quantile(theta, &places).map(|place| self.at(place as u32))
    }

    fn weight(&self) -> u128 {
        self.filled.iter().map(|&(_, weight)| u128::from(weight)).sum()
    }

    fn at(&self, place: u32) -> Bounds {
        let last = self.bins.places() as u32 - 1;
        Bounds {
            lower: (place > 0).then(|| self.bins.edge(place - 1)),
            upper: (place < last).then(|| self.bins.edge(place)),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::private::{LossRange, PrivateQuantile, QuantileQuery, Search};
    use super::super::tests::{cohort, devices, level};
    use super::*;

    fn searched(theta: Conformity, cohort: &[DeviceLoss]) -> LossDistribution {
        let mut search = Search::new(PrivateQuantile::TwoLevel, theta, None, &LossRange::default());
        let mut histograms = Vec::new();
        while let Some(query) = search.query() {
            let mut sum = vec![0; query.len()];
            cohort.iter().for_each(|&device| query.answer(device, &mut sum));
            search.take(&sum).unwrap();
            let QuantileQuery::Histogram(bins) = query else { unreachable!("two levels of bins") };
            histograms.push(Histogram::new(bins, cohort.len() as u64, &sum));
        }
        LossDistribution::private(histograms).unwrap()
    }

    #[test]
    fn a_percentile_is_known_to_the_width_of_its_bin_and_finer_where_the_search_looked_twice() {
        let losses: Vec<_> = (0..100).map(|k| (f64::from(k) / 16.0, 10.0)).collect();
        let known = searched(Conformity::try_from(0.5).unwrap(), &devices(&losses)).percentiles();
        let width = |percent| {
            let &(_, bounds) = known.iter().find(|(p, _)| *p == percent).unwrap();
            bounds.upper.unwrap() - bounds.lower.unwrap()
        };
        // 64 bins over [0, 8), then 64 inside the bin that contains the median.
        assert_eq!([width(10), width(50), width(90)], [0.125, 0.125 / 64.0, 0.125]);
    }

    #[test]
    fn a_histogram_of_fewer_devices_does_not_sharpen_that_of_all() {
        let bins = Bins::new(0.0, 4.0, 4).unwrap();
        let inside = Bins::new(1.0, 2.0, 4).unwrap();
        let all = Histogram::new(bins, 3, &[0, 1, 10, 1, 0, 0]);
        let fewer = Histogram::new(inside, 2, &[1, 0, 10, 0, 0, 0]);
        let known = LossDistribution::private(vec![all, fewer]).unwrap();
        assert_eq!(known.percentiles()[2], (50, Bounds { lower: Some(1.0), upper: Some(2.0) }));
        assert_eq!(known.devices(), 3);
    }

    #[test]
    fn what_lies_beyond_the_bins_is_bounded_on_one_side() {
        let bins = Bins::new(0.0, 1.0, 1).unwrap();
        let beyond = Histogram::new(bins, 2, &[1, 0, 9]);
        let shares: Vec<_> = beyond.shares().collect();
        let below = Bounds { lower: None, upper: Some(0.0) };
        let above = Bounds { lower: Some(1.0), upper: None };
        assert_eq!(shares, [(below, 0.1), (above, 0.9)]);
    }

    #[test]
    fn it_survives_being_written_down() {
        let some = devices(&[(0.3, 2.0), (0.5, 1.0), (9.0, 4.0)]);
        let open = LossDistribution::open(&some).unwrap();
        for known in [open, searched(Conformity::FULL, &some)] {
            let text = serde_json::to_string(&known).unwrap();
            assert_eq!(serde_json::from_str::<LossDistribution>(&text).unwrap(), known);
        }
        assert_eq!(LossDistribution::open(&[]), None);
    }

    proptest! {
        #[test]
        fn the_open_percentile_lies_in_the_bounds_of_the_private_one(theta in level(), cohort in cohort()) {
            // Weights as devices send them: integers of at least one.
            let whole = |d: &DeviceLoss| DeviceLoss::new(d.loss(), d.weight().round().max(1.0)).unwrap();
            let cohort: Vec<DeviceLoss> = cohort.iter().map(whole).collect();
            let (open, private) = (LossDistribution::open(&cohort).unwrap(), searched(theta, &cohort));
            for ((_, exact), (percent, bounds)) in open.percentiles().into_iter().zip(private.percentiles()) {
                let value = exact.lower.unwrap();
                prop_assert!(bounds.lower.is_none_or(|lower| lower <= value), "{} {:?} {}", percent, bounds, value);
                prop_assert!(bounds.upper.is_none_or(|upper| value <= upper), "{} {:?} {}", percent, bounds, value);
            }
        }
    }
}
