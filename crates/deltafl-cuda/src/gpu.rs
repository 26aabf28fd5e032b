//! The GPU as a place where devices compute: forward passes and local updates of a cohort.

use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use cudarc::driver::CudaStream;
use deltafl::compute::{Block, Compute, ComputeError, Remembered, UpdateTask};
use deltafl::data::Federation;
use deltafl::device::stream_key;
use deltafl::kernel::Isa;
use deltafl::model::{ModelSpec, Score};
use deltafl::params::{Params, UpdateCode, add_wrapping};
use deltafl::question::RoundKey;
use deltafl::trainer::LocalPlan;
use rayon::prelude::*;

use crate::data::{Columns, Data, Placed};
use crate::memory::{Buffer, Mirror};
use crate::model::{Scorer, Scores, Setup, Trainer, Updates};
use crate::order::{self, Draws};
use crate::sums::Sums;
use crate::task::{Item, Task, Trained};
use crate::{Device, GpuError};

/// Blocks of examples in one launch of a forward pass.
const ITEMS: usize = 1 << 20;

/// How a GPU is used.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// Bytes of the GPU's memory for the federation and for a wave of updates, each; half of what is free by default.
    pub memory: Option<u64>,
}

/// One model on one GPU over one federation. Its work goes to a stream of its own: several of them share a GPU.
pub struct Gpu<'a> {
    device: Device,
    stream: Arc<CudaStream>,
    federation: &'a Federation,
    spec: ModelSpec,
    /// What is predicted.
    predicted: deltafl::task::Task,
    /// d.
    len: usize,
    data: Arc<Data<'a>>,
    scorer: Option<Box<dyn Scorer>>,
    /// The trainer, and the batch it was built for.
    trainer: Option<(usize, Box<dyn Trainer>)>,
    memory: u64,
    params: Mirror<f32>,
    tasks: Mirror<Task>,
    order: Mirror<u32>,
    local: Buffer<f32>,
    sums: Sums,
    items: Mirror<Item>,
    losses: Mirror<f64>,
    errors: Mirror<u32>,
}

impl<'a> Gpu<'a> {
    /// Uploads the federation and builds the kernels of the model's forward pass. `len` is the number of parameters.
    pub fn new(
        device: &Device,
        federation: &'a Federation,
        spec: &ModelSpec,
        len: usize,
        options: Options,
    ) -> Result<Self, GpuError> {
        let stream = device.stream()?;
        let half = device.memory()?.0 / 2;
        let memory = options.memory.unwrap_or(half).min(half);
        let data = Arc::new(Data::new(device, &stream, federation, memory)?);
        Self::over(device, stream, data, federation, spec, len, memory)
    }

    /// Another run on the same GPU over the same federation, which is uploaded once.
    pub fn beside(&self) -> Result<Self, GpuError> {
        let stream = self.device.stream()?;
        let data = self.data.clone();
        Self::over(&self.device, stream, data, self.federation, &self.spec, self.len, self.memory)
    }

    fn over(
        device: &Device,
        stream: Arc<CudaStream>,
        data: Arc<Data<'a>>,
        federation: &'a Federation,
        spec: &ModelSpec,
        len: usize,
        memory: u64,
    ) -> Result<Self, GpuError> {
        let model = spec.build(federation, Isa::detect()).map_err(|mismatch| GpuError::Unsupported {
            model: spec.name(),
            shape: format!("on this data: {mismatch}"),
        })?;
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
            tasks: Mirror::new(&stream)?,
            order: Mirror::new(&stream)?,
            local: Buffer::new(&stream)?,
            sums: Sums::new(device, &stream, len)?,
            items: Mirror::new(&stream)?,
            losses: Mirror::new(&stream)?,
            errors: Mirror::new(&stream)?,
            device: device.clone(),
            stream,
        };
        gpu.scorer = Some(gpu.setup().scorer()?);
        Ok(gpu)
    }

    /// The GPU.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Whether the whole federation is in the GPU's memory.
    pub fn is_resident(&self) -> bool {
        self.data.is_resident()
    }

    /// Builds the kernels of local updates with batches of this size, so that the first round need not; says whether
    /// the model can be trained so.
    pub fn prepare(&mut self, batch: usize) -> Result<(), GpuError> {
        if self.trainer.as_ref().is_none_or(|(built, _)| *built != batch) {
            self.trainer = Some((batch, self.setup().trainer(batch)?));
        }
        Ok(())
    }

    /// w_k of the last wave of updates, in the order of its tasks: what the sums were made of.
    #[doc(hidden)]
    pub fn last_local(&self, tasks: usize) -> Result<Vec<f32>, GpuError> {
        let mut local = self.stream.clone_dtoh(self.local.slice())?;
        self.stream.synchronize()?;
        local.truncate(tasks * self.len);
        Ok(local)
    }

    fn setup(&self) -> Setup<'_> {
        Setup {
            device: &self.device,
            stream: &self.stream,
            spec: &self.spec,
            federation: self.federation,
            constants: self.data.constants(),
        }
    }

    /// Sends vectors of parameters, one behind the other.
    fn send_params(&mut self, params: &[&Params]) -> Result<(), GpuError> {
        let len = self.len;
        if let Some(wrong) = params.iter().find(|params| params.len() != len) {
            return Err(GpuError::Length { expected: len, got: wrong.len() });
        }
        self.params.send(params.len() * len, |host| {
            host.chunks_exact_mut(len).zip(params).for_each(|(to, w)| to.copy_from_slice(w.as_slice()));
        })
    }

    fn score_blocks(&mut self, blocks: &[Block], params: &[&Params]) -> Result<Vec<Vec<Score>>, GpuError> {
        self.send_params(params)?;
        let mut scores = vec![Vec::with_capacity(blocks.len()); params.len()];
        let data = self.data.clone();
        let devices = distinct(blocks.iter().map(|block| block.device));
        let mut rest = blocks;
        for part in data.parts(&devices) {
            let placed = data.place(&devices[part.clone()])?;
            let offsets = offsets(&devices[part], &placed);
            // The blocks of a device stand together as a rule; where they do not, the device is placed again.
            let here = rest.iter().take_while(|block| offsets.contains_key(&block.device)).count();
            let (now, later) = rest.split_at(here);
            rest = later;
            self.score_placed(now, &offsets, data.columns(&placed), &mut scores)?;
        }
        for block in rest {
            let placed = data.place(&[block.device])?;
            let offsets = offsets(&[block.device], &placed);
            self.score_placed(std::slice::from_ref(block), &offsets, data.columns(&placed), &mut scores)?;
        }
        Ok(scores)
    }

    /// Appends the scores of blocks whose devices are in the GPU's memory, vector by vector.
    fn score_placed(
        &mut self,
        blocks: &[Block],
        offsets: &HashMap<u32, u64>,
        columns: &Columns,
        scores: &mut [Vec<Score>],
    ) -> Result<(), GpuError> {
        for blocks in blocks.chunks(ITEMS) {
            let item = |block: &Block| Item {
                first: offsets[&block.device] + block.examples.start as u64,
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
            let (losses, errors) = (self.losses.receive(len)?, self.errors.receive(len)?);
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
    ) -> Result<(), GpuError> {
        let (params, vectors) = shared_params(tasks);
        self.send_params(&params)?;
        self.sums.start(sums.len())?;
        // A sum over this many devices cannot wrap around (`UpdateCode`).
        let limit = 2f64.powi(62) / f64::from(key.members.max(1));
        let data = self.data.clone();
        let mut wanted: Vec<Wanted<'_>> = Vec::with_capacity(tasks.len());
        for (task, &vector) in tasks.iter().zip(&vectors) {
            if task.weight.is_nan() {
                UpdateCode::refuse(&mut sums[task.sum]);
            } else if task.plan.examples(self.federation.count(task.device)) == 0 {
                // A device that takes no step stays at w, and counts.
                let (w, code) = (task.params.as_slice(), UpdateCode::new(key.members as usize));
                let _ = code.add(w, w, task.weight, &mut sums[task.sum]);
            } else {
                wanted.push(Wanted { task: *task, vector });
            }
        }
        for batch in distinct(wanted.iter().map(|wanted| wanted.task.plan.batch)) {
            self.prepare(batch)?;
            let mut rest: Vec<Wanted<'_>> =
                wanted.iter().copied().filter(|wanted| wanted.task.plan.batch == batch).collect();
            let devices = distinct(rest.iter().map(|wanted| wanted.task.device));
            for part in data.parts(&devices) {
                let placed = data.place(&devices[part.clone()])?;
                let offsets = offsets(&devices[part], &placed);
                let (here, later): (Vec<_>, Vec<_>) =
                    rest.into_iter().partition(|wanted| offsets.contains_key(&wanted.task.device));
                rest = later;
                for wave in here.chunks(self.wave()) {
                    self.train(key, wave, &offsets, data.columns(&placed), limit)?;
                }
                // Columns of a part are freed only when nothing reads them any more.
                if !data.is_resident() {
                    self.stream.synchronize()?;
                }
            }
        }
        let coded = self.sums.finish(sums.len())?;
        for (sum, coded) in sums.iter_mut().zip(coded.chunks_exact(UpdateCode::len(self.len))) {
            add_wrapping(sum, coded);
        }
        Ok(())
    }

    /// Tasks of a wave: as many as the memory holds.
    fn wave(&self) -> usize {
        let beside = self.trainer.as_ref().map_or(0, |(_, trainer)| trainer.bytes_per_task());
        usize::try_from(self.memory / (4 * self.len as u64 + beside).max(1)).unwrap_or(usize::MAX).max(1)
    }

    /// Trains a wave and adds its updates to the sums.
    fn train(
        &mut self,
        key: &RoundKey,
        wave: &[Wanted<'_>],
        offsets: &HashMap<u32, u64>,
        columns: &Columns,
        limit: f64,
    ) -> Result<(), GpuError> {
        let tasks = self.send_tasks(key, wave, offsets)?;
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
        let trained = |(slot, wanted): (usize, &Wanted<'_>)| Trained {
            weight: wanted.task.weight,
            params: wanted.vector,
            slot: slot as u32,
            query: wanted.task.sum as u32,
            unused: 0,
        };
        let mut trained: Vec<Trained> = wave.iter().enumerate().map(trained).collect();
        trained.sort_by_key(|update| update.query);
        self.sums.add(&trained, self.params.arg(), self.local.arg(), limit)
    }

    /// Draws the orders of a wave and sends its tasks, largest first. Tasks of one device share its draws.
    fn send_tasks(
        &mut self,
        key: &RoundKey,
        wave: &[Wanted<'_>],
        offsets: &HashMap<u32, u64>,
    ) -> Result<Vec<Task>, GpuError> {
        let mut known: HashMap<(u32, u32, u32), u64> = HashMap::new();
        let mut orders: Vec<(Draws, &LocalPlan, usize)> = Vec::new();
        let (mut tasks, mut total) = (Vec::with_capacity(wave.len()), 0);
        for (slot, Wanted { task, vector }) in wave.iter().enumerate() {
            let (plan, examples) = (task.plan, self.federation.count(task.device) as u32);
            let (draws, passes) = order::passes(plan, examples);
            let first = *known.entry((task.device, draws, passes)).or_insert_with(|| {
                let key = stream_key(self.federation.id(task.device));
                let draws = Draws { key, examples, offset: offsets[&task.device] as u32 };
                let len = draws.len(plan);
                orders.push((draws, plan, len));
                total += len;
                (total - len) as u64
            });
            tasks.push(Task {
                order: first,
                params: *vector,
                draws,
                passes,
                batch: plan.batch as u32,
                rate: plan.learning_rate,
                keep: 1.0 - plan.learning_rate * (plan.l2 + plan.proximal),
                pull: plan.learning_rate * plan.proximal,
                slot: slot as u32,
            });
        }
        self.order.send(total, |host| write_orders(key, &orders, host))?;
        tasks.sort_by_key(|task| Reverse(task.steps()));
        self.tasks.send(tasks.len(), |host| host.copy_from_slice(&tasks))?;
        Ok(tasks)
    }

    fn unavailable(&self, error: GpuError) -> ComputeError {
        ComputeError::Unavailable { place: self.device.name().to_owned(), source: error.into() }
    }
}

impl Compute for Gpu<'_> {
    fn width(&self) -> usize {
        self.device.multiprocessors().map_or(1, |count| count as usize)
    }

    fn task(&self) -> deltafl::task::Task {
        self.predicted
    }

    /// Nothing: what the GPU reads next is in its memory already, or too large to be there.
    fn prefetch(&mut self, _devices: &[u32]) {}

    fn scores(&mut self, blocks: &[Block], params: &[&Params]) -> Result<Vec<Vec<Score>>, ComputeError> {
        self.score_blocks(blocks, params).map_err(|error| self.unavailable(error))
    }

    fn updates(
        &mut self,
        key: &RoundKey,
        tasks: &[UpdateTask<'_>],
        sums: &mut [Vec<u64>],
    ) -> Result<Remembered, ComputeError> {
        // Nothing corrects the steps of a GPU, and its devices remember nothing.
        if let Some(name) =
            tasks.iter().find_map(|task| task.plan.correction).map(|correction| correction.name)
        {
            let place = format!("a GPU, for an algorithm with {name}s,");
            return Err(ComputeError::Unavailable { place, source: "use --compute cpu".into() });
        }
        self.add_updates(key, tasks, sums).map_err(|error| self.unavailable(error))?;
        Ok(Remembered::new())
    }
}

/// A local update that is wanted, and which vector of parameters it starts from.
#[derive(Clone, Copy)]
struct Wanted<'a> {
    task: UpdateTask<'a>,
    vector: u32,
}

/// The distinct vectors of parameters, and which of them each task starts from.
fn shared_params<'a>(tasks: &[UpdateTask<'a>]) -> (Vec<&'a Params>, Vec<u32>) {
    let mut params: Vec<&Params> = Vec::new();
    let vector = |task: &UpdateTask<'a>| {
        let known = params.iter().position(|known| known.is_same(task.params));
        known.unwrap_or_else(|| {
            params.push(task.params);
            params.len() - 1
        }) as u32
    };
    let vectors = tasks.iter().map(vector).collect();
    (params, vectors)
}

/// Writes the orders one behind the other, on all cores.
fn write_orders(key: &RoundKey, orders: &[(Draws, &LocalPlan, usize)], host: &mut [u32]) {
    let mut rest = host;
    let mut parts = Vec::with_capacity(orders.len());
    for (draws, plan, len) in orders {
        let (part, after) = rest.split_at_mut(*len);
        rest = after;
        parts.push((draws, plan, part));
    }
    // A few thousand draws cost less than waking a thread.
    let all = parts.iter().map(|(_, _, part)| part.len()).sum::<usize>().max(1);
    let together = (4096 * parts.len() / all).max(1);
    parts.into_par_iter().with_min_len(together).for_each(|(draws, plan, part)| draws.write(key, plan, part));
}

/// Where each device begins.
fn offsets(devices: &[u32], placed: &Placed) -> HashMap<u32, u64> {
    devices.iter().copied().zip(placed.offsets.iter().copied()).collect()
}

/// The distinct values, in the order of their first appearance.
fn distinct<T: Copy + Eq + std::hash::Hash>(values: impl Iterator<Item = T>) -> Vec<T> {
    let mut seen = HashSet::new();
    values.filter(|&value| seen.insert(value)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use deltafl::trainer::Work;

    fn key() -> RoundKey {
        RoundKey { seed: 1, round: 2, members: 4, terms: deltafl::terms::Terms::OPEN }
    }

    #[test]
    fn equal_params_are_sent_once() {
        let (a, b) = (Params::from(vec![1.0]), Params::from(vec![2.0]));
        let plan = LocalPlan {
            work: Work::Epochs(1),
            batch: 4,
            learning_rate: 0.1,
            l2: 0.0,
            proximal: 0.0,
            correction: None,
        };
        let task =
            |params| UpdateTask { device: 0, params, sent: &[], own: None, plan: &plan, weight: 1.0, sum: 0 };
        let (params, vectors) = shared_params(&[task(&a), task(&b), task(&a)]);
        assert_eq!((params.len(), vectors), (2, vec![0, 1, 0]));
    }

    #[test]
    fn orders_stand_one_behind_the_other() {
        let plan = LocalPlan {
            work: Work::Epochs(2),
            batch: 4,
            learning_rate: 0.1,
            l2: 0.0,
            proximal: 0.0,
            correction: None,
        };
        let draws = |key, examples, offset| Draws { key, examples, offset };
        let orders = [(draws(7, 5, 0), &plan, 10), (draws(8, 3, 40), &plan, 6)];
        let mut together = vec![0; 16];
        write_orders(&key(), &orders, &mut together);
        for ((draws, plan, len), place) in orders.iter().zip([0..10, 10..16]) {
            let mut alone = vec![0; *len];
            draws.write(&key(), plan, &mut alone);
            assert_eq!(together[place], alone);
        }
    }
}
