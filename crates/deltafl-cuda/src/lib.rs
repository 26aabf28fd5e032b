//! The compute backend of Δ-FL on an NVIDIA GPU.
//!
//! ```no_run
//! use deltafl::prelude::*;
//! use deltafl_cuda::{Gpu, GpuDevice, GpuOptions, KernelCache};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let federation = Glyphs::default().build();
//! let model = ModelSpec::LINEAR.build(&federation, Isa::detect())?;
//! let trainer = Sgd::new(&*model);
//! let device = GpuDevice::open(0, KernelCache::default())?;
//! let params = model.num_params();
//! let gpu = Gpu::new(&device, &federation, &ModelSpec::LINEAR, params, GpuOptions::default())?;
//! let mut exchange = Simulation::with_compute(gpu, &federation)?;
//! let plan = Plan::builder().track(Track::fed_avg()).build()?;
//! train(&mut exchange, &plan, &mut plan.start(1, &trainer), &mut Records::default())?;
//! # Ok(())
//! # }
//! ```
//!
//! # How it works
//!
//! A whole cohort trains within one GPU. The federation is uploaded once. Each round, the host
//! uploads w and the order in which each device visits its examples, and receives the sum of the
//! updates as integers modulo 2^64:
//!
//! ```text
//! host    draws the order of every device (the keyed streams of the CPU), largest device first
//! GPU     trains every device in its own block, cluster or slot         kernels/<model>.cu,
//!                                                                       kernels/general
//!         α·ω·(w_k − w)·2^24, rounded, summed modulo 2^64               kernels/sums.cu
//!         or clipped, rotated, rounded and noisy in private rounds      kernels/noise.cu
//! host    adds the sums of this GPU to those of others
//! ```
//!
//! The CUDA driver and NVRTC are loaded when a [`GpuDevice`] is opened. A machine without them
//! builds and runs everything else. Kernels are compiled for the sizes of the model and cached on
//! disk.
//!
//! Results do not depend on the order of blocks: each device is trained separately, and sums are
//! sums of integers. Therefore a run has the same bits regardless of other work on the GPU. Other
//! kinds of GPU and the CPU round differently. `docs/src/reference/gpu.md` states by how much, and
//! the tests check it.

mod choice;
mod compile;
mod data;
mod device;
mod error;
mod gpu;
mod host;
mod launch;
mod memory;
mod model;
mod noisy;
mod order;
mod sums;
mod task;
mod wanted;

pub use choice::{BackendChoice, UnknownBackend};
pub use compile::KernelCache;
pub use device::GpuDevice;
pub use error::GpuError;
pub use gpu::{Gpu, GpuOptions};
