//! Forward passes that divide items into groups of examples.

use std::sync::Arc;

use cudarc::driver::CudaStream;

use super::Scores;
use crate::GpuError;
use crate::device::Kernel;
use crate::launch::{Arg, LaunchGrid, launch};
use crate::memory::{Buffer, Mirror};
use crate::task::Task;

/// The groups of a pass, and their losses and errors at one vector of parameters.
pub(super) struct GroupScores {
    groups: Mirror<Task>,
    first_group: Mirror<u32>,
    losses: Buffer<f64>,
    errors: Buffer<u32>,
}

impl GroupScores {
    pub(super) fn new(stream: &Arc<CudaStream>) -> Result<Self, GpuError> {
        Ok(Self {
            groups: Mirror::new(stream)?,
            first_group: Mirror::new(stream)?,
            losses: Buffer::new(stream)?,
            errors: Buffer::new(stream)?,
        })
    }

    /// Divides the items of a pass into groups of at most `size` examples. Returns their number.
    pub(super) fn start(&mut self, pass: &Scores<'_>, size: usize) -> Result<usize, GpuError> {
        let (groups, first_group) = pass.groups(size);
        self.groups.send(groups.len(), |host| host.copy_from_slice(&groups))?;
        self.first_group.send(first_group.len(), |host| host.copy_from_slice(&first_group))?;
        self.losses.reserve(groups.len())?;
        self.errors.reserve(groups.len())?;
        Ok(groups.len())
    }

    /// Returns the tasks, losses and errors of the groups from `first` on.
    pub(super) fn from(&self, first: usize) -> [Arg; 3] {
        let (losses, errors) = (self.losses.arg(), self.errors.arg());
        [self.groups.arg().offset::<Task>(first), losses.offset::<f64>(first), errors.offset::<u32>(first)]
    }

    /// Adds the scores of the groups of each item, at a vector of parameters, with the kernel
    /// `add_groups`.
    pub(super) fn add(&self, pass: &Scores<'_>, vector: usize, add: &Kernel) -> Result<(), GpuError> {
        let (items, at) = (pass.items.len(), vector * pass.items.len());
        let args = [
            self.first_group.arg(),
            Arg::U32(items as u32),
            self.losses.arg(),
            self.errors.arg(),
            pass.losses.offset::<f64>(at),
            pass.errors.offset::<u32>(at),
        ];
        let blocks = (items.div_ceil(256) as u32, 1);
        launch(pass.stream, add, LaunchGrid { blocks, threads: 256 }, &args)
    }
}
