//! How long an experiment takes on this machine, from its own first rounds.
//!
//! ```text
//! time = Σ over seeds ( rounds left · seconds a round + evaluations left · seconds an evaluation )
//! ```

use std::fmt;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use deltafl::data::Federation;
use deltafl::engine::SplitEvaluation;
use deltafl::experiment::Experiment;
use deltafl::kernel::Isa;
use deltafl::run_folder;
use deltafl::training::{Observer, ObserverError, RoundRecord, State, train};
use miette::{Report, Result};

use crate::session::{self, folder_error};

/// Rounds of the probe, the first of which does not count.
const ROUNDS: usize = 4;
/// A probe that takes longer than this stops after two rounds.
const PATIENCE: Duration = Duration::from_secs(20);

/// What a round and an evaluation of an experiment take here.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Pace {
    pub(crate) round: Duration,
    pub(crate) evaluation: Duration,
}

/// What is left of an experiment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Left {
    pub(crate) rounds: u64,
    pub(crate) evaluations: u64,
}

impl Pace {
    /// Trains a few rounds and throws them away; `None` when the user asks to stop.
    pub(crate) fn measure(
        experiment: &Experiment,
        federation: &Federation,
        threads: usize,
        kernel: Isa,
    ) -> Result<Option<Self>> {
        let model = session::build_model(experiment, federation, kernel)?;
        let mut engine = session::engine(experiment, &*model, federation, threads)?;
        let mut plan = experiment.plan();
        plan.evaluate_every = u64::MAX;
        // Longer than the probe, so that it ends without an evaluation.
        plan.rounds = plan.rounds.max(ROUNDS as u64 + 1);
        let tracks = plan.tracks.len();
        let seed = experiment.seeds.iter().copied().next().unwrap_or_default();
        let mut state = State::new(seed, tracks, &*model);
        let mut stopwatch = Stopwatch::new(session::stop_on_interrupt());
        train(&mut *engine, &plan, &mut state, &mut stopwatch).map_err(Report::from_err)?;
        Ok(stopwatch.pace(tracks as u32))
    }

    /// The time for what is left.
    pub(crate) fn time(&self, left: Left) -> Duration {
        let times = |each: Duration, count: u64| Duration::from_secs_f64(each.as_secs_f64() * count as f64);
        times(self.round, left.rounds) + times(self.evaluation, left.evaluations)
    }
}

impl Left {
    /// What is left of an experiment whose run folder may have been begun.
    pub(crate) fn of(experiment: &Experiment, folder: &Path) -> Result<Self> {
        let mut left = Self::default();
        for &seed in &experiment.seeds {
            let state = run_folder::read_checkpoint(folder, seed).map_err(folder_error)?;
            left += Self::of_seed(experiment, state.map(|state| state.round));
        }
        Ok(left)
    }

    /// Of a seed with so many rounds done; `None` when it has not been begun.
    fn of_seed(experiment: &Experiment, done: Option<u64>) -> Self {
        let (rounds, every) = (experiment.rounds.get(), experiment.evaluate_every.get());
        let reached = done.unwrap_or(0).min(rounds);
        let evaluations =
            rounds.div_ceil(every) - if reached == rounds { rounds.div_ceil(every) } else { reached / every };
        Self { rounds: rounds - reached, evaluations: evaluations + u64::from(done.is_none()) }
    }
}

impl std::ops::AddAssign for Left {
    fn add_assign(&mut self, other: Self) {
        self.rounds += other.rounds;
        self.evaluations += other.evaluations;
    }
}

/// Times the first evaluation and the first rounds.
struct Stopwatch<'a> {
    stop: &'a AtomicBool,
    start: Instant,
    lap: Instant,
    evaluation: Duration,
    rounds: Vec<Duration>,
}

impl<'a> Stopwatch<'a> {
    fn new(stop: &'a AtomicBool) -> Self {
        let now = Instant::now();
        Self { stop, start: now, lap: now, evaluation: Duration::ZERO, rounds: Vec::new() }
    }

    fn lap(&mut self) -> Duration {
        let lap = self.lap.elapsed();
        self.lap = Instant::now();
        lap
    }

    /// In the first evaluation and the first round all tracks still share w₀, and with it their forward passes.
    fn pace(&self, tracks: u32) -> Option<Pace> {
        let counted = self.rounds.get(1..).filter(|rounds| !rounds.is_empty())?;
        let round = counted.iter().sum::<Duration>() / counted.len() as u32;
        Some(Pace { round, evaluation: self.evaluation * tracks })
    }
}

impl Observer for Stopwatch<'_> {
    fn round(&mut self, _: &[RoundRecord]) -> Result<ControlFlow<()>, ObserverError> {
        let lap = self.lap();
        self.rounds.push(lap);
        let enough = self.rounds.len() == ROUNDS || self.rounds.len() > 1 && self.start.elapsed() > PATIENCE;
        let stop = enough || self.stop.load(Ordering::Relaxed);
        Ok(if stop { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
    }

    fn evaluation(&mut self, _: u64, _: &[SplitEvaluation]) -> Result<(), ObserverError> {
        self.evaluation = self.lap();
        Ok(())
    }

    fn checkpoint(&mut self, _: &State) -> Result<(), ObserverError> {
        Ok(())
    }
}

/// A time as one says it: two units, no more.
pub(crate) struct Spoken(pub(crate) Duration);

impl fmt::Display for Spoken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.0.as_secs_f64();
        let whole = |unit: f64| (seconds / unit).round() as u64;
        match whole(1.0) {
            0..10 => write!(f, "{seconds:.2} s"),
            10..100 => write!(f, "{} s", whole(1.0)),
            100..6_000 => write!(f, "{} min", whole(60.0)),
            6_000..172_800 => write!(f, "{} h {} min", whole(60.0) / 60, whole(60.0) % 60),
            _ => write!(f, "{} d {} h", whole(3600.0) / 24, whole(3600.0) % 24),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn experiment(rounds: u64, every: u64) -> Experiment {
        toml::from_str(&format!(
            "name = 't'\nrounds = {rounds}\nevaluate_every = {every}\ncohort = 2\n[data]\nsource = 'd'\n\
             [model]\nkind = 'linear'\n[local]\nepochs = 1\nbatch = 1\nlearning_rate = 1\n[[algorithm]]\nkind = 'fedavg'\n"
        ))
        .unwrap()
    }

    #[test]
    fn what_is_left_counts_the_evaluations_that_the_loop_makes() {
        // Rounds 0, 3, 6 and the last, 8.
        let of_seed = |done| Left::of_seed(&experiment(8, 3), done);
        assert_eq!(of_seed(None), Left { rounds: 8, evaluations: 4 });
        assert_eq!(of_seed(Some(3)), Left { rounds: 5, evaluations: 2 });
        assert_eq!(of_seed(Some(7)), Left { rounds: 1, evaluations: 1 });
        assert_eq!(of_seed(Some(8)), Left::default());
        assert_eq!(Left::of_seed(&experiment(9, 3), Some(6)), Left { rounds: 3, evaluations: 1 });
    }

    #[test]
    fn the_first_round_does_not_count_and_evaluations_count_per_track() {
        let stop = AtomicBool::new(false);
        let mut stopwatch = Stopwatch::new(&stop);
        stopwatch.evaluation = Duration::from_millis(50);
        assert_eq!(stopwatch.pace(4), None);
        stopwatch.rounds = [900, 10, 30].map(Duration::from_millis).to_vec();
        let expected = Pace { round: Duration::from_millis(20), evaluation: Duration::from_millis(200) };
        assert_eq!(stopwatch.pace(4), Some(expected));
        assert_eq!(expected.time(Left { rounds: 10, evaluations: 2 }), Duration::from_millis(600));
    }

    #[test]
    fn times_are_said_in_units_that_fit() {
        let said = |seconds: u64| Spoken(Duration::from_secs(seconds)).to_string();
        let times = [3, 75, 130, 5_400, 7_260, 90_000, 200_000];
        let expected = ["3.00 s", "75 s", "2 min", "90 min", "2 h 1 min", "25 h 0 min", "2 d 8 h"];
        assert_eq!(times.map(said), expected);
    }
}
