//! The compute backend on a GPU: forward passes and local updates of a cohort.

use std::ops::Range;
use std::sync::Arc;

use cudarc::driver::CudaStream;
use deltafl::compute::{Block, Compute, ComputeError, Remembered, UpdateTask};
use deltafl::data::{Federation, FederationIndex};
use deltafl::kernel::Isa;
use deltafl::model::{ModelSpec, Score};
use deltafl::params::Params;
use deltafl::question::RoundKey;

use crate::data::{GpuColumns, GpuData, Offsets, WaveData};
use crate::memory::{Buffer, HostCopy, Mirror};
use crate::model::{KernelSetup, Scorer, Scores, Trainer};
use crate::noisy::NoisySums;
use crate::order::Orders;
use crate::sums::Sums;
use crate::task::{Item, Task};
use crate::wanted::distinct;
use crate::{GpuDevice, GpuError};

mod updates;

/// Blocks of examples in one launch of a forward pass.
const ITEMS: usize = 1 << 20;

/// The options of a GPU backend.
#[derive(Clone, Copy, Debug, Default)]
pub struct GpuOptions {
    /// Bytes of GPU memory for the federation and for a wave of updates, each. Half of the free
    /// memory by default.
    pub memory: Option<u64>,
}

/// One model on one GPU over one federation. It uses a separate stream, so several can share a GPU.
pub struct Gpu<'a> {
    device: GpuDevice,
    stream: Arc<CudaStream>,
    federation: &'a Federation,
    spec: ModelSpec,
    /// The prediction task.
    predicted: deltafl::task::Task,
    /// d: the number of parameters.
    len: usize,
    data: Arc<GpuData<'a>>,
    scorer: Option<Box<dyn Scorer>>,
    /// The trainer, and the batch size for which it was built.
    trainer: Option<(usize, Box<dyn Trainer>)>,
    memory: u64,
    params: Mirror<f32>,
    /// The parameter vectors in that buffer.
    sent: Vec<Params>,
    tasks: Mirror<Task>,
    order: Mirror<u32>,
    local: Buffer<f32>,
    /// w_k of updates that the host adds to the sums.
    received: HostCopy<f32>,
    sums: Sums,
    /// The noisy sums, from the first private round on.
    noisy: Option<NoisySums>,
    items: Mirror<Item>,
    losses: Mirror<f64>,
    errors: Mirror<u32>,
    /// The cohort of the next round, until it has been prepared.
    next: Vec<FederationIndex>,
    /// The orders of the next round.
    ahead: Orders,
    /// The columns of a cohort that was uploaded in advance.
    ready: Option<Arc<WaveData<'a>>>,
}

impl<'a> Gpu<'a> {
    /// Uploads the federation and builds the kernels of the forward pass. `len` is the number of
    /// parameters.
    ///
    /// # Errors
    ///
    /// Returns an error if the GPU lacks memory, or if there are no kernels for the model or the
    /// data.
    pub fn new(
        device: &GpuDevice,
        federation: &'a Federation,
        spec: &ModelSpec,
        len: usize,
        options: GpuOptions,
    ) -> Result<Self, GpuError> {
        let half = device.memory()?.0 / 2;
        let memory = options.memory.unwrap_or(half).min(half);
        let data = Arc::new(GpuData::new(device, federation, memory)?);
        Self::over(device, data, federation, spec, len, memory)
    }

    /// Creates another run on the same GPU over the same uploaded federation.
    pub fn beside(&self) -> Result<Self, GpuError> {
        let data = self.data.clone();
        Self::over(&self.device, data, self.federation, &self.spec, self.len, self.memory)
    }

    /// Creates several runs over one copy of the federation. They share the memory for waves of
    /// updates.
    pub fn split(mut self, runs: usize) -> Result<Vec<Self>, GpuError> {
        self.memory /= runs.max(1) as u64;
        let others: Vec<Self> = (1..runs).map(|_| self.beside()).collect::<Result<_, _>>()?;
        Ok(std::iter::once(self).chain(others).collect())
    }

    fn over(
        device: &GpuDevice,
        data: Arc<GpuData<'a>>,
        federation: &'a Federation,
        spec: &ModelSpec,
        len: usize,
        memory: u64,
    ) -> Result<Self, GpuError> {
        let model = spec.build(federation, Isa::detect()).map_err(|mismatch| GpuError::Unsupported {
            model: spec.name(),
            shape: format!("on this data: {mismatch}"),
        })?;
        let stream = device.stream()?;
        let mut gpu = Self {
            federation,
            spec: spec.clone(),
            predicted: model.task(),
            len,
            data,
            scorer: None,
            trainer: None,
            memory,
            params: Mirror::new(&stream)?,
            sent: Vec::new(),
            tasks: Mirror::new(&stream)?,
            order: Mirror::new(&stream)?,
            local: Buffer::new(&stream)?,
            received: HostCopy::new(),
            sums: Sums::new(device, &stream, len)?,
            noisy: None,
            items: Mirror::new(&stream)?,
            losses: Mirror::new(&stream)?,
            errors: Mirror::new(&stream)?,
            next: Vec::new(),
            ahead: Orders::default(),
            ready: None,
            device: device.clone(),
            stream,
        };
        gpu.scorer = Some(gpu.setup().scorer()?);
        Ok(gpu)
    }

    /// Returns the GPU.
    pub fn device(&self) -> &GpuDevice {
        &self.device
    }

    /// Returns true if the whole federation is in GPU memory.
    pub fn is_resident(&self) -> bool {
        self.data.is_resident()
    }

    /// Returns true if these devices were uploaded in advance.
    #[doc(hidden)]
    pub fn has_ready(&self, devices: &[FederationIndex]) -> bool {
        self.ready.as_ref().is_some_and(|ready| ready.holds(devices))
    }

    /// Builds the kernels of local updates with batches of this size before the first round.
    ///
    /// # Errors
    ///
    /// Returns an error if there are no kernels for such updates.
    pub fn prepare(&mut self, batch: usize) -> Result<(), GpuError> {
        if self.trainer.as_ref().is_none_or(|(built, _)| *built != batch) {
            self.trainer = Some((batch, self.setup().trainer(batch)?));
        }
        Ok(())
    }

    /// Returns w_k of the last wave of updates in the order of its tasks: the inputs of the sums.
    #[doc(hidden)]
    pub fn last_local(&self, tasks: usize) -> Result<Vec<f32>, GpuError> {
        let mut local = self.stream.clone_dtoh(self.local.slice())?;
        self.stream.synchronize()?;
        local.truncate(tasks * self.len);
        Ok(local)
    }

    fn setup(&self) -> KernelSetup<'_> {
        KernelSetup {
            device: &self.device,
            stream: &self.stream,
            spec: &self.spec,
            federation: self.federation,
            constants: self.data.constants(),
        }
    }

    /// Uploads vectors of parameters, contiguously, unless they are already there.
    fn send_params(&mut self, params: &[&Params]) -> Result<(), GpuError> {
        let len = self.len;
        if self.sent.len() == params.len() && self.sent.iter().zip(params).all(|(a, b)| a.is_same(b)) {
            return Ok(());
        }
        self.sent.clear();
        if let Some(wrong) = params.iter().find(|params| params.len() != len) {
            return Err(GpuError::Length { expected: len, got: wrong.len() });
        }
        self.params.send(params.len() * len, |host| {
            host.chunks_exact_mut(len).zip(params).for_each(|(to, w)| to.copy_from_slice(w.as_slice()));
        })?;
        self.sent.extend(params.iter().map(|&params| params.clone()));
        Ok(())
    }

    /// Splits a list of devices into consecutive parts that fit. There is one part if all are
    /// uploaded.
    fn parts(&self, devices: &[FederationIndex]) -> Vec<Range<usize>> {
        if self.has_ready(devices) {
            return std::iter::once(0..devices.len()).collect();
        }
        self.data.parts(devices)
    }

    /// Returns these devices in GPU memory.
    fn placed(&self, devices: &[FederationIndex]) -> Result<Arc<WaveData<'a>>, GpuError> {
        match &self.ready {
            Some(ready) if ready.holds(devices) => Ok(ready.clone()),
            _ => Ok(Arc::new(self.data.place(devices)?)),
        }
    }

    fn score_blocks(&mut self, blocks: &[Block], params: &[&Params]) -> Result<Vec<Vec<Score>>, GpuError> {
        self.send_params(params)?;
        let mut scores = vec![Vec::with_capacity(blocks.len()); params.len()];
        let data = self.data.clone();
        let devices = distinct(blocks.iter().map(|block| block.device));
        let mut rest = blocks;
        for part in self.parts(&devices) {
            let placed = self.placed(&devices[part])?;
            let offsets = &placed.offsets;
            // The blocks of a device are usually consecutive. If not, the device is placed again.
            let here = rest.iter().take_while(|block| offsets.get(block.device).is_some()).count();
            let (now, later) = rest.split_at(here);
            rest = later;
            self.score_placed(now, offsets, data.columns(&placed), &mut scores)?;
        }
        for block in rest {
            let placed = self.placed(&[block.device])?;
            let columns = data.columns(&placed);
            self.score_placed(std::slice::from_ref(block), &placed.offsets, columns, &mut scores)?;
        }
        Ok(scores)
    }

    /// Appends the scores of blocks whose devices are in GPU memory, vector by vector.
    fn score_placed(
        &mut self,
        blocks: &[Block],
        offsets: &Offsets<'_>,
        columns: &GpuColumns,
        scores: &mut [Vec<Score>],
    ) -> Result<(), GpuError> {
        for blocks in blocks.chunks(ITEMS) {
            let item = |block: &Block| Item {
                first: offset(offsets, block.device) + block.examples.start as u64,
                count: block.examples.len() as u32,
                unused: 0,
            };
            let items: Vec<Item> = blocks.iter().map(item).collect();
            let len = items.len() * scores.len();
            self.items.send(items.len(), |host| host.copy_from_slice(&items))?;
            self.losses.reserve(len)?;
            self.errors.reserve(len)?;
            let pass = Scores {
                stream: &self.stream,
                items: &items,
                item_list: self.items.arg(),
                vectors: scores.len() as u32,
                params: self.params.arg(),
                columns,
                constants: self.data.constants(),
                losses: self.losses.arg(),
                errors: self.errors.arg(),
            };
            self.scorer.as_mut().expect("the scorer was built with the rest").score(&pass)?;
            let (losses, errors) = self.losses.receive_with(&mut self.errors, len)?;
            let mut parts = losses.chunks_exact(items.len()).zip(errors.chunks_exact(items.len()));
            for scores in &mut *scores {
                let Some((losses, errors)) = parts.next() else { break };
                let score = |(&loss, &errors): (&f64, &u32)| Score::of_classes(loss, errors.into());
                scores.extend(losses.iter().zip(errors).map(score));
            }
        }
        Ok(())
    }

    fn unavailable(&self, error: GpuError) -> ComputeError {
        ComputeError::Unavailable { place: self.device.name().to_owned(), source: error.into() }
    }
}

/// Returns the offset of a placed device.
fn offset(offsets: &Offsets<'_>, device: FederationIndex) -> u64 {
    offsets.get(device).expect("a wave holds devices that have been placed")
}

impl Compute for Gpu<'_> {
    fn width(&self) -> usize {
        self.device.multiprocessors().map_or(1, |count| count as usize)
    }

    fn task(&self) -> deltafl::task::Task {
        self.predicted
    }

    /// Stores the cohort of the next round, which is prepared while the GPU works on this one.
    fn prefetch(&mut self, devices: &[FederationIndex]) {
        self.next = devices.to_vec();
    }

    fn scores(&mut self, blocks: &[Block], params: &[&Params]) -> Result<Vec<Vec<Score>>, ComputeError> {
        self.score_blocks(blocks, params).map_err(|error| self.unavailable(error))
    }

    fn updates(
        &mut self,
        key: &RoundKey,
        tasks: &[UpdateTask<'_>],
        sums: &mut [Vec<u64>],
    ) -> Result<Remembered, ComputeError> {
        if tasks.iter().any(|task| task.personal.is_some()) {
            let place = "a GPU, for personal models,".to_owned();
            return Err(ComputeError::Unavailable { place, source: "use --compute cpu".into() });
        }
        self.add_updates(key, tasks, sums)
    }
}
