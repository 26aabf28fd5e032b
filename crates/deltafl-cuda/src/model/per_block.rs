//! Models small enough for one kernel per update, a block per device.

use super::{Scorer, Scores, Trainer, Updates};
use crate::GpuError;
use crate::device::Kernel;
use crate::launch::{Grid, launch};

/// A kernel `update` or `score` with a block per task or item.
pub(super) struct PerBlock {
    pub(super) kernel: Kernel,
    pub(super) threads: u32,
}

impl Trainer for PerBlock {
    fn train(&mut self, updates: &Updates<'_>) -> Result<(), GpuError> {
        let grid = Grid { blocks: (updates.tasks.len() as u32, 1), threads: self.threads };
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
}

impl Scorer for PerBlock {
    fn score(&mut self, pass: &Scores<'_>) -> Result<(), GpuError> {
        let grid = Grid { blocks: (pass.items.len() as u32, pass.vectors), threads: self.threads };
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
