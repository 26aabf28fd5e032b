//! What is going on: the live page and the figures behind it.
//!
//! Nothing here is of one device: counts, sums and quantiles, which the server learns in private mode too.

use std::collections::VecDeque;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use deltafl::algorithm::TrackLabel;
use deltafl::training::RoundRecord;
use deltafl_data::run_folder::{IdleCause, RoundLine};
use deltafl_wire::card::HeldOutFigures;
use serde::Serialize;
use tokio::sync::watch;

use crate::serve::{Phase, Purpose, Status};
use crate::store::{CommittedRound, LossPercentiles};

mod held_out;
mod page;

pub(crate) use page::{events, federations, page, rounds, script, snapshot, style};

/// Rounds that the page shows.
const SHOWN: usize = 300;

/// What does not change while a server runs.
#[derive(Clone, Debug, Serialize)]
pub struct About {
    /// The federation.
    pub federation: String,
    /// The experiment.
    pub experiment: String,
    /// The kind of model.
    pub model: String,
    /// Whether devices tell their losses one by one.
    pub open: bool,
    /// T.
    pub rounds: u64,
    /// m.
    pub cohort: u64,
    /// What the tracks are called.
    pub tracks: Vec<TrackLabel>,
}

/// What a server is doing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Another server leads; this one would take over.
    #[default]
    Standby,
    /// It runs the rounds.
    Leading,
    /// All rounds are done.
    Finished,
}

/// Where the round under way stands.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Now {
    /// What the server is doing.
    pub role: Role,
    /// t of the round under way, counted from 0.
    pub round: u64,
    /// Key set-ups since the server started: more than rounds means that some were tried again.
    pub setups: u64,
    /// What the phase is for.
    pub purpose: Purpose,
    /// The phase, empty between rounds.
    pub phase: String,
    /// Devices asked in this phase.
    pub asked: u64,
    /// Devices that have answered in it.
    pub answered: u64,
    /// Phases of this round that are over.
    pub phases: Vec<Phase>,
    /// Devices connected.
    pub online: u64,
    /// Those of them that can be drawn.
    pub ready: u64,
    /// Devices enrolled and not revoked.
    pub enrolled: u64,
    /// Rounds committed.
    pub committed: u64,
}

/// A committed round as the page shows it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Shown {
    /// The seed of the run.
    pub seed: u64,
    /// t, counted from 0.
    pub round: u64,
    /// How long it took.
    pub seconds: f64,
    /// Devices drawn.
    pub cohort: u64,
    /// Devices that vanished.
    pub dropped: u64,
    /// Bytes from the devices.
    pub bytes_up: u64,
    /// Bytes to the devices.
    pub bytes_down: u64,
    /// η per track; `None` where it has none or did not train.
    pub eta: Vec<Option<f64>>,
    /// Mean loss per track; known in open mode only.
    pub loss: Vec<Option<f64>>,
    /// Size of the tail per track; `None` where the track did not train in this round.
    pub tail: Vec<Option<u64>>,
    /// Why the round moved nothing, per track; `None` where it moved the params or the track did not train.
    pub idle: Vec<Option<IdleCause>>,
    /// Its phases.
    pub phases: Vec<Phase>,
    /// How the losses of the cohort lay at w_t, per track, where they were asked for.
    pub losses: Vec<Option<LossPercentiles>>,
    /// How models served the examples that the cohort holds out, per track.
    pub held_out: Vec<Vec<HeldOutFigures>>,
}

/// A round that was just committed.
#[derive(Clone, Copy, Debug)]
pub struct Fresh<'a> {
    /// A record per track that trained in it.
    pub lines: &'a [RoundLine],
    /// Its phases.
    pub phases: &'a [Phase],
    /// Its losses, per track.
    pub losses: &'a [Option<LossPercentiles>],
}

impl Shown {
    /// From what a round of so many tracks left behind; `None` without records.
    fn of(Fresh { lines, phases, losses }: Fresh<'_>, tracks: usize) -> Option<Self> {
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
            idle: per_track(lines, tracks, IdleCause::of),
            phases: phases.to_vec(),
            losses: losses.to_vec(),
            held_out: held_out::primary(lines, tracks),
        })
    }
}

/// A value per track; the default where a track has no record.
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

/// Sums over all rounds that this server committed.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Totals {
    /// Rounds.
    pub rounds: u64,
    /// Seconds.
    pub seconds: f64,
    /// Devices that vanished.
    pub dropped: u64,
    /// Bytes from devices.
    pub bytes_up: u64,
    /// Bytes to devices.
    pub bytes_down: u64,
}

/// What is going on at a server. Clones share it; nothing in it blocks for long.
#[derive(Clone, Debug)]
pub struct Live(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    about: About,
    now: watch::Sender<Now>,
    past: RwLock<Past>,
}

#[derive(Debug, Default)]
struct Past {
    shown: VecDeque<Shown>,
    totals: Totals,
}

impl Live {
    /// Nothing is going on yet.
    pub fn new(about: About) -> Self {
        Self(Arc::new(Shared { about, now: watch::Sender::default(), past: RwLock::default() }))
    }

    /// What does not change.
    pub fn about(&self) -> &About {
        &self.0.about
    }

    /// Where the round under way stands.
    pub fn now(&self) -> Now {
        self.0.now.borrow().clone()
    }

    /// Sums over what this server committed.
    pub fn totals(&self) -> Totals {
        self.0.past.read().unwrap_or_else(PoisonError::into_inner).totals
    }

    /// What the server is doing.
    pub fn role(&self, role: Role) {
        self.0.now.send_modify(|now| now.role = role);
    }

    /// Who is there, and who is enrolled.
    pub fn presence(&self, online: usize, ready: usize, enrolled: u64) {
        let (online, ready) = (online as u64, ready as u64);
        self.0.now.send_if_modified(|now| {
            let before = (now.online, now.ready, now.enrolled);
            (now.online, now.ready, now.enrolled) = (online, ready, enrolled);
            before != (online, ready, enrolled)
        });
    }

    /// Where the round loop stands.
    pub fn status(&self, status: &Status) {
        self.0.now.send_modify(|now| {
            (now.round, now.setups) = (status.round, status.setups);
            (now.purpose, now.phase) = (status.purpose, status.phase.to_owned());
            (now.asked, now.answered) = (status.asked as u64, status.answered as u64);
            now.phases.clone_from(&status.phases);
        });
    }

    /// A round was committed.
    pub fn committed(&self, fresh: Fresh<'_>) {
        let Some(shown) = Shown::of(fresh, self.0.about.tracks.len()) else { return };
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

    /// Takes in a round that was committed before this server led.
    pub fn remember(&self, CommittedRound { lines, timeline, losses, .. }: &CommittedRound) {
        let fresh = Fresh { lines, phases: timeline, losses };
        let Some(shown) = Shown::of(fresh, self.0.about.tracks.len()) else { return };
        let committed = shown.round + 1;
        self.0.past.write().unwrap_or_else(PoisonError::into_inner).push(shown);
        self.0.now.send_modify(|now| now.committed = committed);
    }

    /// Follows a server's round loop for as long as it runs.
    pub async fn follow(self, mut status: watch::Receiver<Status>) {
        while status.changed().await.is_ok() {
            let latest = status.borrow_and_update().clone();
            self.status(&latest);
            // A cohort of thousands answers faster than anybody can read.
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    fn shown(&self) -> Vec<Shown> {
        self.0.past.read().unwrap_or_else(PoisonError::into_inner).shown.iter().cloned().collect()
    }

    fn watch(&self) -> watch::Receiver<Now> {
        self.0.now.subscribe()
    }
}

impl Past {
    fn push(&mut self, shown: Shown) {
        // A server that stood by has read some rounds already.
        self.shown.retain(|known| (known.seed, known.round) != (shown.seed, shown.round));
        if self.shown.len() == SHOWN {
            self.shown.pop_front();
        }
        self.shown.push_back(shown);
    }
}
