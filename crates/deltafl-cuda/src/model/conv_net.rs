//! The convolutional network on images of 28 × 28 (`kernels/conv_net.cu`): kernels over all devices
//! of a wave, step by step.

use std::sync::Arc;

use cudarc::driver::CudaStream;
use deltafl::data::InputKind;

use super::groups::GroupScores;
use super::linear::dim;
use super::{KernelSetup, Scorer, Scores, Trainer, Updates};
use crate::GpuError;
use crate::compile::KernelSource;
use crate::device::Kernel;
use crate::launch::{Arg, LaunchGrid, launch};
use crate::memory::Buffer;
use crate::task::Task;

const PIXELS: usize = 784;
const CHANNELS: [usize; 2] = [32, 64];
const MOST_CLASSES: usize = 64;
const BATCH: usize = 16;
/// Groups of sixteen images per launch of a forward pass.
const GROUPS: usize = 1024;

pub(super) fn sources() -> Vec<KernelSource> {
    vec![source(InputKind::Bytes { dim: PIXELS }, 62), source(InputKind::Dense { dim: PIXELS }, 10)]
}

pub(super) fn trainer(setup: &KernelSetup<'_>, batch: usize) -> Result<Box<dyn Trainer>, GpuError> {
    setup.check_batch(batch, BATCH)?;
    Ok(Box::new(ConvTrainer {
        kernels: Kernels::new(setup)?,
        starts: Buffer::new(setup.stream)?,
        working: Buffer::new(setup.stream)?,
        scratch: Buffer::new(setup.stream)?,
    }))
}

pub(super) fn scorer(setup: &KernelSetup<'_>) -> Result<Box<dyn Scorer>, GpuError> {
    Ok(Box::new(ConvScorer {
        kernels: Kernels::new(setup)?,
        starts: Buffer::new(setup.stream)?,
        filters: Buffer::new(setup.stream)?,
        scratch: Buffer::new(setup.stream)?,
        groups: GroupScores::new(setup.stream)?,
    }))
}

fn source(kind: InputKind, classes: usize) -> KernelSource {
    let bytes = usize::from(matches!(kind, InputKind::Bytes { .. }));
    let sizes = vec![("CLASSES", classes), ("BYTES", bytes)];
    KernelSource { name: "conv_net.cu", text: include_str!("../kernels/conv_net.cu").into(), sizes }
}

/// The kernels and their sizes.
struct Kernels {
    to_working: Kernel,
    spread: Kernel,
    collect: Kernel,
    first_forward: Kernel,
    second_forward: Kernel,
    full_layer: Kernel,
    full_score: Kernel,
    second_backward: Kernel,
    first_descend: Kernel,
    add_groups: Kernel,
    /// Floats of the working form of the parameters.
    working: usize,
    /// Scratch bytes per device.
    scratch: usize,
}

impl Kernels {
    fn new(setup: &KernelSetup<'_>) -> Result<Self, GpuError> {
        let (kind, classes) = (setup.federation.kind(), setup.federation.classes());
        let fits =
            setup.spec.options().whole_pair("channels") == Ok(CHANNELS.map(|channels| channels as u64));
        if !fits || dim(kind) != PIXELS || classes > MOST_CLASSES {
            return Err(setup.unsupported(format!(
                "of this shape: the kernels take images of 28 × 28, {} and {} channels, at most {MOST_CLASSES} classes",
                CHANNELS[0], CHANNELS[1]
            )));
        }
        let module = setup.device.load(&source(kind, classes), setup.stream)?;
        let plain = |name| module.kernel(name, 0);
        let sized = |name: &str| module.kernel(name, module.constant(&format!("{name}_bytes"))?);
        let full = module.constant("full_layer_bytes")?;
        Ok(Self {
            to_working: plain("to_working")?,
            spread: plain("spread")?,
            collect: plain("collect")?,
            first_forward: plain("first_forward")?,
            second_forward: sized("second_forward")?,
            full_layer: module.kernel("full_layer", full)?,
            full_score: module.kernel("full_score", full)?,
            second_backward: sized("second_backward")?,
            first_descend: plain("first_descend")?,
            add_groups: plain("add_groups")?,
            working: module.constant("working_len")? as usize,
            scratch: module.constant("scratch_bytes")? as usize,
        })
    }

    /// Returns a grid with one thread per entry of the working form, for this many devices or
    /// vectors.
    fn entries(&self, count: u32) -> LaunchGrid {
        LaunchGrid { blocks: (self.working.div_ceil(256) as u32, count), threads: 256 }
    }
}

struct ConvTrainer {
    kernels: Kernels,
    /// Computes the working forms of the starting vectors.
    starts: Buffer<f32>,
    working: Buffer<f32>,
    scratch: Buffer<u8>,
}

impl Trainer for ConvTrainer {
    fn train(&mut self, updates: &Updates<'_>) -> Result<(), GpuError> {
        let (kernels, stream, tasks) = (&self.kernels, updates.stream, updates.tasks);
        let count = tasks.len() as u32;
        let vectors = tasks.iter().map(|task| task.params.max(task.anchor) + 1).max().unwrap_or(0);
        self.starts.reserve(vectors as usize * kernels.working)?;
        self.working.reserve(tasks.len() * kernels.working)?;
        self.scratch.reserve(tasks.len() * kernels.scratch)?;
        let (list, starts) = (updates.task_list, self.starts.arg());
        let (working, scratch) = (self.working.arg(), self.scratch.arg());
        launch(stream, &kernels.to_working, kernels.entries(vectors), &[updates.params, starts])?;
        launch(stream, &kernels.spread, kernels.entries(count), &[list, starts, working, scratch])?;
        let (inputs, labels) = (updates.columns.inputs(), updates.columns.labels());
        let (scale, shift) = (updates.constants.scale(), updates.constants.shift());
        for s in 0..tasks.first().map_or(0, Task::steps) {
            let active = tasks.partition_point(|task| task.steps() > s) as u32;
            let (order, step) = (updates.order, Arg::U32(s as u32));
            let own = Arg::U32(1);
            let run = |kernel, blocks, args: &[Arg]| {
                launch(stream, kernel, LaunchGrid { blocks, threads: 256 }, args)
            };
            let args = [list, step, working, own, order, inputs, scale, shift, scratch];
            run(&kernels.first_forward, (BATCH as u32, active), &args)?;
            let args = [list, step, working, own, scratch, scratch];
            run(&kernels.second_forward, (4, active), &args)?;
            let args = [list, step, starts, working, order, labels, scratch];
            run(&kernels.full_layer, (active, 1), &args)?;
            let args = [list, step, starts, working, order, inputs, scale, shift, scratch];
            run(&kernels.second_backward, (8, active), &args)?;
            let args = [list, step, starts, working, scratch];
            run(&kernels.first_descend, (active, 1), &args)?;
        }
        launch(stream, &kernels.collect, kernels.entries(count), &[list, working, updates.local])
    }

    fn bytes_per_task(&self) -> u64 {
        (4 * self.kernels.working + self.kernels.scratch) as u64
    }

    fn bytes_per_vector(&self) -> u64 {
        4 * self.kernels.working as u64
    }
}

struct ConvScorer {
    kernels: Kernels,
    starts: Buffer<f32>,
    /// Splits the second filters of each vector into two parts.
    filters: Buffer<u8>,
    scratch: Buffer<u8>,
    groups: GroupScores,
}

impl Scorer for ConvScorer {
    fn score(&mut self, pass: &Scores<'_>) -> Result<(), GpuError> {
        let groups = self.groups.start(pass, BATCH)?;
        let (kernels, stream) = (&self.kernels, pass.stream);
        self.starts.reserve(pass.vectors as usize * kernels.working)?;
        self.filters.reserve(pass.vectors as usize * kernels.scratch)?;
        self.scratch.reserve(GROUPS.min(groups) * kernels.scratch)?;
        let (starts, filters) = (self.starts.arg(), self.filters.arg());
        launch(stream, &kernels.to_working, kernels.entries(pass.vectors), &[pass.params, starts])?;
        let args = [Arg::Pointer(0), starts, Arg::Pointer(0), filters];
        launch(stream, &kernels.spread, kernels.entries(pass.vectors), &args)?;
        for vector in 0..pass.vectors as usize {
            let working = starts.offset::<f32>(vector * kernels.working);
            let filters = filters.offset::<u8>(vector * kernels.scratch);
            for first in (0..groups).step_by(GROUPS) {
                let count = GROUPS.min(groups - first) as u32;
                self.forward(stream, pass, [working, filters], first, count)?;
            }
            self.groups.add(pass, vector, &kernels.add_groups)?;
        }
        Ok(())
    }
}

impl ConvScorer {
    /// Runs the forward pass of some groups at one vector of parameters.
    fn forward(
        &self,
        stream: &Arc<CudaStream>,
        pass: &Scores<'_>,
        [working, filters]: [Arg; 2],
        first: usize,
        count: u32,
    ) -> Result<(), GpuError> {
        let (kernels, [list, losses, errors]) = (&self.kernels, self.groups.from(first));
        let (step, own, order, scratch) = (Arg::U32(0), Arg::U32(0), Arg::Pointer(0), self.scratch.arg());
        let (scale, shift) = (pass.constants.scale(), pass.constants.shift());
        let run =
            |kernel, blocks, args: &[Arg]| launch(stream, kernel, LaunchGrid { blocks, threads: 256 }, args);
        let args = [list, step, working, own, order, pass.columns.inputs(), scale, shift, scratch];
        run(&kernels.first_forward, (BATCH as u32, count), &args)?;
        run(&kernels.second_forward, (4, count), &[list, step, working, own, filters, scratch])?;
        let args = [list, working, pass.columns.labels(), scratch, losses, errors];
        run(&kernels.full_score, (count, 1), &args)
    }
}
