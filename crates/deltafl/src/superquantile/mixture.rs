//! Mixtures of the training devices, and their conformity.
//!
//! ```text
//! p_π       = Σ_k π_k q_k                          π on the simplex
//! conf(p_π) = min_k α_k / π_k                      Definition 1
//! P_θ       = { π : conf(p_π) ≥ θ } = { π : π_k ≤ α_k / θ }
//! F_θ       = max over π ∈ P_θ of Σ_k π_k F_k      eq. (1)
//! ```
//!
//! A test device of conformity θ or more draws its data from some p_π with π ∈ P_θ. The maximum over P_θ is
//! the superquantile (Property 2), attained by [`Mixture::worst_case`].

use super::{Conformity, DeviceLoss, kept_mass, sum, total_weight};

/// How far a sum may be from one, or a share above its bound, and be taken for rounding.
const ROUNDING: f64 = 1e-9;

/// A mixture π of the training devices: shares that are not negative and sum to one.
#[derive(Clone, Debug, PartialEq)]
pub struct Mixture {
    shares: Vec<f64>,
}

impl Mixture {
    /// The mixture with these shares π_k.
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

    /// The training distribution p_α of devices with these weights; `None` when there are no devices.
    pub fn of_training(losses: &[DeviceLoss]) -> Option<Self> {
        let total = total_weight(losses);
        let shares = losses.iter().map(|device| device.weight() / total).collect();
        (!losses.is_empty()).then_some(Self { shares })
    }

    /// A mixture π* ∈ P_θ that attains F_θ: the worst devices at α_k/θ each, until the mass is spent.
    ///
    /// `None` when there are no devices. O(N log N).
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

    /// The shares π_k.
    pub fn shares(&self) -> &[f64] {
        &self.shares
    }

    /// conf(p_π) = min_k α_k / π_k, where `training` is α (Definition 1).
    ///
    /// `None` when the mixtures are not of the same devices, or π holds a device that training does not:
    /// nothing conforms then.
    pub fn conformity(&self, training: &Self) -> Option<Conformity> {
        if self.shares.len() != training.shares.len() {
            return None;
        }
        let ratios = self.shares.iter().zip(&training.shares).filter(|(pi, _)| **pi > 0.0);
        let least = ratios.map(|(pi, alpha)| alpha / pi).fold(1.0, f64::min);
        Conformity::try_from(least).ok()
    }

    /// Whether π ∈ P_θ, with an allowance for rounding.
    pub fn conforms(&self, theta: Conformity, training: &Self) -> bool {
        self.conformity(training).is_some_and(|conformity| conformity.get() >= theta.get() * (1.0 - ROUNDING))
    }

    /// F(w; p_π) = Σ_k π_k F_k, the loss of the mixture, over as many devices as it has.
    pub fn loss(&self, losses: &[DeviceLoss]) -> f64 {
        sum(self.shares.iter().zip(losses).map(|(pi, device)| pi * device.loss()))
    }
}

fn is_share(share: f64) -> bool {
    (0.0..=1.0 + ROUNDING).contains(&share)
}

/// Why numbers are not the shares of a mixture.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidMixture {
    /// A share is negative, above one or not a number.
    #[error("share {share} of device {device} is not between 0 and 1")]
    NotAShare {
        /// The index of the device.
        device: usize,
        /// The share offered.
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
