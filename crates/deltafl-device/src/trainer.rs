//! The library's models as a trainer that the devices of a process share.

use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use deltafl::data::Examples;
use deltafl::memory::Memory;
use deltafl::model::{Model, Score, Tensor};
use deltafl::stream::Stream;
use deltafl::task::Task;
use deltafl::trainer::{LocalTask, LocalTrainer, Sgd, SgdWorker, TrainerError, Worker, Workspace};

use crate::interruptible::Interruptible;

/// Stochastic gradient descent on a [`Model`]. The memory of a worker is used again by the next one, so that thousands of
/// devices in a process cost no more than the threads they compute on.
pub struct ModelTrainer {
    model: Interruptible,
    spare: Mutex<Vec<Workspace>>,
}

impl ModelTrainer {
    /// Trains this model.
    pub fn new(model: Arc<dyn Model>) -> Self {
        Self { model: Interruptible(model), spare: Mutex::default() }
    }

    fn spare(&self) -> MutexGuard<'_, Vec<Workspace>> {
        self.spare.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl LocalTrainer for ModelTrainer {
    fn num_params(&self) -> usize {
        self.model.num_params()
    }

    fn init(&self, stream: &mut Stream, params: &mut [f32]) {
        self.model.init(stream, params);
    }

    fn task(&self) -> Task {
        self.model.task()
    }

    fn tensors(&self) -> Vec<Tensor> {
        self.model.tensors()
    }

    fn worker(&self) -> Box<dyn Worker + '_> {
        let workspace = self.spare().pop().unwrap_or_default();
        Box::new(PooledWorker { trainer: self, worker: Some(Sgd::new(&self.model).worker_in(workspace)) })
    }
}

/// A worker that leaves its memory to the next one.
struct PooledWorker<'a> {
    trainer: &'a ModelTrainer,
    /// `None` only while it is dropped.
    worker: Option<SgdWorker<'a>>,
}

impl<'a> PooledWorker<'a> {
    fn worker(&mut self) -> &mut SgdWorker<'a> {
        self.worker.as_mut().expect("there until it is dropped")
    }
}

impl Drop for PooledWorker<'_> {
    fn drop(&mut self) {
        if let Some(worker) = self.worker.take() {
            self.trainer.spare().push(worker.into_workspace());
        }
    }
}

impl Worker for PooledWorker<'_> {
    fn load(&mut self, params: &[f32]) {
        self.worker().load(params);
    }

    fn score(&mut self, examples: &Examples<'_>, block: Range<usize>) -> Result<Score, TrainerError> {
        self.worker().score(examples, block)
    }

    fn update(
        &mut self,
        task: &LocalTask<'_>,
        own: &mut Memory,
        stream: &mut Stream,
    ) -> Result<&[f32], TrainerError> {
        self.worker().update(task, own, stream)
    }
}
