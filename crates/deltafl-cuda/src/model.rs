//! The models with kernels: one kernel file and one line in [`MODELS`] each. The general engine
//! ([`general`]) runs other models and shapes.
//!
//! A model provides a [`Trainer`] and a [`Scorer`]. Everything else is shared, from the upload of
//! the data to the sums of the updates.

use std::sync::Arc;

use cudarc::driver::CudaStream;
use deltafl::data::Federation;
use deltafl::model::{CONV_NET, GRU, LINEAR, LOGISTIC, LSTM, ModelDefinition, ModelSpec, PERCEPTRON};

use crate::GpuError;
use crate::compile::KernelSource;
use crate::data::{Constants, GpuColumns};
use crate::device::GpuDevice;
use crate::launch::Arg;
use crate::task::{Item, Task};

mod conv_net;
mod general;
mod groups;
mod gru;
mod linear;
mod logistic;
mod lstm;
mod per_block;
mod perceptron;

/// Builds kernels that train with batches of at most this size.
type BuildTrainer = fn(&KernelSetup<'_>, usize) -> Result<Box<dyn Trainer>, GpuError>;
/// Builds kernels that evaluate.
type BuildScorer = fn(&KernelSetup<'_>) -> Result<Box<dyn Scorer>, GpuError>;

/// The kernels of a model.
pub(crate) struct ModelKernels {
    /// The name of the model in an experiment file.
    definition: &'static ModelDefinition,
    /// The lowest compute capability with its instructions.
    capability: (i32, i32),
    trainer: BuildTrainer,
    scorer: BuildScorer,
    /// The sources in the sizes of the paper, for the tests.
    #[cfg_attr(not(test), expect(dead_code, reason = "read by the test that compiles every source"))]
    sources: fn() -> Vec<KernelSource>,
}

/// All models with kernels.
static MODELS: &[ModelKernels] = &[
    ModelKernels {
        definition: &CONV_NET,
        capability: (8, 0),
        trainer: conv_net::trainer,
        scorer: conv_net::scorer,
        sources: conv_net::sources,
    },
    ModelKernels {
        definition: &GRU,
        capability: (9, 0),
        trainer: gru::trainer,
        scorer: gru::scorer,
        sources: gru::sources,
    },
    ModelKernels {
        definition: &LINEAR,
        capability: (8, 0),
        trainer: |setup, batch| linear::KERNELS.trainer(setup, batch),
        scorer: |setup| linear::KERNELS.scorer(setup),
        sources: linear::sources,
    },
    ModelKernels {
        definition: &LSTM,
        capability: (8, 0),
        trainer: lstm::trainer,
        scorer: lstm::scorer,
        sources: lstm::sources,
    },
    ModelKernels {
        definition: &PERCEPTRON,
        capability: (8, 0),
        trainer: |setup, batch| perceptron::KERNELS.trainer(setup, batch),
        scorer: |setup| perceptron::KERNELS.scorer(setup),
        sources: perceptron::sources,
    },
    ModelKernels {
        definition: &LOGISTIC,
        capability: (8, 0),
        trainer: |setup, batch| logistic::KERNELS.trainer(setup, batch),
        scorer: |setup| logistic::KERNELS.scorer(setup),
        sources: logistic::sources,
    },
];

/// Runs local updates.
pub(crate) trait Trainer: Send {
    /// Starts the local updates of all tasks, largest first. w_k of a task is written to its slot.
    fn train(&mut self, updates: &Updates<'_>) -> Result<(), GpuError>;

    /// Returns the bytes of GPU memory per concurrent task, in addition to w_k.
    fn bytes_per_task(&self) -> u64;

    /// Returns the bytes of GPU memory per vector of parameters, in addition to the vector.
    fn bytes_per_vector(&self) -> u64;
}

/// Runs forward passes.
pub(crate) trait Scorer: Send {
    /// Starts the forward passes of all items at all parameters. Loss and errors of item i at
    /// vector p are written to entry p·items + i.
    fn score(&mut self, pass: &Scores<'_>) -> Result<(), GpuError>;
}

/// The model and data for which kernels are built.
#[derive(Clone, Copy)]
pub(crate) struct KernelSetup<'a> {
    pub(crate) device: &'a GpuDevice,
    pub(crate) stream: &'a Arc<CudaStream>,
    pub(crate) spec: &'a ModelSpec,
    pub(crate) federation: &'a Federation,
    pub(crate) constants: &'a Constants,
}

/// The local updates of a wave.
pub(crate) struct Updates<'a> {
    pub(crate) stream: &'a Arc<CudaStream>,
    pub(crate) tasks: &'a [Task],
    /// The tasks in GPU memory.
    pub(crate) task_list: Arg,
    /// The vectors of parameters, contiguously.
    pub(crate) params: Arg,
    pub(crate) order: Arg,
    pub(crate) columns: &'a GpuColumns,
    pub(crate) constants: &'a Constants,
    /// w_k by slot.
    pub(crate) local: Arg,
}

/// A batch of forward passes.
pub(crate) struct Scores<'a> {
    pub(crate) stream: &'a Arc<CudaStream>,
    pub(crate) items: &'a [Item],
    /// The items in GPU memory.
    pub(crate) item_list: Arg,
    /// The number of vectors of parameters.
    pub(crate) vectors: u32,
    pub(crate) params: Arg,
    pub(crate) columns: &'a GpuColumns,
    pub(crate) constants: &'a Constants,
    pub(crate) losses: Arg,
    pub(crate) errors: Arg,
}

impl Scores<'_> {
    /// Returns the items as tasks of at most `size` examples each, and the first of these groups of
    /// each item.
    fn groups(&self, size: usize) -> (Vec<Task>, Vec<u32>) {
        let (mut groups, mut first_group) = (Vec::new(), vec![0]);
        for item in self.items {
            for start in (0..item.count).step_by(size) {
                groups.push(Task {
                    order: item.first + u64::from(start),
                    params: 0,
                    draws: (item.count - start).min(size as u32),
                    passes: 1,
                    batch: size as u32,
                    rate: 0.0,
                    keep: 1.0,
                    pull: 0.0,
                    slot: 0,
                    anchor: 0,
                    unused: 0,
                });
            }
            first_group.push(groups.len() as u32);
        }
        (groups, first_group)
    }
}

impl<'a> KernelSetup<'a> {
    /// Returns the table entry of the model.
    fn entry(&self) -> Result<&'static ModelKernels, GpuError> {
        let model = self.spec.name();
        if self.spec.options().truth("intercept") == Ok(true) {
            return Err(self.unsupported("with an intercept"));
        }
        let entry = MODELS.iter().find(|entry| std::ptr::eq(entry.definition, self.spec.definition()));
        let entry = entry.ok_or_else(|| self.unsupported("of any shape"))?;
        let got = self.device.capability();
        if got < entry.capability {
            let name = self.device.name().to_owned();
            return Err(GpuError::TooOld { name, model, got, needed: entry.capability });
        }
        Ok(entry)
    }

    /// Builds kernels that train with batches of at most this size: those of the model if they
    /// support its shape, else the general ones. The choice depends on the model, the data, the
    /// batch and the kind of GPU only.
    pub(crate) fn trainer(&self, batch: usize) -> Result<Box<dyn Trainer>, GpuError> {
        let special = self.entry().and_then(|entry| (entry.trainer)(self, batch));
        self.or_general(special, || general::trainer(self, batch))
    }

    /// Builds kernels that evaluate.
    pub(crate) fn scorer(&self) -> Result<Box<dyn Scorer>, GpuError> {
        let special = self.entry().and_then(|entry| (entry.scorer)(self));
        self.or_general(special, || general::scorer(self))
    }

    /// Returns the general kernels if there are none for this shape.
    fn or_general<T>(
        &self,
        special: Result<T, GpuError>,
        general: impl FnOnce() -> Result<T, GpuError>,
    ) -> Result<T, GpuError> {
        match special {
            Err(GpuError::Unsupported { .. } | GpuError::TooOld { .. }) => general(),
            special => special,
        }
    }

    /// Returns a size that an option of the model specifies.
    fn size(&self, option: &str) -> Result<usize, GpuError> {
        let size = self.spec.options().whole(option);
        size.map(|size| size as usize).map_err(|error| self.unsupported(error.to_string()))
    }

    /// Returns the error that there are no kernels for this shape.
    fn unsupported(&self, shape: impl Into<String>) -> GpuError {
        GpuError::Unsupported { model: self.spec.name(), shape: shape.into() }
    }

    /// Rejects batches that are larger than the kernels support.
    fn check_batch(&self, batch: usize, most: usize) -> Result<(), GpuError> {
        if batch > most {
            return Err(self.unsupported(format!("with batches of {batch}: the kernels take at most {most}")));
        }
        Ok(())
    }

    /// Loads a source and returns one of its kernels, with the shared memory that the source
    /// requires.
    fn kernel(&self, source: &KernelSource, name: &str) -> Result<crate::device::Kernel, GpuError> {
        let module = self.device.load(source, self.stream)?;
        let shared = module.constant("memory_bytes")?;
        let most = self.device.shared_memory()?;
        if shared > most {
            let shape =
                format!("of this size: a block would need {shared} bytes of shared memory and has {most}");
            return Err(self.unsupported(shape));
        }
        module.kernel(name, shared)
    }
}

/// Returns every source in the sizes of the paper.
#[cfg(test)]
pub(crate) fn every_source() -> Vec<KernelSource> {
    let models = MODELS.iter().flat_map(|entry| (entry.sources)());
    models.chain(general::sources()).chain([crate::sums::source(), crate::noisy::source()]).collect()
}
