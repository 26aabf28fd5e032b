//! Numbers whose types guarantee their range.

use serde::{Deserialize, Serialize};

/// A number outside its range.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
#[error("expected {expected}, got {got}")]
pub struct OutOfRange {
    /// A description of the range.
    pub expected: &'static str,
    /// The number.
    pub got: f64,
}

macro_rules! number {
    ($(#[$doc:meta])* $name:ident, $expected:literal, $valid:expr) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, PartialOrd, Serialize, Deserialize)]
        #[serde(try_from = "f64", into = "f64")]
        pub struct $name(f64);

        impl $name {
            /// Returns the number.
            pub const fn get(self) -> f64 {
                self.0
            }
        }

        impl TryFrom<f64> for $name {
            type Error = OutOfRange;

            fn try_from(number: f64) -> Result<Self, OutOfRange> {
                let valid: fn(f64) -> bool = $valid;
                if valid(number) { Ok(Self(number)) } else { Err(OutOfRange { expected: $expected, got: number }) }
            }
        }

        impl From<$name> for f64 {
            fn from(number: $name) -> Self {
                number.0
            }
        }
    };
}

number!(
    /// A finite number above zero.
    Positive,
    "a finite number above 0",
    |x| x > 0.0 && x.is_finite()
);

number!(
    /// A finite number, zero or above.
    NonNegative,
    "a finite number, 0 or above",
    |x| x >= 0.0 && x.is_finite()
);

impl Default for NonNegative {
    fn default() -> Self {
        Self(0.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_kept() {
        for wrong in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            assert!(Positive::try_from(wrong).is_err(), "{wrong}");
        }
        assert!(NonNegative::try_from(0.0).is_ok());
        assert!(NonNegative::try_from(-f64::MIN_POSITIVE).is_err());
    }
}
