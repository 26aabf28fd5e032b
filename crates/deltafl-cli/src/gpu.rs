//! Where the devices of a run compute: a GPU or the CPU.

use std::path::{Path, PathBuf};

use deltafl::data::Federation;
use deltafl_cuda::{Cache, Device, Gpu, GpuError, Options as Use, Place};
use deltafl_data::experiment::{ComputedOn, Experiment};
use deltafl_data::run_folder;
use miette::Report;

use crate::error::bad_input;
use crate::progress::Show;
use crate::session::Options;

/// Where devices compute, found for an experiment.
pub(crate) enum Found<'a> {
    /// The CPU; and why no GPU, where one was looked for.
    Cpu {
        why: Option<GpuError>,
    },
    Gpu(Box<Gpu<'a>>),
}

/// Where devices shall compute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Wish {
    /// The number of the GPU; the CPU without one.
    pub(crate) gpu: Option<usize>,
    /// Whether it is an error that the GPU cannot be used.
    pub(crate) required: bool,
}

impl Wish {
    /// The CPU.
    #[cfg(feature = "mpi")]
    pub(crate) const CPU: Self = Self { gpu: None, required: false };

    /// The place of a run. One that was begun goes on where it was begun, unless the user names another place.
    pub(crate) fn for_run(folder: &Path, place: Place) -> Self {
        match begun_on(folder).filter(|_| place == Place::Auto) {
            Some(ComputedOn::Cpu) => Self { gpu: None, required: false },
            Some(ComputedOn::Gpu(_)) => Self { gpu: Some(0), required: true },
            None => place.into(),
        }
    }

    /// The GPU of one of several processes on a machine, which share its GPUs in turn unless one is named.
    #[cfg(feature = "mpi")]
    pub(crate) fn gpu_of_process(place: Place, process: usize) -> usize {
        match place {
            Place::Cuda { ordinal } if ordinal > 0 => ordinal,
            _ => process % Device::count().unwrap_or(1).max(1),
        }
    }

    /// What the driver calls the GPU; `None` without one.
    #[cfg(feature = "mpi")]
    pub(crate) fn name(&self) -> Option<String> {
        Some(Device::open(self.gpu?, cache()).ok()?.name().to_owned())
    }
}

impl From<Place> for Wish {
    fn from(place: Place) -> Self {
        Self { gpu: place.ordinal(), required: matches!(place, Place::Cuda { .. }) }
    }
}

impl<'a> Found<'a> {
    /// The place that is asked for; the CPU where the GPU cannot be used and is not required.
    pub(crate) fn at(
        wish: Wish,
        experiment: &Experiment,
        federation: &'a Federation,
        params: usize,
    ) -> Result<Self, Report> {
        // A GPU neither corrects steps nor clips updates: an experiment that wants it stays on the CPU, unless the GPU is
        // insisted on.
        let corrected = experiment.plan().tracks.iter().any(|track| track.correction.is_some());
        let unfit = corrected || experiment.clip().is_some();
        let gpu = wish.gpu.filter(|_| wish.required || !unfit);
        let Some(ordinal) = gpu else { return Ok(Self::Cpu { why: None }) };
        match opened(experiment, federation, params, ordinal) {
            Ok(gpu) => Ok(Self::Gpu(Box::new(gpu))),
            Err(error) if !wish.required => Ok(Self::Cpu { why: Some(error) }),
            Err(error) => Err(bad_input(format!("--compute cuda:{ordinal} cannot be used"))
                .because(error)
                .help("train with --compute cpu, or auto for a GPU where one will do; a run goes on where it was begun")
                .into()),
        }
    }

    /// Where a run computes, and a word about it.
    pub(crate) fn for_run(
        experiment: &Experiment,
        federation: &'a Federation,
        params: usize,
        options: &Options<'_>,
    ) -> Result<Self, Report> {
        let found = Self::at(Wish::for_run(options.out, options.compute), experiment, federation, params)?;
        // Not to a listener, for whom everything said is a warning.
        if matches!(options.show, Show::Plain) {
            eprintln!("{}", found.told());
        }
        Ok(found)
    }

    /// For the run folder of ranks.
    #[cfg_attr(
        not(feature = "mpi"),
        expect(dead_code, reason = "other runs ask the place where they compute")
    )]
    pub(crate) fn recorded(&self) -> ComputedOn {
        match self {
            Self::Cpu { .. } => ComputedOn::Cpu,
            Self::Gpu(gpu) => ComputedOn::Gpu(gpu.device().name().to_owned()),
        }
    }

    /// For the user.
    pub(crate) fn told(&self) -> String {
        match self {
            Self::Gpu(gpu) => format!("devices compute on the GPU, {}", gpu.device().name()),
            // A machine without a GPU is the rule, and nothing to explain.
            Self::Cpu { why: None | Some(GpuError::NoDriver | GpuError::NoDevice { .. }) } => {
                "devices compute on the CPU".to_owned()
            }
            Self::Cpu { why: Some(error) } => format!("devices compute on the CPU: {error}"),
        }
    }
}

/// The place that a run folder records, if it holds a run.
fn begun_on(folder: &Path) -> Option<ComputedOn> {
    Some(run_folder::read_experiment(folder).ok()?.resolved?.compute)
}

fn opened<'a>(
    experiment: &Experiment,
    federation: &'a Federation,
    params: usize,
    ordinal: usize,
) -> Result<Gpu<'a>, GpuError> {
    let device = Device::open(ordinal, cache())?;
    let mut gpu = Gpu::new(&device, federation, &experiment.model().spec(), params, Use::default())?;
    // Kernels that cannot be had are found before the run folder is made.
    gpu.prepare(experiment.local().batch)?;
    Ok(gpu)
}

/// Where compiled kernels are kept: the user's folder for such things, or nowhere.
pub(crate) fn cache() -> Cache {
    let folder = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let base = folder("XDG_CACHE_HOME").or_else(|| folder("HOME").map(|home| home.join(".cache")));
    base.map_or_else(Cache::default, |base| Cache::in_folder(base.join("deltafl").join("kernels")))
}
