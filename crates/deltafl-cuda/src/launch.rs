//! Kernel launches: the only place where arguments are passed to kernels.

#![allow(unsafe_code)]

use std::sync::Arc;

use cudarc::driver::{CudaSlice, CudaStream, DevicePtr, LaunchConfig, PushKernelArg};

use crate::GpuError;
use crate::device::Kernel;
use crate::task::Wave;

/// An argument of a kernel.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Arg {
    /// An address in GPU memory.
    Pointer(u64),
    U32(u32),
    U64(u64),
    F64(f64),
}

impl Arg {
    /// Returns the address, or 0 for a number.
    pub(crate) fn address(self) -> u64 {
        match self {
            Self::Pointer(address) => address,
            Self::U32(_) | Self::U64(_) | Self::F64(_) => 0,
        }
    }

    /// Returns the address of entry `i` of a buffer of T.
    pub(crate) fn offset<T>(self, i: usize) -> Self {
        match self {
            Self::Pointer(address) => Self::Pointer(address + (i * size_of::<T>()) as u64),
            number => number,
        }
    }
}

/// Returns the address of a buffer.
pub(crate) fn pointer<T>(buffer: &CudaSlice<T>, stream: &CudaStream) -> Arg {
    Arg::Pointer(buffer.device_ptr(stream).0)
}

/// The most rows of a grid.
pub(crate) const MOST_GRID_ROWS: usize = 65_535;

/// The number of blocks and of threads per block.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LaunchGrid {
    pub(crate) blocks: (u32, u32),
    pub(crate) threads: u32,
}

impl LaunchGrid {
    fn config(self, kernel: &Kernel) -> LaunchConfig {
        LaunchConfig {
            grid_dim: (self.blocks.0, self.blocks.1, 1),
            block_dim: (self.threads, 1, 1),
            shared_mem_bytes: kernel.shared,
        }
    }
}

/// Launches a kernel, unless there are no blocks. The arguments must match the kernel, in order.
pub(crate) fn launch(
    stream: &Arc<CudaStream>,
    kernel: &Kernel,
    grid: LaunchGrid,
    args: &[Arg],
) -> Result<(), GpuError> {
    if grid.blocks.0 == 0 || grid.blocks.1 == 0 {
        return Ok(());
    }
    let mut builder = stream.launch_builder(&kernel.function);
    for arg in args {
        match arg {
            Arg::Pointer(value) | Arg::U64(value) => builder.arg(value),
            Arg::U32(value) => builder.arg(value),
            Arg::F64(value) => builder.arg(value),
        };
    }
    // SAFETY: every kernel of this crate accesses only the buffers that its caller sized for it.
    // The tests run all kernels under the memory checker.
    unsafe { builder.launch(grid.config(kernel))? };
    Ok(())
}

/// Launches a kernel of the general engine. The wave must contain the buffers that its program
/// requires.
pub(crate) fn launch_wave(
    stream: &Arc<CudaStream>,
    kernel: &Kernel,
    grid: LaunchGrid,
    wave: &Wave,
    time: u32,
) -> Result<(), GpuError> {
    let mut builder = stream.launch_builder(&kernel.function);
    builder.arg(wave).arg(&time);
    // SAFETY: as above.
    unsafe { builder.launch(grid.config(kernel))? };
    Ok(())
}
