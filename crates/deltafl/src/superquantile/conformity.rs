//! The conformity level θ.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A conformity level θ ∈ (0, 1]: the mass of the tail that is *kept*.
///
/// A model trained at θ serves every mixture of devices whose conformity (Definition 1) is at least
/// θ.
///
/// ```
/// use deltafl::superquantile::Conformity;
///
/// assert_eq!(Conformity::try_from(0.5)?.get(), 0.5);
/// let refused = Conformity::try_from(1.4).unwrap_err();
/// assert_eq!(refused.to_string(), "conformity level must be in (0, 1], got 1.4");
/// # Ok::<(), deltafl::superquantile::OutsideUnitInterval>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd, Serialize, Deserialize)]
#[serde(try_from = "f64", into = "f64")]
pub struct Conformity(f64);

impl Conformity {
    /// θ = 1: the whole population, for which Δ-FL is FedAvg.
    pub const FULL: Self = Self(1.0);

    /// Returns the level as a number.
    pub fn get(self) -> f64 {
        self.0
    }
}

/// A number that is not a conformity level.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
#[error("conformity level must be in (0, 1], got {got}")]
pub struct OutsideUnitInterval {
    /// The rejected number.
    pub got: f64,
}

impl TryFrom<f64> for Conformity {
    type Error = OutsideUnitInterval;

    fn try_from(level: f64) -> Result<Self, Self::Error> {
        // A comparison with NaN is false, so NaN is rejected.
        if level > 0.0 && level <= 1.0 { Ok(Self(level)) } else { Err(OutsideUnitInterval { got: level }) }
    }
}

impl From<Conformity> for f64 {
    fn from(theta: Conformity) -> Self {
        theta.0
    }
}

impl fmt::Display for Conformity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_outside_the_unit_interval_are_refused() {
        for level in [0.0, -0.1, 1.4, f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            assert!(Conformity::try_from(level).is_err(), "{level}");
        }
        for level in [f64::MIN_POSITIVE, 0.1, 1.0] {
            assert_eq!(Conformity::try_from(level).map(Conformity::get), Ok(level));
        }
    }

    #[test]
    fn serde_goes_through_the_check() {
        let text = serde_json::to_string(&Conformity::FULL).unwrap();
        assert_eq!(serde_json::from_str::<Conformity>(&text).unwrap(), Conformity::FULL);
        let refused = serde_json::from_str::<Conformity>("1.4").unwrap_err();
        assert!(refused.to_string().contains("conformity level must be in (0, 1], got 1.4"));
    }
}
