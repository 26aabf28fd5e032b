//! Trains several points of a sweep at the same time.
//!
//! Each point uses few threads, and many points train at once. Threads that share a cohort wait for
//! its largest device, whereas points are independent.

use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use deltafl::data::Federation;
use deltafl::training::{RoundRecord, State};
use deltafl_data::experiment::{DataSection, Experiment};
use deltafl_data::run_folder;

use super::SweepError;
use super::folder::{Standing, SweepFolder};
use super::points::SweepPoint;
use crate::backend::Machine;
use crate::error::{ErrorKind, Explain};
use crate::listener::{Listener, SeedEvaluation};
use crate::session::{self, Ended, RunError, RunOptions, Start};

/// How to train the points of a sweep.
#[derive(Clone, Copy, Debug, Default)]
pub struct SweepOptions {
    /// Points that train at the same time; one per thread if `None`.
    pub jobs: Option<NonZeroUsize>,
    /// The parts of the machine to use, shared by all jobs.
    pub machine: Machine,
}

/// A program that displays the progress of a sweep.
pub trait SweepListener: Sync {
    /// Returns the flag that ends the sweep after the current rounds.
    fn stop(&self) -> &AtomicBool;

    /// Called when training begins, with the rounds of all points and the rounds done earlier.
    fn begin(&self, rounds: u64, done: u64);

    /// Called after a round of any point.
    fn round(&self);

    /// Called when a point is finished. `done` of `of` points are now finished.
    fn finished(&self, done: usize, of: usize, name: &str);

    /// Called if another process trains a point.
    fn busy(&self, name: &str);

    /// Called when no more points are being trained.
    fn end(&self);
}

/// The results of training a sweep.
#[derive(Debug, Default)]
pub struct Tally {
    /// All points.
    pub points: usize,
    /// Points finished earlier.
    pub skipped: usize,
    /// Points finished by this call.
    pub trained: usize,
    /// Points that another process trains.
    pub busy: usize,
    /// Whether the listener's flag was set.
    pub interrupted: bool,
    /// Points that failed, by name.
    pub failures: Vec<(String, SweepError)>,
}

/// Trains the points that are not finished. Points with existing rounds continue.
///
/// # Errors
///
/// Fails if the progress of a point cannot be read. Points that fail are part of the [`Tally`].
pub fn train(
    folder: &SweepFolder,
    points: &[&SweepPoint],
    options: &SweepOptions,
    listener: &dyn SweepListener,
) -> Result<Tally, SweepError> {
    let mut pending = Vec::new();
    let (mut rounds, mut done) = (0, 0);
    for &point in points {
        let standing = folder.standing(point)?;
        if standing == Standing::Finished {
            continue;
        }
        rounds += total_rounds(&point.experiment);
        done += if let Standing::Rounds(rounds) = standing { rounds } else { 0 };
        pending.push(point);
    }
    let begun = Tally { points: points.len(), skipped: points.len() - pending.len(), ..Tally::default() };
    if pending.is_empty() {
        return Ok(begun);
    }
    let crew = Crew {
        folder,
        next: AtomicUsize::new(0),
        federations: Federations::default(),
        tally: Mutex::new(begun),
        pending,
        options: *options,
        listener,
    };
    listener.begin(rounds, done);
    std::thread::scope(|scope| {
        for threads in threads_of_jobs(options, crew.pending.len()) {
            let crew = &crew;
            scope.spawn(move || crew.work(threads));
        }
    });
    listener.end();
    Ok(crew.tally.into_inner().unwrap_or_else(PoisonError::into_inner))
}

/// Returns the number of rounds of a point, over its seeds.
fn total_rounds(experiment: &Experiment) -> u64 {
    experiment.rounds() * experiment.seeds().iter().len() as u64
}

/// Distributes the threads as evenly as possible over the jobs, at least one each.
fn threads_of_jobs(options: &SweepOptions, points: usize) -> Vec<NonZeroUsize> {
    let cores = || std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
    let threads = options.machine.threads.unwrap_or_else(cores).get();
    let jobs = options.jobs.map_or(threads, NonZeroUsize::get).min(points);
    let share = |job: usize| threads / jobs + usize::from(job < threads % jobs);
    (0..jobs).map(|job| NonZeroUsize::new(share(job)).unwrap_or(NonZeroUsize::MIN)).collect()
}

/// The jobs and their shared state.
struct Crew<'a> {
    folder: &'a SweepFolder,
    pending: Vec<&'a SweepPoint>,
    /// The index of the first point that no job has taken.
    next: AtomicUsize,
    federations: Federations,
    tally: Mutex<Tally>,
    options: SweepOptions,
    listener: &'a dyn SweepListener,
}

impl Crew<'_> {
    /// Trains points until none is left or the listener's flag is set.
    fn work(&self, threads: NonZeroUsize) {
        // Kept while the next point is prepared, because points with the same data share it.
        let mut federation = None;
        let stop = self.listener.stop();
        while !stop.load(Ordering::Relaxed) {
            let Some(point) = self.pending.get(self.next.fetch_add(1, Ordering::Relaxed)) else { return };
            let ended = self.point(point, threads, &mut federation);
            self.note(point, ended);
        }
        self.tally().interrupted = true;
    }

    fn point(
        &self,
        point: &SweepPoint,
        threads: NonZeroUsize,
        held: &mut Option<Arc<Federation>>,
    ) -> Result<Ended, SweepError> {
        let out = self.folder.point(&point.address);
        let mut experiment = point.experiment.clone();
        if out.join("experiment.toml").exists() {
            // A sweep with additional points gives its points other names. They are still the same
            // runs.
            let name = run_folder::read_experiment(&out)?.name().to_owned();
            experiment = experiment.with_name(&name).map_err(|source| SweepError::Name { name, source })?;
        }
        let federation = held.insert(self.federations.of(&experiment)?);
        let options = RunOptions {
            out: &out,
            start: Start::Any,
            machine: Machine { threads: Some(threads), ..self.options.machine },
            listener: &PointListener(self.listener),
        };
        Ok(session::run_on(experiment, federation, &options)?)
    }

    fn note(&self, point: &SweepPoint, ended: Result<Ended, SweepError>) {
        let name = point.experiment.name();
        let mut tally = self.tally();
        match ended {
            Ok(Ended::Finished(_)) => {
                tally.trained += 1;
                let done = tally.skipped + tally.trained;
                let of = tally.skipped + self.pending.len();
                self.listener.finished(done, of, name);
            }
            Ok(_) => tally.interrupted = true,
            Err(error) if error.kind() == ErrorKind::Busy => {
                tally.busy += 1;
                self.listener.busy(name);
            }
            Err(error) => tally.failures.push((name.to_owned(), error)),
        }
    }

    fn tally(&self) -> std::sync::MutexGuard<'_, Tally> {
        self.tally.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Forwards only the rounds of a point to the listener of its sweep.
struct PointListener<'a>(&'a dyn SweepListener);

impl Listener for PointListener<'_> {
    fn stop(&self) -> &AtomicBool {
        self.0.stop()
    }

    fn shows_seeds_side_by_side(&self) -> bool {
        true
    }

    fn begin_side_by_side(&self, _: &Experiment, _: &[State]) {}

    fn begin(&self, _: &Experiment, _: u64, _: u64) {}

    fn round(&self, _: &[RoundRecord]) {
        self.0.round();
    }

    fn evaluation(&self, _: &SeedEvaluation<'_>) {}

    fn end(&self, _: u64) {}

    fn note(&self, _: &str) {}

    fn warn(&self, _: &str) {}
}

/// Federations in use, shared by points with the same data.
#[derive(Default)]
struct Federations {
    known: Mutex<Vec<(DataSection, Weak<Federation>)>>,
}

impl Federations {
    /// Loads the data of an experiment. A second job waits until the first has loaded it.
    fn of(&self, experiment: &Experiment) -> Result<Arc<Federation>, RunError> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.retain(|(_, federation)| federation.strong_count() > 0);
        let same = known.iter().find(|(data, _)| data == experiment.data());
        if let Some(federation) = same.and_then(|(_, federation)| federation.upgrade()) {
            return Ok(federation);
        }
        let federation = Arc::new(session::load(experiment)?);
        known.push((experiment.data().clone(), Arc::downgrade(&federation)));
        Ok(federation)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_are_distributed_evenly_over_jobs() {
        let threads = |threads, jobs, points| {
            let machine = Machine { threads: NonZeroUsize::new(threads), ..Machine::default() };
            let options = SweepOptions { jobs: NonZeroUsize::new(jobs), machine };
            let shares = threads_of_jobs(&options, points).into_iter();
            shares.map(NonZeroUsize::get).collect::<Vec<_>>()
        };
        assert_eq!(threads(8, 3, 9), [3, 3, 2]);
        assert_eq!(threads(8, 0, 9), [1; 8]);
        assert_eq!(threads(8, 0, 2), [4, 4], "few points get more threads each");
        assert_eq!(threads(1, 4, 9), [1; 4]);
    }
}
