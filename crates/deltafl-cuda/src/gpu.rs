//! The compute backend on a GPU: forward passes and local updates of a cohort.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use cudarc::driver::CudaStream;
use deltafl::compute::{Block, Compute, ComputeError, Remembered, UpdateTask};
use deltafl::data::{Federation, FederationIndex};
use deltafl::device::stream_key;
use deltafl::kernel::Isa;
use deltafl::model::{ModelSpec, Score};
use deltafl::params::{Params, UpdateCode, add_wrapping};
use deltafl::question::RoundKey;

use crate::data::{GpuColumns, GpuData, Offsets, WaveData};
use crate::host::{pulls, update_sums};
use crate::memory::{Buffer, HostCopy, Mirror};
use crate::model::{KernelSetup, Scorer, Scores, Trainer, Updates};
use crate::order::{self, DeviceDraws, Order, Orders};
use crate::sums::Sums;
use crate::task::{Item, Task, Trained};
use crate::wanted::{RequestedUpdate, distinct, needs_host, positions, shared_params};
use crate::{GpuDevice, GpuError};

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

    fn add_updates(
        &mut self,
        key: &RoundKey,
        tasks: &[UpdateTask<'_>],
        sums: &mut [Vec<u64>],
    ) -> Result<Remembered, ComputeError> {
        let mut remembered = Remembered::new();
        let on_gpu = |error: GpuError, gpu: &Self| gpu.unavailable(error);
        let vectors = self.start_vectors(tasks).map_err(|error| on_gpu(error, self))?;
        self.sums.start(sums.len()).map_err(|error| on_gpu(error, self))?;
        let (mut wanted, mut untrained) = (Vec::with_capacity(tasks.len()), Vec::new());
        for (index, (task, &vector)) in tasks.iter().zip(&vectors).enumerate() {
            let wanted_update = RequestedUpdate { task: *task, vector, index };
            let is_trained = match &task.noise {
                // A device outside of the tail adds noise only.
                Some(_) => task.weight > 0.0,
                None => !task.weight.is_nan(),
            } && task.plan.examples(self.federation.example_count(task.device)) > 0;
            if is_trained {
                wanted.push(wanted_update);
            } else if needs_host(task) {
                untrained.push(wanted_update);
            } else if task.weight.is_nan() {
                UpdateCode::refuse(&mut sums[task.sum]);
            } else {
                // A device that takes no step stays at w, and counts.
                let (w, code) = (task.params.as_slice(), UpdateCode::new(key.members as usize));
                let _ = code.add(w, w, task.weight, &mut sums[task.sum]);
            }
        }
        for batch in distinct(wanted.iter().map(|wanted| wanted.task.plan.batch)) {
            let of_batch: Vec<RequestedUpdate<'_>> =
                wanted.iter().copied().filter(|wanted| wanted.task.plan.batch == batch).collect();
            // The host adds some updates itself. The others stay on the GPU.
            let (host, gpu): (Vec<_>, Vec<_>) =
                of_batch.into_iter().partition(RequestedUpdate::is_added_by_host);
            for rest in [gpu, host] {
                self.train_batch(key, batch, rest, sums, &mut remembered)?;
            }
        }
        let answers: Vec<_> =
            untrained.iter().map(|wanted| (*wanted, wanted.task.params.as_slice())).collect();
        remembered.extend(update_sums(key, self.federation, &answers, sums)?);
        self.finish_sums(key, tasks, sums).map_err(|error| on_gpu(error, self))?;
        remembered.sort_unstable_by_key(|(task, _)| *task);
        Ok(remembered)
    }

    /// Uploads the parameters of all tasks and returns the index of each task's vector.
    fn start_vectors(&mut self, tasks: &[UpdateTask<'_>]) -> Result<Vec<u32>, GpuError> {
        if let Some(vectors) = positions(tasks, &self.sent) {
            return Ok(vectors);
        }
        let (params, vectors) = shared_params(tasks);
        self.send_params(&params)?;
        Ok(vectors)
    }

    /// Trains updates with batches of one size, wave by wave.
    fn train_batch(
        &mut self,
        key: &RoundKey,
        batch: usize,
        mut rest: Vec<RequestedUpdate<'_>>,
        sums: &mut [Vec<u64>],
        remembered: &mut Remembered,
    ) -> Result<(), ComputeError> {
        let data = self.data.clone();
        let devices = distinct(rest.iter().map(|wanted| wanted.task.device));
        self.prepare(batch).map_err(|error| self.unavailable(error))?;
        for part in self.parts(&devices) {
            let placed = self.placed(&devices[part]).map_err(|error| self.unavailable(error))?;
            let here = |wanted: &RequestedUpdate<'_>| placed.offsets.get(wanted.task.device).is_some();
            let (here, later): (Vec<_>, Vec<_>) = rest.into_iter().partition(here);
            rest = later;
            for wave in here.chunks(self.wave(&here)) {
                let columns = data.columns(&placed);
                self.train(key, wave, &placed.offsets, columns).map_err(|error| self.unavailable(error))?;
                if wave[0].is_added_by_host() {
                    let len = self.len;
                    let local = self.received.receive(&self.local, wave.len() * len);
                    let local = match local {
                        Ok(local) => local,
                        Err(error) => return Err(self.unavailable(error)),
                    };
                    let answers: Vec<_> = wave.iter().copied().zip(local.chunks_exact(len)).collect();
                    remembered.extend(update_sums(key, self.federation, &answers, sums)?);
                }
            }
            // Columns of a part are freed only when no kernel reads them.
            if Arc::strong_count(&placed) == 1 && !data.is_resident() {
                self.stream.synchronize().map_err(|error| self.unavailable(error.into()))?;
            }
        }
        Ok(())
    }

    /// Adds the sums of the GPU.
    fn finish_sums(
        &mut self,
        key: &RoundKey,
        tasks: &[UpdateTask<'_>],
        sums: &mut [Vec<u64>],
    ) -> Result<(), GpuError> {
        // Keep these until the kernels that read them are done.
        let _columns = self.look_ahead(key, tasks)?;
        if tasks.iter().all(needs_host) {
            return Ok(self.stream.synchronize()?);
        }
        let coded = self.sums.finish(sums.len())?;
        for (sum, coded) in sums.iter_mut().zip(coded.chunks_exact(UpdateCode::len(self.len))) {
            // A sum that the host adds is longer, and has no entries on the GPU.
            if sum.len() == coded.len() {
                add_wrapping(sum, coded);
            }
        }
        Ok(())
    }

    /// Prepares the next round while the GPU works: draws the orders of its cohort, and uploads it
    /// if data is streamed. Returns the columns that were ready for this round.
    fn look_ahead(
        &mut self,
        key: &RoundKey,
        tasks: &[UpdateTask<'_>],
    ) -> Result<Option<Arc<WaveData<'a>>>, GpuError> {
        let next = std::mem::take(&mut self.next);
        let (Some(task), false) = (tasks.first(), next.is_empty()) else { return Ok(None) };
        let round = RoundKey { round: key.round + 1, ..*key };
        self.ahead.draw(self.federation, &round, task.plan, &next);
        if self.data.is_resident() || !self.data.is_one_part(&next) {
            return Ok(self.ready.take());
        }
        let next = self.data.place(&distinct(next.into_iter()))?;
        Ok(self.ready.replace(Arc::new(next)))
    }

    /// Returns the number of these tasks that fit in memory as a wave.
    fn wave(&self, wanted: &[RequestedUpdate<'_>]) -> usize {
        let trainer = self.trainer.as_ref().map(|(_, trainer)| trainer);
        let mut bytes = 4 * self.len as u64 + trainer.map_or(0, |trainer| trainer.bytes_per_task());
        if wanted.iter().any(|wanted| wanted.task.plan.correction.is_some()) {
            bytes += 4 * self.len as u64 + trainer.map_or(0, |trainer| trainer.bytes_per_vector());
        }
        usize::try_from(self.memory / bytes.max(1)).unwrap_or(usize::MAX).max(1)
    }

    /// Trains a wave, and adds its updates to the sums of the GPU unless the host does.
    fn train(
        &mut self,
        key: &RoundKey,
        wave: &[RequestedUpdate<'_>],
        offsets: &Offsets<'_>,
        columns: &GpuColumns,
    ) -> Result<(), GpuError> {
        let tasks = self.send_tasks(key, wave, offsets)?;
        self.send_pulls(wave)?;
        self.local.reserve(wave.len() * self.len)?;
        let updates = Updates {
            stream: &self.stream,
            tasks: &tasks,
            task_list: self.tasks.arg(),
            params: self.params.arg(),
            order: self.order.arg(),
            columns,
            constants: self.data.constants(),
            local: self.local.arg(),
        };
        let (_, trainer) = self.trainer.as_mut().expect("the trainer has been prepared");
        trainer.train(&updates)?;
        if wave[0].is_added_by_host() {
            return Ok(());
        }
        let trained = |(slot, wanted): (usize, &RequestedUpdate<'_>)| Trained {
            weight: wanted.task.weight,
            factor: 1.0,
            params: wanted.vector,
            slot: slot as u32,
            query: wanted.task.sum as u32,
            unused: 0,
        };
        let mut trained: Vec<Trained> = wave.iter().enumerate().map(trained).collect();
        trained.sort_by_key(|update| update.query);
        self.sums.add(&trained, self.params.arg(), self.local.arg(), &key.code())
    }

    /// Uploads the pulls of tasks with a correction after the starting vectors, by slot.
    fn send_pulls(&mut self, wave: &[RequestedUpdate<'_>]) -> Result<(), GpuError> {
        if wave.iter().all(|wanted| wanted.task.plan.correction.is_none()) {
            return Ok(());
        }
        let (len, sent) = (self.len, &self.sent);
        self.params.send((sent.len() + wave.len()) * len, |host| {
            let (starts, rest) = host.split_at_mut(sent.len() * len);
            starts.chunks_exact_mut(len).zip(sent).for_each(|(to, w)| to.copy_from_slice(w.as_slice()));
            pulls(wave, len, rest);
        })
    }

    /// Draws the orders of a wave and uploads its tasks, largest first. Tasks of one device share
    /// its draws.
    fn send_tasks(
        &mut self,
        key: &RoundKey,
        wave: &[RequestedUpdate<'_>],
        offsets: &Offsets<'_>,
    ) -> Result<Vec<Task>, GpuError> {
        self.ahead.wait();
        let mut known: HashMap<(FederationIndex, u32, u32), u64> = HashMap::new();
        let mut orders: Vec<Order<'_>> = Vec::new();
        let (mut tasks, mut total) = (Vec::with_capacity(wave.len()), 0);
        for (slot, RequestedUpdate { task, vector, .. }) in wave.iter().enumerate() {
            let (plan, examples) = (task.plan, self.federation.example_count(task.device) as u32);
            let (draws, passes) = order::passes(plan, examples);
            let first = *known.entry((task.device, draws, passes)).or_insert_with(|| {
                let offset = offset(offsets, task.device) as u32;
                let (order, len) = match self.ahead.get(key, plan, task.device) {
                    Some(drawn) => (Order::Drawn { drawn, offset }, drawn.len()),
                    None => {
                        let key = stream_key(self.federation.id(task.device));
                        let draws = DeviceDraws { key, examples, offset };
                        (Order::ToDraw { draws, plan }, draws.len(plan))
                    }
                };
                orders.push(order);
                total += len;
                (total - len) as u64
            });
            let (pull, anchor) = match plan.correction {
                None => (plan.learning_rate * plan.proximal, *vector),
                Some(_) => (1.0, (self.sent.len() + slot) as u32),
            };
            tasks.push(Task {
                order: first,
                params: *vector,
                draws,
                passes,
                batch: plan.batch as u32,
                rate: plan.learning_rate,
                keep: 1.0 - plan.learning_rate * (plan.l2 + plan.proximal),
                pull,
                slot: slot as u32,
                anchor,
                unused: 0,
            });
        }
        self.order.send(total, |host| order::write_all(key, &orders, host))?;
        tasks.sort_by_key(|task| Reverse(task.steps()));
        self.tasks.send(tasks.len(), |host| host.copy_from_slice(&tasks))?;
        Ok(tasks)
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
