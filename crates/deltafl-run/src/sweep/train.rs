//! Trains several points of a sweep at the same time.
//!
//! Each point uses few threads, and many points train at once. Threads that share a cohort wait for
//! its largest device, whereas points are independent.

use std::collections::VecDeque;
use std::num::NonZeroUsize;
use std::ops::ControlFlow;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};

use deltafl::data::Federation;
use deltafl::training::{ObserverError, SharedObserver};
use deltafl_data::experiment::{DataSection, Experiment};
use deltafl_data::run_folder;

use super::SweepError;
use super::folder::{Standing, SweepFolder};
use super::points::SweepPoint;
use crate::backend::Machine;
use crate::error::{ErrorKind, Explain};
use crate::event::{RunEvent, SweepEvent, SweepObserver};
use crate::session::{self, Ended, RunError, RunOptions, Start};

/// How to train the points of a sweep.
#[derive(Clone, Copy, Debug, Default)]
pub struct SweepOptions {
    /// Points that train at the same time; one per thread if `None`.
    pub jobs: Option<NonZeroUsize>,
    /// The parts of the machine to use, shared by all jobs.
    pub machine: Machine,
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
    /// Whether the observer stopped the sweep.
    pub interrupted: bool,
    /// Points that failed, by name.
    pub failures: Vec<(String, SweepError)>,
}

/// The points of a sweep: those to begin with, and those that follow from results.
pub(crate) struct PointPlan<'a> {
    /// The points to begin with.
    pub(crate) first: Vec<SweepPoint>,
    /// Returns the points that follow when a point is finished. They train before all that wait.
    pub(crate) next: &'a (dyn Fn(&SweepPoint) -> Vec<SweepPoint> + Sync),
    /// The number of all points.
    pub(crate) points: usize,
    /// The rounds of the points that are not finished.
    pub(crate) rounds: u64,
    /// The number of these rounds trained earlier.
    pub(crate) done: u64,
}

/// Trains the points that are not finished. Points with existing rounds continue.
///
/// # Errors
///
/// Fails if the progress of a point cannot be read or the observer fails. Points that fail are part
/// of the [`Tally`].
pub fn train(
    folder: &SweepFolder,
    points: &[&SweepPoint],
    options: &SweepOptions,
    observer: &mut SweepObserver<'_>,
) -> Result<Tally, SweepError> {
    let (mut rounds, mut done) = (0, 0);
    for &point in points {
        let standing = folder.standing(point)?;
        if standing != Standing::Finished {
            rounds += total_rounds(&point.experiment);
            done += if let Standing::Rounds(rounds) = standing { rounds } else { 0 };
        }
    }
    let first: Vec<SweepPoint> = points.iter().map(|&point| point.clone()).collect();
    let plan = PointPlan { first, next: &|_| Vec::new(), points: points.len(), rounds, done };
    train_plan(folder, plan, options, observer)
}

/// Trains the points of a plan that are not finished. A job takes the next point as soon as there is
/// one, so no job waits for the slowest point of a group.
///
/// # Errors
///
/// Fails if the progress of a point cannot be read or the observer fails. Points that fail are part of the [`Tally`].
pub(crate) fn train_plan(
    folder: &SweepFolder,
    plan: PointPlan<'_>,
    options: &SweepOptions,
    observer: &mut SweepObserver<'_>,
) -> Result<Tally, SweepError> {
    let PointPlan { first, next, points, rounds, done } = plan;
    let crew = Crew {
        folder,
        next,
        queue: Mutex::default(),
        changed: Condvar::new(),
        federations: Federations::default(),
        tally: Mutex::new(Tally { points, ..Tally::default() }),
        options: *options,
        observer: SharedObserver::new(observer),
    };
    crew.add(first)?;
    if crew.queue().waiting.is_empty() {
        return Ok(crew.tally.into_inner().unwrap_or_else(PoisonError::into_inner));
    }
    crew.observer.send(SweepEvent::Begins { rounds, done }).map_err(RunError::from)?;
    let pending = points - crew.tally().skipped;
    std::thread::scope(|scope| {
        for threads in threads_of_jobs(options, pending) {
            let crew = &crew;
            scope.spawn(move || crew.work(threads));
        }
    });
    crew.observer.send(SweepEvent::Ends).map_err(RunError::from)?;
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
    next: &'a (dyn Fn(&SweepPoint) -> Vec<SweepPoint> + Sync),
    queue: Mutex<Queue>,
    /// Notified when a point is added or a job ends one.
    changed: Condvar,
    federations: Federations,
    tally: Mutex<Tally>,
    options: SweepOptions,
    observer: SharedObserver<&'a mut SweepObserver<'a>>,
}

/// Points to train.
#[derive(Default)]
struct Queue {
    waiting: VecDeque<SweepPoint>,
    /// The number of points in training, which may be followed by others.
    training: usize,
}

/// A point in training. Dropped when it ends, also by a panic.
struct InTraining<'a, 'c>(&'a Crew<'c>);

impl Drop for InTraining<'_, '_> {
    fn drop(&mut self) {
        self.0.queue().training -= 1;
        self.0.changed.notify_all();
    }
}

impl Crew<'_> {
    /// Trains points until none is left or the observer stops the sweep.
    fn work(&self, threads: NonZeroUsize) {
        // Kept while the next point is prepared, because points with the same data share it.
        let mut federation = None;
        while let Some(point) = self.take() {
            let in_training = InTraining(self);
            let ended = self.point(&point, threads, &mut federation);
            let is_finished = matches!(ended, Ok(Ended::Finished(_)));
            let name = point.experiment.name().to_owned();
            if let Err(error) = self.record(&point, ended) {
                self.tally().failures.push((name, RunError::from(error).into()));
                return;
            }
            if is_finished && let Err(error) = self.add((self.next)(&point)) {
                self.tally().failures.push((name, error));
            }
            drop(in_training);
        }
        if self.observer.is_stopped() {
            self.tally().interrupted = true;
        }
    }

    /// Takes a point. Waits while points in training may be followed by others. Returns `None` if no
    /// point is left or the observer stops the sweep.
    fn take(&self) -> Option<SweepPoint> {
        let mut queue = self.queue();
        loop {
            if self.observer.is_stopped() {
                return None;
            }
            if let Some(point) = queue.waiting.pop_front() {
                queue.training += 1;
                return Some(point);
            }
            if queue.training == 0 {
                return None;
            }
            queue = self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Adds points in front of those that wait. Finished points are counted and replaced by those
    /// that follow.
    fn add(&self, points: Vec<SweepPoint>) -> Result<(), SweepError> {
        let mut left: VecDeque<SweepPoint> = points.into();
        let mut pending = Vec::new();
        while let Some(point) = left.pop_front() {
            if self.folder.standing(&point)? == Standing::Finished {
                self.tally().skipped += 1;
                (self.next)(&point).into_iter().rev().for_each(|point| left.push_front(point));
            } else {
                pending.push(point);
            }
        }
        let mut queue = self.queue();
        pending.into_iter().rev().for_each(|point| queue.waiting.push_front(point));
        drop(queue);
        self.changed.notify_all();
        Ok(())
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
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
        let federation = held.insert(self.federations.load(&experiment)?);
        let options = RunOptions {
            out: &out,
            start: Start::Any,
            machine: Machine { threads: Some(threads), ..self.options.machine },
            concurrent_seeds: true,
            algorithms: None,
        };
        let name = point.experiment.name();
        let mut observer = |event: RunEvent<'_>| {
            let stop = self.observer.send(SweepEvent::Point { name, event })?;
            Ok(if stop { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
        };
        Ok(session::run_on(experiment, federation, &options, &mut observer)?)
    }

    /// Counts a point that has ended, and reports it.
    fn record(&self, point: &SweepPoint, ended: Result<Ended, SweepError>) -> Result<(), ObserverError> {
        let name = point.experiment.name();
        let mut tally = self.tally();
        match ended {
            Ok(Ended::Finished(_)) => {
                tally.trained += 1;
                let done = tally.skipped + tally.trained;
                let of = tally.points;
                self.observer.send(SweepEvent::PointFinished { name, done, of })?;
            }
            Ok(_) => tally.interrupted = true,
            Err(error) if error.kind() == ErrorKind::Busy => {
                tally.busy += 1;
                self.observer.send(SweepEvent::PointBusy { name })?;
            }
            Err(error) => tally.failures.push((name.to_owned(), error)),
        }
        Ok(())
    }

    fn tally(&self) -> MutexGuard<'_, Tally> {
        self.tally.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Federations in use, shared by points with the same data.
#[derive(Default)]
struct Federations {
    known: Mutex<Vec<(DataSection, Weak<Federation>)>>,
}

impl Federations {
    /// Loads the data of an experiment. A second job waits until the first has loaded it.
    fn load(&self, experiment: &Experiment) -> Result<Arc<Federation>, RunError> {
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
