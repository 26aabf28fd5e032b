//! The range in which the next quantile is expected.

use serde::{Deserialize, Serialize};

use super::bins::Bins;

/// The range in which a quantile of losses is expected. It is kept across rounds and in
/// checkpoints.
///
/// It grows immediately to the observed losses and shrinks by three quarters of the way, so that a
/// lucky cohort does not cost the next one an extra sum.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "RawRange")]
pub struct LossRange {
    lower: f64,
    upper: f64,
}

/// [0, 8): the cross-entropy of a guess among up to e⁸ classes.
impl Default for LossRange {
    fn default() -> Self {
        Self { lower: 0.0, upper: 8.0 }
    }
}

impl LossRange {
    /// The smallest width, absolute and relative to the losses. Losses that agree by chance will
    /// differ again in the next round.
    const LEAST_SPAN: f64 = 1e-6;
    const LEAST_SHARE: f64 = 0.25;

    /// Creates a range from `lower` to `upper`.
    pub fn new(lower: f64, upper: f64) -> Result<Self, InvalidLossRange> {
        let fits = -Bins::LIMIT <= lower && lower < upper && upper <= Bins::LIMIT;
        if fits { Ok(Self { lower, upper }) } else { Err(InvalidLossRange { lower, upper }) }
    }

    /// Returns the lower end.
    pub fn lower(&self) -> f64 {
        self.lower
    }

    /// Returns the upper end.
    pub fn upper(&self) -> f64 {
        self.upper
    }

    /// Returns the width.
    pub(super) fn span(&self) -> f64 {
        self.upper - self.lower
    }

    /// Returns the range for the next round, if most losses of this one were between `lower` and
    /// `upper`.
    pub(super) fn follow(self, lower: f64, upper: f64) -> Self {
        let size = lower.abs().max(upper.abs());
        let span = (upper - lower).max(Self::LEAST_SPAN).max(Self::LEAST_SHARE * size);
        let centre = lower.midpoint(upper);
        // A margin of half the span on either side, for the drift between rounds.
        let next = Self {
            lower: follow_end(self.lower, centre - span, f64::min),
            upper: follow_end(self.upper, centre + span, f64::max),
        };
        Self::new(next.lower, next.upper).unwrap_or(self)
    }
}

/// Returns an end of the range: the target, or a quarter of the way back if that is further
/// `outward`.
fn follow_end(end: f64, wanted: f64, outward: fn(f64, f64) -> f64) -> f64 {
    outward(wanted, wanted + (end - wanted) / 4.0).clamp(-Bins::LIMIT, Bins::LIMIT)
}

/// Two numbers that are not the ends of a range.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
#[error("a range of losses must be finite and in order, got {lower} to {upper}")]
pub struct InvalidLossRange {
    /// The rejected lower end.
    pub lower: f64,
    /// The rejected upper end.
    pub upper: f64,
}

#[derive(Deserialize)]
struct RawRange {
    lower: f64,
    upper: f64,
}

impl TryFrom<RawRange> for LossRange {
    type Error = InvalidLossRange;

    fn try_from(raw: RawRange) -> Result<Self, Self::Error> {
        Self::new(raw.lower, raw.upper)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_range_grows_at_once_and_shrinks_by_and_by() {
        let range = LossRange::new(0.0, 8.0).unwrap();
        assert_eq!(range.follow(10.0, 20.0), LossRange::new(3.75, 25.0).unwrap());
        let mut range = LossRange::new(0.0, 1e6).unwrap();
        for _ in 0..20 {
            range = range.follow(1.0, 2.0);
        }
        assert!((range.lower() - 0.5).abs() < 1e-3 && (range.upper() - 2.5).abs() < 1e-3, "{range:?}");
    }

    #[test]
    fn losses_that_agree_leave_room_for_the_next_round() {
        let range = (0..50).fold(LossRange::default(), |range, _| range.follow(2.0, 2.0));
        assert!((range.span() - 1.0).abs() < 1e-3, "{range:?}");
        let range = (0..99).fold(LossRange::default(), |range, _| range.follow(0.0, 0.0));
        assert!(range.span() >= LossRange::LEAST_SPAN);
    }

    #[test]
    fn a_range_from_outside_is_checked() {
        assert!(serde_json::from_str::<LossRange>(r#"{"lower": 2.0, "upper": 1.0}"#).is_err());
        let range = LossRange::new(0.1, 0.7).unwrap();
        assert_eq!(
            serde_json::from_str::<LossRange>(&serde_json::to_string(&range).unwrap()).unwrap(),
            range
        );
    }
}
