//! The threads on which devices compute.

use std::sync::{Mutex, PoisonError};

use deltafl::device::Workspace;
use deltafl::kernel;
use tokio::sync::{Semaphore, SemaphorePermit};

/// A few threads, and the memory in which they train, shared by the devices of a process.
#[derive(Debug)]
pub struct Workers {
    threads: Semaphore,
    /// Answers that are computed and not yet sent.
    answers: Semaphore,
    workspaces: Mutex<Vec<Workspace>>,
}

/// A device's computation failed: its data, or a model that a user brought, made it panic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the computation of this device failed")]
pub struct Failed;

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
        task: impl FnOnce(&mut Workspace) -> T + Send + 'static,
    ) -> Result<T, Failed> {
        let _thread = self.threads.acquire().await.expect("the semaphore is never closed");
        let mut workspace = self.spare().pop().unwrap_or_default();
        let done = tokio::task::spawn_blocking(move || {
            let _flushed = kernel::flush_denormals();
            let result = task(&mut workspace);
            (result, workspace)
        });
        let (result, workspace) = done.await.map_err(|_| Failed)?;
        self.spare().push(workspace);
        Ok(result)
    }

    fn spare(&self) -> std::sync::MutexGuard<'_, Vec<Workspace>> {
        self.workspaces.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
