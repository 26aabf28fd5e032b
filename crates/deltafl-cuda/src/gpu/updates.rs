//! Local updates of a cohort, wave by wave.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::Arc;

use deltafl::compute::{ComputeError, NoisyEncoding, Remembered, UpdateTask, add_trained};
use deltafl::data::FederationIndex;
use deltafl::device::stream_key;
use deltafl::params::{UpdateCode, add_wrapping};
use deltafl::question::RoundKey;
use deltafl::trainer::Work;

use super::{Gpu, offset};
use crate::GpuError;
use crate::data::{GpuColumns, Offsets, WaveData};
use crate::host::pulls;
use crate::launch::MOST_GRID_ROWS;
use crate::model::Updates;
use crate::noisy::NoisySums;
use crate::order::{self, DeviceDraws, Order};
use crate::task::{Task, Trained};
use crate::wanted::{Adder, RequestedUpdate, distinct, positions, shared_params};

impl<'a> Gpu<'a> {
    pub(super) fn add_updates(
        &mut self,
        key: &RoundKey,
        tasks: &[UpdateTask<'_>],
        sums: &mut [Vec<u64>],
    ) -> Result<Remembered, ComputeError> {
        let mut remembered = Remembered::new();
        let on_gpu = |error: GpuError, gpu: &Self| gpu.unavailable(error);
        let vectors = self.start_vectors(tasks).map_err(|error| on_gpu(error, self))?;
        let requested = RequestedUpdate::all(tasks, &vectors);
        self.start_sums(key, &requested, sums).map_err(|error| on_gpu(error, self))?;
        let (mut wanted, mut untrained) = (Vec::with_capacity(tasks.len()), Vec::new());
        let mut noise_only = Vec::new();
        for &update in &requested {
            let RequestedUpdate { task, adder, .. } = update;
            let is_trained = match &task.noise {
                // A device outside of the tail adds noise only.
                Some(_) => task.weight > 0.0,
                None => !task.weight.is_nan(),
            } && task.plan.examples(self.federation.example_count(task.device)) > 0;
            if is_trained {
                wanted.push(update);
            } else if adder == Adder::Noisy && (task.weight.is_nan() || task.weight <= 0.0) {
                noise_only.push(update);
            } else if adder != Adder::Plain {
                untrained.push(update);
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
            for adder in Adder::ALL {
                let rest: Vec<_> = of_batch.iter().copied().filter(|wanted| wanted.adder == adder).collect();
                self.train_batch(key, batch, rest, sums, &mut remembered)?;
            }
        }
        if let Some(noisy) = &mut self.noisy {
            let added = noisy.add_untrained(key, self.federation, &noise_only);
            added.map_err(|error| self.unavailable(error))?;
        }
        let stay: Vec<_> =
            untrained.iter().map(|wanted| wanted.trained(wanted.task.params.as_slice())).collect();
        remembered.extend(add_trained(key, self.federation, &stay, sums)?);
        // Keep these until the kernels that read them are done.
        let _columns = self.look_ahead(key, tasks).map_err(|error| on_gpu(error, self))?;
        self.finish_sums(&requested, sums).map_err(|error| on_gpu(error, self))?;
        remembered.sort_unstable_by_key(|(task, _)| *task);
        Ok(remembered)
    }

    /// Starts the sums of the GPU.
    fn start_sums(
        &mut self,
        key: &RoundKey,
        requested: &[RequestedUpdate<'_>],
        sums: &[Vec<u64>],
    ) -> Result<(), GpuError> {
        self.sums.start(sums.len())?;
        if self.noisy.is_none() && requested.iter().any(|update| update.adder == Adder::Noisy) {
            self.noisy = Some(NoisySums::new(&self.device, &self.stream, self.len)?);
        }
        match &mut self.noisy {
            Some(noisy) => {
                let noisy_updates = requested.iter().filter(|update| update.adder == Adder::Noisy);
                noisy.start(key, noisy_updates.map(|update| &update.task), sums)
            }
            None => Ok(()),
        }
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
                if wave[0].adder == Adder::Host {
                    let len = self.len;
                    let local = self.received.receive(&self.local, wave.len() * len);
                    let local = match local {
                        Ok(local) => local,
                        Err(error) => return Err(self.unavailable(error)),
                    };
                    let trained: Vec<_> = wave
                        .iter()
                        .zip(local.chunks_exact(len))
                        .map(|(wanted, w)| wanted.trained(w))
                        .collect();
                    remembered.extend(add_trained(key, self.federation, &trained, sums)?);
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
        requested: &[RequestedUpdate<'_>],
        sums: &mut [Vec<u64>],
    ) -> Result<(), GpuError> {
        if let Some(noisy) = &mut self.noisy
            && requested.iter().any(|update| update.adder == Adder::Noisy)
        {
            noisy.finish(sums)?;
        }
        if requested.iter().all(|update| update.adder != Adder::Plain) {
            return Ok(self.stream.synchronize()?);
        }
        let coded = self.sums.finish(sums.len())?;
        for (sum, coded) in sums.iter_mut().zip(coded.chunks_exact(UpdateCode::len(self.len))) {
            // A sum with another length has no plain entries on the GPU.
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
        if wanted.iter().any(|wanted| wanted.adder == Adder::Noisy) {
            // The rotated update.
            bytes += 4 * NoisyEncoding::rotated_len(self.len) as u64;
        }
        // Some kernels have a row of blocks per task.
        usize::try_from(self.memory / bytes.max(1)).unwrap_or(usize::MAX).clamp(1, MOST_GRID_ROWS)
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
        match (wave[0].adder, &mut self.noisy) {
            (Adder::Plain, _) => self.add_plain(key, wave),
            (Adder::Noisy, Some(noisy)) => {
                noisy.add_trained(key, self.federation, wave, self.params.arg(), self.local.arg())
            }
            (Adder::Noisy, None) | (Adder::Host, _) => Ok(()),
        }
    }

    /// Adds the updates of a wave without noise to the sums of the GPU.
    fn add_plain(&mut self, key: &RoundKey, wave: &[RequestedUpdate<'_>]) -> Result<(), GpuError> {
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
        // Epochs and steps draw different orders, also of the same length.
        let mut known: HashMap<(FederationIndex, u32, u32, bool), u64> = HashMap::new();
        let mut orders: Vec<Order<'_>> = Vec::new();
        let (mut tasks, mut total) = (Vec::with_capacity(wave.len()), 0);
        for (slot, RequestedUpdate { task, vector, .. }) in wave.iter().enumerate() {
            let (plan, examples) = (task.plan, self.federation.example_count(task.device) as u32);
            let (draws, passes) = order::passes(plan, examples);
            let is_shuffled = matches!(plan.work, Work::Epochs(_));
            let first = *known.entry((task.device, draws, passes, is_shuffled)).or_insert_with(|| {
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
}
