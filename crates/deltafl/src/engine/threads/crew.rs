//! The threads of one process, with the model and the devices they work on.

use std::any::Any;
use std::cell::Cell;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::data::{Federation, Split};
use crate::device::{Member, Workspace, stream_key};
use crate::engine::{Drawn, EngineError};
use crate::kernel;
use crate::model::{Model, Score};
use crate::params::Params;

/// The threads, and what they need to know.
pub(super) struct Crew<'a> {
    pub(super) model: &'a dyn Model,
    pub(super) federation: &'a Federation,
    /// Federation index of each train device.
    pub(super) train: Vec<u32>,
    pool: rayon::ThreadPool,
    workers: Vec<Mutex<Workspace>>,
}

/// A block of a forward pass: which of the devices asked about, and which of its examples.
pub(super) type Block = (usize, Range<usize>);

/// Forward passes over the blocks of some devices (federation indices), for each of the tracks. Task `t` is
/// block `t % blocks` of track `t / blocks`: a thread reloads w rarely.
pub(super) struct ForwardPass<'p> {
    pub(super) devices: &'p [u32],
    pub(super) blocks: &'p [Block],
    pub(super) tracks: &'p [&'p Params],
}

impl<'a> Crew<'a> {
    pub(super) fn new(
        model: &'a dyn Model,
        federation: &'a Federation,
        threads: usize,
    ) -> Result<Self, EngineError> {
        let train = federation.split(Split::Train);
        if train.is_empty() {
            return Err(EngineError::NoTrainDevices);
        }
        let pool = rayon::ThreadPoolBuilder::new()
            .num_threads(threads)
            .build()
            .map_err(|source| EngineError::Threads { threads, source })?;
        let workers = (0..pool.current_num_threads()).map(|_| Mutex::default()).collect();
        Ok(Self { model, federation, train, pool, workers })
    }

    pub(super) fn threads(&self) -> usize {
        self.workers.len()
    }

    /// Device `device` of the roster.
    pub(super) fn member(&self, device: u32, times: u32) -> Member<'_> {
        let k = self.train[device as usize];
        Member {
            model: self.model,
            examples: self.federation.examples(k),
            weight: self.federation.count(k) as f64 * f64::from(times),
            key: stream_key(self.federation.id(k)),
        }
    }

    /// Asks for all that a cohort will need to be brought near. In a large federation its devices lie far apart, and
    /// each would be waited for in turn. What leads to an address is asked for first, for the whole cohort.
    pub(super) fn prefetch(&self, cohort: &[Drawn]) {
        let devices = cohort.iter().map(|drawn| drawn.device as usize);
        devices.clone().for_each(|device| kernel::prefetch(&self.train[device..][..1]));
        devices.clone().for_each(|device| self.federation.prefetch_row(self.train[device]));
        devices.for_each(|device| self.federation.prefetch(self.train[device]));
    }

    /// Lets every thread take tasks from `0..tasks` until none is left; returns a state per thread. A task
    /// notes the device (federation index) that it works on, to be named if it panics.
    pub(super) fn share<S: Send>(
        &self,
        tasks: usize,
        state: impl Fn() -> S + Sync,
        task: impl Fn(usize, &Cell<u32>, &mut Workspace, &mut S) + Sync,
    ) -> Result<Vec<S>, EngineError> {
        let next = AtomicUsize::new(0);
        let work = |worker: usize| {
            let _flushed = kernel::flush_denormals();
            let mut workspace = self.workers[worker].lock().unwrap_or_else(PoisonError::into_inner);
            let mut state = state();
            let at = Cell::new(0);
            loop {
                let i = next.fetch_add(1, Ordering::Relaxed);
                if i >= tasks {
                    return Ok(state);
                }
                // What a panic leaves half done is thrown away with the run.
                let done = catch_unwind(AssertUnwindSafe(|| task(i, &at, &mut workspace, &mut state)));
                if let Err(panic) = done {
                    next.store(tasks, Ordering::Relaxed);
                    return Err(self.failed(at.get(), &*panic));
                }
            }
        };
        // A lone worker needs no thread of its own: waking it would cost more than a small round.
        match self.workers.len() {
            1 => work(0).map(|state| vec![state]),
            _ => self.pool.broadcast(|thread| work(thread.index())).into_iter().collect(),
        }
    }

    fn failed(&self, device: u32, panic: &(dyn Any + Send)) -> EngineError {
        let said = panic.downcast_ref::<&str>().copied();
        let said = said.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
        EngineError::Device {
            device: self.federation.id(device).to_owned(),
            panic: said.unwrap_or("a panic without words").to_owned(),
        }
    }

    /// The scores of some tasks of a forward pass, in their order.
    pub(super) fn scores(
        &self,
        pass: &ForwardPass<'_>,
        tasks: Range<usize>,
    ) -> Result<Vec<Score>, EngineError> {
        // Several blocks per turn when there are many, so that a turn outweighs loading w.
        let turn = tasks.len().div_ceil(self.threads() * 64).clamp(1, 64);
        let turns: Vec<_> = tasks.clone().step_by(turn).map(|t| t..(t + turn).min(tasks.end)).collect();
        let done =
            self.share(turns.len(), Vec::new, |t, at, workspace, scores: &mut Vec<(usize, Vec<Score>)>| {
                let mut loaded = None;
                let score = |task: usize| {
                    let (track, (i, block)) =
                        (task / pass.blocks.len(), &pass.blocks[task % pass.blocks.len()]);
                    at.set(pass.devices[*i]);
                    if loaded != Some(track) {
                        workspace.load(self.model, pass.tracks[track].as_slice());
                        loaded = Some(track);
                    }
                    let examples = self.federation.examples(pass.devices[*i]);
                    workspace.score(self.model, &examples, block.clone())
                };
                scores.push((t, turns[t].clone().map(score).collect()));
            })?;
        let mut by_turn: Vec<(usize, Vec<Score>)> = done.into_iter().flatten().collect();
        by_turn.sort_unstable_by_key(|(t, _)| *t);
        Ok(by_turn.into_iter().flat_map(|(_, scores)| scores).collect())
    }
}
