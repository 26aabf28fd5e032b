//! The GPU as a place where devices compute: forward passes and local updates of a cohort.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use cudarc::driver::CudaStream;
use deltafl::data::Federation;
use deltafl::device::{LocalPlan, blocks, stream_key};
use deltafl::model::{ModelSpec, Score};
use deltafl::params::{Params, add_wrapping};
use rayon::prelude::*;

use crate::data::Data;
use crate::memory::{Buffer, Mirror};
use crate::model::{Scorer, Scores, Setup, Trainer, Updates};
use crate::order::{self, Draws};
use crate::sums::Sums;
use crate::task::{Item, Task, Trained};
use crate::{Device, GpuError};

/// How a GPU is used.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// Bytes of the GPU's memory for the federation and for a wave of updates, each; half of what is free by default.
    pub memory: Option<u64>,
}

/// One track's question of a round: a local update, and where its sum stands.
#[derive(Clone, Debug)]
pub struct Update<'a> {
    /// w.
    pub params: &'a Params,
    /// How devices train.
    pub plan: LocalPlan,
    /// μ of the term (μ/2)‖w − w_t‖².
    pub proximal: f32,
    /// Where its sum stands among the sums.
    pub place: Range<usize>,
    /// The devices that count (federation indices), with α·ω.
    pub devices: &'a [(u32, f64)],
}

/// One model on one GPU over one federation. Work goes to a stream of its own: several of them share a GPU.
pub struct Gpu<'a> {
    device: Device,
    stream: Arc<CudaStream>,
    federation: &'a Federation,
    spec: ModelSpec,
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

    /// Another run on the same GPU over the same resident federation.
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
        let mut gpu = Self {
            federation,
            spec: spec.clone(),
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

    /// Builds the kernels of local updates with batches of this size, so that the first round need not.
    pub fn prepare(&mut self, batch: usize) -> Result<(), GpuError> {
        if self.trainer.as_ref().is_none_or(|(built, _)| *built != batch) {
            self.trainer = Some((batch, self.setup().trainer(batch)?));
        }
        Ok(())
    }

    /// Loss and errors of devices (federation indices) at each of several w, over all their examples.
    pub fn scores(&mut self, devices: &[u32], params: &[&Params]) -> Result<Vec<Vec<Score>>, GpuError> {
        self.send_params(params)?;
        let mut totals = vec![vec![Score::default(); devices.len()]; params.len()];
        let data = self.data.clone();
        for part in data.parts(devices) {
            let placed = data.place(&devices[part.clone()])?;
            let (owners, items) = self.items_of(&devices[part.clone()], &placed.offsets);
            // A launch takes so many blocks; partial scores stay small.
            for (owners, items) in owners.chunks(1 << 20).zip(items.chunks(1 << 20)) {
                let scores = self.score_items(items, params.len(), data.columns(&placed))?;
                for (totals, scores) in totals.iter_mut().zip(scores.chunks_exact(items.len())) {
                    owners.iter().zip(scores).for_each(|(&i, &score)| totals[part.start + i] += score);
                }
            }
        }
        Ok(totals)
    }

    /// Adds the coded updates of every query to its place in `sums`. `seed` and `round` decide the order of the
    /// examples; `members` is the size of the cohort.
    pub fn answers(
        &mut self,
        (seed, round): (u64, u64),
        members: usize,
        queries: &[Update<'_>],
        sums: &mut [u64],
    ) -> Result<(), GpuError> {
        let params: Vec<&Params> = queries.iter().map(|query| query.params).collect();
        self.send_params(&params)?;
        self.sums.start(queries.len())?;
        // A sum over this many devices cannot wrap around (`UpdateCode`).
        let limit = 2f64.powi(62) / members.max(1) as f64;
        let data = self.data.clone();
        for batch in distinct(queries.iter().map(|query| query.plan.batch)) {
            self.prepare(batch)?;
            let mut wanted = wanted(queries, batch, self.federation);
            let devices = distinct(wanted.iter().map(|wanted| wanted.device));
            for part in data.parts(&devices) {
                let devices = &devices[part];
                let placed = data.place(devices)?;
                let place: HashMap<u32, u64> =
                    devices.iter().copied().zip(placed.offsets.iter().copied()).collect();
                let (here, later): (Vec<_>, Vec<_>) =
                    wanted.into_iter().partition(|wanted| place.contains_key(&wanted.device));
                wanted = later;
                for wave in here.chunks(self.wave()) {
                    let (tasks, mut trained) = self.send_tasks((seed, round), queries, wave, &place)?;
                    self.local.reserve(wave.len() * self.len)?;
                    let updates = Updates {
                        stream: &self.stream,
                        tasks: &tasks,
                        task_list: self.tasks.arg(),
                        params: self.params.arg(),
                        order: self.order.arg(),
                        columns: data.columns(&placed),
                        constants: data.constants(),
                        local: self.local.arg(),
                    };
                    let (_, trainer) = self.trainer.as_mut().expect("the trainer has been prepared");
                    trainer.train(&updates)?;
                    trained.sort_by_key(|update| update.query);
                    self.sums.add(&trained, self.params.arg(), self.local.arg(), limit)?;
                }
                // What was placed is given back when the wave is done.
                if !data.is_resident() {
                    self.stream.synchronize()?;
                }
            }
        }
        let each = self.len + 3;
        let coded = self.sums.finish(queries.len())?;
        for (query, coded) in queries.iter().zip(coded.chunks_exact(each)) {
            add_wrapping(&mut sums[query.place.clone()], coded);
        }
        Ok(())
    }

    /// w_k of the last wave, by slot: what the sums were made of.
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

    /// Tasks of a wave.
    fn wave(&self) -> usize {
        let beside = self.trainer.as_ref().map_or(0, |(_, trainer)| trainer.bytes_per_task());
        usize::try_from(self.memory / (4 * self.len as u64 + beside).max(1)).unwrap_or(usize::MAX).max(1)
    }

    /// Draws the orders of a wave and sends its tasks, largest first. Queries to one device share its draws.
    fn send_tasks(
        &mut self,
        (seed, round): (u64, u64),
        queries: &[Update<'_>],
        wave: &[Wanted],
        place: &HashMap<u32, u64>,
    ) -> Result<(Vec<Task>, Vec<Trained>), GpuError> {
        let mut known: HashMap<(u32, u64), u64> = HashMap::new();
        let mut orders: Vec<(Draws, &LocalPlan, usize)> = Vec::new();
        let (mut tasks, mut trained, mut total) = (Vec::new(), Vec::new(), 0);
        for (slot, wanted) in wave.iter().enumerate() {
            let query = &queries[wanted.query];
            let examples = self.federation.count(wanted.device) as u32;
            let (draws, passes) = order::passes(&query.plan, examples);
            let key = (wanted.device, u64::from(draws) << 32 | u64::from(passes));
            let first = *known.entry(key).or_insert_with(|| {
                let draws = Draws {
                    seed,
                    round,
                    key: stream_key(self.federation.id(wanted.device)),
                    examples,
                    offset: place[&wanted.device] as u32,
                };
                let len = draws.len(&query.plan);
                orders.push((draws, &query.plan, len));
                total += len;
                (total - len) as u64
            });
            let (rate, proximal) = (query.plan.step.learning_rate, query.proximal);
            tasks.push(Task {
                order: first,
                params: wanted.query as u32,
                draws,
                passes,
                batch: query.plan.batch as u32,
                rate,
                keep: 1.0 - rate * (query.plan.step.l2 + proximal),
                pull: rate * proximal,
                slot: slot as u32,
            });
            trained.push(Trained {
                weight: wanted.weight,
                params: wanted.query as u32,
                slot: slot as u32,
                query: wanted.query as u32,
                unused: 0,
            });
        }
        self.order.send(total, |host| {
            let mut rest = host;
            let mut parts = Vec::new();
            for (draws, plan, len) in orders {
                let (part, after) = rest.split_at_mut(len);
                rest = after;
                parts.push((draws, plan, part));
            }
            parts.into_par_iter().for_each(|(draws, plan, part)| draws.write(plan, part));
        })?;
        tasks.sort_by_key(|task| Reverse(task.steps()));
        self.tasks.send(tasks.len(), |host| host.copy_from_slice(&tasks))?;
        Ok((tasks, trained))
    }

    /// The items of a forward pass, and which device each belongs to.
    fn items_of(&self, devices: &[u32], offsets: &[u64]) -> (Vec<usize>, Vec<Item>) {
        let items = devices.iter().zip(offsets).enumerate().flat_map(|(i, (&k, &offset))| {
            blocks(self.federation.count(k) as usize).map(move |block| {
                let first = offset + block.start as u64;
                (i, Item { first, count: block.len() as u32, unused: 0 })
            })
        });
        items.unzip()
    }

    /// Scores of items, vector by vector.
    fn score_items(
        &mut self,
        items: &[Item],
        vectors: usize,
        columns: &crate::data::Columns,
    ) -> Result<Vec<Score>, GpuError> {
        let len = items.len() * vectors;
        self.items.send(items.len(), |host| host.copy_from_slice(items))?;
        self.losses.reserve(len)?;
        self.errors.reserve(len)?;
        let pass = Scores {
            stream: &self.stream,
            items,
            item_list: self.items.arg(),
            vectors: vectors as u32,
            params: self.params.arg(),
            columns,
            constants: self.data.constants(),
            losses: self.losses.arg(),
            errors: self.errors.arg(),
        };
        self.scorer.as_mut().expect("the scorer was built with the rest").score(&pass)?;
        let losses = self.losses.receive(len)?;
        let errors = self.errors.receive(len)?;
        Ok(losses.iter().zip(errors).map(|(&loss, &errors)| Score { loss, errors: errors.into() }).collect())
    }
}

/// A local update that is wanted.
#[derive(Clone, Copy, Debug)]
struct Wanted {
    query: usize,
    device: u32,
    weight: f64,
    /// Examples that the device passes over.
    examples: u64,
}

/// The updates of the queries with this batch, largest first.
fn wanted(queries: &[Update<'_>], batch: usize, federation: &Federation) -> Vec<Wanted> {
    let of_query = |(query, update): (usize, &Update<'_>)| {
        let plan = update.plan;
        update
            .devices
            .iter()
            .map(move |&(device, weight)| {
                let (draws, passes) = order::passes(&plan, federation.count(device) as u32);
                Wanted { query, device, weight, examples: u64::from(draws) * u64::from(passes) }
            })
            .collect::<Vec<_>>()
    };
    let queries = queries.iter().enumerate().filter(|(_, query)| query.plan.batch == batch);
    let mut wanted: Vec<Wanted> = queries.flat_map(of_query).collect();
    wanted.sort_by_key(|wanted| Reverse(wanted.examples));
    wanted
}

/// The distinct values, in the order of their first appearance.
fn distinct<T: Copy + Eq + std::hash::Hash>(values: impl Iterator<Item = T>) -> Vec<T> {
    let mut seen = std::collections::HashSet::new();
    values.filter(|&value| seen.insert(value)).collect()
}
