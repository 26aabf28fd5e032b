//! The GRU over symbols (`kernels/gru.cu`, `kernels/gru_score.cu`).
//!
//! A cluster of four blocks trains a device, because a step is sequential and the largest device of
//! a cohort determines the time of a round.

use cudarc::driver::LaunchConfig;
use deltafl::data::InputKind;

use super::{KernelSetup, Scorer, Scores, Trainer, Updates};
use crate::GpuError;
use crate::compile::KernelSource;
use crate::device::Kernel;
use crate::launch::{Arg, LaunchGrid, launch};
use crate::memory::Buffer;

const HIDDEN: usize = 128;
const MOST_CLASSES: usize = 64;
const MOST_BATCH: usize = 16;
const THREADS: u32 = 384;
/// Blocks per device.
const CLUSTER: u32 = 4;

/// The sizes for which the kernels are compiled.
#[derive(Clone, Copy)]
struct Sizes {
    len: usize,
    alphabet: usize,
    classes: usize,
    embedding: usize,
    text: bool,
}

impl Sizes {
    fn for_model(setup: &KernelSetup<'_>) -> Result<Self, GpuError> {
        let (hidden, embedding) = (setup.size("hidden")?, setup.size("embedding")?);
        let (len, alphabet, text) = match setup.federation.kind() {
            InputKind::Windows { len, alphabet } => (len, alphabet, true),
            InputKind::Tokens { len, vocabulary } => (len, vocabulary, false),
            InputKind::Bytes { .. } | InputKind::Dense { .. } => (0, 0, false),
        };
        let classes = setup.federation.classes();
        if hidden != HIDDEN || classes > MOST_CLASSES || len < 3 || alphabet > 256 {
            return Err(setup.unsupported(format!(
                "of {hidden} units, {classes} classes, {alphabet} symbols and {len} time steps: the kernels take {HIDDEN} \
                 units, at most {MOST_CLASSES} classes and 256 symbols, at least 3 time steps"
            )));
        }
        Ok(Self { len, alphabet, classes, embedding, text })
    }

    fn macros(self) -> Vec<(&'static str, usize)> {
        vec![
            ("LEN", self.len),
            ("ALPHABET", self.alphabet),
            ("CLASSES", self.classes),
            ("EMBEDDING", self.embedding),
            ("TEXT", usize::from(self.text)),
        ]
    }

    fn update(self) -> KernelSource {
        let mut sizes = self.macros();
        sizes.push(("CLUSTER", CLUSTER as usize));
        KernelSource { name: "gru.cu", text: include_str!("../kernels/gru.cu").into(), sizes }
    }

    fn score(self) -> KernelSource {
        KernelSource {
            name: "gru_score.cu",
            text: include_str!("../kernels/gru_score.cu").into(),
            sizes: self.macros(),
        }
    }
}

pub(super) fn sources() -> Vec<KernelSource> {
    let paper = Sizes { len: 20, alphabet: 53, classes: 53, embedding: 0, text: true };
    let embedded = Sizes { embedding: 8, ..paper };
    let words = Sizes { len: 5, alphabet: 20, classes: 7, embedding: 0, text: false };
    vec![paper.update(), paper.score(), embedded.update(), embedded.score(), words.update(), words.score()]
}

pub(super) fn trainer(setup: &KernelSetup<'_>, batch: usize) -> Result<Box<dyn Trainer>, GpuError> {
    let sizes = Sizes::for_model(setup)?;
    setup.check_batch(batch, MOST_BATCH)?;
    Ok(Box::new(Clusters::new(setup, sizes)?))
}

pub(super) fn scorer(setup: &KernelSetup<'_>) -> Result<Box<dyn Scorer>, GpuError> {
    let source = Sizes::for_model(setup)?.score();
    let module = setup.device.load(&source, setup.stream)?;
    Ok(Box::new(GruScorer {
        prepare: module.kernel("prepare", 0)?,
        score: setup.kernel(&source, "score")?,
        prepared: Buffer::new(setup.stream)?,
        prepared_bytes: module.constant("prepared_bytes")? as usize,
    }))
}

/// Clusters with separate scratch memory that process tasks from a queue, largest first.
struct Clusters {
    kernel: Kernel,
    /// The number of clusters that the GPU runs concurrently.
    resident: u32,
    scratch: Buffer<u8>,
    scratch_bytes: usize,
    queue: Buffer<u32>,
}

impl Clusters {
    fn new(setup: &KernelSetup<'_>, sizes: Sizes) -> Result<Self, GpuError> {
        let source = sizes.update();
        let kernel = setup.kernel(&source, "update")?;
        let scratch_bytes = setup.device.load(&source, setup.stream)?.constant("scratch_bytes")? as usize;
        let config = LaunchConfig {
            grid_dim: (CLUSTER * setup.device.multiprocessors()?, 1, 1),
            block_dim: (THREADS, 1, 1),
            shared_mem_bytes: kernel.shared,
        };
        let resident = kernel.function.occupancy_max_active_clusters(config, setup.stream)?.max(1);
        let (scratch, queue) = (Buffer::new(setup.stream)?, Buffer::new(setup.stream)?);
        Ok(Self { kernel, resident, scratch, scratch_bytes, queue })
    }
}

impl Trainer for Clusters {
    fn train(&mut self, updates: &Updates<'_>) -> Result<(), GpuError> {
        let count = updates.tasks.len() as u32;
        let blocks = CLUSTER * self.resident.min(count);
        self.scratch.reserve(blocks as usize * self.scratch_bytes)?;
        self.queue.clear(1)?;
        let args = [
            updates.task_list,
            Arg::U32(count),
            self.queue.arg(),
            updates.params,
            updates.order,
            updates.columns.inputs(),
            updates.columns.labels(),
            updates.local,
            self.scratch.arg(),
        ];
        launch(updates.stream, &self.kernel, LaunchGrid { blocks: (blocks, 1), threads: THREADS }, &args)
    }

    fn bytes_per_task(&self) -> u64 {
        0
    }

    fn bytes_per_vector(&self) -> u64 {
        0
    }
}

struct GruScorer {
    prepare: Kernel,
    score: Kernel,
    prepared: Buffer<u8>,
    prepared_bytes: usize,
}

impl Scorer for GruScorer {
    fn score(&mut self, pass: &Scores<'_>) -> Result<(), GpuError> {
        self.prepared.reserve(pass.vectors as usize * self.prepared_bytes)?;
        let grid = LaunchGrid { blocks: (pass.vectors, 1), threads: 1024 };
        launch(pass.stream, &self.prepare, grid, &[pass.params, self.prepared.arg()])?;
        let grid = LaunchGrid { blocks: (pass.items.len() as u32, pass.vectors), threads: 256 };
        let args = [
            pass.item_list,
            self.prepared.arg(),
            pass.columns.inputs(),
            pass.columns.labels(),
            pass.losses,
            pass.errors,
        ];
        launch(pass.stream, &self.score, grid, &args)
    }
}
