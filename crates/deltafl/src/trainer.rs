//! The local computation of a device from w: its loss F_k(w) and its local update (Algorithm 2,
//! lines 10–12).
//!
//! All threads share a [`LocalTrainer`]. Each thread has its own [`Worker`], whose memory is reused
//! from device to device. [`Sgd`] trains the library's models and is used in every simulation. A
//! custom trainer implements the same two traits and can use the round loop, the secure sums and
//! the run folder.

use std::mem;
use std::ops::{Deref, Range};
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};

use crate::data::{BatchBuffer, Examples};
use crate::device::BLOCK;
use crate::kernel::Aligned;
use crate::memory::AlgorithmState;
use crate::model::{Batch, Model, Score, Step, Tensor};
use crate::params::Params;
use crate::stream::Stream;
use crate::task::Task;

mod correction;
mod personal;

pub use correction::{Correction, LocalResult};
pub use personal::{PERSONAL, Personal, PersonalMethod};

/// The amount of local training.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Work {
    /// Passes over a shuffle of the device's examples. The last, shorter batch is kept.
    Epochs(u32),
    /// n_local steps, each on a batch drawn with replacement.
    Steps(u32),
}

/// The local update of one round: SGD on f(w; ξ) + (λ/2)‖w‖² + (μ/2)‖w − w_t‖², with an optional
/// correction.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LocalPlan {
    /// Epochs or steps.
    pub work: Work,
    /// The number of examples per step.
    pub batch: usize,
    /// γ_t.
    pub learning_rate: f32,
    /// λ.
    pub l2: f32,
    /// μ, the weight of the proximal term at w_t, or 0 in Δ-FL and FedAvg.
    pub proximal: f32,
    /// The correction added to every gradient, if any.
    pub correction: Option<&'static Correction>,
}

impl LocalPlan {
    /// Returns the number of examples that a device with this many examples processes.
    pub fn examples(&self, held: u64) -> u64 {
        match self.work {
            Work::Epochs(epochs) => held.saturating_mul(u64::from(epochs)),
            Work::Steps(steps) => u64::from(steps).saturating_mul(self.batch as u64),
        }
    }

    /// Returns K, the number of steps of a device with this many examples.
    pub fn steps(&self, held: u64) -> u64 {
        match self.work {
            Work::Epochs(epochs) => held.div_ceil(self.batch as u64).saturating_mul(u64::from(epochs)),
            Work::Steps(steps) => steps.into(),
        }
    }

    /// Rejects a plan with a correction, for a trainer that does not support it.
    pub fn without_correction(&self) -> Result<(), TrainerError> {
        match self.correction {
            None => Ok(()),
            Some(_) => {
                Err("the algorithm corrects the gradients of devices, which this trainer does not".into())
            }
        }
    }

    /// Returns the number of vectors that are sent with w and returned as changes.
    pub fn sent(&self) -> usize {
        self.correction.map_or(0, |correction| correction.sent.len())
    }
}

/// The reason for which a trainer failed.
pub type TrainerError = Box<dyn std::error::Error + Send + Sync>;

/// The training problem and its local computation.
pub trait LocalTrainer: Send + Sync {
    /// Returns the length d of the parameter vector w.
    fn num_params(&self) -> usize;

    /// Writes the initial iterate w₀.
    fn init(&self, stream: &mut Stream, params: &mut [f32]);

    /// Returns the task, which determines the metrics of the workers' scores.
    fn task(&self) -> Task {
        Task::default()
    }

    /// Returns the tensors of w in order, with the names and shapes used in files.
    fn tensors(&self) -> Vec<Tensor> {
        vec![Tensor::new("params", &[self.num_params()])]
    }

    /// Returns whether its workers add the drift of a [`Correction`] to every gradient.
    fn corrects_gradients(&self) -> bool {
        false
    }

    /// AlgorithmState in which one thread computes devices.
    fn worker(&self) -> Box<dyn Worker + '_>;
}

/// Computes devices one after the other.
pub trait Worker: Send {
    /// Prepares w for [`Worker::score`].
    fn load(&mut self, params: &[f32]);

    /// Computes the loss and metrics over at most [`BLOCK`] examples at the loaded w.
    fn score(&mut self, examples: &Examples<'_>, block: Range<usize>) -> Result<Score, TrainerError>;

    /// Runs LocalUpdate and returns w_k, followed by the change to each vector that was sent with
    /// w. `own` is the memory of the device. A trainer may read and change it under its own names.
    fn update(
        &mut self,
        task: &LocalTask<'_>,
        own: &mut AlgorithmState,
        stream: &mut Stream,
    ) -> Result<&[f32], TrainerError>;

    /// Trains the personal model of a device after its update, and stores it in `own`. Fails if the
    /// worker does not train personal models.
    fn personalise(
        &mut self,
        _task: &LocalTask<'_>,
        _method: PersonalMethod,
        _own: &mut AlgorithmState,
        _stream: &mut Stream,
    ) -> Result<(), TrainerError> {
        Err("this trainer does not train personal models".into())
    }
}

/// A local update to compute.
#[derive(Clone, Copy, Debug)]
pub struct LocalTask<'a> {
    /// w_t.
    pub params: &'a [f32],
    /// The vectors that the server sends with w, as many as [`LocalPlan::sent`] returns.
    pub sent: &'a [Params],
    /// The device's data.
    pub examples: &'a Examples<'a>,
    /// The training plan.
    pub plan: &'a LocalPlan,
}

/// Stochastic gradient descent on a [`Model`], which it borrows, shares or owns. A dropped worker
/// passes its memory to the next one. Thousands of devices in a process thus need only the memory
/// of their threads.
pub struct Sgd<M> {
    model: M,
    before_step: fn(),
    spare: Mutex<Vec<Workspace>>,
}

impl<M> Sgd<M> {
    /// Creates a trainer for this model.
    pub fn new(model: M) -> Self {
        Self { model, before_step: || (), spare: Mutex::default() }
    }

    /// Calls a function before every step. It may unwind to cancel the update, for example when the
    /// answer is no longer needed.
    #[must_use]
    pub fn before_step(self, before_step: fn()) -> Self {
        Self { before_step, ..self }
    }
}

impl<'a> Sgd<&'a dyn Model> {
    /// Creates a trainer for a model of any type. This crate compiles its loops, and not the crate
    /// of the caller, which may be optimised less.
    pub fn boxed(model: &'a dyn Model) -> Box<dyn LocalTrainer + 'a> {
        Box::new(Self::new(model))
    }
}

fn unlocked(spare: &Mutex<Vec<Workspace>>) -> MutexGuard<'_, Vec<Workspace>> {
    // The memory left by a panicked thread can be reused.
    spare.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<M: Deref<Target: Model> + Send + Sync> LocalTrainer for Sgd<M> {
    fn num_params(&self) -> usize {
        self.model.num_params()
    }

    fn init(&self, stream: &mut Stream, params: &mut [f32]) {
        self.model.init(stream, params);
    }

    fn task(&self) -> Task {
        self.model.task()
    }

    fn tensors(&self) -> Vec<Tensor> {
        self.model.tensors()
    }

    fn corrects_gradients(&self) -> bool {
        true
    }

    fn worker(&self) -> Box<dyn Worker + '_> {
        let memory = unlocked(&self.spare).pop().unwrap_or_default();
        Box::new(SgdWorker { model: &*self.model, before_step: self.before_step, spare: &self.spare, memory })
    }
}

/// A model with its training memory.
struct SgdWorker<'a, T: Model + ?Sized> {
    model: &'a T,
    before_step: fn(),
    spare: &'a Mutex<Vec<Workspace>>,
    memory: Workspace,
}

impl<T: Model + ?Sized> Drop for SgdWorker<'_, T> {
    fn drop(&mut self) {
        let memory = mem::take(&mut self.memory);
        unlocked(self.spare).push(memory);
    }
}

/// The memory in which a device trains and evaluates, reused from device to device.
#[derive(Debug, Default)]
struct Workspace {
    working: Aligned,
    /// The vector that every step adds to the gradient step, in working form, if there is a
    /// proximal term or a correction.
    pull: Aligned,
    /// The personal params and their mixture with the shared ones, in working form.
    personal: Aligned,
    mixture: Aligned,
    scratch: Aligned,
    local: Vec<f32>,
    order: Vec<u32>,
    batch: BatchBuffer,
}

impl<T: Model + ?Sized> Worker for SgdWorker<'_, T> {
    fn load(&mut self, params: &[f32]) {
        let Workspace { working, scratch, .. } = &mut self.memory;
        working.resize(self.model.working_len());
        self.model.load(params, working);
        scratch.resize(self.model.scratch_len(BLOCK));
    }

    fn score(&mut self, examples: &Examples<'_>, block: Range<usize>) -> Result<Score, TrainerError> {
        let Workspace { working, scratch, batch, .. } = &mut self.memory;
        Ok(self.model.evaluate(working, batch.gather(examples, block), scratch))
    }

    fn update(
        &mut self,
        task: &LocalTask<'_>,
        own: &mut AlgorithmState,
        stream: &mut Stream,
    ) -> Result<&[f32], TrainerError> {
        let LocalTask { params, examples, plan, .. } = *task;
        let working = &mut self.memory.working;
        working.resize(self.model.working_len());
        self.model.load(params, working);
        self.set_pull(task, own);
        self.train(examples, plan, None, stream);
        let Workspace { working, local, .. } = &mut self.memory;
        local.resize(self.model.num_params() * (1 + plan.sent()), 0.0);
        let (local, changes) = local.split_at_mut(self.model.num_params());
        self.model.store(working, local);
        if let Some(correction) = plan.correction {
            let (steps, learning_rate) = (plan.steps(examples.len() as u64), plan.learning_rate);
            let proximal = plan.proximal;
            let trained = LocalResult { params, local, sent: task.sent, steps, learning_rate, proximal };
            (correction.finish)(&trained, own, changes);
        }
        Ok(&self.memory.local)
    }

    fn personalise(
        &mut self,
        task: &LocalTask<'_>,
        method: PersonalMethod,
        own: &mut AlgorithmState,
        stream: &mut Stream,
    ) -> Result<(), TrainerError> {
        self.model.load(task.params, &mut self.memory.working);
        let from = own.vector(PERSONAL).map_or(task.params, Params::as_slice);
        let mut personal = vec![0.0; task.params.len()];
        match method {
            PersonalMethod::FineTuned => return Ok(()),
            PersonalMethod::Regularised { proximal } => {
                let plan = LocalPlan { proximal, correction: None, ..*task.plan };
                // The pull is towards w_t, which is loaded.
                self.set_pull(&LocalTask { plan: &plan, ..*task }, own);
                self.model.load(from, &mut self.memory.working);
                self.train(task.examples, &plan, None, stream);
                self.model.store(&self.memory.working, &mut personal);
            }
            PersonalMethod::Mixed { share } => {
                let plan = LocalPlan { proximal: 0.0, correction: None, ..*task.plan };
                self.memory.personal.resize(self.model.working_len());
                self.memory.mixture.resize(self.model.working_len());
                self.model.load(from, &mut self.memory.personal);
                self.train(task.examples, &plan, Some(share), stream);
                self.model.store(&self.memory.personal, &mut personal);
            }
        }
        own.set_vector(PERSONAL, personal.into());
        Ok(())
    }
}

impl<T: Model + ?Sized> SgdWorker<'_, T> {
    /// Computes the vector that every step adds to the gradient step: γ(μw_t − drift).
    fn set_pull(&mut self, task: &LocalTask<'_>, own: &AlgorithmState) {
        let Workspace { working, pull, local, .. } = &mut self.memory;
        let LocalTask { params, plan, .. } = task;
        let LocalPlan { learning_rate, proximal, .. } = **plan;
        match plan.correction {
            None if proximal > 0.0 => {
                pull.resize(working.len());
                pull.iter_mut()
                    .zip(working.iter())
                    .for_each(|(pull, w)| *pull = learning_rate * proximal * w);
            }
            None => {}
            Some(correction) => {
                local.clear();
                local.resize(params.len(), 0.0);
                (correction.drift)(task.sent, own, local);
                let moved = |(drift, w): (&mut f32, &f32)| *drift = learning_rate * (proximal * w - *drift);
                local.iter_mut().zip(*params).for_each(moved);
                pull.resize(working.len());
                self.model.load(local, pull);
            }
        }
    }
}

impl<T: Model + ?Sized> SgdWorker<'_, T> {
    /// Runs the steps of a plan on the loaded params. With a share, each step also trains the
    /// personal params within their mixture with the loaded ones.
    fn train(&mut self, examples: &Examples<'_>, plan: &LocalPlan, share: Option<f32>, stream: &mut Stream) {
        // The scratch size depends on the largest possible step, not on the plan.
        let longest = match plan.work {
            Work::Epochs(_) => plan.batch.min(examples.len()),
            Work::Steps(_) => plan.batch,
        };
        self.memory.scratch.resize(self.model.step_scratch_len(longest));
        match plan.work {
            Work::Epochs(epochs) => (0..epochs).for_each(|_| self.epoch(examples, plan, share, stream)),
            Work::Steps(steps) => (0..steps).for_each(|_| self.drawn_step(examples, plan, share, stream)),
        }
    }

    /// Runs one pass over a shuffle of the examples.
    fn epoch(&mut self, examples: &Examples<'_>, plan: &LocalPlan, share: Option<f32>, stream: &mut Stream) {
        let Workspace { working, pull, scratch, order, batch, personal, mixture, .. } = &mut self.memory;
        order.clear();
        order.extend(0..examples.len() as u32);
        stream.shuffle(order);
        for indices in order.chunks(plan.batch) {
            (self.before_step)();
            let batch = batch.gather(examples, indices.iter().map(|&i| i as usize));
            let step = step(plan, pull, self.model.draws_in_steps().then(|| stream.next_u64()));
            if let Some(share) = share {
                let own = MixedParams { shared: working, personal, mixture, share };
                own.step(self.model, batch, step, scratch);
            }
            self.model.step(working, batch, step, scratch);
        }
    }

    /// Runs one step on ξ ~ q_k.
    fn drawn_step(
        &mut self,
        examples: &Examples<'_>,
        plan: &LocalPlan,
        share: Option<f32>,
        stream: &mut Stream,
    ) {
        (self.before_step)();
        let Workspace { working, pull, scratch, order, batch, personal, mixture, .. } = &mut self.memory;
        order.clear();
        order.extend((0..plan.batch).map(|_| stream.below(examples.len() as u64) as u32));
        let batch = batch.gather(examples, order.iter().map(|&i| i as usize));
        let step = step(plan, pull, self.model.draws_in_steps().then(|| stream.next_u64()));
        if let Some(share) = share {
            let own = MixedParams { shared: working, personal, mixture, share };
            own.step(self.model, batch, step, scratch);
        }
        self.model.step(working, batch, step, scratch);
    }
}

fn step<'a>(plan: &LocalPlan, pull: &'a [f32], key: Option<u64>) -> Step<'a> {
    let pulled = plan.proximal > 0.0 || plan.correction.is_some();
    let (l2, pull) = (plan.l2 + plan.proximal, pulled.then_some(pull));
    Step { learning_rate: plan.learning_rate, l2, pull, key: key.unwrap_or_default() }
}

/// Personal params within a mixture with the shared ones, in working form.
struct MixedParams<'a> {
    shared: &'a [f32],
    personal: &'a mut [f32],
    /// Scratch memory for the mixture.
    mixture: &'a mut [f32],
    /// a, the share of the personal params in the mixture.
    share: f32,
}

impl MixedParams<'_> {
    /// Moves the personal params v by −γ a ∇f(a v + (1 − a) w).
    fn step<T: Model + ?Sized>(self, model: &T, batch: Batch<'_>, step: Step<'_>, scratch: &mut [f32]) {
        let Self { shared, personal, mixture, share } = self;
        let mixed = |v: f32, w: f32| share * v + (1.0 - share) * w;
        for ((mixture, &v), &w) in mixture.iter_mut().zip(&*personal).zip(shared) {
            *mixture = mixed(v, w);
        }
        model.step(mixture, batch, step, scratch);
        for ((&moved, v), &w) in mixture.iter().zip(personal).zip(shared) {
            *v += share * (moved - mixed(*v, w));
        }
    }
}
