//! The errors of GPU computing.

use cudarc::driver::DriverError;

/// The reason why a GPU cannot compute.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GpuError {
    /// The library of the driver was not found.
    #[error("no NVIDIA driver on this machine (libcuda was not found)")]
    NoDriver,
    /// There is no GPU with this number.
    #[error("there is no GPU {ordinal}; the driver reports {count}")]
    NoDevice {
        /// The requested number.
        ordinal: usize,
        /// The number of GPUs.
        count: usize,
    },
    /// The GPU lacks instructions that the kernels use.
    #[error(
        "{name} has compute capability {}.{}; model {model} needs {}.{} or higher",
        got.0, got.1, needed.0, needed.1
    )]
    TooOld {
        /// The GPU.
        name: String,
        /// The model.
        model: &'static str,
        /// The compute capability of the GPU.
        got: (i32, i32),
        /// The required compute capability.
        needed: (i32, i32),
    },
    /// Kernels must be compiled, but the compiler was not found.
    #[error(
        "NVRTC is not on this machine (libnvrtc was not found), and the kernels of model {kernels} are not in the cache; \
         install the CUDA toolkit or `pip install nvidia-cuda-nvrtc` and put its folder on LD_LIBRARY_PATH"
    )]
    NoCompiler {
        /// The source.
        kernels: &'static str,
    },
    /// A source does not compile.
    #[error("NVRTC rejected {kernels}:\n{log}")]
    Compile {
        /// The source.
        kernels: &'static str,
        /// The log of NVRTC.
        log: String,
    },
    /// There are no kernels for this model in this shape.
    #[error("no GPU kernels for model {model} {shape}; train it with --compute cpu")]
    Unsupported {
        /// The model.
        model: &'static str,
        /// The unsupported property.
        shape: String,
    },
    /// There are no kernels for targets of this kind.
    #[error(
        "no GPU kernels for targets that are real numbers, nor for more than 65,536 classes; train with --compute cpu"
    )]
    Targets,
    /// The GPU has too little memory.
    #[error("the GPU has {free} bytes free; {what} needs {needed}: use smaller batches, or --compute cpu")]
    Memory {
        /// The purpose of the memory.
        what: &'static str,
        /// The required bytes.
        needed: u64,
        /// The free bytes.
        free: u64,
    },
    /// The parameters have the wrong length.
    #[error("the model has {expected} parameters, got {got}")]
    Length {
        /// The number of parameters of the model.
        expected: usize,
        /// The number of parameters passed.
        got: usize,
    },
    /// A noisy sum has the wrong length.
    #[error("a noisy sum of updates has {expected} entries, got {got}")]
    SumLength {
        /// The number of entries of a noisy sum.
        expected: usize,
        /// The number of entries passed.
        got: usize,
    },
    /// More samples of the noise than expected were not decided by their first word.
    #[error("{count} samples of the noise are undecided; there is room for {room}: use --compute cpu")]
    Undecided {
        /// The number of undecided samples.
        count: u32,
        /// The number of samples for which there is room.
        room: u32,
    },
    /// The driver reported an error.
    #[error("the CUDA driver reported {0}")]
    Driver(#[from] DriverError),
}
