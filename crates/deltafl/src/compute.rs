//! Compute backends for the devices: forward passes and local updates.
//!
//! A [`Simulation`](crate::exchange::Simulation) computes its devices by a [`Compute`]. Work that
//! all implementations share belongs to the simulation: the questions of each device, the cache of
//! losses, the order of tasks, and the evaluation of equal params. [`Threads`] computes on the CPUs
//! of this process.

use std::ops::Range;

use crate::data::{Federation, FederationIndex};
use crate::device::{
    NoisyShare, Share, UpdateRandomness, add_noisy_update, add_update, stream_key, update_stream,
};
use crate::memory::AlgorithmState;
use crate::model::Score;
use crate::params::Params;
use crate::privacy::{Noise, excess};
use crate::question::{Query, RoundKey};
use crate::selection::Report;
use crate::task::Task;
use crate::trainer::{LocalPlan, LocalTask, PersonalMethod, TrainerError, Worker};

mod noisy;
mod threads;
mod trained;

pub use noisy::{NOISY_FOOTER, NoiseStream, NoisyEncoding, ROUNDINGS};
pub use threads::Threads;
pub use trained::{TrainedTask, add_trained};

/// Some examples of a device, at most [`BLOCK`](crate::device::BLOCK) of them. This is the unit of
/// a forward pass.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block {
    /// The device.
    pub device: FederationIndex,
    /// The range of its examples.
    pub examples: Range<usize>,
}

/// A pending local update of a device.
#[derive(Clone, Copy, Debug)]
pub struct UpdateTask<'a> {
    /// The device.
    pub device: FederationIndex,
    /// w.
    pub params: &'a Params,
    /// The vectors that the server sends with w.
    pub sent: &'a [Params],
    /// The device's memory, if it has one.
    pub own: Option<&'a AlgorithmState>,
    /// The settings of local training.
    pub plan: &'a LocalPlan,
    /// α_k·ω_k.
    pub weight: f64,
    /// The numbers that the device reports with its update, if any.
    pub report: Option<Report<'a>>,
    /// The training of a personal model after the update, if any.
    pub personal: Option<PersonalMethod>,
    /// The noise of the query. The device then adds noise in any case, and trains only if its
    /// weight is positive.
    pub noise: Option<TaskNoise>,
    /// The index of the sum to which the update is added.
    pub sum: usize,
}

impl<'a> UpdateTask<'a> {
    /// Creates a task for the first sum: an update alone, of a device without a memory, and without
    /// noise.
    pub fn new(device: FederationIndex, weight: f64, params: &'a Params, plan: &'a LocalPlan) -> Self {
        Self {
            device,
            params,
            sent: &[],
            own: None,
            plan,
            weight,
            report: None,
            personal: None,
            noise: None,
            sum: 0,
        }
    }
}

/// The noise of an update.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TaskNoise {
    /// Its parameters.
    pub noise: Noise,
    /// The number of the query among those of its round, for its random numbers.
    pub query: u32,
    /// The parts of the noise that stay although they can be removed; `None` if no part can be
    /// removed.
    pub kept: Option<KeptParts>,
}

/// The removable parts of a device's noise that stay in a sum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeptParts {
    /// The number of the first query of the question, for the random numbers.
    pub question: u32,
    /// The number of parts.
    pub parts: u32,
}

impl KeptParts {
    /// Returns the parts that stay in the sum of some queries over this many devices.
    pub(crate) fn new(queries: &[Query], survivors: u64) -> Option<Self> {
        let first = queries.first().filter(|_| excess::is_removable(queries))?;
        Some(Self { question: first.number(), parts: excess::last_kept(queries, survivors) })
    }

    /// Adds the parts of a simulated device to its answer to a query.
    pub(crate) fn add_to(self, noise: &Noise, key: &RoundKey, device: u64, query: u32, answer: &mut [u64]) {
        let parts = self.parts.min(excess::NoiseLevels::new(noise).removable());
        if parts > 0 {
            let first = UpdateRandomness::Reproducible.excess_key(key, device, self.question);
            noise.add_parts(first, parts, query, answer);
        }
    }
}

/// The reason for which a computation failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ComputeError {
    /// The computation of a device failed: its data or a user's trainer returned an error or
    /// panicked.
    #[error("device {device}: {problem}")]
    Device {
        /// The identity of the device.
        device: String,
        /// The error message.
        problem: TrainerError,
    },
    /// The computation of many devices in one call failed.
    #[error("{problem}")]
    Cohort {
        /// The error message.
        problem: TrainerError,
    },
    /// The compute backend is not available.
    #[error("{place} cannot be used")]
    Unavailable {
        /// The backend.
        place: String,
        /// The error reported by the backend.
        source: TrainerError,
    },
}

/// The new memories of the devices of some tasks, each with the index of its task. Devices without
/// a memory, and devices whose update is not in the sum, are not listed.
pub type Remembered = Vec<(usize, AlgorithmState)>;

/// Computes the update of one task by a worker and adds it, encoded as integers, to `sum`: the
/// update, the changes of the vectors sent with w, reported numbers, and noise. Returns the new
/// memory of the device if it differs.
///
/// # Errors
///
/// Returns an error if the worker fails, or if it returns an update of the wrong length.
pub fn add_task(
    key: &RoundKey,
    federation: &Federation,
    task: &UpdateTask<'_>,
    worker: &mut dyn Worker,
    sum: &mut [u64],
) -> Result<Option<AlgorithmState>, TrainerError> {
    let UpdateTask { device, params, sent, own, plan, weight, report, personal, noise, .. } = *task;
    let id = stream_key(federation.id(device));
    let mut stream = update_stream(key, id);
    let examples = federation.examples(device);
    let task = LocalTask { params: params.as_slice(), sent, examples: &examples, plan };
    match &noise {
        Some(TaskNoise { noise, query, kept }) => {
            if let Some(kept) = kept {
                kept.add_to(noise, key, id, *query, sum);
            }
            let private = UpdateRandomness::Reproducible.noise_stream(key, id, *query);
            let share = NoisyShare { noise, weight, signs: key.rotation(*query), private };
            add_noisy_update(share, &task, own, &mut stream, worker, sum)
        }
        None => {
            let share = Share { weight, report, personal };
            add_update(&key.code(), &task, share, own, &mut stream, worker, sum)
        }
    }
}

/// A compute backend. The answers depend only on the tasks, not on their order or on other
/// requests.
pub trait Compute {
    /// Returns the number of devices that are computed in parallel.
    fn width(&self) -> usize;

    /// Returns the task, which determines the metrics of the scores.
    fn task(&self) -> Task;

    /// Announces the devices that will be needed soon.
    fn prefetch(&mut self, devices: &[FederationIndex]);

    /// Computes the loss and metrics of each block, for each of the params.
    fn scores(&mut self, blocks: &[Block], params: &[&Params]) -> Result<Vec<Vec<Score>>, ComputeError>;

    /// Adds each update, encoded as integers for `key.members` devices, to its sum. Tasks are
    /// sorted by decreasing size. A sum has the length
    /// [`UpdateCode::len`](crate::params::UpdateCode::len) of its params and of the vectors sent
    /// with them. Returns the memories of the devices.
    fn updates(
        &mut self,
        key: &RoundKey,
        tasks: &[UpdateTask<'_>],
        sums: &mut [Vec<u64>],
    ) -> Result<Remembered, ComputeError>;
}

impl<C: Compute + ?Sized> Compute for Box<C> {
    fn width(&self) -> usize {
        (**self).width()
    }

    fn task(&self) -> Task {
        (**self).task()
    }

    fn prefetch(&mut self, devices: &[FederationIndex]) {
        (**self).prefetch(devices);
    }

    fn scores(&mut self, blocks: &[Block], params: &[&Params]) -> Result<Vec<Vec<Score>>, ComputeError> {
        (**self).scores(blocks, params)
    }

    fn updates(
        &mut self,
        key: &RoundKey,
        tasks: &[UpdateTask<'_>],
        sums: &mut [Vec<u64>],
    ) -> Result<Remembered, ComputeError> {
        (**self).updates(key, tasks, sums)
    }
}
