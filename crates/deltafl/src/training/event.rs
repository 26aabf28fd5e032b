//! The events of a run, and the trait that handles them.

use std::ops::ControlFlow;

use super::{Plan, RoundRecord, State};
use crate::exchange::SplitEvaluation;
use crate::superquantile::LossDistribution;

/// Something that happened in the round loop. Events of one round arrive in the order of the
/// variants.
///
/// More variants may follow. An observer ignores the variants that it does not know by returning
/// `Ok(ControlFlow::Continue(()))`.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Event<'a> {
    /// The cohort of a round reported its losses at w_t. Only sent if [`TrainOptions`] ask for it.
    Losses {
        /// t, counted from 0.
        round: u64,
        /// The distribution of the losses per track; `None` for tracks without a report.
        tracks: &'a [Option<LossDistribution>],
    },
    /// A round is finished.
    RoundFinished {
        /// One record per track.
        records: &'a [RoundRecord],
    },
    /// Every device was evaluated: before the first round, every
    /// [`evaluate_every`](Plan::evaluate_every) rounds and after the last one. Not sent by exchanges
    /// whose devices keep their metrics private.
    Evaluated {
        /// Number of rounds finished.
        round: u64,
        /// The evaluations per split.
        splits: &'a [SplitEvaluation],
    },
    /// The run can resume from this state. All earlier events belong to it.
    Checkpoint {
        /// The state after the last finished round.
        state: &'a State,
    },
}

/// An error of an observer, for example a full disk.
pub type ObserverError = Box<dyn std::error::Error + Send + Sync>;

/// Receives the events of a run.
///
/// Every closure with the signature of [`handle`](Self::handle) is an observer.
/// [`Records`](super::Records) stores the events in memory.
///
/// # Examples
///
/// ```
/// use std::ops::ControlFlow;
///
/// use deltafl::training::{Event, Observer, RoundRecord};
///
/// let mut rounds = 0;
/// let mut stop_after_three = |event: Event<'_>| {
///     rounds += u64::from(matches!(event, Event::RoundFinished { .. }));
///     Ok(if rounds < 3 { ControlFlow::Continue(()) } else { ControlFlow::Break(()) })
/// };
/// # fn is_observer(_: &mut dyn Observer) {}
/// # is_observer(&mut stop_after_three);
/// ```
pub trait Observer {
    /// Handles an event. `Break` ends the run after the current round and its checkpoint.
    ///
    /// # Errors
    ///
    /// An error ends the run at once with
    /// [`TrainingError::Observer`](super::TrainingError::Observer).
    fn handle(&mut self, event: Event<'_>) -> Result<ControlFlow<()>, ObserverError>;
}

impl<F: FnMut(Event<'_>) -> Result<ControlFlow<()>, ObserverError>> Observer for F {
    fn handle(&mut self, event: Event<'_>) -> Result<ControlFlow<()>, ObserverError> {
        self(event)
    }
}

/// The events that a run sends. The parameters of the models do not depend on these options.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TrainOptions {
    /// Sends a checkpoint after every round instead of after evaluated rounds only.
    pub checkpoint_every_round: bool,
    /// The losses reported by [`Event::Losses`].
    pub losses: LossReporting,
}

/// The tracks whose losses are reported in a round.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum LossReporting {
    /// No losses are reported.
    #[default]
    None,
    /// Tracks whose selection needs losses in this round. The report needs no communication.
    Known,
    /// Like [`All`](Self::All) in the last round and in rounds that start from evaluated params.
    /// Like [`Known`](Self::Known) in the other rounds.
    AllWhenEvaluated,
    /// Every track. Tracks that need no losses ask the cohort for histograms.
    All,
}

impl LossReporting {
    /// Replaces [`AllWhenEvaluated`](Self::AllWhenEvaluated) by its meaning in a round.
    pub(super) fn in_round(self, plan: &Plan, round: u64) -> Self {
        let is_evaluated = || round.is_multiple_of(plan.evaluate_every) || round + 1 == plan.rounds;
        match self {
            Self::AllWhenEvaluated if is_evaluated() => Self::All,
            Self::AllWhenEvaluated => Self::Known,
            other => other,
        }
    }
}
