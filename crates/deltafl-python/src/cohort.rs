//! A Python trainer that computes many devices in one call.
//!
//! `deltafl._cohort.CohortBridge` receives the devices of a call as arrays and returns the sum of
//! their encoded updates. If the answer of a device contains more than its update, for example with
//! SCAFFOLD, the bridge returns w_k of each device instead, and this module computes the answers. The
//! bridge may refuse a call. The threads then compute its devices one after another, as they do for
//! personal models and for local updates written in Python.

use std::cmp::Reverse;
use std::sync::Arc;

use deltafl::compute::{Block, Compute, ComputeError, Remembered, TrainedTask, UpdateTask, add_trained};
use deltafl::data::{BatchBuffer, Federation, FederationIndex};
use deltafl::device::{stream_key, update_stream};
use deltafl::model::Score;
use deltafl::params::{EncodedSum, Params, UpdateCode};
use deltafl::question::RoundKey;
use deltafl::task::Task;
use deltafl::terms::Clip;
use deltafl::trainer::{TrainerError, Work};
use numpy::{PyArray1, PyArrayMethods, PyReadonlyArray1, PyReadonlyArray2};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};

use crate::federation::gathered;
use crate::lent;
use crate::trainer::{PyTrainer, order};

mod trained;

/// The numbers of a score: the loss, and the sums of the metrics.
const NUMBERS: usize = 1 + Score::SUMS;

/// A backend that passes many devices to a trainer at once.
pub(crate) struct PyCohort<'a> {
    trainer: Arc<PyTrainer>,
    federation: &'a Federation,
    one_by_one: Box<dyn Compute + Send + 'a>,
    batch: BatchBuffer,
    /// The number of examples of the largest device.
    largest: usize,
}

impl<'a> PyCohort<'a> {
    /// Creates the backend. `one_by_one` computes the devices of calls that the trainer refuses.
    pub(crate) fn new(
        trainer: Arc<PyTrainer>,
        federation: &'a Federation,
        one_by_one: Box<dyn Compute + Send + 'a>,
    ) -> Self {
        let largest = federation.devices().map(|device| federation.example_count(device)).max();
        let largest = largest.unwrap_or(0) as usize;
        Self { trainer, federation, one_by_one, batch: BatchBuffer::default(), largest }
    }

    /// Calls a method of the bridge for a prefix of the devices. The bridge limits its length to the
    /// devices that fit into memory. Returns the length; 0 if the trainer refuses the devices.
    fn wave(&self, py: Python<'_>, kind: &str, devices: &[FederationIndex]) -> PyResult<usize> {
        let numbers: Vec<u32> = devices.iter().map(|device| device.0).collect();
        let examples: Vec<i64> =
            devices.iter().map(|&device| self.federation.example_count(device) as i64).collect();
        let arguments = (kind, PyArray1::from_vec(py, numbers), PyArray1::from_vec(py, examples));
        let count: usize = self.trainer.bridge(py).call_method1("wave", arguments)?.extract()?;
        Ok(count.min(devices.len()))
    }

    /// Passes the examples of devices to the bridge, except those that it still holds.
    fn hold(&mut self, py: Python<'_>, devices: &[FederationIndex]) -> PyResult<()> {
        let numbers: Vec<u32> = devices.iter().map(|device| device.0).collect();
        let bridge = self.trainer.bridge(py).clone();
        let wanted: Vec<u32> =
            bridge.call_method1("wanted", (PyArray1::from_vec(py, numbers),))?.extract()?;
        for device in wanted {
            let examples = self.federation.examples(FederationIndex(device));
            let all = 0..examples.len();
            let (inputs, targets) = gathered(py, &mut self.batch, &examples, all)?;
            bridge.call_method1("hold", (device, inputs, targets))?;
        }
        Ok(())
    }

    /// Adds the updates of some tasks. Returns `false` if the trainer refuses them.
    fn add_wave(
        &mut self,
        py: Python<'_>,
        key: &RoundKey,
        tasks: &[&UpdateTask<'_>],
        sums: &mut [Vec<u64>],
    ) -> PyResult<bool> {
        let devices: Vec<FederationIndex> = tasks.iter().map(|task| task.device).collect();
        self.hold(py, &devices)?;
        let wave = Wave::new(key, self.federation, tasks, self.largest);
        let arguments = wave.arguments(py, key, tasks)?;
        let answer = self.trainer.bridge(py).call_method("updates", (), Some(&arguments))?;
        if answer.is_none() {
            return Ok(false);
        }
        let (encoded, refused): (Vec<EncodedArray<'_>>, Vec<bool>) = answer.extract()?;
        for (&place, encoded) in wave.sums.iter().zip(&encoded) {
            let of_sum = |&i: &usize| tasks[i].sum == place;
            let members = || wave.order.iter().enumerate().filter(move |(_, i)| of_sum(i));
            let added = members().filter(|(row, _)| !refused[*row]).map(|(_, &i)| tasks[i].weight);
            let added: Vec<f64> = added.collect();
            UpdateCode::add_encoded(encoded.as_sum()?, &added, &mut sums[place]);
            members().filter(|(row, _)| refused[*row]).for_each(|_| UpdateCode::refuse(&mut sums[place]));
        }
        Ok(true)
    }

    /// Trains the devices of some tasks and adds their answers. Each task has its index among those
    /// of the round. Returns `None` if the trainer refuses them, and the new memories of devices.
    fn train_wave(
        &mut self,
        py: Python<'_>,
        key: &RoundKey,
        tasks: &[(usize, &UpdateTask<'_>)],
        sums: &mut [Vec<u64>],
    ) -> PyResult<Option<Result<Remembered, ComputeError>>> {
        let training: Vec<usize> = (0..tasks.len()).filter(|&i| trained::trains(tasks[i].1)).collect();
        let of_training: Vec<&UpdateTask<'_>> = training.iter().map(|&i| tasks[i].1).collect();
        let devices: Vec<FederationIndex> = of_training.iter().map(|task| task.device).collect();
        self.hold(py, &devices)?;
        let wave = Wave::new(key, self.federation, &of_training, self.largest);
        let arguments = wave.arguments(py, key, &of_training)?;
        let by_row: Vec<&UpdateTask<'_>> = wave.order.iter().map(|&i| of_training[i]).collect();
        arguments.set_item("drift", trained::drifts(py, &by_row)?)?;
        let answer = self.trainer.bridge(py).call_method("trained", (), Some(&arguments))?;
        if answer.is_none() {
            return Ok(None);
        }
        let rows: PyReadonlyArray2<'_, f32> = answer.extract()?;
        let len = rows.as_array().ncols();
        let entries = rows.as_slice()?;
        let mut trained: Vec<_> =
            tasks.iter().map(|&(index, &task)| TrainedTask { task, index, local: &[] }).collect();
        for (row, &i) in wave.order.iter().enumerate() {
            trained[training[i]].local = &entries[row * len..(row + 1) * len];
        }
        Ok(Some(add_trained(key, self.federation, &trained, sums)))
    }

    /// Computes a prefix of tasks in one call. Returns its length, and the new memories of devices
    /// or `None` if the trainer refuses the call.
    fn call(
        &mut self,
        py: Python<'_>,
        way: Way,
        key: &RoundKey,
        tasks: &[(usize, &UpdateTask<'_>)],
        sums: &mut [Vec<u64>],
    ) -> Result<(usize, Option<Remembered>), ComputeError> {
        let devices: Vec<FederationIndex> = tasks.iter().map(|(_, task)| task.device).collect();
        let kind = if way == Way::Rows { "trained" } else { "updates" };
        let count = self.wave(py, kind, &devices).map_err(|e| self.fail(py, e))?;
        if count == 0 {
            return Ok((tasks.len(), None));
        }
        let now = &tasks[..count];
        if way == Way::Rows {
            let trained = self.train_wave(py, key, now, sums).map_err(|e| self.fail(py, e))?;
            return Ok((count, trained.transpose()?));
        }
        let (lost, wave): (Vec<_>, Vec<_>) =
            now.iter().map(|(_, task)| *task).partition(|task| task.weight.is_nan());
        let is_done = self.add_wave(py, key, &wave, sums).map_err(|e| self.fail(py, e))?;
        if is_done {
            lost.iter().for_each(|task| UpdateCode::refuse(&mut sums[task.sum]));
        }
        Ok((count, is_done.then(Remembered::new)))
    }

    /// Computes the scores of some blocks. Returns `None` if the trainer refuses them.
    fn score_wave(
        &mut self,
        py: Python<'_>,
        blocks: &[Block],
        params: &[&Params],
    ) -> PyResult<Option<Vec<Vec<Score>>>> {
        let mut devices: Vec<FederationIndex> = blocks.iter().map(|block| block.device).collect();
        devices.dedup();
        self.hold(py, &devices)?;
        let column = |of: &dyn Fn(&Block) -> i64| PyArray1::from_vec(py, blocks.iter().map(of).collect());
        let arguments = (
            column(&|block| i64::from(block.device.0)),
            column(&|block| block.examples.start as i64),
            column(&|block| block.examples.len() as i64),
            vectors(py, params)?,
        );
        let answer = self.trainer.bridge(py).call_method1("scores", arguments)?;
        if answer.is_none() {
            return Ok(None);
        }
        let numbers: PyReadonlyArray1<'_, f64> = answer.extract()?;
        let score = |numbers: &[f64]| {
            let mut sums = [0.0; Score::SUMS];
            sums.copy_from_slice(&numbers[1..]);
            Score { loss: numbers[0], sums }
        };
        let of_params = |numbers: &[f64]| numbers.chunks_exact(NUMBERS).map(score).collect();
        let numbers = numbers.as_slice()?;
        Ok(Some(numbers.chunks_exact(NUMBERS * blocks.len()).map(of_params).collect()))
    }

    fn fail(&self, py: Python<'_>, error: PyErr) -> ComputeError {
        ComputeError::Cohort { problem: self.trainer.fail(py, error) }
    }

    fn check(&self) -> Result<(), ComputeError> {
        self.trainer.earlier().map_err(|problem: TrainerError| ComputeError::Cohort { problem })
    }
}

impl Compute for PyCohort<'_> {
    fn width(&self) -> usize {
        self.one_by_one.width()
    }

    fn task(&self) -> Task {
        self.one_by_one.task()
    }

    fn prefetch(&mut self, devices: &[FederationIndex]) {
        self.one_by_one.prefetch(devices);
    }

    fn scores(&mut self, blocks: &[Block], params: &[&Params]) -> Result<Vec<Vec<Score>>, ComputeError> {
        self.check()?;
        let mut scores = vec![Vec::with_capacity(blocks.len()); params.len()];
        let mut rest = blocks;
        while !rest.is_empty() {
            let mut devices: Vec<FederationIndex> = rest.iter().map(|block| block.device).collect();
            devices.dedup();
            let computed = Python::attach(|py| {
                let count = self.wave(py, "scores", &devices).map_err(|e| self.fail(py, e))?;
                let Some(last) = count.checked_sub(1) else { return Ok((rest.len(), None)) };
                let end = rest.iter().rposition(|block| block.device == devices[last]);
                let end = end.map_or(rest.len(), |end| end + 1);
                let computed = self.score_wave(py, &rest[..end], params);
                computed.map(|scores| (end, scores)).map_err(|e| self.fail(py, e))
            })?;
            let (end, wave) = match computed {
                (end, Some(wave)) => (end, wave),
                (end, None) => (end, self.one_by_one.scores(&rest[..end], params)?),
            };
            scores.iter_mut().zip(wave).for_each(|(scores, wave)| scores.extend(wave));
            rest = &rest[end..];
        }
        Ok(scores)
    }

    fn updates(
        &mut self,
        key: &RoundKey,
        tasks: &[UpdateTask<'_>],
        sums: &mut [Vec<u64>],
    ) -> Result<Remembered, ComputeError> {
        self.check()?;
        let mut remembered = Remembered::new();
        for way in [Way::Sums, Way::Rows, Way::OneByOne] {
            let of_way: Vec<(usize, &UpdateTask<'_>)> =
                tasks.iter().enumerate().filter(|(_, task)| Way::new(task, &self.trainer) == way).collect();
            let mut rest = &of_way[..];
            while !rest.is_empty() {
                let (count, added) = match way {
                    Way::OneByOne => (rest.len(), None),
                    _ => Python::attach(|py| self.call(py, way, key, rest, sums))?,
                };
                let (now, later) = rest.split_at(count);
                match added {
                    Some(memories) => remembered.extend(memories),
                    None => {
                        let alone: Vec<UpdateTask<'_>> = now.iter().map(|(_, task)| **task).collect();
                        let memories = self.one_by_one.updates(key, &alone, sums)?;
                        remembered.extend(memories.into_iter().map(|(i, memory)| (now[i].0, memory)));
                    }
                }
                rest = later;
            }
        }
        remembered.sort_unstable_by_key(|(task, _)| *task);
        Ok(remembered)
    }
}

/// Returns the function that puts cohorts around the threads of a trainer, if it computes them.
pub(crate) fn wrap(
    trainer: &Arc<PyTrainer>,
    in_cohorts: bool,
) -> impl for<'f> Fn(&'f Federation, Box<dyn Compute + Send + 'f>) -> Box<dyn Compute + Send + 'f> {
    let trainer = trainer.clone();
    move |federation, threads| {
        if in_cohorts { Box::new(PyCohort::new(trainer.clone(), federation, threads)) } else { threads }
    }
}

/// The way in which tasks are computed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    /// In one call, which returns the sum of encoded updates.
    Sums,
    /// In one call, which returns w_k of each device.
    Rows,
    /// One device after another.
    OneByOne,
}

impl Way {
    fn new(task: &UpdateTask<'_>, trainer: &PyTrainer) -> Self {
        let UpdateTask { own, report, personal, noise, plan, .. } = task;
        let is_exact = noise.is_none();
        if is_exact && own.is_none() && report.is_none() && personal.is_none() && plan.correction.is_none() {
            Self::Sums
        } else if trained::needs_only_row(task) && (plan.correction.is_none() || trainer.corrects()) {
            Self::Rows
        } else {
            Self::OneByOne
        }
    }
}

/// A sum of encoded updates that a trainer returns.
#[derive(FromPyObject)]
enum EncodedArray<'py> {
    Narrow(PyReadonlyArray1<'py, i32>),
    Wide(PyReadonlyArray1<'py, i64>),
}

impl EncodedArray<'_> {
    fn as_sum(&self) -> PyResult<EncodedSum<'_>> {
        Ok(match self {
            Self::Narrow(encoded) => EncodedSum::Narrow(encoded.as_slice()?),
            Self::Wide(encoded) => EncodedSum::Wide(encoded.as_slice()?),
        })
    }
}

/// The batches of the devices of one call, devices with the most steps first.
struct Wave {
    /// The tasks in the order of the rows.
    order: Vec<usize>,
    /// The sums to which the updates are added, in ascending order.
    sums: Vec<usize>,
    /// The number of steps of the longest device, and the size of a batch.
    steps: usize,
    batch: usize,
    /// The examples of each batch, by row and step. A short batch repeats its first example.
    examples: Vec<i64>,
    /// The number of examples of each batch, by row and step. 0 after the last step of a device.
    sizes: Vec<i64>,
    seeds: Vec<u64>,
}

impl Wave {
    /// Draws the batches. `largest` is the number of examples of the largest device, so that batches
    /// of whole devices have the same size in every call.
    fn new(key: &RoundKey, federation: &Federation, tasks: &[&UpdateTask<'_>], largest: usize) -> Self {
        let steps_of =
            |task: &UpdateTask<'_>| task.plan.steps(federation.example_count(task.device)) as usize;
        let mut rows: Vec<usize> = (0..tasks.len()).collect();
        rows.sort_by_key(|&i| Reverse(steps_of(tasks[i])));
        let mut sums: Vec<usize> = tasks.iter().map(|task| task.sum).collect();
        sums.sort_unstable();
        sums.dedup();
        let steps = rows.first().map_or(0, |&i| steps_of(tasks[i]));
        let batch_of = |task: &&UpdateTask<'_>| match task.plan.work {
            Work::Epochs(_) => task.plan.batch.min(largest),
            Work::Steps(_) => task.plan.batch,
        };
        let batch = tasks.iter().map(batch_of).max().unwrap_or(0);
        let mut wave = Self {
            sums,
            steps,
            batch,
            examples: vec![0; tasks.len() * steps * batch],
            sizes: vec![0; tasks.len() * steps],
            seeds: Vec::with_capacity(tasks.len()),
            order: rows,
        };
        for row in 0..wave.order.len() {
            wave.fill(row, key, federation, tasks[wave.order[row]]);
        }
        wave
    }

    /// Draws the batches of a device as the built-in SGD does.
    fn fill(&mut self, row: usize, key: &RoundKey, federation: &Federation, task: &UpdateTask<'_>) {
        let mut stream = update_stream(key, stream_key(federation.id(task.device)));
        let held = federation.example_count(task.device) as usize;
        let order = order(task.plan, held, &mut stream);
        self.seeds.push(stream.next_u64());
        let period = match task.plan.work {
            Work::Epochs(_) => held,
            Work::Steps(_) => order.len(),
        };
        let batches = order.chunks(period.max(1)).flat_map(|epoch| epoch.chunks(task.plan.batch));
        for (step, batch) in batches.enumerate() {
            let place = row * self.steps + step;
            let padded = &mut self.examples[place * self.batch..(place + 1) * self.batch];
            padded.fill(batch[0]);
            padded[..batch.len()].copy_from_slice(batch);
            self.sizes[place] = batch.len() as i64;
        }
    }

    /// Returns the arguments of the call.
    fn arguments<'py>(
        &self,
        py: Python<'py>,
        key: &RoundKey,
        tasks: &[&UpdateTask<'_>],
    ) -> PyResult<Bound<'py, PyDict>> {
        let mut distinct: Vec<&Params> = Vec::new();
        let mut which = Vec::with_capacity(tasks.len());
        for &i in &self.order {
            let params = tasks[i].params;
            let known = distinct.iter().position(|other| params.is_same(other));
            which.push(known.unwrap_or(distinct.len()) as i64);
            if known.is_none() {
                distinct.push(params);
            }
        }
        let column = |of: &dyn Fn(&UpdateTask<'_>) -> f64| {
            PyArray1::from_vec(py, self.order.iter().map(|&i| of(tasks[i])).collect())
        };
        let integers = |of: &dyn Fn(&UpdateTask<'_>) -> i64| {
            PyArray1::from_vec(py, self.order.iter().map(|&i| of(tasks[i])).collect())
        };
        let sum = |task: &UpdateTask<'_>| self.sums.partition_point(|&sum| sum < task.sum) as i64;
        let (rows, steps) = (self.order.len(), self.steps);
        let examples = PyArray1::from_slice(py, &self.examples).reshape([rows, steps, self.batch])?;
        let sizes = PyArray1::from_slice(py, &self.sizes).reshape([rows, steps])?;
        let arguments = PyDict::new(py);
        arguments.set_item("devices", integers(&|task| i64::from(task.device.0)))?;
        arguments.set_item("params", vectors(py, &distinct)?)?;
        arguments.set_item("which", PyArray1::from_vec(py, which))?;
        arguments.set_item("sums", integers(&sum))?;
        arguments.set_item("examples", examples)?;
        arguments.set_item("sizes", sizes)?;
        arguments.set_item("seeds", PyArray1::from_slice(py, &self.seeds))?;
        arguments.set_item("weights", column(&|task| task.weight))?;
        arguments.set_item("learning_rates", column(&|task| f64::from(task.plan.learning_rate)))?;
        arguments.set_item("l2", column(&|task| f64::from(task.plan.l2)))?;
        arguments.set_item("proximal", column(&|task| f64::from(task.plan.proximal)))?;
        let code = key.code();
        arguments.set_item("limit", code.limit())?;
        arguments.set_item("scale", UpdateCode::scale())?;
        arguments.set_item("clip", code.clip().map(Clip::get))?;
        Ok(arguments)
    }
}

/// Returns params as a list of float32 vectors, which cannot be written.
fn vectors<'py>(py: Python<'py>, params: &[&Params]) -> PyResult<Bound<'py, PyList>> {
    let lent = params.iter().map(|params| lent::vector(py, params)).collect::<PyResult<Vec<_>>>()?;
    PyList::new(py, lent)
}
