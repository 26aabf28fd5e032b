//! How long an experiment takes on this machine, from a few rounds of its own.
//!
//! ```text
//! time = Σ over seeds ( rounds left · seconds a round + evaluations left · seconds an evaluation )
//! ```
//!
//! An evaluation is forward passes over all examples for each track: its time follows from that of one cohort.

use std::fmt;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use deltafl::data::Federation;
use deltafl::engine::{Drawn, Engine, Round, SplitEvaluation};
use deltafl::experiment::Experiment;
use deltafl::kernel::Isa;
use deltafl::run_folder;
use deltafl::training::{Observer, ObserverError, RoundRecord, State, train};
use miette::{Report, Result};

use crate::session::{self, folder_error};

/// Rounds of the probe, the first of which does not count.
const ROUNDS: usize = 4;
/// A probe that takes longer than this ends with the round under way.
const PATIENCE: Duration = Duration::from_secs(15);

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
        let tracks = plan.tracks.len();
        let seed = experiment.seeds.iter().copied().next().unwrap_or_default();
        let mut state = State::new(seed, tracks, &*model);
        let cohort = plan.sampling.cohort(engine.roster().weights.len(), seed, state.round);
        let round = Round { seed, index: state.round, cohort: &cohort };
        let start = Instant::now();
        engine.losses(&round, &[&state.tracks[0].params]).map_err(Report::from_err)?;
        let forward = start.elapsed().as_secs_f64() / examples(&*engine, &cohort).max(1) as f64;

        // Behind round 0, which begins with an evaluation, and without the one at the end.
        state.round = 1;
        plan.rounds = u64::MAX;
        plan.evaluate_every = u64::MAX;
        let mut stopwatch = Stopwatch::new(session::stop_on_interrupt());
        train(&mut *engine, &plan, &mut state, &mut stopwatch).map_err(Report::from_err)?;
        let all: u64 = (0..federation.len() as u32).map(|k| federation.count(k)).sum();
        let evaluation = Duration::from_secs_f64(forward * all as f64 * tracks as f64);
        Ok(stopwatch.round().map(|round| Self { round, evaluation }))
    }

    /// The time for what is left.
    pub(crate) fn time(&self, left: Left) -> Duration {
        let times = |each: Duration, count: u64| Duration::from_secs_f64(each.as_secs_f64() * count as f64);
        times(self.round, left.rounds) + times(self.evaluation, left.evaluations)
    }
}

/// Examples that the devices of a cohort pass over.
fn examples(engine: &dyn Engine, cohort: &[Drawn]) -> u64 {
    cohort.iter().map(|drawn| engine.roster().weights[drawn.device as usize]).sum()
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

/// Times rounds, and ends a run after a few.
struct Stopwatch<'a> {
    stop: &'a AtomicBool,
    start: Instant,
    lap: Instant,
    rounds: Vec<Duration>,
    interrupted: bool,
}

impl<'a> Stopwatch<'a> {
    fn new(stop: &'a AtomicBool) -> Self {
        let now = Instant::now();
        Self { stop, start: now, lap: now, rounds: Vec::new(), interrupted: false }
    }

    /// The mean of a round; `None` when the user asked to stop. In the first round all tracks still share w₀, and with
    /// it a forward pass, so it counts only where patience did not last for another.
    fn round(&self) -> Option<Duration> {
        let counted = match self.rounds.as_slice() {
            _ if self.interrupted => return None,
            [_, later @ ..] if !later.is_empty() => later,
            first => first,
        };
        counted.iter().sum::<Duration>().checked_div(counted.len() as u32)
    }
}

impl Observer for Stopwatch<'_> {
    fn round(&mut self, _: &[RoundRecord]) -> Result<ControlFlow<()>, ObserverError> {
        self.rounds.push(self.lap.elapsed());
        self.lap = Instant::now();
        self.interrupted = self.stop.load(Ordering::Relaxed);
        let enough = self.rounds.len() == ROUNDS || self.start.elapsed() > PATIENCE;
        Ok(if enough || self.interrupted { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
    }

    fn evaluation(&mut self, _: u64, _: &[SplitEvaluation]) -> Result<(), ObserverError> {
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
    fn the_first_round_counts_only_where_there_is_no_other() {
        let stop = AtomicBool::new(false);
        let mut stopwatch = Stopwatch::new(&stop);
        assert_eq!(stopwatch.round(), None);
        stopwatch.rounds = vec![Duration::from_millis(900)];
        assert_eq!(stopwatch.round(), Some(Duration::from_millis(900)));
        stopwatch.rounds.extend([10, 30].map(Duration::from_millis));
        assert_eq!(stopwatch.round(), Some(Duration::from_millis(20)));
        stopwatch.interrupted = true;
        assert_eq!(stopwatch.round(), None);
    }

    #[test]
    fn rounds_and_evaluations_add_up() {
        let pace = Pace { round: Duration::from_millis(20), evaluation: Duration::from_millis(200) };
        assert_eq!(pace.time(Left { rounds: 10, evaluations: 2 }), Duration::from_millis(600));
    }

    #[test]
    fn times_are_said_in_units_that_fit() {
        let said = |seconds: u64| Spoken(Duration::from_secs(seconds)).to_string();
        let times = [3, 75, 130, 5_400, 7_260, 90_000, 200_000];
        let expected = ["3.00 s", "75 s", "2 min", "90 min", "2 h 1 min", "25 h 0 min", "2 d 8 h"];
        assert_eq!(times.map(said), expected);
    }
}
