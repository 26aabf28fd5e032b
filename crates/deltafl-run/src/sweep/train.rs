//! Trains several points of a sweep at the same time.
//!
//! Each point uses few threads, and many points train at once. Threads that share a cohort wait for
//! its largest device, whereas points are independent.

use std::num::NonZeroUsize;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

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
        observer: SharedObserver::new(observer),
    };
    crew.observer.send(SweepEvent::Begins { rounds, done }).map_err(RunError::from)?;
    std::thread::scope(|scope| {
        for threads in threads_of_jobs(options, crew.pending.len()) {
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
    pending: Vec<&'a SweepPoint>,
    /// The index of the first point that no job has taken.
    next: AtomicUsize,
    federations: Federations,
    tally: Mutex<Tally>,
    options: SweepOptions,
    observer: SharedObserver<&'a mut SweepObserver<'a>>,
}

impl Crew<'_> {
    /// Trains points until none is left or the observer stops the sweep.
    fn work(&self, threads: NonZeroUsize) {
        // Kept while the next point is prepared, because points with the same data share it.
        let mut federation = None;
        while !self.observer.is_stopped() {
            let Some(point) = self.pending.get(self.next.fetch_add(1, Ordering::Relaxed)) else { return };
            let ended = self.point(point, threads, &mut federation);
            if let Err(error) = self.record(point, ended) {
                let name = point.experiment.name().to_owned();
                self.tally().failures.push((name, RunError::from(error).into()));
                return;
            }
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
                let of = tally.skipped + self.pending.len();
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

    fn tally(&self) -> std::sync::MutexGuard<'_, Tally> {
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
