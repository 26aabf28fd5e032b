//! Why a GPU cannot compute.

use cudarc::driver::DriverError;

/// Why a GPU cannot compute.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GpuError {
    /// The driver's library is not on this machine.
    #[error("no NVIDIA driver on this machine (libcuda was not found)")]
    NoDriver,
    /// There is no such GPU.
    #[error("there is no GPU {ordinal}; the driver sees {count}")]
    NoDevice {
        /// The number asked for.
        ordinal: usize,
        /// GPUs that there are.
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
        /// Its compute capability.
        got: (i32, i32),
        /// The lowest that will do.
        needed: (i32, i32),
    },
    /// Kernels have to be compiled and the compiler is not there.
    #[error(
        "NVRTC is not on this machine (libnvrtc was not found), and the kernels of model {kernels} are not in the cache; \
         install the CUDA toolkit or `pip install nvidia-cuda-nvrtc` and put its folder on LD_LIBRARY_PATH"
    )]
    NoCompiler {
        /// The source.
        kernels: &'static str,
    },
    /// A source does not compile.
    #[error("NVRTC refused {kernels}:\n{log}")]
    Compile {
        /// The source.
        kernels: &'static str,
        /// What NVRTC says.
        log: String,
    },
    /// There are no kernels for this model in this shape.
    #[error("no GPU kernels for model {model} {shape}; train it with --compute cpu")]
    Unsupported {
        /// The model.
        model: &'static str,
        /// What about it.
        shape: String,
    },
    /// There are no kernels for such targets.
    #[error(
        "no GPU kernels for targets that are real numbers, nor for more than 65,536 classes; train with --compute cpu"
    )]
    Targets,
    /// The GPU has too little memory.
    #[error("the GPU has {free} bytes free; {what} needs {needed}")]
    Memory {
        /// What for.
        what: &'static str,
        /// Bytes needed.
        needed: u64,
        /// Bytes free.
        free: u64,
    },
    /// Parameters of the wrong length.
    #[error("the model has {expected} parameters, got {got}")]
    Length {
        /// Parameters of the model.
        expected: usize,
        /// Parameters given.
        got: usize,
    },
    /// The driver reports an error.
    #[error("the CUDA driver reports {0}")]
    Driver(#[from] DriverError),
}
