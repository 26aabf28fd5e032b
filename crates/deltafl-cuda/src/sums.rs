//! Updates as integers on the GPU, and their sums modulo 2^64 (`kernels/sums.cu`).

use std::sync::Arc;

use cudarc::driver::CudaStream;
use deltafl::params::UpdateCode;

use crate::GpuError;
use crate::compile::KernelSource;
use crate::device::{GpuDevice, Kernel};
use crate::launch::{Arg, LaunchGrid, launch};
use crate::memory::{Buffer, Mirror};
use crate::task::Trained;

/// Updates per block of the sum, as in the kernel.
const PER_BLOCK: u32 = 16;

pub(crate) fn source() -> KernelSource {
    KernelSource { name: "sums.cu", text: include_str!("kernels/sums.cu").into(), sizes: Vec::new() }
}

/// The sums of a call, one per query.
pub(crate) struct Sums {
    add_updates: Kernel,
    clip_updates: Kernel,
    take_refused_back: Kernel,
    trained: Mirror<Trained>,
    refused: Buffer<u32>,
    sums: Mirror<u64>,
    stream: Arc<CudaStream>,
    params: usize,
}

impl Sums {
    /// Creates sums for updates of this many parameters.
    pub(crate) fn new(device: &GpuDevice, stream: &Arc<CudaStream>, params: usize) -> Result<Self, GpuError> {
        let module = device.load(&source(), stream)?;
        Ok(Self {
            add_updates: module.kernel("add_updates", 0)?,
            clip_updates: module.kernel("clip_updates", 0)?,
            take_refused_back: module.kernel("take_refused_back", 0)?,
            trained: Mirror::new(stream)?,
            refused: Buffer::new(stream)?,
            sums: Mirror::new(stream)?,
            stream: stream.clone(),
            params,
        })
    }

    /// Starts this many sums, all zero.
    pub(crate) fn start(&mut self, queries: usize) -> Result<(), GpuError> {
        let len = queries * UpdateCode::len(self.params);
        self.sums.reserve(len)?;
        self.sums.clear(len)
    }

    /// Adds updates whose w_k are in `local`, sorted by query, encoded and clipped by `code`.
    pub(crate) fn add(
        &mut self,
        trained: &[Trained],
        params: Arg,
        local: Arg,
        code: &UpdateCode,
    ) -> Result<(), GpuError> {
        debug_assert!(trained.is_sorted_by_key(|update| update.query), "updates are sorted by query");
        let (count, len) = (trained.len(), Arg::U32(self.params as u32));
        self.trained.send(count, |host| host.copy_from_slice(trained))?;
        self.refused.reserve(count)?.clear(count)?;
        if let Some(clip) = code.clip() {
            let grid = LaunchGrid { blocks: (count as u32, 1), threads: 32 };
            let args = [self.trained.arg(), params, local, len, Arg::F64(clip.get())];
            launch(&self.stream, &self.clip_updates, grid, &args)?;
        }
        let blocks = (UpdateCode::len(self.params).div_ceil(256) as u32, (count as u32).div_ceil(PER_BLOCK));
        let args = [
            self.trained.arg(),
            Arg::U32(count as u32),
            params,
            local,
            len,
            Arg::F64(code.limit()),
            self.sums.arg(),
            self.refused.arg(),
        ];
        launch(&self.stream, &self.add_updates, LaunchGrid { blocks, threads: 256 }, &args)?;
        // Rejected updates are rare, so few blocks suffice. They read a number and end.
        let blocks = (4, count as u32);
        let args = [self.trained.arg(), self.refused.arg(), params, local, len, self.sums.arg()];
        launch(&self.stream, &self.take_refused_back, LaunchGrid { blocks, threads: 256 }, &args)
    }

    /// Waits for the sums.
    pub(crate) fn finish(&mut self, queries: usize) -> Result<&[u64], GpuError> {
        self.sums.receive(queries * UpdateCode::len(self.params))
    }
}
