//! Trains the points of a sweep, several at once.
//!
//! A point is trained by few threads and many points side by side: threads that share a cohort wait for its largest
//! device, points wait for nobody.

use std::io::IsTerminal;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use deltafl::data::Federation;
use deltafl::kernel::Isa;
use deltafl_cuda::Place;
use deltafl_data::experiment::{DataSection, Experiment};
use deltafl_data::run_folder;
use indicatif::ProgressBar;
use miette::{IntoDiagnostic, Report, Result};

use super::folder::{Standing, SweepFolder};
use super::points::Point;
use crate::error::Busy;
use crate::progress::{Show, shared_bar};
use crate::session::{self, Ended, Options, Start};

/// How much of the machine to use.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Effort {
    /// Points at once; 0 means one per thread.
    pub(crate) jobs: usize,
    /// Threads in all; 0 means one per core.
    pub(crate) threads: usize,
    pub(crate) kernel: Isa,
    /// Where devices compute.
    pub(crate) compute: Place,
    pub(crate) quiet: bool,
}

/// How training ended.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    /// In all.
    pub(crate) points: usize,
    /// Finished before.
    pub(crate) skipped: usize,
    /// Finished now.
    pub(crate) trained: usize,
    /// In the hands of another process.
    pub(crate) busy: usize,
    /// Ctrl-C.
    pub(crate) interrupted: bool,
    /// What went wrong, with the name of the point.
    pub(crate) failures: Vec<(String, Report)>,
}

/// Trains what is not finished; what was begun goes on.
pub(crate) fn train(folder: &SweepFolder, points: &[&Point], effort: &Effort) -> Result<Tally> {
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
        bar: bar(rounds, done, effort.quiet),
        federations: Federations::default(),
        tally: Mutex::new(begun),
        pending,
        effort: *effort,
    };
    std::thread::scope(|scope| {
        for threads in threads_of_jobs(effort, crew.pending.len()) {
            let crew = &crew;
            scope.spawn(move || crew.work(threads));
        }
    });
    crew.bar.finish_and_clear();
    Ok(crew.tally.into_inner().unwrap_or_else(PoisonError::into_inner))
}

/// Rounds of a point, over its seeds.
fn total_rounds(experiment: &Experiment) -> u64 {
    experiment.rounds() * experiment.seeds().iter().len() as u64
}

/// The threads of each job: as even as they come, at least one.
fn threads_of_jobs(effort: &Effort, points: usize) -> Vec<usize> {
    let cores = || std::thread::available_parallelism().map_or(1, usize::from);
    let threads = if effort.threads == 0 { cores() } else { effort.threads };
    let jobs = if effort.jobs == 0 { threads } else { effort.jobs };
    let jobs = jobs.min(points);
    (0..jobs).map(|job| (threads / jobs + usize::from(job < threads % jobs)).max(1)).collect()
}

fn bar(rounds: u64, done: u64, quiet: bool) -> ProgressBar {
    if quiet || !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    shared_bar("points", rounds, done)
}

/// The jobs, and what they share.
struct Crew<'a> {
    folder: &'a SweepFolder,
    pending: Vec<&'a Point>,
    /// The first point that nobody has taken.
    next: AtomicUsize,
    bar: ProgressBar,
    federations: Federations,
    tally: Mutex<Tally>,
    effort: Effort,
}

impl Crew<'_> {
    /// Takes points until there are none left, or the user asks to stop.
    fn work(&self, threads: usize) {
        // Held while the next point is prepared: points on the same data share it.
        let mut federation = None;
        let stop = session::stop_on_interrupt();
        while !stop.load(Ordering::Relaxed) {
            let Some(point) = self.pending.get(self.next.fetch_add(1, Ordering::Relaxed)) else { return };
            let ended = self.point(point, threads, &mut federation);
            self.note(point, ended);
        }
        self.tally().interrupted = true;
    }

    fn point(&self, point: &Point, threads: usize, held: &mut Option<Arc<Federation>>) -> Result<Ended> {
        let out = self.folder.point(&point.address);
        let mut experiment = point.experiment.clone();
        if out.join("experiment.toml").exists() {
            // A sweep that has grown calls its points otherwise; they stay the same runs.
            let stored = run_folder::read_experiment(&out).map_err(session::folder_error)?;
            experiment = experiment.with_name(stored.name()).into_diagnostic()?;
        }
        let federation = held.insert(self.federations.of(&experiment)?);
        let show = Show::Shared(self.bar.clone());
        let options = Options {
            out: &out,
            start: Start::Any,
            threads,
            kernel: self.effort.kernel,
            compute: self.effort.compute,
            show: &show,
        };
        session::run_on(experiment, federation, &options)
    }

    fn note(&self, point: &Point, ended: Result<Ended>) {
        let name = point.experiment.name();
        let mut tally = self.tally();
        match ended {
            Ok(Ended::Finished(_)) => {
                tally.trained += 1;
                let done = tally.skipped + tally.trained;
                let of = tally.skipped + self.pending.len();
                self.say(&format!("{done} of {of} points: {name}"));
            }
            Ok(_) => tally.interrupted = true,
            Err(report) if report.downcast_ref::<Busy>().is_some() => {
                tally.busy += 1;
                self.say(&format!("another process trains {name}"));
            }
            Err(report) => tally.failures.push((name.clone(), report)),
        }
    }

    fn say(&self, line: &str) {
        match (self.effort.quiet, self.bar.is_hidden()) {
            (true, _) => {}
            (false, true) => eprintln!("{line}"),
            (false, false) => self.bar.println(line),
        }
    }

    fn tally(&self) -> std::sync::MutexGuard<'_, Tally> {
        self.tally.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Federations in use, so that points on the same data share one.
#[derive(Default)]
struct Federations {
    known: Mutex<Vec<(DataSection, Weak<Federation>)>>,
}

impl Federations {
    /// The data of an experiment; whoever comes second waits for the first to load it.
    fn of(&self, experiment: &Experiment) -> Result<Arc<Federation>> {
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
    fn threads_are_shared_evenly_among_jobs() {
        let threads = |threads, jobs, points| {
            let (kernel, compute) = (Isa::Reference, Place::Cpu);
            threads_of_jobs(&Effort { jobs, threads, kernel, compute, quiet: true }, points)
        };
        assert_eq!(threads(8, 3, 9), [3, 3, 2]);
        assert_eq!(threads(8, 0, 9), [1; 8]);
        assert_eq!(threads(8, 0, 2), [4, 4], "few points get more threads each");
        assert_eq!(threads(1, 4, 9), [1; 4]);
    }
}
