//! A run in this process: seeds train one after another on the CPU, at the same time on a GPU.
//!
//! A GPU round lasts as long as its largest device, and the rest of the GPU is idle. Rounds of
//! other seeds use this capacity. Every seed has a separate round loop, thread and GPU stream. All
//! seeds share the run folder.

use std::panic::resume_unwind;
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
use deltafl_data::seeds::Seeds;

use super::{Ended, Recorder, RunError, RunOptions, Stopped, exchange, write_classes};
use crate::backend::Backend;
use crate::event::{RunEvent, SendEvent};

/// The maximum number of seeds that train on a GPU at the same time, one per hardware queue.
const BESIDE: usize = 8;

/// The exchange of one seed at a time.
type SeedExchange<'a> = Box<dyn Exchange + Send + 'a>;

/// Creates the exchanges of the seeds that train at the same time. There is one on a CPU,
/// or if the seeds must not be concurrent.
pub(super) fn exchanges<'a>(
    experiment: &Experiment,
    federation: &'a Federation,
    backend: Backend<'a>,
    concurrent: bool,
) -> Result<Vec<SeedExchange<'a>>, RunError> {
    let gpu = match backend {
        Backend::Cpu { compute, .. } => return Ok(vec![exchange(experiment, compute, federation)?]),
        Backend::Gpu(gpu) => gpu,
    };
    let seeds = if concurrent { experiment.seeds().iter().len() } else { 1 };
    let gpus = gpu.split(seeds.min(BESIDE)).map_err(RunError::GpuMemory)?;
    gpus.into_iter().map(|gpu| exchange(experiment, Box::new(gpu), federation)).collect()
}

/// A run in this process: its seeds and their shared state.
pub(super) struct LocalRun<'a> {
    experiment: &'a Experiment,
    federation: &'a Federation,
    trainer: &'a dyn LocalTrainer,
    options: &'a RunOptions<'a>,
    send: &'a SendEvent<'a>,
    plan: Plan,
    labels: Vec<TrackLabel>,
    folder: Mutex<RunFolder>,
    seeds: Seeds,
}

impl<'a> LocalRun<'a> {
    /// Reads the progress of each seed.
    pub(super) fn new(
        experiment: &'a Experiment,
        federation: &'a Federation,
        trainer: &'a dyn LocalTrainer,
        folder: RunFolder,
        options: &'a RunOptions<'a>,
        send: &'a SendEvent<'a>,
    ) -> Result<Self, RunError> {
        let saved = |seed: u64| folder.state(seed, trainer.num_params()).map_err(RunError::from);
        let seeds = Seeds::new(experiment, trainer, saved)?;
        let (plan, labels, folder) =
            (experiment.plan_with(options.algorithms), experiment.labels(), Mutex::new(folder));
        Ok(Self { experiment, federation, trainer, options, send, plan, labels, folder, seeds })
    }

    /// Trains the seeds, as many at once as there are exchanges.
    pub(super) fn train(self, mut exchanges: Vec<SeedExchange<'_>>) -> Result<Ended, RunError> {
        exchanges.truncate(self.seeds.pending().len());
        if exchanges.len() < 2 {
            let stopped = match exchanges.first_mut() {
                Some(exchange) => self.work(&mut **exchange)?,
                None => None,
            };
            return self.ended(stopped.into_iter().collect());
        }
        let states = self.seeds.pending();
        (self.send)(RunEvent::SeedsBegin { experiment: self.experiment, states })?;
        let ended: Vec<Result<Option<State>, RunError>> = std::thread::scope(|scope| {
            let run = &self;
            let work = |mut exchange: SeedExchange<'_>| run.work(&mut *exchange);
            let runs: Vec<_> =
                exchanges.into_iter().map(|exchange| scope.spawn(move || work(exchange))).collect();
            let ended =
                |run: ScopedJoinHandle<'_, _>| run.join().unwrap_or_else(|panic| resume_unwind(panic));
            runs.into_iter().map(ended).collect()
        });
        let stopped = ended.into_iter().collect::<Result<Vec<_>, _>>()?;
        let mut folder = self.folder.lock().unwrap_or_else(PoisonError::into_inner);
        folder.sort_rounds(self.experiment.seeds())?;
        drop(folder);
        self.ended(stopped.into_iter().flatten().collect())
    }

    /// Trains seeds over an exchange until none is left. Returns the state at which training was
    /// stopped, if it was.
    fn work(&self, exchange: &mut dyn Exchange) -> Result<Option<State>, RunError> {
        self.seeds.work(|state| {
            let seed = state.seed;
            let (experiment, done) = (self.experiment, state.round);
            (self.send)(RunEvent::SeedBegins { experiment, seed, done })?;
            let mut recorder = Recorder {
                folder: &self.folder,
                send: self.send,
                labels: &self.labels,
                seed,
                failed: self.seeds.failed(),
                lap: Instant::now(),
            };
            let outcome = train(exchange, &self.plan, state, &mut recorder);
            let sent = (self.send)(RunEvent::SeedEnds { seed });
            let outcome = outcome?;
            sent.map(|_| outcome).map_err(RunError::from)
        })
    }

    /// Returns the summary, or the point at which the run was stopped.
    fn ended(self, mut stopped: Vec<State>) -> Result<Ended, RunError> {
        let (folder, experiment) = (self.options.out, self.experiment);
        stopped.sort_by_key(|state| experiment.seeds().iter().position(|&seed| seed == state.seed));
        let Some(first) = stopped.first() else {
            let folder = self.folder.into_inner().unwrap_or_else(PoisonError::into_inner);
            let threads = self.options.machine.threads;
            write_classes(&folder, experiment, self.trainer, self.federation, threads)?;
            return Ok(Ended::Finished(folder.summarise()?));
        };
        let finished = self.seeds.finished(experiment, &stopped);
        Ok(Ended::Interrupted(Stopped { seeds_finished: finished, ..Stopped::at(folder, experiment, first) }))
    }
}
