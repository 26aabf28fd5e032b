//! The LSTM over frozen word vectors (`kernels/lstm.cu`).

use deltafl::data::InputKind;

use super::{KernelSetup, Scorer, Scores, Trainer, Updates};
use crate::GpuError;
use crate::compile::KernelSource;
use crate::device::Kernel;
use crate::launch::{Arg, LaunchGrid, launch};
use crate::memory::Buffer;

const UNITS: usize = 50;
const MOST_BATCH: usize = 16;
const THREADS: u32 = 512;

pub(super) fn sources() -> Vec<KernelSource> {
    vec![source(25, 10), source(7, 16)]
}

pub(super) fn trainer(setup: &KernelSetup<'_>, batch: usize) -> Result<Box<dyn Trainer>, GpuError> {
    setup.check_batch(batch, MOST_BATCH)?;
    let source = source(checked_len(setup)?, batch);
    let scratch_bytes = setup.device.load(&source, setup.stream)?.constant("scratch_bytes")? as usize;
    Ok(Box::new(LstmTrainer {
        update: setup.kernel(&source, "update")?,
        vectors: vectors(setup, &source)?,
        scratch: Buffer::new(setup.stream)?,
        scratch_bytes,
    }))
}

pub(super) fn scorer(setup: &KernelSetup<'_>) -> Result<Box<dyn Scorer>, GpuError> {
    let source = source(checked_len(setup)?, MOST_BATCH);
    let score = setup.kernel(&source, "score")?;
    Ok(Box::new(LstmScorer { score, vectors: vectors(setup, &source)? }))
}

fn source(len: usize, batch: usize) -> KernelSource {
    let sizes = vec![("LEN", len), ("BATCH", batch)];
    KernelSource { name: "lstm.cu", text: include_str!("../kernels/lstm.cu").into(), sizes }
}

/// Returns the length of a sequence.
fn checked_len(setup: &KernelSetup<'_>) -> Result<usize, GpuError> {
    let dim = setup.federation.vectors().map_or(0, |vectors| vectors.dim);
    match (setup.size("hidden")?, setup.federation.kind()) {
        (UNITS, InputKind::Tokens { len, .. }) if dim == UNITS && len >= 3 => Ok(len),
        _ => Err(setup.unsupported(format!(
            "of this shape: the kernels take {UNITS} units, word vectors of {UNITS} entries, at least 3 words"
        ))),
    }
}

/// Returns the word vectors in the layout of the kernels.
fn vectors(setup: &KernelSetup<'_>, source: &KernelSource) -> Result<Buffer<u16>, GpuError> {
    let words = setup.federation.vectors().map_or(0, |vectors| vectors.values.len() / vectors.dim.max(1));
    let mut prepared = Buffer::new(setup.stream)?;
    prepared.reserve(words * 128)?;
    let prepare = setup.device.load(source, setup.stream)?.kernel("prepare", 0)?;
    let grid = LaunchGrid { blocks: ((words * 32).div_ceil(256) as u32, 1), threads: 256 };
    let args = [setup.constants.vectors(), prepared.arg(), Arg::U32(words as u32)];
    launch(setup.stream, &prepare, grid, &args)?;
    Ok(prepared)
}

struct LstmTrainer {
    update: Kernel,
    vectors: Buffer<u16>,
    scratch: Buffer<u8>,
    scratch_bytes: usize,
}

impl Trainer for LstmTrainer {
    fn train(&mut self, updates: &Updates<'_>) -> Result<(), GpuError> {
        self.scratch.reserve(updates.tasks.len() * self.scratch_bytes)?;
        let grid = LaunchGrid { blocks: (updates.tasks.len() as u32, 1), threads: THREADS };
        let args = [
            updates.task_list,
            updates.params,
            updates.order,
            updates.columns.inputs(),
            updates.columns.labels(),
            self.vectors.arg(),
            updates.local,
            self.scratch.arg(),
        ];
        launch(updates.stream, &self.update, grid, &args)
    }

    fn bytes_per_task(&self) -> u64 {
        self.scratch_bytes as u64
    }

    fn bytes_per_vector(&self) -> u64 {
        0
    }
}

struct LstmScorer {
    score: Kernel,
    vectors: Buffer<u16>,
}

impl Scorer for LstmScorer {
    fn score(&mut self, pass: &Scores<'_>) -> Result<(), GpuError> {
        let grid = LaunchGrid { blocks: (pass.items.len() as u32, pass.vectors), threads: THREADS };
        let args = [
            pass.item_list,
            pass.params,
            pass.columns.inputs(),
            pass.columns.labels(),
            self.vectors.arg(),
            pass.losses,
            pass.errors,
        ];
        launch(pass.stream, &self.score, grid, &args)
    }
}
