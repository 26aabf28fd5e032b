//! The CPUs of this process.
//!
//! A step of SGD is too small to split, so threads share devices, never a step. Threads take tasks
//! from a shared counter, largest first. Sums are integers, and a device's loss is a sum of fixed
//! blocks in a fixed order. The assignment of tasks to threads therefore does not affect the bits.

use std::any::Any;
use std::cell::Cell;
use std::num::NonZeroUsize;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use super::{Block, Compute, ComputeError, Remembered, UpdateTask, add_task};
use crate::data::{Federation, FederationIndex};
use crate::kernel;
use crate::model::Score;
use crate::params::{Params, add_wrapping};
use crate::question::RoundKey;
use crate::task::Task;
use crate::trainer::{LocalTrainer, TrainerError, Worker};

/// Threads of this process, each with its own training memory.
pub struct Threads<'a> {
    federation: &'a Federation,
    task: Task,
    pool: rayon::ThreadPool,
    workers: Vec<Mutex<Box<dyn Worker + 'a>>>,
}

impl<'a> Threads<'a> {
    /// Starts threads that compute the devices of a federation; `None` is one thread per core.
    ///
    /// # Errors
    ///
    /// Fails if the threads cannot be started.
    pub fn new(
        trainer: &'a dyn LocalTrainer,
        federation: &'a Federation,
        threads: Option<NonZeroUsize>,
    ) -> Result<Self, ComputeError> {
        // In rayon, 0 threads are one per core.
        let count = threads.map_or(0, NonZeroUsize::get);
        let pool = rayon::ThreadPoolBuilder::new().num_threads(count).build().map_err(|source| {
            let place = threads.map_or("one thread per core".to_owned(), |count| format!("{count} threads"));
            ComputeError::Unavailable { place, source: source.into() }
        })?;
        let workers = (0..pool.current_num_threads()).map(|_| Mutex::new(trainer.worker())).collect();
        Ok(Self { federation, task: trainer.task(), pool, workers })
    }

    /// Runs the tasks `0..tasks` on all threads, and returns one state per thread. A task records
    /// its device (federation index), which an error then names.
    fn share<S: Send>(
        &self,
        tasks: usize,
        state: impl Fn() -> S + Sync,
        task: impl Fn(usize, &Cell<FederationIndex>, &mut dyn Worker, &mut S) -> Result<(), TrainerError> + Sync,
    ) -> Result<Vec<S>, ComputeError> {
        let next = AtomicUsize::new(0);
        let work = |worker: usize| {
            let _flushed = kernel::flush_denormals();
            let mut worker = self.workers[worker].lock().unwrap_or_else(PoisonError::into_inner);
            let mut state = state();
            let at = Cell::new(FederationIndex(0));
            loop {
                let i = next.fetch_add(1, Ordering::Relaxed);
                if i >= tasks {
                    return Ok(state);
                }
                // State that a panic leaves incomplete is discarded with the run.
                let done = catch_unwind(AssertUnwindSafe(|| task(i, &at, &mut **worker, &mut state)));
                if let Err(problem) = done.unwrap_or_else(|panic| Err(panic_message(&*panic).into())) {
                    next.store(tasks, Ordering::Relaxed);
                    let device = self.federation.id(at.get()).to_owned();
                    return Err(ComputeError::Device { device, problem });
                }
            }
        };
        // A single worker runs on the calling thread. Waking another would cost more than a small
        // round.
        match self.workers.len() {
            1 => work(0).map(|state| vec![state]),
            _ => self.pool.broadcast(|thread| work(thread.index())).into_iter().collect(),
        }
    }
}

/// Returns the panic message.
fn panic_message(panic: &(dyn Any + Send)) -> String {
    let said = panic.downcast_ref::<&str>().copied();
    let said = said.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    said.unwrap_or("panic without a message").to_owned()
}

impl Compute for Threads<'_> {
    fn width(&self) -> usize {
        self.workers.len()
    }

    fn task(&self) -> Task {
        self.task
    }

    /// Prefetches the devices' rows. In a large federation they are far apart in memory, and each
    /// would cause a cache miss. The pointers are prefetched first, for all devices.
    fn prefetch(&mut self, devices: &[FederationIndex]) {
        devices.iter().for_each(|&device| self.federation.prefetch_row(device));
        devices.iter().for_each(|&device| self.federation.prefetch(device));
    }

    fn scores(&mut self, blocks: &[Block], params: &[&Params]) -> Result<Vec<Vec<Score>>, ComputeError> {
        // Task t is block t % blocks at params t / blocks, so that a thread rarely reloads w. With
        // many blocks a turn takes several, so that its cost exceeds that of loading w.
        let tasks = blocks.len() * params.len();
        let turn = tasks.div_ceil(self.workers.len() * 64).clamp(1, 64);
        let turns: Vec<_> = (0..tasks).step_by(turn).map(|t| t..(t + turn).min(tasks)).collect();
        let score_turn =
            |t: usize, at: &Cell<FederationIndex>, worker: &mut dyn Worker, done: &mut Vec<_>| {
                let mut loaded = None;
                let mut scores = Vec::with_capacity(turn);
                for task in turns[t].clone() {
                    let (p, block) = (task / blocks.len(), &blocks[task % blocks.len()]);
                    at.set(block.device);
                    if loaded != Some(p) {
                        worker.load(params[p].as_slice());
                        loaded = Some(p);
                    }
                    scores
                        .push(worker.score(&self.federation.examples(block.device), block.examples.clone())?);
                }
                done.push((t, scores));
                Ok(())
            };
        let done = self.share(turns.len(), Vec::new, score_turn)?;
        let mut by_turn: Vec<(usize, Vec<Score>)> = done.into_iter().flatten().collect();
        by_turn.sort_unstable_by_key(|(t, _)| *t);
        let mut scores = by_turn.into_iter().flat_map(|(_, scores)| scores);
        Ok(params.iter().map(|_| scores.by_ref().take(blocks.len()).collect()).collect())
    }

    fn updates(
        &mut self,
        key: &RoundKey,
        tasks: &[UpdateTask<'_>],
        sums: &mut [Vec<u64>],
    ) -> Result<Remembered, ComputeError> {
        let lens: Vec<usize> = sums.iter().map(Vec::len).collect();
        // A thread has memory only for the sums that it adds to.
        let none = || ThreadSums { sums: vec![Vec::new(); lens.len()], remembered: Vec::new() };
        let update =
            |t: usize, at: &Cell<FederationIndex>, worker: &mut dyn Worker, thread: &mut ThreadSums| {
                let UpdateTask { device, sum, .. } = tasks[t];
                at.set(device);
                thread.sums[sum].resize(lens[sum], 0);
                let memory = add_task(key, self.federation, &tasks[t], worker, &mut thread.sums[sum])?;
                thread.remembered.extend(memory.map(|memory| (t, memory)));
                Ok(())
            };
        let mut remembered = Vec::new();
        for own in self.share(tasks.len(), none, update)? {
            remembered.extend(own.remembered);
            for (sum, own) in sums.iter_mut().zip(own.sums).filter(|(_, own)| !own.is_empty()) {
                add_wrapping(sum, &own);
            }
        }
        remembered.sort_unstable_by_key(|(task, _)| *task);
        Ok(remembered)
    }
}

/// The sums of a thread, and the states of its devices.
struct ThreadSums {
    sums: Vec<Vec<u64>>,
    remembered: Remembered,
}
