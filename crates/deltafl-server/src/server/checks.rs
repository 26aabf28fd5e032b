//! Experiments that must not be deployed.

use deltafl::privacy::Mechanism;
use deltafl::terms::{TrackSchedule, Weights};
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
    /// An algorithm runs in simulations only.
    #[error("{algorithm} cannot be deployed: {reason}")]
    SimulationOnly {
        /// The kind of the algorithm.
        algorithm: &'static str,
        /// The reason.
        reason: &'static str,
    },
    /// The server does not contain the program that implements an algorithm.
    #[error("the algorithm {name} is implemented by a program, and this server does not contain it")]
    NoProgram {
        /// The name of the algorithm.
        name: String,
    },
    /// Devices would send their number of examples.
    #[error("devices do not report how many examples they have")]
    ExactWeights,
    /// A device could count twice in a sum.
    #[error("the experiment draws cohorts with replacement, which a deployment rejects")]
    WithReplacement,
    /// The server would add noise that follows from the published seed.
    #[error("the noise of mechanism = \"central\" follows from the seed, which a server publishes")]
    CentralNoise,
    /// The tracks train together.
    #[error("the experiment trains its tracks together, which devices refuse")]
    TracksTogether,
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
    /// Each track has fewer than ten devices of a cohort.
    #[error("{tracks} tracks divide a cohort of {cohort} into fewer than ten devices each")]
    SmallParts {
        /// The tracks.
        tracks: usize,
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
            Self::SimulationOnly { .. } => "remove the algorithm: it runs in simulations only",
            Self::NoProgram { .. } => "start the server from the program that implements the algorithm",
            Self::ExactWeights => {
                "write weights = \"uniform\" or \"bucketed\" into the experiment, or --set weights=uniform"
            }
            Self::WithReplacement => {
                "a device that counts twice could be read off a sum: remove with_replacement, or --set with_replacement=false"
            }
            Self::CentralNoise => {
                "let the devices add the noise: remove mechanism, or --set privacy.mechanism=distributed"
            }
            Self::TracksTogether => {
                "the difference of the sums of two tracks is the sum over the devices between their thresholds: write \
                 tracks = \"in-turn\" or \"apart\" into the experiment, or --set tracks=in-turn"
            }
            Self::CloseLevels { .. } => {
                "the difference of their sums is the sum over those devices: take larger cohorts or levels further apart, \
                 or --allow-close-levels"
            }
            Self::SmallParts { .. } => {
                "take larger cohorts or fewer tracks, let them take turns with tracks = \"in-turn\", or \
                 --allow-close-levels"
            }
        }
    }
}

/// Rejects experiments that must not be deployed.
pub(super) fn check(config: &ServerConfig, experiment: &Experiment) -> Result<(), Undeployable> {
    if let Some((algorithm, reason)) = experiment.needs_simulation() {
        return Err(Undeployable::SimulationOnly { algorithm, reason });
    }
    if experiment.is_open() && !config.open {
        return Err(Undeployable::Open);
    }
    if !experiment.is_open() && experiment.weights() == Weights::Exact {
        return Err(Undeployable::ExactWeights);
    }
    if experiment.with_replacement() {
        return Err(Undeployable::WithReplacement);
    }
    if experiment.privacy().is_some_and(|section| section.mechanism == Mechanism::Central) {
        return Err(Undeployable::CentralNoise);
    }
    if config.certs.is_some() && !config.allow_close_levels {
        check_levels(experiment)?;
    }
    Ok(())
}

/// Rejects algorithms of a program if the server is not part of it.
pub(super) fn check_program(experiment: &Experiment, is_present: bool) -> Result<(), Undeployable> {
    match experiment.external() {
        Some(name) if !is_present => Err(Undeployable::NoProgram { name: name.to_owned() }),
        _ => Ok(()),
    }
}

/// The schedule of the tracks of a deployment.
pub(super) fn schedule(experiment: &Experiment) -> Result<TrackSchedule, Undeployable> {
    experiment.deployed_schedule().ok_or(Undeployable::TracksTogether)
}

/// Rejects levels whose tails differ by a few devices. All tracks start at one w. If two of them
/// are asked of the same devices there, the difference of their sums is the sum over those few.
/// Also rejects cohorts that are divided into parts too small to hide a device.
fn check_levels(experiment: &Experiment) -> Result<(), Undeployable> {
    let cohort = experiment.cohort();
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
    let tracks = experiment.tracks().len();
    let divided = experiment.deployed_schedule() == Some(TrackSchedule::Apart);
    if divided && tracks > 1 && (cohort as f64) < APART * tracks as f64 {
        return Err(Undeployable::SmallParts { tracks, cohort });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn noise_of_the_server_is_rejected_because_its_seed_is_published() {
        let checked = |mechanism: &str| {
            let text = format!(
                "name = 'x'\nrounds = 2\ncohort = 20\n\
                 data = {{ source = {{ kind = 'glyphs', devices = 40 }} }}\nmodel = {{ kind = 'linear' }}\n\
                 local = {{ epochs = 1, batch = 10, learning_rate = 0.1 }}\nalgorithm = [{{ kind = 'fedavg' }}]\n\
                 weights = 'uniform'\nprivacy = {{ epsilon = 8, clip = 0.3, mechanism = '{mechanism}' }}\n"
            );
            check(&ServerConfig::default(), &Experiment::parse(&text).unwrap())
        };
        assert_eq!(checked("distributed"), Ok(()));
        assert_eq!(checked("central"), Err(Undeployable::CentralNoise));
    }
}
