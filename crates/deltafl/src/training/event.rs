//! The events of a run, and the trait that handles them.

use std::ops::{ControlFlow, DerefMut};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

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
    /// [`evaluate_every`](Plan::evaluate_every) rounds and after the last one. Not sent by
    /// exchanges whose devices keep their metrics private.
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

/// The result of handling an event. `Break` ends the run after the current round and its
/// checkpoint. An error ends it at once.
pub type ObserverResult = Result<ControlFlow<()>, ObserverError>;

/// An observer of the round loop.
pub type TrainingObserver<'o> = dyn for<'e> Observer<Event<'e>> + 'o;

/// Receives events.
///
/// The round loop sends an [`Event`]. Layers above have other events and use the same trait:
/// `RunEvent` and `SweepEvent` in `deltafl-run`, `ServerEvent` in `deltafl-server`. Every closure
/// with the signature of [`handle`](Self::handle) is an observer. [`Records`](super::Records)
/// stores the events of the round loop in memory.
///
/// # Examples
///
/// ```
/// use std::ops::ControlFlow;
///
/// use deltafl::training::{Event, TrainingObserver};
///
/// let mut rounds = 0;
/// let mut stop_after_three = |event: Event<'_>| {
///     rounds += u64::from(matches!(event, Event::RoundFinished { .. }));
///     Ok(if rounds < 3 { ControlFlow::Continue(()) } else { ControlFlow::Break(()) })
/// };
/// let observer: &mut TrainingObserver<'_> = &mut stop_after_three;
/// ```
pub trait Observer<E> {
    /// Handles an event. `Break` ends the run after the current round and its checkpoint.
    ///
    /// # Errors
    ///
    /// An error ends the run at once with
    /// [`TrainingError::Observer`](super::TrainingError::Observer).
    fn handle(&mut self, event: E) -> ObserverResult;
}

impl<E, F: FnMut(E) -> ObserverResult> Observer<E> for F {
    fn handle(&mut self, event: E) -> ObserverResult {
        self(event)
    }
}

/// Sends the events of several threads to one observer, a `&mut` or a `Box`. Its decision to stop
/// applies to all threads.
#[derive(Debug)]
pub struct SharedObserver<O> {
    observer: Mutex<O>,
    stop: AtomicBool,
}

impl<O> SharedObserver<O> {
    /// Shares an observer.
    pub fn new(observer: O) -> Self {
        Self { observer: Mutex::new(observer), stop: AtomicBool::new(false) }
    }

    /// Sends an event. Returns whether the observer has stopped the run, by this or an earlier
    /// event.
    ///
    /// # Errors
    ///
    /// Returns the error of the observer.
    pub fn send<E>(&self, event: E) -> Result<bool, ObserverError>
    where
        O: DerefMut<Target: Observer<E>>,
    {
        let flow = self.observer.lock().unwrap_or_else(PoisonError::into_inner).handle(event)?;
        Ok(self.stop.fetch_or(flow.is_break(), Ordering::Relaxed) || flow.is_break())
    }

    /// Returns whether the observer has stopped the run.
    pub fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
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
