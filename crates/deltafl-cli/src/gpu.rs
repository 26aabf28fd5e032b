//! A GPU for the devices of a run, where the user asks for one.

use std::path::PathBuf;

use deltafl::data::Federation;
use deltafl_cuda::{Cache, Device, Gpu, GpuError, Options as Use, Place};
use deltafl_data::experiment::Experiment;
use miette::Report;

use crate::error::bad_input;
use crate::session::Options;

/// The GPU of a run, or none: the CPU was asked for, or there is nothing better.
pub(crate) fn for_run<'a>(
    experiment: &Experiment,
    federation: &'a Federation,
    params: usize,
    options: &Options<'_>,
) -> Result<Option<Gpu<'a>>, Report> {
    let Some(ordinal) = options.compute.ordinal() else { return Ok(None) };
    match opened(experiment, federation, params, ordinal) {
        Ok(gpu) => {
            options.show.say(&format!("devices compute on GPU {ordinal}, {}", gpu.device().name()));
            Ok(Some(gpu))
        }
        Err(error) if options.compute == Place::Auto => {
            options.show.say(&format!("devices compute on the CPU: {error}"));
            Ok(None)
        }
        Err(error) => {
            let problem = bad_input(format!("--compute {} cannot be used", options.compute));
            Err(problem
                .because(error)
                .help("train with --compute cpu, or auto for a GPU where one will do")
                .into())
        }
    }
}

fn opened<'a>(
    experiment: &Experiment,
    federation: &'a Federation,
    params: usize,
    ordinal: usize,
) -> Result<Gpu<'a>, GpuError> {
    let device = Device::open(ordinal, cache())?;
    let mut gpu = Gpu::new(&device, federation, &experiment.model.spec(), params, Use::default())?;
    // Kernels that cannot be had are found before the run folder is made.
    gpu.prepare(experiment.local.batch.get())?;
    Ok(gpu)
}

/// Where compiled kernels are kept: the user's folder for such things, or nowhere.
pub(crate) fn cache() -> Cache {
    let folder = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let base = folder("XDG_CACHE_HOME").or_else(|| folder("HOME").map(|home| home.join(".cache")));
    base.map_or_else(Cache::default, |base| Cache::in_folder(base.join("deltafl").join("kernels")))
}
