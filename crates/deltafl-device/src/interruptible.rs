//! Cancellable training. Training ends early when the round is over or the connection is closed,
//! because the answer is no longer needed.

use std::cell::RefCell;
use std::ops::Range;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use deltafl::data::Examples;
use deltafl::memory::AlgorithmState;
use deltafl::model::{Model, Score};
use deltafl::stream::Stream;
use deltafl::trainer::{LocalTask, Sgd, TrainerError, Worker};

thread_local! {
    /// Whether the computation of this thread is cancelled.
    static OVER: RefCell<Option<Arc<AtomicBool>>> = const { RefCell::new(None) };
}

/// Cancels the computation when dropped.
#[derive(Debug, Default)]
pub(crate) struct Interrupt(Arc<AtomicBool>);

impl Drop for Interrupt {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// The flag that cancels the computation of a thread.
#[derive(Clone, Debug)]
pub(crate) struct Over(Arc<AtomicBool>);

impl Interrupt {
    /// The flag that the computing thread reads.
    pub(crate) fn over(&self) -> Over {
        Over(Arc::clone(&self.0))
    }
}

impl Over {
    /// Computes on this thread. Guarded code checks between two batches whether the computation is
    /// cancelled.
    pub(crate) fn guard<T>(self, task: impl FnOnce() -> T) -> T {
        struct Forget;
        impl Drop for Forget {
            fn drop(&mut self) {
                OVER.set(None);
            }
        }
        OVER.set(Some(self.0));
        let _forget = Forget;
        task()
    }
}

/// The panic payload that unwinds a cancelled computation.
pub(crate) struct Interrupted;

/// Unwinds the computation if it is cancelled. Unwinding passes through trainers and loops that do
/// not support cancellation. No message is printed.
fn check() {
    if OVER.with_borrow(|over| over.as_ref().is_some_and(|over| over.load(Ordering::Relaxed))) {
        resume_unwind(Box::new(Interrupted));
    }
}

/// A worker that stops between two blocks of examples if its computation is cancelled, with any
/// trainer.
pub(crate) struct GuardedWorker<'a>(pub(crate) Box<dyn Worker + 'a>);

impl Worker for GuardedWorker<'_> {
    fn load(&mut self, params: &[f32]) {
        self.0.load(params);
    }

    fn score(&mut self, examples: &Examples<'_>, block: Range<usize>) -> Result<Score, TrainerError> {
        check();
        self.0.score(examples, block)
    }

    fn update(
        &mut self,
        task: &LocalTask<'_>,
        own: &mut AlgorithmState,
        stream: &mut Stream,
    ) -> Result<&[f32], TrainerError> {
        check();
        self.0.update(task, own, stream)
    }
}

/// Stochastic gradient descent on a model that stops between two batches if it is cancelled.
pub fn model_trainer(model: Arc<dyn Model>) -> Sgd<Arc<dyn Model>> {
    Sgd::new(model).before_step(check)
}
