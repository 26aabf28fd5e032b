//! The illustration of the paper: a mixture of three Gaussians in the plane (figure 3).
//!
//! Device k draws ξ from a Gaussian with mean μ_k and identity covariance, the weights are equal,
//! and the task is to estimate the mean, f(w; ξ) = ‖ξ − w‖². Then
//!
//! ```text
//! F_k(w)    = ‖w − μ_k‖² + 2
//! F(w; p_π) = Σ_k π_k F_k(w)
//! w_1       = (μ_1 + μ_2 + μ_3)/3
//! w_{2/3}   = (μ_1 + μ_3)/2, the midpoint of the longest side
//! ```
//!
//! The last line requires an angle at μ_2 of at least 90°. At θ = 2/3 the objective is the maximum
//! of ‖w − m_ij‖² + ‖μ_i − μ_j‖²/4 + 2 over the midpoints m_ij of the sides. At the midpoint of the
//! longest side the other terms are no larger only if the squares of the other sides sum to at most
//! its square. The triangle here is scalene and obtuse.
//!
//! Algorithm 1 computes both models without using this solution.

mod gaussians;
mod sampling;

use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

use crate::algorithm::alternating::{Alternating, Inexactness};
use crate::superquantile::Conformity;
use crate::superquantile::smooth::Smoothing;

use self::gaussians::Gaussians;

/// A point of the plane.
pub type Point = [f64; 2];

/// The means μ_k: a scalene triangle with an obtuse angle at the second.
pub const MEANS: [Point; 3] = [[0.0, 0.0], [1.2, 1.4], [4.0, 0.5]];

/// The number of steps along each side of the simplex.
const GRID: u32 = 64;

/// The number of mixtures drawn from P_θ.
const SAMPLES: usize = 10_000;

/// The smoothing ν of Algorithm 1. The losses are between 2 and 20.
const NU: f64 = 1e-4;

/// The number of bars of the histogram.
const BARS: usize = 40;

/// The data of the three panels of the figure.
#[derive(Clone, Debug, PartialEq)]
pub struct Illustration {
    /// The conformity level θ of the second model.
    pub theta: Conformity,
    /// The means μ_k.
    pub means: [Point; 3],
    /// w_1, the model of vanilla federated learning.
    pub w_full: Point,
    /// w_θ, the model of Δ-FL.
    pub w_theta: Point,
    /// The worst loss of either model over P_θ: max over π ∈ P_θ of F(w; p_π) = F_θ(w) (eq. 1,
    /// Property 2).
    pub worst: WorstLoss,
    /// The losses of both models over a grid on the simplex of all mixtures.
    pub simplex: Vec<MixtureLoss>,
    /// Their losses for mixtures drawn uniformly from P_θ.
    pub samples: Vec<MixtureLoss>,
    /// The histogram of the losses of the samples.
    pub histogram: LossHistogram,
}

/// A mixture and the loss of either model on it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MixtureLoss {
    /// π.
    pub pi: [f64; 3],
    /// F(w_1; p_π).
    pub full: f64,
    /// F(w_θ; p_π).
    pub theta: f64,
}

/// F_θ of both models.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct WorstLoss {
    /// F_θ(w_1).
    pub full: f64,
    /// F_θ(w_θ), the minimum over all w.
    pub theta: f64,
}

/// The losses of both models over the same bars.
#[derive(Clone, Debug, PartialEq)]
pub struct LossHistogram {
    /// The edges of the bars, one more than there are bars.
    pub edges: Vec<f64>,
    /// Samples per bar under w_1.
    pub full: Vec<u32>,
    /// Samples per bar under w_θ.
    pub theta: Vec<u32>,
}

impl Illustration {
    /// Computes the illustration at a conformity level. `seed` selects the mixtures drawn from P_θ.
    pub fn new(theta: Conformity, seed: u64) -> Self {
        let gaussians = Gaussians::new(MEANS);
        let (w_full, w_theta) = (fitted(&gaussians, Conformity::FULL), fitted(&gaussians, theta));
        let losses = |pi: [f64; 3]| MixtureLoss {
            pi,
            full: gaussians.mixture_loss(w_full, pi),
            theta: gaussians.mixture_loss(w_theta, pi),
        };
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let samples: Vec<_> = (0..SAMPLES).map(|_| losses(sampling::from_p_theta(theta, &mut rng))).collect();
        Self {
            theta,
            means: MEANS,
            w_full,
            w_theta,
            worst: WorstLoss {
                full: gaussians.worst_loss(w_full, theta),
                theta: gaussians.worst_loss(w_theta, theta),
            },
            simplex: sampling::grid(GRID).map(losses).collect(),
            histogram: LossHistogram::new(&samples),
            samples,
        }
    }
}

/// Computes w_θ by Algorithm 1, starting at the first mean.
fn fitted(gaussians: &Gaussians, theta: Conformity) -> Point {
    let settings = Alternating {
        theta,
        nu: Smoothing::try_from(NU).expect("positive"),
        inexactness: Inexactness { first: 1e-2, power: 6.0 },
        rounds: 200,
    };
    let found = settings.run_graduated(gaussians, MEANS[0].to_vec()).expect("squared distances are finite");
    [found.w[0], found.w[1]]
}

impl LossHistogram {
    fn new(samples: &[MixtureLoss]) -> Self {
        let losses = || samples.iter().flat_map(|sample| [sample.full, sample.theta]);
        let lower = losses().fold(f64::INFINITY, f64::min);
        let upper = losses().fold(f64::NEG_INFINITY, f64::max);
        let width = (upper - lower).max(f64::MIN_POSITIVE) / BARS as f64;
        let count = |loss_of: fn(&MixtureLoss) -> f64| {
            let mut bars = vec![0; BARS];
            for sample in samples {
                let bar = ((loss_of(sample) - lower) / width) as usize;
                bars[bar.min(BARS - 1)] += 1;
            }
            bars
        };
        Self {
            edges: (0..=BARS).map(|i| lower + i as f64 * width).collect(),
            full: count(|sample| sample.full),
            theta: count(|sample| sample.theta),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::alternating::ConvexProblem;
    use crate::superquantile::mixture::Mixture;
    use crate::superquantile::{DeviceLoss, superquantile};

    fn two_thirds() -> Illustration {
        Illustration::new(Conformity::try_from(2.0 / 3.0).unwrap(), 1)
    }

    #[test]
    fn every_sample_conforms() {
        let uniform = Mixture::new(vec![1.0 / 3.0; 3]).unwrap();
        for theta in [0.2, 0.5, 2.0 / 3.0, 0.9, 1.0] {
            let theta = Conformity::try_from(theta).unwrap();
            let mut rng = ChaCha8Rng::seed_from_u64(7);
            for _ in 0..1000 {
                let pi = sampling::from_p_theta(theta, &mut rng);
                assert!(Mixture::new(pi.to_vec()).unwrap().conforms(theta, &uniform), "{pi:?} at {theta}");
            }
        }
    }

    #[test]
    fn samples_are_uniform_on_the_simplex_when_all_of_it_conforms() {
        let mut rng = ChaCha8Rng::seed_from_u64(7);
        let theta = Conformity::try_from(0.3).unwrap();
        let near_a_corner = |pi: [f64; 3]| pi.iter().any(|share| *share > 0.5);
        let corners = (0..20_000).filter(|_| near_a_corner(sampling::from_p_theta(theta, &mut rng))).count();
        // Three triangles of a quarter of the area each. Five standard deviations are 306.
        assert!(corners.abs_diff(15_000) < 306, "{corners}");
    }

    #[test]
    fn the_histogram_counts_every_sample_twice() {
        let illustration = two_thirds();
        let histogram = &illustration.histogram;
        assert_eq!(histogram.full.iter().sum::<u32>() as usize, illustration.samples.len());
        assert_eq!(histogram.theta.iter().sum::<u32>() as usize, illustration.samples.len());
        assert_eq!(histogram.edges.len(), histogram.full.len() + 1);
    }

    #[test]
    fn the_grid_covers_the_simplex() {
        let simplex = two_thirds().simplex;
        assert_eq!(simplex.len(), 65 * 66 / 2);
        assert!(simplex.iter().all(|point| Mixture::new(point.pi.to_vec()).is_ok()));
    }

    #[test]
    fn the_model_of_every_level_is_the_best_one_for_it() {
        let gaussians = Gaussians::new(MEANS);
        let nu = Smoothing::try_from(NU).unwrap();
        for level in [0.05, 0.2, 0.4, 0.6, 0.8, 0.95] {
            let theta = Conformity::try_from(level).unwrap();
            let w = fitted(&gaussians, theta);
            let losses: Vec<_> =
                gaussians.losses(&w).into_iter().map(|loss| DeviceLoss::new(loss, 1.0).unwrap()).collect();
            // The mixture is in P_θ, and no w has a smaller loss on it than its mean.
            let pi: [f64; 3] = nu.mixture(theta, &losses).unwrap().shares().try_into().unwrap();
            let mean = [0, 1].map(|axis| (0..3).map(|k| pi[k] * MEANS[k][axis]).sum());
            let gap = superquantile(theta, &losses).unwrap() - gaussians.mixture_loss(mean, pi);
            assert!(gap <= NU / (2.0 * level), "θ = {level}: {w:?} is {gap} from the best");
        }
    }

    #[test]
    fn the_worst_loss_is_that_of_the_paper_and_no_sample_exceeds_it() {
        let illustration = two_thirds();
        let WorstLoss { full, theta } = illustration.worst;
        // At θ = 2/3 the worst mixture is half of each device with the larger losses: (5.4056 +
        // 7.1556)/2 for w_1, and ‖μ_1 − μ_3‖²/4 + 2 for the midpoint.
        assert!((full - 6.280_555_555).abs() < 1e-3 && (theta - 6.0625).abs() < 1e-3, "{full} {theta}");
        let largest = |loss: fn(&MixtureLoss) -> f64| {
            illustration.samples.iter().map(loss).fold(f64::NEG_INFINITY, f64::max)
        };
        let (sampled_full, sampled_theta) = (largest(|sample| sample.full), largest(|sample| sample.theta));
        assert!(sampled_full < full && full - sampled_full < 0.05, "{sampled_full}");
        assert!(sampled_theta <= theta + 1e-9, "{sampled_theta}");
    }

    #[test]
    fn full_conformity_draws_one_mixture() {
        let illustration = Illustration::new(Conformity::FULL, 3);
        assert!(illustration.samples.iter().all(|sample| (sample.full - sample.theta).abs() < 1e-9));
    }

    #[test]
    fn the_seed_changes_the_samples_and_not_the_models() {
        let (one, two) = (two_thirds(), Illustration::new(Conformity::try_from(2.0 / 3.0).unwrap(), 2));
        assert_eq!((one.w_full, one.w_theta), (two.w_full, two.w_theta));
        assert_ne!(one.samples, two.samples);
        assert_eq!(one, two_thirds());
    }
}
