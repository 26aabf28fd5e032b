//! Where devices compute: an NVIDIA GPU.
//!
//! A whole cohort trains inside one GPU. The federation is uploaded once; the server sends w and the order in which
//! each device passes over its examples, and gets back the sum of the updates as integers modulo 2^64:
//!
//! ```text
//! host    draws the order of every device (the keyed streams of the CPU), largest device first
//! GPU     trains every device in its own block, cluster or slot         kernels/<model>.cu
//!         α·ω·(w_k − w)·2^24, rounded, summed modulo 2^64               kernels/sums.cu
//! host    adds the sums of this GPU to those of others
//! ```
//!
//! The CUDA driver and NVRTC are loaded when a [`Device`] is opened: a machine without them builds and runs everything
//! else. Kernels are compiled for the sizes of the model at hand and cached on disk.
//!
//! The same bits come back whatever else runs on the GPU, since no result depends on the order of blocks: each device
//! is trained by itself, and sums are sums of integers. Other kinds of GPU and the CPU round differently;
//! `docs/src/reference/gpu.md` states the bounds of the difference, and the tests check them.

mod compile;
mod data;
mod device;
mod error;
mod gpu;
mod launch;
mod memory;
mod model;
mod order;
mod place;
mod sums;
mod task;
mod wanted;

pub use compile::Cache;
pub use device::Device;
pub use error::GpuError;
pub use gpu::{Gpu, Options};
pub use place::{Place, UnknownPlace};
