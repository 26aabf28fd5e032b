//! Models that are small enough for one kernel per update, with one block per device.

use super::{KernelSetup, Scorer, Scores, Trainer, Updates};
use crate::GpuError;
use crate::device::Kernel;
use crate::launch::{LaunchGrid, launch};

/// The build parameters of such a model.
pub(super) struct PerBlockModel {
    /// The threads of a block.
    pub(super) threads: u32,
    /// Concurrent examples of a forward pass.
    pub(super) scored: usize,
    /// Returns the kernel of a name, for batches of at most this size.
    pub(super) kernel: fn(&KernelSetup<'_>, usize, &str) -> Result<Kernel, GpuError>,
}

impl PerBlockModel {
    pub(super) fn trainer(
        &self,
        setup: &KernelSetup<'_>,
        batch: usize,
    ) -> Result<Box<dyn Trainer>, GpuError> {
        let kernel = (self.kernel)(setup, batch, "update")?;
        Ok(Box::new(PerBlock { kernel, threads: self.threads }))
    }

    pub(super) fn scorer(&self, setup: &KernelSetup<'_>) -> Result<Box<dyn Scorer>, GpuError> {
        let kernel = (self.kernel)(setup, self.scored, "score")?;
        Ok(Box::new(PerBlock { kernel, threads: self.threads }))
    }
}

/// A kernel `update` or `score` with one block per task or item.
struct PerBlock {
    kernel: Kernel,
    threads: u32,
}

impl Trainer for PerBlock {
    fn train(&mut self, updates: &Updates<'_>) -> Result<(), GpuError> {
        let grid = LaunchGrid { blocks: (updates.tasks.len() as u32, 1), threads: self.threads };
        let args = [
            updates.task_list,
            updates.params,
            updates.order,
            updates.columns.inputs(),
            updates.columns.labels(),
            updates.constants.scale(),
            updates.constants.shift(),
            updates.local,
        ];
        launch(updates.stream, &self.kernel, grid, &args)
    }

    fn bytes_per_task(&self) -> u64 {
        0
    }

    fn bytes_per_vector(&self) -> u64 {
        0
    }
}

impl Scorer for PerBlock {
    fn score(&mut self, pass: &Scores<'_>) -> Result<(), GpuError> {
        let grid = LaunchGrid { blocks: (pass.items.len() as u32, pass.vectors), threads: self.threads };
        let args = [
            pass.item_list,
            pass.params,
            pass.columns.inputs(),
            pass.columns.labels(),
            pass.constants.scale(),
            pass.constants.shift(),
            pass.losses,
            pass.errors,
        ];
        launch(pass.stream, &self.kernel, grid, &args)
    }
}
