//! The state of the dashboard, written by the training and read by the drawing thread.

use std::time::Duration;

use deltafl::data::Split;
use deltafl::exchange::SplitEvaluation;
use deltafl::metrics::Figures;
use deltafl::task::Task;
use deltafl::training::RoundRecord;
use deltafl_data::experiment::Experiment;

use deltafl_run::report::tracks::tracks;

/// The displayed state.
#[derive(Clone, Debug, Default)]
pub(super) struct View {
    /// The experiment, its data and its model.
    pub(super) title: String,
    /// The current seed, its position among the seeds, counted from 1, and the number of seeds.
    pub(super) seed: u64,
    pub(super) place: usize,
    pub(super) seeds: usize,
    /// The number of rounds done of this seed, and the number planned.
    pub(super) round: u64,
    pub(super) rounds: u64,
    pub(super) evaluate_every: u64,
    /// The task of the results.
    pub(super) task: Task,
    pub(super) tracks: Vec<TrackView>,
    pub(super) pace: Option<Pace>,
    /// Whether the user has asked to stop.
    pub(super) stopping: bool,
    meter: Meter,
}

/// A track.
#[derive(Clone, Debug, Default)]
pub(super) struct TrackView {
    pub(super) label: String,
    /// Mean train loss at each evaluation of this seed, by rounds done.
    pub(super) losses: Vec<(f64, f64)>,
    /// The metric of the task over the test devices at the last evaluation.
    pub(super) error: Option<Figures>,
    /// η_t of the last round.
    pub(super) eta: Option<f64>,
    /// |S_t'| and |S_t| of the last round.
    pub(super) tail: u64,
    pub(super) cohort: u64,
}

/// The speed of training.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Pace {
    pub(super) rounds_per_second: f64,
    /// Local updates of devices, over all tracks.
    pub(super) updates_per_second: f64,
    /// The remaining time for all seeds.
    pub(super) left: Duration,
}

/// The progress since the experiment was opened.
#[derive(Clone, Copy, Debug, Default)]
struct Meter {
    since: Duration,
    rounds: u64,
    updates: u64,
}

impl View {
    /// Notes that a seed of an experiment begins, with `done` rounds trained earlier. `now` is the
    /// time of the drawing thread.
    pub(super) fn begin(&mut self, experiment: &Experiment, seed: u64, done: u64, now: Duration) {
        let title =
            format!("{} · {} · {}", experiment.name, experiment.data.name(), experiment.model.spec().name());
        if title != self.title {
            *self = Self {
                title,
                meter: Meter { since: now, ..Meter::default() },
                stopping: self.stopping,
                ..Self::default()
            };
        }
        self.seed = seed;
        self.place = experiment.seeds.iter().position(|&other| other == seed).map_or(1, |at| at + 1);
        self.seeds = experiment.seeds.iter().len();
        (self.round, self.rounds) = (done, experiment.rounds.get());
        self.evaluate_every = experiment.evaluate_every.get();
        let track = |label: String| TrackView { label, ..TrackView::default() };
        self.tracks = tracks(experiment).into_iter().map(|info| track(info.label)).collect();
    }

    /// Notes that a round of all tracks is done.
    pub(super) fn round(&mut self, records: &[RoundRecord], now: Duration) {
        self.round += 1;
        for record in records {
            let Some(track) = self.tracks.get_mut(record.track) else { continue };
            (track.eta, track.tail, track.cohort) = (record.eta, record.tail, record.cohort);
            self.meter.updates += record.tail;
        }
        self.meter.rounds += 1;
        let seconds = now.saturating_sub(self.meter.since).as_secs_f64();
        if seconds > 0.0 {
            let rounds_per_second = self.meter.rounds as f64 / seconds;
            let left = (self.rounds_planned() - self.rounds_done()) as f64 / rounds_per_second;
            self.pace = Some(Pace {
                rounds_per_second,
                updates_per_second: self.meter.updates as f64 / seconds,
                left: Duration::try_from_secs_f64(left).unwrap_or(Duration::MAX),
            });
        }
    }

    /// Notes that every device has been evaluated.
    pub(super) fn evaluation(&mut self, round: u64, splits: &[SplitEvaluation]) {
        let figures = |split: Split, track: usize| {
            splits
                .iter()
                .find(|evaluation| evaluation.split == split)
                .and_then(|e| Figures::of_track(e, track))
        };
        for (t, track) in self.tracks.iter_mut().enumerate() {
            if let Some(loss) =
                figures(Split::Train, t).map(|figures| figures.mean).filter(|loss| loss.is_finite())
            {
                track.losses.push((round as f64, loss));
            }
            let of = |wanted: Split| splits.iter().find(|e| e.split == wanted && !e.devices.is_empty());
            let judged = of(Split::Test).or_else(|| of(Split::Train));
            track.error = judged.and_then(|judged| Figures::of_primary(judged, t));
            self.task = judged.map_or(self.task, |judged| judged.task);
        }
    }

    /// Returns the rounds done, over all seeds.
    pub(super) fn rounds_done(&self) -> u64 {
        (self.place.max(1) as u64 - 1) * self.rounds + self.round
    }

    /// Returns the number of planned rounds, over all seeds.
    pub(super) fn rounds_planned(&self) -> u64 {
        self.seeds as u64 * self.rounds
    }
}
