//! A run in this process: its seeds one after another on the CPU, side by side on a GPU.
//!
//! A round on a GPU ends with its largest device while the rest of the GPU has nothing to do; the rounds of other seeds fill
//! it. Every seed has a round loop, a thread and a stream of the GPU of its own, and they share the run folder.

use std::panic::resume_unwind;
use std::sync::atomic::AtomicBool;
use std::sync::{Mutex, PoisonError};
use std::thread::ScopedJoinHandle;
use std::time::Instant;

use deltafl::algorithm::TrackLabel;
use deltafl::data::Federation;
use deltafl::exchange::Exchange;
use deltafl::trainer::LocalTrainer;
use deltafl::training::{Plan, State, train};
use deltafl_data::experiment::Experiment;
use deltafl_data::run_folder::RunFolder;
use miette::Report;

use super::{
    Computing, Ended, Options, Recorder, Seeds, Stopped, exchange, folder_error, stop_on_interrupt,
    tell_classes,
};
use crate::error::bad_input;
use crate::progress::{Progress, Show};

/// Seeds side by side on a GPU: as many as have a queue of their own there.
const BESIDE: usize = 8;

/// The exchange of one seed at a time.
type SeedExchange<'a> = Box<dyn Exchange + Send + 'a>;

/// The exchanges of the seeds that are trained at once. A dashboard and a listener follow one seed, so with them seeds
/// take turns.
pub(super) fn exchanges<'a>(
    experiment: &Experiment,
    federation: &'a Federation,
    place: Computing<'a>,
    show: &Show<'_>,
) -> Result<Vec<SeedExchange<'a>>, Report> {
    let gpu = match place {
        Computing::Cpu(compute) => return Ok(vec![exchange(experiment, compute, federation)?]),
        Computing::Gpu(gpu) => gpu,
    };
    let seeds = if matches!(show, Show::Dashboard(_) | Show::Listener(_)) {
        1
    } else {
        experiment.seeds().iter().len()
    };
    let gpus =
        gpu.split(seeds.min(BESIDE)).map_err(|e| bad_input("the seeds do not fit on the GPU").because(e));
    gpus?.into_iter().map(|gpu| exchange(experiment, Box::new(gpu), federation)).collect()
}

/// A run in this process: its seeds, and what they share.
pub(super) struct LocalRun<'a> {
    experiment: &'a Experiment,
    federation: &'a Federation,
    trainer: &'a dyn LocalTrainer,
    options: &'a Options<'a>,
    plan: Plan,
    labels: Vec<TrackLabel>,
    folder: Mutex<RunFolder>,
    seeds: Seeds,
}

impl<'a> LocalRun<'a> {
    /// Reads where each seed of the run is.
    pub(super) fn new(
        experiment: &'a Experiment,
        federation: &'a Federation,
        trainer: &'a dyn LocalTrainer,
        folder: RunFolder,
        options: &'a Options<'a>,
    ) -> Result<Self, Report> {
        let saved = |seed: u64| folder.state(seed, trainer.num_params()).map_err(folder_error);
        let seeds = Seeds::new(experiment, trainer, saved)?;
        let (plan, labels, folder) = (experiment.plan(), experiment.labels(), Mutex::new(folder));
        Ok(Self { experiment, federation, trainer, options, plan, labels, folder, seeds })
    }

    /// Trains the seeds, as many at once as there are exchanges.
    pub(super) fn train(self, mut exchanges: Vec<SeedExchange<'_>>) -> Result<Ended, Report> {
        exchanges.truncate(self.seeds.pending().len());
        if exchanges.len() < 2 {
            let stopped = match exchanges.first_mut() {
                Some(exchange) => self.work(&mut **exchange, self.options.show)?,
                None => None,
            };
            return self.ended(stopped.into_iter().collect());
        }
        let show = self.options.show.over_seeds(self.experiment, self.seeds.pending());
        let ended: Vec<Result<Option<State>, Report>> = std::thread::scope(|scope| {
            let (run, show) = (&self, &show);
            let work = |mut exchange: SeedExchange<'_>| run.work(&mut *exchange, show);
            let runs: Vec<_> =
                exchanges.into_iter().map(|exchange| scope.spawn(move || work(exchange))).collect();
            let ended =
                |run: ScopedJoinHandle<'_, _>| run.join().unwrap_or_else(|panic| resume_unwind(panic));
            runs.into_iter().map(ended).collect()
        });
        if let (Show::Plain, Show::Shared(bar)) = (self.options.show, &show) {
            bar.finish_and_clear();
        }
        let stopped = ended.into_iter().collect::<Result<Vec<_>, _>>()?;
        let mut folder = self.folder.lock().unwrap_or_else(PoisonError::into_inner);
        folder.sort_rounds(self.experiment.seeds()).map_err(folder_error)?;
        drop(folder);
        self.ended(stopped.into_iter().flatten().collect())
    }

    /// Trains seeds over an exchange until there are none left; where it was stopped, when the user asks for it.
    fn work(&self, exchange: &mut dyn Exchange, show: &Show<'_>) -> Result<Option<State>, Report> {
        self.seeds.work(|state| {
            let progress = Progress::new(show, self.experiment, state.seed, state.round);
            let mut recorder = Recorder {
                folder: &self.folder,
                progress: &progress,
                labels: &self.labels,
                seed: state.seed,
                stop: [self.stop(), self.seeds.failed()],
                lap: Instant::now(),
            };
            let outcome = train(exchange, &self.plan, state, &mut recorder);
            progress.finish();
            outcome.map_err(Report::from_err)
        })
    }

    /// The flag that ends the run with its round.
    fn stop(&self) -> &AtomicBool {
        match self.options.show {
            Show::Listener(listener) => listener.stop(),
            _ => stop_on_interrupt(),
        }
    }

    /// The summary, or where the run was stopped.
    fn ended(self, mut stopped: Vec<State>) -> Result<Ended, Report> {
        let (folder, experiment) = (self.options.out, self.experiment);
        stopped.sort_by_key(|state| experiment.seeds().iter().position(|&seed| seed == state.seed));
        let Some(first) = stopped.first() else {
            let folder = self.folder.into_inner().unwrap_or_else(PoisonError::into_inner);
            tell_classes(&folder, experiment, self.trainer, self.federation, self.options.threads)?;
            return Ok(Ended::Finished(folder.summarise().map_err(folder_error)?));
        };
        let finished = self.seeds.finished(experiment, &stopped);
        Ok(Ended::Interrupted(Stopped { seeds_finished: finished, ..Stopped::at(folder, experiment, first) }))
    }
}
