//! Experiments that must not be deployed.

use deltafl::terms::Weights;
use deltafl_data::experiment::Experiment;

use super::config::ServerConfig;

/// Devices of a cohort by which two levels must differ.
const APART: f64 = 10.0;

/// Why an experiment must not be deployed.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Undeployable {
    /// Devices would send their losses one by one, and the server was not set to open mode.
    #[error("the experiment finds η in open mode: devices would send their losses one by one")]
    Open,
    /// Devices would send their number of examples.
    #[error("devices do not report how many examples they have")]
    ExactWeights,
    /// A device could count twice in a sum.
    #[error("the experiment draws cohorts with replacement, which a deployment rejects")]
    WithReplacement,
    /// The tails of two levels differ by a few devices.
    #[error("θ = {low} and {high} are {apart:.1} devices apart in a cohort of {cohort}")]
    CloseLevels {
        /// The lower level.
        low: f64,
        /// The higher level.
        high: f64,
        /// Devices between them.
        apart: f64,
        /// Devices of a cohort.
        cohort: usize,
    },
    /// Each level has fewer than ten devices of a cohort.
    #[error("{levels} levels part a cohort of {cohort} into fewer than ten devices each")]
    SmallParts {
        /// The levels.
        levels: usize,
        /// Devices of a cohort.
        cohort: usize,
    },
}

impl Undeployable {
    /// How to fix it.
    pub fn help(&self) -> &'static str {
        match self {
            Self::Open => {
                "private mode: --set algorithm.N.quantile=histogram, counted from 0; or choose the open mode with --open"
            }
            Self::ExactWeights => {
                "write weights = \"uniform\" or \"bucketed\" into the experiment, or --set weights=uniform"
            }
            Self::WithReplacement => {
                "a device that counts twice could be read off a sum: remove with_replacement, or --set with_replacement=false"
            }
            Self::CloseLevels { .. } => {
                "the difference of their sums is the sum over those devices: take larger cohorts or levels further apart, \
                 or --allow-close-levels"
            }
            Self::SmallParts { .. } => {
                "all levels start at one w, and there a device trains for one of them: take larger cohorts or fewer levels, \
                 or --allow-close-levels"
            }
        }
    }
}

/// Rejects experiments that must not be deployed.
pub(super) fn check(config: &ServerConfig, experiment: &Experiment) -> Result<(), Undeployable> {
    if experiment.is_open() && !config.open {
        return Err(Undeployable::Open);
    }
    if !experiment.is_open() && experiment.weights == Weights::Exact {
        return Err(Undeployable::ExactWeights);
    }
    if experiment.with_replacement {
        return Err(Undeployable::WithReplacement);
    }
    if config.certs.is_some() && !config.allow_close_levels {
        check_levels(experiment)?;
    }
    Ok(())
}

/// Rejects levels whose tails differ by a few devices. If two tracks have the same w, as all do in round 0, the difference of
/// their sums is the sum over those few.
fn check_levels(experiment: &Experiment) -> Result<(), Undeployable> {
    let cohort = experiment.cohort.get();
    let mut levels: Vec<f64> = experiment.tracks().into_iter().map(|track| track.label.theta.get()).collect();
    levels.sort_by(f64::total_cmp);
    levels.dedup();
    for pair in levels.windows(2) {
        let (low, high) = (pair[0], pair[1]);
        let apart = (high - low) * cohort as f64;
        if apart < APART - 1e-6 {
            return Err(Undeployable::CloseLevels { low, high, apart, cohort });
        }
    }
    let levels = levels.len();
    if levels > 1 && (cohort as f64) < APART * levels as f64 {
        return Err(Undeployable::SmallParts { levels, cohort });
    }
    Ok(())
}
