//! The threads on which devices compute.

use std::sync::{Arc, Mutex, PoisonError};

use deltafl::kernel;
use deltafl::model::Model;
use deltafl::trainer::{Sgd, TrainerError, Worker, Workspace};
use tokio::sync::{Semaphore, SemaphorePermit};

/// A few threads, and the memory in which they train, shared by the devices of a process.
#[derive(Debug)]
pub struct Workers {
    threads: Semaphore,
    /// Answers that are computed and not yet sent.
    answers: Semaphore,
    workspaces: Mutex<Vec<Workspace>>,
}

/// A device's computation failed: its data, or a trainer that a user brought, made it fail or panic.
#[derive(Debug, thiserror::Error)]
#[error("the computation of this device failed")]
pub struct Failed {
    /// What the trainer said; nothing where it panicked.
    #[source]
    pub source: Option<TrainerError>,
}

impl Workers {
    /// So many threads. Answers wait for their upload in memory, eight per thread at most.
    pub fn new(threads: usize) -> Self {
        Self {
            threads: Semaphore::new(threads),
            answers: Semaphore::new(8 * threads),
            workspaces: Mutex::default(),
        }
    }

    /// Room for an answer, until it is sent.
    pub(super) async fn room(&self) -> SemaphorePermit<'_> {
        self.answers.acquire().await.expect("the semaphore is never closed")
    }

    /// Computes on one of the threads.
    pub(super) async fn compute<T: Send + 'static>(
        &self,
        model: Arc<dyn Model>,
        task: impl FnOnce(&mut dyn Worker) -> Result<T, TrainerError> + Send + 'static,
    ) -> Result<T, Failed> {
        let _thread = self.threads.acquire().await.expect("the semaphore is never closed");
        let workspace = self.spare().pop().unwrap_or_default();
        let done = tokio::task::spawn_blocking(move || {
            let _flushed = kernel::flush_denormals();
            let mut worker = Sgd::new(&*model).worker_in(workspace);
            let result = task(&mut worker);
            (result, worker.into_workspace())
        });
        let (result, workspace) = done.await.map_err(|_| Failed { source: None })?;
        self.spare().push(workspace);
        result.map_err(|source| Failed { source: Some(source) })
    }

    fn spare(&self) -> std::sync::MutexGuard<'_, Vec<Workspace>> {
        self.workspaces.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
