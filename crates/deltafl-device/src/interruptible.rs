//! Training that can be ended: when the server says that the round is over, or the connection is gone, nobody waits for the
//! answer, and the device has better things to do.

use std::panic::resume_unwind;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use deltafl::model::{Batch, Model, Score, Step, Tensor};
use deltafl::stream::Stream;
use deltafl::task::Task;

/// Ends the computation that it belongs to when it is dropped.
#[derive(Debug, Default)]
pub(crate) struct Interrupt(Arc<AtomicBool>);

impl Drop for Interrupt {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl Interrupt {
    /// The model, each step of which looks whether it is still wanted.
    pub(crate) fn guard(&self, model: Arc<dyn Model>) -> Interruptible {
        Interruptible { model, over: Arc::clone(&self.0) }
    }
}

/// A model whose computation ends between two batches.
pub(crate) struct Interruptible {
    model: Arc<dyn Model>,
    over: Arc<AtomicBool>,
}

/// What ends a computation that nobody waits for.
pub(crate) struct Interrupted;

impl Interruptible {
    /// Leaves the computation, if it is over. It stands between trainers and loops that know nothing of ending early, so that it
    /// leaves through all of them at once; no message is printed.
    fn check(&self) {
        if self.over.load(Ordering::Relaxed) {
            resume_unwind(Box::new(Interrupted));
        }
    }
}

impl Model for Interruptible {
    fn num_params(&self) -> usize {
        self.model.num_params()
    }

    fn init(&self, stream: &mut Stream, params: &mut [f32]) {
        self.model.init(stream, params);
    }

    fn scratch_len(&self, batch: usize) -> usize {
        self.model.scratch_len(batch)
    }

    fn gradient(&self, params: &[f32], batch: Batch<'_>, gradient: &mut [f32], scratch: &mut [f32]) -> f64 {
        self.check();
        self.model.gradient(params, batch, gradient, scratch)
    }

    fn task(&self) -> Task {
        self.model.task()
    }

    fn tensors(&self) -> Vec<Tensor> {
        self.model.tensors()
    }

    fn evaluate(&self, working: &[f32], batch: Batch<'_>, scratch: &mut [f32]) -> Score {
        self.check();
        self.model.evaluate(working, batch, scratch)
    }

    fn working_len(&self) -> usize {
        self.model.working_len()
    }

    fn load(&self, params: &[f32], working: &mut [f32]) {
        self.model.load(params, working);
    }

    fn store(&self, working: &[f32], params: &mut [f32]) {
        self.model.store(working, params);
    }

    fn step_scratch_len(&self, batch: usize) -> usize {
        self.model.step_scratch_len(batch)
    }

    fn step(&self, working: &mut [f32], batch: Batch<'_>, step: Step<'_>, scratch: &mut [f32]) {
        self.check();
        self.model.step(working, batch, step, scratch);
    }
}
