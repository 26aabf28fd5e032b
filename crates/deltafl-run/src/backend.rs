//! The compute backend of a run: the CPU or a GPU.

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use deltafl::algorithm::Track;
use deltafl::compute::{Compute, Threads};
use deltafl::data::Federation;
use deltafl::kernel::Isa;
use deltafl::trainer::LocalTrainer;
use deltafl_cuda::{BackendChoice, Gpu, GpuDevice, GpuError, GpuOptions, KernelCache};
use deltafl_data::experiment::{BackendName, Experiment};
use deltafl_data::run_folder;

use crate::session::RunError;

/// The parts of the machine that a run uses.
#[derive(Clone, Copy, Debug)]
pub struct Machine {
    /// Number of threads; one per core if `None`. The result has the same bits for any number.
    pub threads: Option<NonZeroUsize>,
    /// The instruction set of the kernels.
    pub kernel: Isa,
    /// The backend on which devices compute.
    pub compute: BackendChoice,
}

impl Default for Machine {
    fn default() -> Self {
        Self { threads: None, kernel: Isa::detect(), compute: BackendChoice::Auto }
    }
}

/// The backend of a process, ready to compute.
pub enum Backend<'a> {
    /// Threads of the CPU.
    Cpu {
        /// The threads.
        compute: Box<dyn Compute + Send + 'a>,
        /// The reason why a GPU that was tried cannot be used.
        no_gpu: Option<GpuError>,
    },
    /// One GPU.
    Gpu(Box<Gpu<'a>>),
}

/// The backend that a run requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BackendRequest {
    /// The number of the GPU; the CPU if `None`.
    pub gpu: Option<usize>,
    /// Whether an unusable GPU is an error. If not, the run uses the CPU instead.
    pub required: bool,
}

impl BackendRequest {
    /// The CPU.
    pub const CPU: Self = Self { gpu: None, required: false };

    /// Returns the backend of the run in `folder`. An existing run continues on its backend unless
    /// the user names another.
    pub fn for_run(folder: &Path, place: BackendChoice) -> Self {
        match begun_on(folder).filter(|_| place == BackendChoice::Auto) {
            Some(BackendName::Cpu) => Self::CPU,
            Some(BackendName::Gpu(_)) => Self { gpu: Some(0), required: true },
            None => place.into(),
        }
    }

    /// Returns the GPU of one of several processes on a machine. The processes share its GPUs
    /// round-robin unless the user names one.
    #[cfg(feature = "mpi")]
    pub(crate) fn gpu_of_process(place: BackendChoice, process: usize) -> usize {
        match place {
            BackendChoice::Cuda { ordinal } if ordinal > 0 => ordinal,
            _ => process % GpuDevice::count().unwrap_or(1).max(1),
        }
    }

    /// Returns the driver's name of the GPU, or `None` without a GPU.
    #[cfg(feature = "mpi")]
    pub(crate) fn gpu_name(&self) -> Option<String> {
        Some(GpuDevice::open(self.gpu?, kernel_cache()).ok()?.name().to_owned())
    }
}

impl From<BackendChoice> for BackendRequest {
    fn from(place: BackendChoice) -> Self {
        Self { gpu: place.ordinal(), required: matches!(place, BackendChoice::Cuda { .. }) }
    }
}

impl<'a> Backend<'a> {
    /// Opens the requested backend. Uses the CPU if the GPU cannot be used and is not required.
    ///
    /// # Errors
    ///
    /// Fails if a required GPU cannot be used, or if the CPU cannot train the federation.
    pub fn open(
        request: BackendRequest,
        experiment: &Experiment,
        federation: &'a Federation,
        trainer: &'a dyn LocalTrainer,
        threads: Option<NonZeroUsize>,
    ) -> Result<Self, RunError> {
        // GPUs do not train personal models. Such an experiment uses the CPU unless a GPU is
        // required.
        let unfit = experiment.tracks().iter().any(Track::needs_cpu);
        let Some(ordinal) = request.gpu.filter(|_| request.required || !unfit) else {
            return Self::cpu(federation, trainer, threads);
        };
        match opened(experiment, federation, trainer.num_params(), ordinal) {
            Ok(gpu) => Ok(Self::Gpu(Box::new(gpu))),
            Err(source) if request.required => Err(RunError::Gpu { ordinal, source }),
            Err(error) => match Self::cpu(federation, trainer, threads)? {
                Self::Cpu { compute, .. } => Ok(Self::Cpu { compute, no_gpu: Some(error) }),
                gpu => Ok(gpu),
            },
        }
    }

    /// Opens the CPU backend.
    ///
    /// # Errors
    ///
    /// Fails if the trainer and the federation do not fit, or if the threads cannot be started.
    pub fn cpu(
        federation: &'a Federation,
        trainer: &'a dyn LocalTrainer,
        threads: Option<NonZeroUsize>,
    ) -> Result<Self, RunError> {
        let threads = Threads::new(trainer, federation, threads).map_err(RunError::compute)?;
        Ok(Self::Cpu { compute: Box::new(threads), no_gpu: None })
    }

    /// Returns the compute backend for one run.
    pub(crate) fn into_compute(self) -> Box<dyn Compute + Send + 'a> {
        match self {
            Self::Cpu { compute, .. } => compute,
            Self::Gpu(gpu) => gpu,
        }
    }

    /// Returns the record for the run folder.
    pub(crate) fn recorded(&self) -> BackendName {
        match self {
            Self::Cpu { .. } => BackendName::Cpu,
            Self::Gpu(gpu) => BackendName::Gpu(gpu.device().name().to_owned()),
        }
    }

    /// Returns a one-line description for the user.
    pub(crate) fn description(&self) -> String {
        match self {
            Self::Gpu(gpu) => format!("devices compute on the GPU, {}", gpu.device().name()),
            // Most machines have no GPU, which needs no explanation.
            Self::Cpu { no_gpu: None | Some(GpuError::NoDriver | GpuError::NoDevice { .. }), .. } => {
                "devices compute on the CPU".to_owned()
            }
            Self::Cpu { no_gpu: Some(error), .. } => format!("devices compute on the CPU: {error}"),
        }
    }
}

/// Returns the backend recorded in a run folder, or `None` if it contains no run.
fn begun_on(folder: &Path) -> Option<BackendName> {
    Some(run_folder::read_experiment(folder).ok()?.resolved()?.compute.clone())
}

fn opened<'a>(
    experiment: &Experiment,
    federation: &'a Federation,
    params: usize,
    ordinal: usize,
) -> Result<Gpu<'a>, GpuError> {
    let device = GpuDevice::open(ordinal, kernel_cache())?;
    let mut gpu = Gpu::new(&device, federation, experiment.model().spec(), params, GpuOptions::default())?;
    // Missing kernels are detected before the run folder is created.
    gpu.prepare(experiment.local().batch)?;
    Ok(gpu)
}

/// Returns the cache of compiled kernels, located in the user's cache folder if there is one.
pub fn kernel_cache() -> KernelCache {
    let folder = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let base = folder("XDG_CACHE_HOME").or_else(|| folder("HOME").map(|home| home.join(".cache")));
    base.map_or_else(KernelCache::default, |base| {
        KernelCache::in_folder(base.join("deltafl").join("kernels"))
    })
}
