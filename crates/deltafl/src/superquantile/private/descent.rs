//! A quantile from nested histograms, each inside the bin of the previous one that contains the
//! quantile.
//!
//! One level of 4096 bins, two of 64 and twelve of 2 end in the same bins and differ in
//! communication.

use super::super::smooth::Smoothing;
use super::super::{Conformity, DeviceLoss, kept_mass, quantile};
use super::bins::Bins;
use super::loss_range::LossRange;
use super::{QuantileQuery, SearchState};

/// The share of the weight that may be outside the next round's range at either end, so that an
/// outlier does not reduce the resolution of the others.
const TRIMMED: f64 = 0.02;

/// The factor by which the first search outside the range is wider than the range.
const WIDENING: f64 = 16.0;

/// A descent through levels of bins.
#[derive(Clone, Debug)]
pub(super) struct BinDescent {
    theta: Conformity,
    /// ν, if the tail is smoothed.
    nu: Option<Smoothing>,
    bins: Bins,
    levels_left: u32,
    widening: f64,
    /// Whether a previous sum placed the quantile at or above the lower edge of the bins.
    lower_known: bool,
    /// Whether a previous sum placed the quantile below the upper edge of the bins.
    upper_known: bool,
    range: LossRange,
    /// The largest edge with almost no weight below, and the smallest with almost none at or above.
    few_below: Option<f64>,
    few_above: Option<f64>,
}

impl BinDescent {
    /// Creates a descent over `range` through `levels` levels of `count` bins.
    pub(super) fn new(
        theta: Conformity,
        nu: Option<Smoothing>,
        range: LossRange,
        count: u32,
        levels: u32,
    ) -> Self {
        let bins = Bins::new(range.lower(), range.upper(), count).expect("a range has the edges of bins");
        Self {
            theta,
            nu,
            bins,
            levels_left: levels,
            widening: WIDENING,
            lower_known: false,
            upper_known: false,
            range,
            few_below: None,
            few_above: None,
        }
    }

    pub(super) fn query(&self) -> QuantileQuery {
        QuantileQuery::Histogram(self.bins)
    }

    /// Processes a histogram.
    ///
    /// Devices may drop out between two sums, and the remaining ones may have a different quantile.
    /// The search then ends at the nearest edge of the bins that the previous sum selected.
    pub(super) fn take(&mut self, histogram: &[u64]) -> SearchState {
        self.note_tails(histogram);
        if let Some(nu) = self.nu {
            return self.take_smoothed(nu, histogram);
        }
        let Some(place) = quantile_place(self.theta, histogram) else { return SearchState::Nobody };
        let resolution = self.bins.upper() - self.bins.lower();
        if place == 0 {
            if self.lower_known { found(self.bins.lower(), resolution) } else { self.look_below() }
        } else if place == histogram.len() - 1 {
            if self.upper_known { found(self.bins.upper(), resolution) } else { self.look_above() }
        } else {
            self.look_inside(place)
        }
    }

    /// Processes a histogram for a smoothed tail: η is where K(η) = θ of the weight.
    ///
    /// A loss is known up to its bin. At the middle of its bin, no loss is off by more than half a
    /// bin, and neither is η. The next level covers the interval [η, η + ν] in which devices have
    /// partial shares, with an extra bin on either side.
    fn take_smoothed(&mut self, nu: Smoothing, histogram: &[u64]) -> SearchState {
        let losses = self.losses_of(nu, histogram);
        let total: f64 = losses.iter().map(DeviceLoss::weight).sum();
        let (below, above) = (histogram[0] as f64, histogram[histogram.len() - 1] as f64);
        let kept = kept_mass(self.theta, total);
        if above > kept && !self.upper_known {
            return self.look_above();
        }
        if total - below < kept && !self.lower_known {
            return self.look_below();
        }
        let Some(minimisers) = nu.minimisers(self.theta, &losses) else { return SearchState::Nobody };
        let (eta, width) = (minimisers.eta(), self.bins.edge(1) - self.bins.edge(0));
        self.levels_left -= 1;
        if self.levels_left == 0 || !self.look_between(eta - width, eta + nu.get() + width) {
            return found(eta, width);
        }
        self.lower_known = true;
        self.upper_known = true;
        SearchState::Searching
    }

    /// Returns the losses of a histogram, each in the middle of its bin. Losses outside are placed
    /// far outside, where they count fully or not at all.
    fn losses_of(&self, nu: Smoothing, histogram: &[u64]) -> Vec<DeviceLoss> {
        let span = self.bins.upper() - self.bins.lower() + 2.0 * nu.get();
        let loss = |place: usize| match place {
            0 => self.bins.lower() - span,
            _ if place == histogram.len() - 1 => self.bins.upper() + span,
            _ => {
                let (lower, upper) = self.bins.edges_at(place);
                lower.midpoint(upper)
            }
        };
        let device = |(place, &weight): (usize, &u64)| DeviceLoss::new(loss(place), weight as f64).ok();
        histogram.iter().enumerate().filter_map(device).collect()
    }

    fn look_inside(&mut self, place: usize) -> SearchState {
        let (lower, upper) = self.bins.edges_at(place);
        self.levels_left -= 1;
        if self.levels_left == 0 || !self.look_between(lower, upper) {
            return found(lower, upper - lower);
        }
        self.lower_known = true;
        self.upper_known = true;
        SearchState::Searching
    }

    fn look_below(&mut self) -> SearchState {
        let upper = self.bins.lower();
        let lower = (upper - self.widen()).max(-Bins::LIMIT);
        if !self.look_between(lower, upper) {
            return found(f64::MIN, f64::INFINITY);
        }
        self.upper_known = true;
        SearchState::Searching
    }

    fn look_above(&mut self) -> SearchState {
        let lower = self.bins.upper();
        let upper = (lower + self.widen()).min(Bins::LIMIT);
        if !self.look_between(lower, upper) {
            return found(lower, f64::INFINITY);
        }
        self.lower_known = true;
        SearchState::Searching
    }

    /// Returns the width of the next search outside the range: 16 times that of the last, then 32,
    /// then 64 … Therefore a close quantile is found in fine bins, and any finite loss within about
    /// forty searches.
    fn widen(&mut self) -> f64 {
        let width = (self.bins.upper() - self.bins.lower()) * self.widening;
        self.widening *= 2.0;
        width
    }

    /// Moves the bins, unless there is no room between the edges.
    fn look_between(&mut self, lower: f64, upper: f64) -> bool {
        let count = (self.bins.places() - 2) as u32;
        Bins::new(lower, upper, count).map(|bins| self.bins = bins).is_ok()
    }

    fn note_tails(&mut self, histogram: &[u64]) {
        let total: u128 = histogram.iter().map(|&weight| u128::from(weight)).sum();
        let few = TRIMMED * total as f64;
        let mut below = 0_u128;
        for (edge, &weight) in (0..).map(|i| self.bins.edge(i)).zip(&histogram[..histogram.len() - 1]) {
            below += u128::from(weight);
            if below as f64 <= few {
                self.few_below = Some(self.few_below.map_or(edge, |known| known.max(edge)));
            }
            if (total - below) as f64 <= few {
                self.few_above = Some(self.few_above.map_or(edge, |known| known.min(edge)));
            }
        }
    }

    /// Returns the interval that contains most of the weight and the quantile, as far as known.
    pub(super) fn occupied(&self, eta: f64, resolution: f64) -> (f64, f64) {
        let lower = self.few_below.unwrap_or(self.range.lower());
        let upper = self.few_above.unwrap_or(self.range.upper());
        (lower.min(eta), upper.max(eta + resolution).min(Bins::LIMIT))
    }
}

fn found(eta: f64, resolution: f64) -> SearchState {
    SearchState::Found { eta, resolution }
}

/// Returns the place of the (1−θ)-quantile by the rule of the open quantile, applied to places.
fn quantile_place(theta: Conformity, histogram: &[u64]) -> Option<usize> {
    let places: Vec<DeviceLoss> = histogram
        .iter()
        .enumerate()
        .filter_map(|(place, &weight)| DeviceLoss::new(place as f64, weight as f64).ok())
        .collect();
    quantile(theta, &places).map(|place| place as usize)
}
