//! The time that an experiment takes on this machine, estimated from a few of its rounds.
//!
//! ```text
//! time = Σ over seeds ( rounds left · seconds a round + evaluations left · seconds an evaluation )
//! ```
//!
//! Both are measured on a few small cohorts and scaled by the number of examples. For each track, a
//! round passes over the examples of its cohort, and an evaluation over all examples.

use std::fmt;
use std::ops::{ControlFlow, Range};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use deltafl::cohort::{Draw, Sampling};
use deltafl::data::{Federation, Split};
use deltafl::exchange::{CohortMember, Reachable, Round};
use deltafl::trainer::Sgd;
use deltafl::training::{Event, Observer, ObserverResult, train};
use deltafl_data::experiment::Experiment;
use deltafl_data::run_folder;

use crate::backend::{Backend, BackendRequest, Machine};
use crate::session::{self, RunError};

/// Rounds of the probe. The first one does not count.
const ROUNDS: usize = 4;
/// Devices in a cohort of the probe, unless that leaves threads or a GPU idle.
const COHORT: usize = 20;
/// The time after which a probe ends with the current round.
const PATIENCE: Duration = Duration::from_secs(15);

/// The time of a round and of an evaluation of an experiment on this machine.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RunPace {
    /// The time of a round.
    pub round: Duration,
    /// The time of an evaluation.
    pub evaluation: Duration,
    /// Whether seeds train at the same time. The estimate is then an upper bound.
    pub side_by_side: bool,
}

/// The remaining work of an experiment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RemainingWork {
    /// Rounds, over all seeds.
    pub rounds: u64,
    /// Evaluations, over all seeds.
    pub evaluations: u64,
}

impl RunPace {
    /// Trains a few rounds of the run in `folder` and discards them. Returns `None` if `stop` is
    /// set meanwhile.
    ///
    /// # Errors
    ///
    /// Fails if the experiment cannot be trained on this machine.
    pub fn measure(
        experiment: &Experiment,
        federation: &Federation,
        folder: &Path,
        machine: &Machine,
        stop: &AtomicBool,
    ) -> Result<Option<Self>, RunError> {
        let model = session::build_model(experiment, federation, machine.kernel)?;
        let trainer = Sgd::boxed(&*model);
        let request = BackendRequest::for_run(folder, machine.compute);
        let backend = Backend::open(request, experiment, federation, &*trainer, machine.threads)?;
        let side_by_side = matches!(backend, Backend::Gpu(_)) && experiment.seeds().iter().len() > 1;
        let compute = backend.into_compute();
        let width = compute.width();
        let mut exchange = session::exchange(experiment, compute, federation)?;
        let plan = experiment.plan();
        let tracks = plan.tracks().len();
        let seed = experiment.seeds().iter().copied().next().unwrap_or_default();
        let weights =
            federation.split(Split::Train).into_iter().map(|k| federation.example_count(k)).collect();
        let cohorts = Cohorts::new(*plan.sampling(), seed, weights, width);
        let mut state = plan.start(seed, &*trainer);

        let first = cohorts.draw(0);
        let mut forward = 0.0;
        // The first pass also starts threads and allocates buffers.
        for index in 0..2 {
            let round = Round { seed, index, cohort: &first, terms: plan.terms(), own: &[] };
            let start = Instant::now();
            exchange.losses(&round, &[&state.tracks[0].params]).map_err(RunError::Setup)?;
            forward = start.elapsed().as_secs_f64() / cohorts.examples(0..1);
        }

        // Skips round 0, which begins with an evaluation, and the evaluation at the end.
        state.round = 1;
        let plan = plan.into_builder().rounds(u64::MAX).evaluate_every(u64::MAX);
        let plan = plan.sampling(cohorts.sampling).build().expect("the plan of an experiment is valid");
        let mut stopwatch = Stopwatch::new(stop);
        train(&mut *exchange, &plan, &mut state, &mut stopwatch)?;
        let Some((counted, seconds)) = stopwatch.counted() else { return Ok(None) };
        let example = seconds / cohorts.examples(counted.start as u64 + 1..counted.end as u64 + 1);

        let all: u64 = federation.devices().map(|k| federation.example_count(k)).sum();
        Ok(Some(Self {
            round: Duration::from_secs_f64(example * cohorts.examples_of_a_full_one()),
            evaluation: Duration::from_secs_f64(forward * all as f64 * tracks as f64),
            side_by_side,
        }))
    }

    /// Returns the time for the remaining work if seeds train one after another.
    pub fn time(&self, left: RemainingWork) -> Duration {
        let times = |each: Duration, count: u64| Duration::from_secs_f64(each.as_secs_f64() * count as f64);
        times(self.round, left.rounds) + times(self.evaluation, left.evaluations)
    }
}

/// The small cohorts of a probe, drawn like those of the experiment.
struct Cohorts {
    sampling: Sampling,
    seed: u64,
    /// Examples of each train device.
    weights: Vec<u64>,
    /// Devices in a cohort of the experiment.
    full: usize,
}

impl Cohorts {
    fn new(mut sampling: Sampling, seed: u64, weights: Vec<u64>, workers: usize) -> Self {
        let full = sampling.cohort_size.min(weights.len());
        sampling.cohort_size = full.min(COHORT.max(2 * workers));
        Self { sampling, seed, weights, full }
    }

    fn draw(&self, round: u64) -> Vec<CohortMember> {
        let draw = Draw { seed: self.seed, round, attempt: 0 };
        self.sampling.cohort(self.weights.len(), draw, &Reachable::Everyone)
    }

    /// Returns the number of examples in the cohorts of some rounds, at least one.
    fn examples(&self, rounds: Range<u64>) -> f64 {
        let drawn = rounds.flat_map(|round| self.draw(round));
        drawn.map(|drawn| self.weights[drawn.device.place()] as f64).sum::<f64>().max(1.0)
    }

    /// Returns the average number of examples in a cohort of the experiment.
    fn examples_of_a_full_one(&self) -> f64 {
        self.full as f64 * self.weights.iter().sum::<u64>() as f64 / self.weights.len().max(1) as f64
    }
}

impl RemainingWork {
    /// Returns the remaining work of an experiment, whose run folder may already contain rounds.
    ///
    /// # Errors
    ///
    /// Fails if a checkpoint cannot be read.
    pub fn for_experiment(experiment: &Experiment, folder: &Path) -> Result<Self, RunError> {
        let mut left = Self::default();
        for &seed in experiment.seeds() {
            let state = run_folder::read_checkpoint(folder, seed)?;
            left += Self::of_seed(experiment, state.map(|state| state.round));
        }
        Ok(left)
    }

    /// Returns the remaining work of a seed. `done` is the number of its rounds, or `None` if it
    /// has not started.
    fn of_seed(experiment: &Experiment, done: Option<u64>) -> Self {
        let (rounds, every) = (experiment.rounds(), experiment.evaluate_every());
        let reached = done.unwrap_or(0).min(rounds);
        let evaluations =
            rounds.div_ceil(every) - if reached == rounds { rounds.div_ceil(every) } else { reached / every };
        Self { rounds: rounds - reached, evaluations: evaluations + u64::from(done.is_none()) }
    }
}

impl std::ops::AddAssign for RemainingWork {
    fn add_assign(&mut self, other: Self) {
        self.rounds += other.rounds;
        self.evaluations += other.evaluations;
    }
}

/// Measures rounds, and ends a run after a few.
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

    /// Returns the rounds that count and their duration, or `None` if the user asked to stop. In
    /// the first round, all tracks share w₀ and therefore a forward pass. It counts only if there
    /// was no time for another round.
    fn counted(&self) -> Option<(Range<usize>, f64)> {
        let rounds = self.rounds.len();
        let counted = usize::from(rounds > 1)..rounds;
        let seconds = self.rounds[counted.clone()].iter().map(Duration::as_secs_f64).sum();
        (rounds > 0 && !self.interrupted).then_some((counted, seconds))
    }
}

impl Observer<Event<'_>> for Stopwatch<'_> {
    fn handle(&mut self, event: Event<'_>) -> ObserverResult {
        if !matches!(event, Event::RoundFinished { .. }) {
            return Ok(ControlFlow::Continue(()));
        }
        self.rounds.push(self.lap.elapsed());
        self.lap = Instant::now();
        self.interrupted = self.stop.load(Ordering::Relaxed);
        let enough = self.rounds.len() == ROUNDS || self.start.elapsed() > PATIENCE;
        Ok(if enough || self.interrupted { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
    }
}

/// A duration in at most two units.
pub struct HumanDuration(pub Duration);

impl fmt::Display for HumanDuration {
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
    use deltafl::cohort::Availability;

    use super::*;

    fn experiment(rounds: u64, every: u64) -> Experiment {
        Experiment::parse(&format!(
            "name = 't'\nrounds = {rounds}\nevaluate_every = {every}\ncohort = 2\n[data]\nsource = 'd'\n\
             [model]\nkind = 'linear'\n[local]\nepochs = 1\nbatch = 1\nlearning_rate = 1\n[[algorithm]]\nkind = 'fedavg'\n"
        ))
        .unwrap()
    }

    #[test]
    fn the_remaining_work_counts_the_evaluations_of_the_loop() {
        // Rounds 0, 3, 6 and the last, 8.
        let of_seed = |done| RemainingWork::of_seed(&experiment(8, 3), done);
        assert_eq!(of_seed(None), RemainingWork { rounds: 8, evaluations: 4 });
        assert_eq!(of_seed(Some(3)), RemainingWork { rounds: 5, evaluations: 2 });
        assert_eq!(of_seed(Some(7)), RemainingWork { rounds: 1, evaluations: 1 });
        assert_eq!(of_seed(Some(8)), RemainingWork::default());
        assert_eq!(
            RemainingWork::of_seed(&experiment(9, 3), Some(6)),
            RemainingWork { rounds: 3, evaluations: 1 }
        );
    }

    #[test]
    fn the_first_round_counts_only_if_there_is_no_other() {
        let stop = AtomicBool::new(false);
        let mut stopwatch = Stopwatch::new(&stop);
        assert_eq!(stopwatch.counted(), None);
        stopwatch.rounds = vec![Duration::from_millis(750)];
        assert_eq!(stopwatch.counted(), Some((0..1, 0.75)));
        stopwatch.rounds.extend([250, 500].map(Duration::from_millis));
        assert_eq!(stopwatch.counted(), Some((1..3, 0.75)));
        stopwatch.interrupted = true;
        assert_eq!(stopwatch.counted(), None);
    }

    #[test]
    fn cohorts_of_the_probe_are_small_and_scale_to_full_ones() {
        let sampling = |cohort_size| Sampling {
            cohort_size,
            with_replacement: false,
            availability: Availability::default(),
        };
        let large = Cohorts::new(sampling(100), 1, vec![7; 1000], 2);
        assert_eq!((large.draw(3).len(), large.full), (COHORT, 100));
        assert_eq!(large.examples(1..3).round() as u64, 7 * 2 * COHORT as u64);
        assert_eq!(large.examples_of_a_full_one().round() as u64, 700);
        assert_eq!(Cohorts::new(sampling(100), 1, vec![7; 1000], 40).draw(0).len(), 80, "no thread is idle");
        assert_eq!(Cohorts::new(sampling(100), 1, vec![7; 6], 2).full, 6);
    }

    #[test]
    fn rounds_and_evaluations_add_up() {
        let (round, evaluation) = (Duration::from_millis(20), Duration::from_millis(200));
        let pace = RunPace { round, evaluation, side_by_side: false };
        assert_eq!(pace.time(RemainingWork { rounds: 10, evaluations: 2 }), Duration::from_millis(600));
    }

    #[test]
    fn durations_are_formatted_in_suitable_units() {
        let said = |seconds: u64| HumanDuration(Duration::from_secs(seconds)).to_string();
        let times = [3, 75, 130, 5_400, 7_260, 90_000, 200_000];
        let expected = ["3.00 s", "75 s", "2 min", "90 min", "2 h 1 min", "25 h 0 min", "2 d 8 h"];
        assert_eq!(times.map(said), expected);
    }
}
