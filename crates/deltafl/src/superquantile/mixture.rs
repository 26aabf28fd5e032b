//! Mixtures of the training devices, and their conformity.
//!
//! ```text
//! p_π       = Σ_k π_k q_k                          π on the simplex
//! conf(p_π) = min_k α_k / π_k                      Definition 1
//! P_θ       = { π : conf(p_π) ≥ θ } = { π : π_k ≤ α_k / θ }
//! F_θ       = max over π ∈ P_θ of Σ_k π_k F_k      eq. (1)
//! ```
//!
//! A test device of conformity at least θ draws its data from a p_π with π ∈ P_θ. The maximum over
//! P_θ is the superquantile (Property 2), attained by [`Mixture::worst_case`].

use super::{Conformity, DeviceLoss, kept_mass, sum, total_weight};

/// The tolerance for the sum of shares and for bounds on shares.
const ROUNDING: f64 = 1e-9;

/// A mixture π of the training devices: nonnegative shares that sum to one.
#[derive(Clone, Debug, PartialEq)]
pub struct Mixture {
    shares: Vec<f64>,
}

impl Mixture {
    /// Creates the mixture with these shares π_k.
    ///
    /// # Errors
    ///
    /// Returns an error if a share is outside [0, 1] or the shares do not sum to one.
    pub fn new(shares: Vec<f64>) -> Result<Self, InvalidMixture> {
        if let Some((device, &share)) = shares.iter().enumerate().find(|(_, share)| !is_share(**share)) {
            return Err(InvalidMixture::NotAShare { device, share });
        }
        let total = sum(shares.iter().copied());
        if (total - 1.0).abs() > ROUNDING {
            return Err(InvalidMixture::NotASimplexPoint { total });
        }
        Ok(Self { shares })
    }

    /// Returns the training distribution p_α of devices with these weights, or `None` without
    /// devices.
    pub fn of_training(losses: &[DeviceLoss]) -> Option<Self> {
        let total = total_weight(losses);
        let shares = losses.iter().map(|device| device.weight() / total).collect();
        (!losses.is_empty()).then_some(Self { shares })
    }

    /// Returns a mixture π* ∈ P_θ that attains F_θ: the worst devices with α_k/θ each, up to a
    /// total of one.
    ///
    /// Returns `None` if there are no devices. Takes O(N log N).
    pub fn worst_case(theta: Conformity, losses: &[DeviceLoss]) -> Option<Self> {
        let kept = kept_mass(theta, total_weight(losses));
        let mut order: Vec<usize> = (0..losses.len()).collect();
        order.sort_by(|&j, &k| losses[k].loss().total_cmp(&losses[j].loss()));

        let mut shares = vec![0.0; losses.len()];
        let mut left = kept;
        for k in order {
            let mass = losses[k].weight().min(left);
            shares[k] = mass / kept;
            left -= mass;
        }
        (!losses.is_empty()).then_some(Self { shares })
    }

    /// Returns the shares π_k.
    pub fn shares(&self) -> &[f64] {
        &self.shares
    }

    /// Returns conf(p_π) = min_k α_k / π_k, where `training` is α (Definition 1).
    ///
    /// Returns `None` if the mixtures have different devices, or if π contains a device without
    /// training weight.
    pub fn conformity(&self, training: &Self) -> Option<Conformity> {
        if self.shares.len() != training.shares.len() {
            return None;
        }
        let ratios = self.shares.iter().zip(&training.shares).filter(|(pi, _)| **pi > 0.0);
        let least = ratios.map(|(pi, alpha)| alpha / pi).fold(1.0, f64::min);
        Conformity::try_from(least).ok()
    }

    /// Returns true if π ∈ P_θ, with a tolerance for rounding.
    pub fn conforms(&self, theta: Conformity, training: &Self) -> bool {
        self.conformity(training).is_some_and(|conformity| conformity.get() >= theta.get() * (1.0 - ROUNDING))
    }

    /// Returns F(w; p_π) = Σ_k π_k F_k, the loss of the mixture. `losses` must have as many
    /// entries.
    pub fn loss(&self, losses: &[DeviceLoss]) -> f64 {
        sum(self.shares.iter().zip(losses).map(|(pi, device)| pi * device.loss()))
    }
}

fn is_share(share: f64) -> bool {
    (0.0..=1.0 + ROUNDING).contains(&share)
}

/// The reason why numbers are not the shares of a mixture.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidMixture {
    /// A share is negative, above one or not a number.
    #[error("share {share} of device {device} is not between 0 and 1")]
    NotAShare {
        /// The index of the device.
        device: usize,
        /// The rejected share.
        share: f64,
    },
    /// The shares do not sum to one.
    #[error("the shares of a mixture must sum to 1, got {total}")]
    NotASimplexPoint {
        /// Their sum.
        total: f64,
    },
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::tests::{cohort, devices, level, theta};
    use super::*;
    use crate::superquantile::superquantile;

    #[test]
    fn points_off_the_simplex_are_refused() {
        assert!(matches!(
            Mixture::new(vec![0.5, -0.5, 1.0]),
            Err(InvalidMixture::NotAShare { device: 1, .. })
        ));
        assert!(matches!(
            Mixture::new(vec![0.5, f64::NAN]),
            Err(InvalidMixture::NotAShare { device: 1, .. })
        ));
        assert!(matches!(Mixture::new(vec![0.5, 0.4]), Err(InvalidMixture::NotASimplexPoint { .. })));
        assert!(matches!(Mixture::new(vec![]), Err(InvalidMixture::NotASimplexPoint { .. })));
    }

    #[test]
    fn conformity_is_the_least_ratio_of_shares() {
        let training = Mixture::new(vec![0.25, 0.25, 0.5]).unwrap();
        let conformity = |shares: [f64; 3]| Mixture::new(shares.to_vec()).unwrap().conformity(&training);
        assert_eq!(conformity([0.25, 0.25, 0.5]), Some(Conformity::FULL));
        assert_eq!(conformity([0.5, 0.0, 0.5]), Some(theta(0.5)));
        assert_eq!(conformity([0.0, 1.0, 0.0]), Some(theta(0.25)));
    }

    #[test]
    fn a_device_unknown_to_training_conforms_to_nothing() {
        let training = Mixture::new(vec![1.0, 0.0]).unwrap();
        assert_eq!(Mixture::new(vec![0.5, 0.5]).unwrap().conformity(&training), None);
        assert_eq!(Mixture::new(vec![1.0]).unwrap().conformity(&training), None);
    }

    #[test]
    fn the_worst_case_splits_the_boundary_device() {
        let losses = devices(&[(1.0, 1.0), (3.0, 1.0), (2.0, 2.0)]);
        let worst = Mixture::worst_case(theta(0.5), &losses).unwrap();
        assert_eq!(worst.shares(), [0.0, 0.5, 0.5]);
        assert!(Mixture::worst_case(theta(0.5), &[]).is_none());
    }

    proptest! {
        #[test]
        fn the_worst_case_is_in_p_theta_and_attains_the_superquantile(losses in cohort(), theta in level()) {
            let training = Mixture::of_training(&losses).unwrap();
            let worst = Mixture::worst_case(theta, &losses).unwrap();
            prop_assert!(Mixture::new(worst.shares().to_vec()).is_ok());
            prop_assert!(worst.conforms(theta, &training));
            let primal = superquantile(theta, &losses).unwrap();
            prop_assert!((worst.loss(&losses) - primal).abs() <= 1e-12 * (1.0 + primal.abs()));
        }

        #[test]
        fn membership_is_conformity_of_at_least_theta(
            shares in prop::collection::vec(0.01..1.0, 6), weights in prop::collection::vec(1.0..9.0, 6), theta in level(),
        ) {
            let total: f64 = shares.iter().sum();
            let pi = Mixture::new(shares.iter().map(|share| share / total).collect()).unwrap();
            let training = Mixture::of_training(&devices(&weights.into_iter().map(|w| (0.0, w)).collect::<Vec<_>>())).unwrap();
            let bounded = pi.shares().iter().zip(training.shares()).all(|(pi, alpha)| *pi <= alpha / theta.get());
            prop_assert_eq!(pi.conforms(theta, &training), bounded);
        }
    }
}
