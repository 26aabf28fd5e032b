//! The errors of training.

use super::ObserverError;
use crate::exchange::ExchangeError;
use crate::params::WrongLength;
use crate::privacy::NoiseTooLarge;
use crate::superquantile::private::RefusedSum;
use crate::trainer::TrainerError;

/// The error that ended a run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TrainingError {
    /// The exchange failed.
    #[error(transparent)]
    Exchange(#[from] ExchangeError),
    /// The aggregation of several cohorts in a row failed.
    #[error(
        "round {round}: the aggregation of {attempts} cohorts in a row failed; do too many devices drop out?"
    )]
    NoSum {
        /// t.
        round: u64,
        /// The number of cohorts drawn.
        attempts: u64,
        /// The error of the last cohort.
        source: ExchangeError,
    },
    /// A sum for the quantile was malformed.
    #[error("round {round}: the private quantile refused a sum")]
    Quantile {
        /// t.
        round: u64,
        /// The error of the search.
        source: RefusedSum,
    },
    /// A sum of updates was malformed.
    #[error("round {round}: {source}")]
    Update {
        /// t.
        round: u64,
        /// The error of the sum.
        source: WrongLength,
    },
    /// The budget of the run needs more noise than a sum can contain.
    #[error("round {round}: {source}")]
    Noise {
        /// t.
        round: u64,
        /// The noise that is too large.
        source: NoiseTooLarge,
    },
    /// An algorithm that the caller's program implements failed.
    #[error("round {round}: the algorithm {track} failed: {source}")]
    Algorithm {
        /// t.
        round: u64,
        /// The name of the track.
        track: String,
        /// The error of the program.
        source: TrainerError,
    },
    /// The observer failed.
    #[error("could not record the run")]
    Observer(#[source] ObserverError),
}
