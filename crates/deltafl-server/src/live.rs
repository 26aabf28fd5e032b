//! The live state: the live page and its figures.
//!
//! Nothing here describes a single device. The figures are counts, sums and quantiles, which the
//! server also learns in private mode.

use std::collections::VecDeque;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use deltafl::algorithm::TrackLabel;
use deltafl::training::{PrivacySpent, RoundRecord};
use deltafl_data::run_folder::{IdleCause, RoundLine};
use deltafl_wire::card::HeldOutFigures;
use serde::Serialize;
use tokio::sync::watch;

use crate::serve::{Phase, PhasePurpose, Status};
use crate::store::{CommittedRound, PublishedLosses};

mod held_out;
mod page;

pub(crate) use page::{events, federations, page, rounds, script, snapshot, style};

/// The number of rounds on the page.
const SHOWN: usize = 300;

/// Constants of a server.
#[derive(Clone, Debug, Serialize)]
pub struct About {
    /// The federation.
    pub federation: String,
    /// The experiment.
    pub experiment: String,
    /// The kind of model.
    pub model: String,
    /// Whether devices send individual losses.
    pub open: bool,
    /// T.
    pub rounds: u64,
    /// m.
    pub cohort: u64,
    /// The names of the tracks.
    pub tracks: Vec<TrackLabel>,
}

/// The activity of a server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Another server leads, and this one is on standby.
    #[default]
    Standby,
    /// The server runs the rounds.
    Leading,
    /// All rounds are complete.
    Finished,
}

/// The progress of the current round.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Now {
    /// The activity of the server.
    pub role: Role,
    /// t of the current round, starting at 0.
    pub round: u64,
    /// The number of key set-ups since the server started. It exceeds the number of rounds if some
    /// were retried.
    pub setups: u64,
    /// The purpose of the phase.
    pub purpose: PhasePurpose,
    /// The phase, empty between rounds.
    pub phase: String,
    /// The number of devices asked in this phase.
    pub asked: u64,
    /// The number of devices that have answered in it.
    pub answered: u64,
    /// The completed phases of this round.
    pub phases: Vec<Phase>,
    /// The number of connected devices.
    pub online: u64,
    /// The number of connected devices that can be drawn.
    pub ready: u64,
    /// The number of devices that are enrolled and not revoked.
    pub enrolled: u64,
    /// The number of committed rounds.
    pub committed: u64,
}

/// A committed round as the page displays it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RoundView {
    /// The seed of the run.
    pub seed: u64,
    /// t, starting at 0.
    pub round: u64,
    /// The duration of the round.
    pub seconds: f64,
    /// The number of drawn devices.
    pub cohort: u64,
    /// The number of devices that dropped out.
    pub dropped: u64,
    /// Bytes received from the devices.
    pub bytes_up: u64,
    /// Bytes sent to the devices.
    pub bytes_down: u64,
    /// η per track. `None` if the track has none or did not train.
    pub eta: Vec<Option<f64>>,
    /// The mean loss per track, in open mode only.
    pub loss: Vec<Option<f64>>,
    /// The size of the tail per track. `None` if the track did not train in this round.
    pub tail: Vec<Option<u64>>,
    /// The reason for which the round changed no params, per track. `None` if it did, or if the
    /// track did not train.
    pub idle: Vec<Option<IdleCause>>,
    /// Its phases.
    pub phases: Vec<Phase>,
    /// The distribution of the cohort's losses at w_t, per track, if they were requested.
    pub losses: Vec<Option<PublishedLosses>>,
    /// The evaluation of models on the held-out examples of the cohort, per track.
    pub held_out: Vec<Vec<HeldOutFigures>>,
    /// The privacy spent up to this round. `None` for exact sums.
    pub privacy: Option<PrivacySpent>,
}

/// A newly committed round.
#[derive(Clone, Copy, Debug)]
pub struct Fresh<'a> {
    /// One record for each track that trained in it.
    pub lines: &'a [RoundLine],
    /// Its phases.
    pub phases: &'a [Phase],
    /// Its losses, per track.
    pub losses: &'a [Option<PublishedLosses>],
}

impl RoundView {
    /// Returns the seed and t.
    fn key(&self) -> (u64, u64) {
        (self.seed, self.round)
    }

    /// Creates the round from the records of `tracks` tracks. Returns `None` without records.
    fn from_fresh(Fresh { lines, phases, losses }: Fresh<'_>, tracks: usize) -> Option<Self> {
        let first = lines.first()?;
        let records = || lines.iter().map(|line| &line.record);
        Some(Self {
            seed: first.record.seed,
            round: first.record.round,
            seconds: first.seconds,
            cohort: first.record.cohort,
            dropped: first.record.dropped,
            bytes_up: records().map(|record| record.bytes_up).sum(),
            bytes_down: records().map(|record| record.bytes_down).sum(),
            eta: per_track(lines, tracks, |record| record.eta),
            loss: per_track(lines, tracks, |record| record.loss),
            tail: per_track(lines, tracks, |record| Some(record.tail)),
            idle: per_track(lines, tracks, IdleCause::from_record),
            phases: phases.to_vec(),
            losses: losses.to_vec(),
            held_out: held_out::primary(lines, tracks),
            privacy: records().find_map(|record| record.privacy),
        })
    }
}

/// Returns a value per track, or the default for a track without a record.
fn per_track<T: Default + Clone>(
    lines: &[RoundLine],
    tracks: usize,
    value: impl Fn(&RoundRecord) -> T,
) -> Vec<T> {
    let mut values = vec![T::default(); tracks];
    for record in lines.iter().map(|line| &line.record) {
        if let Some(place) = values.get_mut(record.track) {
            *place = value(record);
        }
    }
    values
}

/// Totals over all rounds that this server committed.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Totals {
    /// Rounds.
    pub rounds: u64,
    /// Seconds.
    pub seconds: f64,
    /// Devices that dropped out.
    pub dropped: u64,
    /// Bytes from devices.
    pub bytes_up: u64,
    /// Bytes to devices.
    pub bytes_down: u64,
}

/// The live state of a server. Clones share it, and no method blocks for long.
#[derive(Clone, Debug)]
pub struct Live(Arc<SharedState>);

#[derive(Debug)]
struct SharedState {
    about: About,
    now: watch::Sender<Now>,
    past: RwLock<Past>,
}

#[derive(Debug, Default)]
struct Past {
    shown: VecDeque<RoundView>,
    totals: Totals,
}

impl Live {
    /// Creates an empty live state.
    pub fn new(about: About) -> Self {
        Self(Arc::new(SharedState { about, now: watch::Sender::default(), past: RwLock::default() }))
    }

    /// Returns the constants.
    pub fn about(&self) -> &About {
        &self.0.about
    }

    /// Returns the progress of the current round.
    pub fn now(&self) -> Now {
        self.0.now.borrow().clone()
    }

    /// Returns the totals of this server's commits.
    pub fn totals(&self) -> Totals {
        self.0.past.read().unwrap_or_else(PoisonError::into_inner).totals
    }

    /// Sets the activity of the server.
    pub fn role(&self, role: Role) {
        self.0.now.send_modify(|now| now.role = role);
    }

    /// Sets the number of connected and enrolled devices.
    pub fn presence(&self, online: usize, ready: usize, enrolled: u64) {
        let (online, ready) = (online as u64, ready as u64);
        self.0.now.send_if_modified(|now| {
            let before = (now.online, now.ready, now.enrolled);
            (now.online, now.ready, now.enrolled) = (online, ready, enrolled);
            before != (online, ready, enrolled)
        });
    }

    /// Sets the progress of the round loop.
    pub fn status(&self, status: &Status) {
        self.0.now.send_modify(|now| {
            (now.round, now.setups) = (status.round, status.setups);
            (now.purpose, now.phase) = (status.purpose, status.phase.to_owned());
            (now.asked, now.answered) = (status.asked as u64, status.answered as u64);
            now.phases.clone_from(&status.phases);
        });
    }

    /// Adds a committed round.
    pub fn committed(&self, fresh: Fresh<'_>) {
        let Some(shown) = RoundView::from_fresh(fresh, self.0.about.tracks.len()) else { return };
        let committed = shown.round + 1;
        let mut past = self.0.past.write().unwrap_or_else(PoisonError::into_inner);
        past.totals.rounds += 1;
        past.totals.seconds += shown.seconds;
        past.totals.dropped += shown.dropped;
        past.totals.bytes_up += shown.bytes_up;
        past.totals.bytes_down += shown.bytes_down;
        past.push(shown);
        drop(past);
        self.0.now.send_modify(|now| {
            (now.committed, now.asked, now.answered) = (committed, 0, 0);
            now.phase.clear();
            now.phases.clear();
        });
    }

    /// Adds a round that was committed before this server led.
    pub fn remember(&self, CommittedRound { lines, timeline, losses, .. }: &CommittedRound) {
        let fresh = Fresh { lines, phases: timeline, losses };
        let Some(shown) = RoundView::from_fresh(fresh, self.0.about.tracks.len()) else { return };
        let committed = shown.round + 1;
        self.0.past.write().unwrap_or_else(PoisonError::into_inner).push(shown);
        self.0.now.send_modify(|now| now.committed = committed);
    }

    /// Follows a server's round loop as long as it runs.
    pub async fn follow(self, mut status: watch::Receiver<Status>) {
        while status.changed().await.is_ok() {
            let latest = status.borrow_and_update().clone();
            self.status(&latest);
            // Limits the rate of updates, because a cohort of thousands answers faster than a
            // person can read.
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    fn rounds(&self) -> Vec<RoundView> {
        self.0.past.read().unwrap_or_else(PoisonError::into_inner).shown.iter().cloned().collect()
    }

    /// Returns the rounds after the one with this key, or all if it is not known.
    fn rounds_after(&self, key: Option<(u64, u64)>) -> Vec<RoundView> {
        let past = self.0.past.read().unwrap_or_else(PoisonError::into_inner);
        let known = key.and_then(|key| past.shown.iter().rposition(|shown| shown.key() == key));
        past.shown.iter().skip(known.map_or(0, |place| place + 1)).cloned().collect()
    }

    fn watch(&self) -> watch::Receiver<Now> {
        self.0.now.subscribe()
    }
}

impl Past {
    fn push(&mut self, shown: RoundView) {
        // A former standby server has read some rounds already.
        self.shown.retain(|known| known.key() != shown.key());
        if self.shown.len() == SHOWN {
            self.shown.pop_front();
        }
        self.shown.push_back(shown);
    }
}
