//! The threads on which devices compute.

use std::sync::Arc;

use deltafl::kernel;
use deltafl::trainer::{LocalTrainer, TrainerError, Worker};
use tokio::sync::{Semaphore, SemaphorePermit};

use crate::interruptible::{GuardedWorker, Interrupt};

/// Threads shared by the devices of a process.
#[derive(Debug)]
pub struct Workers {
    threads: Semaphore,
    /// Limits the number of computed answers that are not yet sent.
    answers: Semaphore,
}

/// A device's computation failed: its data or a user's trainer returned an error or panicked.
#[derive(Debug, thiserror::Error)]
#[error("the computation of this device failed")]
pub struct ComputationFailed {
    /// The error of the trainer, or `None` if it panicked.
    #[source]
    pub source: Option<TrainerError>,
}

impl Workers {
    /// Creates this many threads. At most eight answers per thread wait in memory for their upload.
    ///
    /// # Panics
    /// If there are no threads.
    pub fn new(threads: usize) -> Self {
        assert!(threads > 0, "devices need a thread to compute on");
        Self { threads: Semaphore::new(threads), answers: Semaphore::new(8 * threads) }
    }

    /// Reserves room for an answer until it is sent.
    pub(super) async fn room(&self) -> SemaphorePermit<'_> {
        self.answers.acquire().await.expect("the semaphore is never closed")
    }

    /// Computes on one of the threads. If the future is dropped, the computation stops between two
    /// batches.
    pub(super) async fn compute<T: Send + 'static>(
        &self,
        trainer: Arc<dyn LocalTrainer>,
        task: impl FnOnce(&mut dyn Worker) -> Result<T, TrainerError> + Send + 'static,
    ) -> Result<T, ComputationFailed> {
        let _thread = self.threads.acquire().await.expect("the semaphore is never closed");
        let interrupt = Interrupt::default();
        let over = interrupt.over();
        let done = tokio::task::spawn_blocking(move || {
            let _flushed = kernel::flush_denormals();
            over.guard(|| task(&mut GuardedWorker(trainer.worker())))
        });
        let result = done.await.map_err(|_| ComputationFailed { source: None })?;
        result.map_err(|source| ComputationFailed { source: Some(source) })
    }
}

#[cfg(test)]
mod tests {
    use deltafl::data::FederationIndex;
    use deltafl::data::synthetic::Glyphs;
    use deltafl::kernel::Isa;
    use deltafl::memory::AlgorithmState;
    use deltafl::model::{Model, ModelSpec};
    use deltafl::stream::{Purpose, Stream};
    use deltafl::trainer::{LocalPlan, LocalTask, Work};
    use tokio::sync::oneshot;

    use super::*;
    use crate::model_trainer;

    #[tokio::test]
    async fn training_that_nobody_waits_for_ends() {
        let federation = Arc::new(Glyphs { devices: 2.try_into().unwrap(), ..Glyphs::default() }.build());
        let model: Arc<dyn Model> = Arc::from(ModelSpec::LINEAR.build(&federation, Isa::detect()).unwrap());
        let (workers, len) = (Workers::new(1), model.num_params());
        let trainer = Arc::new(model_trainer(model));
        let (begun, begins) = oneshot::channel();
        // Dropped with the task, whether it finishes or is cancelled.
        let (alive, ended) = oneshot::channel::<()>();
        let endless = workers.compute(trainer, move |worker| {
            let _alive = alive;
            begun.send(()).unwrap();
            let plan = LocalPlan {
                work: Work::Epochs(u32::MAX),
                batch: 1,
                learning_rate: 0.0,
                l2: 0.0,
                proximal: 0.0,
                correction: None,
            };
            let params = vec![0.0; len];
            let mut stream = Stream::new(1, Purpose::LocalUpdate, 0, 0);
            let examples = federation.examples(FederationIndex(0));
            let task = LocalTask { params: &params, sent: &[], examples: &examples, plan: &plan };
            worker.update(&task, &mut AlgorithmState::default(), &mut stream).map(<[f32]>::len)
        });
        tokio::select! {
            _ = endless => panic!("four thousand million epochs do not end"),
            started = begins => started.unwrap(),
        }
        assert!(ended.await.is_err(), "the task was left");
    }
}
