//! Krum: the update with the nearest neighbours (Blanchard et al., "Machine Learning with
//! Adversaries", NeurIPS 2017).
//!
//! ```text
//! score(k) = Σ ‖u_k − u_j‖² over the m − f − 2 updates j nearest to k      f = ⌊share of liars · m⌋
//! w_{t+1}  = w_t + mean of the `keep` updates with the lowest scores
//! ```
//!
//! `keep = 1` is Krum, and larger values are Multi-Krum. The mean has no weights. The server sees
//! the update of each device, so only open simulations can use it.

use super::median::EACH_UPDATE;
use super::{Algorithm, AlgorithmParts};
use crate::aggregation::{Aggregation, DeviceUpdate, squared_distances, weighted_mean};
use crate::options::{Interval, OptionDefault, OptionKind, OptionSpec, OptionValue};

/// Krum.
pub static KRUM: Algorithm = Algorithm {
    kind: "krum",
    title: "Krum",
    about: "the server takes the update that is nearest to its neighbours",
    options: &[
        OptionSpec::real(
            "liars",
            "f",
            Interval { least: 0.0, open: false, most: 0.49 },
            0.2,
            "the assumed share of devices that lie",
        ),
        OptionSpec::new(
            "keep",
            OptionKind::Whole(1),
            OptionDefault::Value(OptionValue::Whole(1)),
            "the number of updates whose mean is taken",
            OptionValue::Whole(1),
        ),
    ],
    build: |options| {
        let krum = Krum { liars: options.real("liars")?, keep: options.whole("keep")? as usize };
        Ok(AlgorithmParts { aggregation: Some(Box::new(krum)), ..AlgorithmParts::default() })
    },
    weightings: &[],
    corrections: &[],
    requires: EACH_UPDATE,
};

/// The mean of the updates with the lowest scores.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Krum {
    liars: f64,
    keep: usize,
}

impl Aggregation for Krum {
    fn aggregate(&self, updates: &[DeviceUpdate]) -> Vec<f64> {
        let liars = (self.liars * updates.len() as f64) as usize;
        let neighbours = updates.len().saturating_sub(liars + 2).max(1);
        let score = |(k, mut distances): (usize, Vec<f64>)| {
            distances.remove(k);
            distances.sort_unstable_by(f64::total_cmp);
            (distances.iter().take(neighbours).sum::<f64>(), k)
        };
        let mut ranked: Vec<(f64, usize)> =
            squared_distances(updates).into_iter().enumerate().map(score).collect();
        ranked.sort_by(|a, b| a.0.total_cmp(&b.0));
        let kept: Vec<DeviceUpdate> =
            ranked.iter().take(self.keep).map(|&(_, k)| updates[k].clone()).collect();
        weighted_mean(&kept, &vec![1.0; kept.len()])
    }
}
