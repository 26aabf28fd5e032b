//! The loss and the weight of a device.

/// The loss F_k(w) of a device and its weight α_k, its number of examples.
///
/// Both are finite and the weight is positive, so that all losses can be ordered.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DeviceLoss {
    loss: f64,
    weight: f64,
}

impl DeviceLoss {
    /// Creates a device loss.
    ///
    /// # Errors
    ///
    /// Returns an error if the loss is not finite or the weight is not positive and finite.
    pub fn new(loss: f64, weight: f64) -> Result<Self, InvalidDeviceLoss> {
        if !loss.is_finite() {
            return Err(InvalidDeviceLoss::NonFiniteLoss { loss });
        }
        if !(weight.is_finite() && weight > 0.0) {
            return Err(InvalidDeviceLoss::UnusableWeight { weight });
        }
        Ok(Self { loss, weight })
    }

    /// Returns F_k(w).
    pub fn loss(&self) -> f64 {
        self.loss
    }

    /// Returns α_k, not normalised.
    pub fn weight(&self) -> f64 {
        self.weight
    }

    /// Returns true if the device is in the tail: F_k ≥ η (Algorithm 2, line 6).
    pub fn in_tail(&self, eta: f64) -> bool {
        self.loss >= eta
    }
}

/// The reason why a loss and a weight are invalid.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidDeviceLoss {
    /// The loss is infinite or not a number.
    #[error("the loss of a device must be finite, got {loss}")]
    NonFiniteLoss {
        /// The rejected loss.
        loss: f64,
    },
    /// The weight is not positive, or infinite, or not a number.
    #[error("the weight of a device must be positive and finite, got {weight}")]
    UnusableWeight {
        /// The rejected weight.
        weight: f64,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn losses_that_are_not_finite_are_refused() {
        for loss in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            let refused = DeviceLoss::new(loss, 1.0);
            assert!(matches!(refused, Err(InvalidDeviceLoss::NonFiniteLoss { .. })), "{loss}");
        }
    }

    #[test]
    fn weights_that_are_not_positive_are_refused() {
        for weight in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            let refused = DeviceLoss::new(1.0, weight);
            assert!(matches!(refused, Err(InvalidDeviceLoss::UnusableWeight { .. })), "{weight}");
        }
    }
}
