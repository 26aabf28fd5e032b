//! Training that can be ended: when the server says that the round is over, or the connection is gone, nobody waits for the
//! answer, and the device has better things to do.

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
    /// Whether what this thread computes is over.
    static OVER: RefCell<Option<Arc<AtomicBool>>> = const { RefCell::new(None) };
}

/// Ends the computation that it belongs to when it is dropped.
#[derive(Debug, Default)]
pub(crate) struct Interrupt(Arc<AtomicBool>);

impl Drop for Interrupt {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Says to the thread that computes whether that is over.
#[derive(Clone, Debug)]
pub(crate) struct Over(Arc<AtomicBool>);

impl Interrupt {
    /// What the thread that computes looks at.
    pub(crate) fn over(&self) -> Over {
        Over(Arc::clone(&self.0))
    }
}

impl Over {
    /// Computes on this thread; what is guarded looks, between two batches, whether it is still wanted.
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

/// What ends a computation that nobody waits for.
pub(crate) struct Interrupted;

/// Leaves the computation, if it is over. It stands between trainers and loops that know nothing of ending early, so that it
/// leaves through all of them at once; no message is printed.
fn check() {
    if OVER.with_borrow(|over| over.as_ref().is_some_and(|over| over.load(Ordering::Relaxed))) {
        resume_unwind(Box::new(Interrupted));
    }
}

/// A worker whose computation ends between two blocks of examples, whatever its trainer is.
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

/// Stochastic gradient descent on a model, on a device: it ends between two batches when nobody waits for it.
pub fn model_trainer(model: Arc<dyn Model>) -> Sgd<Arc<dyn Model>> {
    Sgd::new(model).before_step(check)
}
