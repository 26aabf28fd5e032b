//! Bins of equal width, with underflow and overflow.

use serde::{Deserialize, Serialize};

/// `count` bins of equal width over [lower, upper), for a histogram with underflow and overflow.
///
/// ```text
/// place      0   |   1   |   2   | … | count |  count+1
/// edge         lower                       upper
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "RawBins")]
pub struct Bins {
    lower: f64,
    upper: f64,
    count: u32,
}

impl Bins {
    /// The largest number of bins that a device accepts, so that the server does not control its
    /// allocations.
    pub const MAX_COUNT: u32 = 1 << 16;

    /// Edges are within ±`LIMIT`, so that their differences are finite.
    pub(super) const LIMIT: f64 = f64::MAX / 4.0;

    /// Creates bins between two edges.
    pub fn new(lower: f64, upper: f64, count: u32) -> Result<Self, InvalidBins> {
        if !(1..=Self::MAX_COUNT).contains(&count) {
            return Err(InvalidBins::Count { got: count });
        }
        if !(-Self::LIMIT <= lower && lower < upper && upper <= Self::LIMIT) {
            return Err(InvalidBins::Edges { lower, upper });
        }
        Ok(Self { lower, upper, count })
    }

    /// Returns the lower edge of the first bin.
    pub fn lower(&self) -> f64 {
        self.lower
    }

    /// Returns the upper edge of the last bin.
    pub fn upper(&self) -> f64 {
        self.upper
    }

    /// Returns the number of places: the bins, underflow and overflow.
    pub fn places(&self) -> usize {
        self.count as usize + 2
    }

    /// Returns the place of a loss: 0 below the bins, `count + 1` above, and `edge(p−1) ≤ loss <
    /// edge(p)` at place p.
    pub fn place(&self, loss: f64) -> usize {
        // A search among the edges themselves, because a division could round a loss over an edge.
        let (mut at_most, mut above) = (0, self.count + 1);
        while at_most < above {
            let middle = at_most.midpoint(above);
            if self.edge(middle) <= loss { at_most = middle + 1 } else { above = middle }
        }
        at_most as usize
    }

    /// Returns edge i of 0 ..= count. Edges never decrease.
    pub(in super::super) fn edge(&self, i: u32) -> f64 {
        if i >= self.count {
            return self.upper;
        }
        let share = f64::from(i) / f64::from(self.count);
        (self.lower + (self.upper - self.lower) * share).min(self.upper)
    }

    /// Returns the edges of the bin at a place, which must be neither underflow nor overflow.
    pub(super) fn edges_at(&self, place: usize) -> (f64, f64) {
        let place = place as u32; // at most MAX_COUNT
        (self.edge(place.saturating_sub(1)), self.edge(place))
    }
}

/// The reason why edges and a count are not valid bins.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidBins {
    /// The count is zero or larger than a device accepts.
    #[error("a histogram has 1 to {} bins, got {got}", Bins::MAX_COUNT)]
    Count {
        /// The rejected count.
        got: u32,
    },
    /// The edges are out of order, not finite, or too large to subtract.
    #[error("the edges of a histogram must be finite and in order, got {lower} and {upper}")]
    Edges {
        /// The rejected lower edge.
        lower: f64,
        /// The rejected upper edge.
        upper: f64,
    },
}

#[derive(Deserialize)]
struct RawBins {
    lower: f64,
    upper: f64,
    count: u32,
}

impl TryFrom<RawBins> for Bins {
    type Error = InvalidBins;

    fn try_from(raw: RawBins) -> Result<Self, Self::Error> {
        Self::new(raw.lower, raw.upper, raw.count)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_loss_on_an_edge_belongs_to_the_bin_above() {
        let bins = Bins::new(0.0, 4.0, 4).unwrap();
        assert_eq!([-0.1, 0.0, 0.9, 1.0, 3.9, 4.0, 1e9].map(|loss| bins.place(loss)), [0, 1, 1, 2, 4, 5, 5]);
    }

    #[test]
    fn bins_from_outside_are_checked() {
        for text in [
            r#"{"lower": 1.0, "upper": 1.0, "count": 4}"#,
            r#"{"lower": 0.0, "upper": 1.0, "count": 0}"#,
            r#"{"lower": 0.0, "upper": 1.0, "count": 4000000000}"#,
            r#"{"lower": -1.7e308, "upper": 1.7e308, "count": 4}"#,
        ] {
            assert!(serde_json::from_str::<Bins>(text).is_err(), "{text}");
        }
        let bins = Bins::new(0.1, 0.7, 64).unwrap();
        assert_eq!(serde_json::from_str::<Bins>(&serde_json::to_string(&bins).unwrap()).unwrap(), bins);
    }

    proptest! {
        #[test]
        fn a_loss_lies_between_the_edges_of_its_place(
            lower in -1e3..1e3, width in 1e-13..1e3, count in 1..5000_u32, share in -0.2..1.2,
        ) {
            let Ok(bins) = Bins::new(lower, lower + width, count) else { return Ok(()) };
            let loss = lower + share * width;
            match bins.place(loss) {
                0 => prop_assert!(loss < bins.lower()),
                place if place == bins.places() - 1 => prop_assert!(loss >= bins.upper()),
                place => {
                    let (below, above) = bins.edges_at(place);
                    prop_assert!(below <= loss && loss < above);
                }
            }
        }
    }
}
