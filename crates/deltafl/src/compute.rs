//! Where devices compute: forward passes and local updates.
//!
//! A [`Simulation`](crate::exchange::Simulation) computes its devices by a [`Compute`]. Work that all
//! implementations share belongs to the simulation: the questions of each device, the cache of losses,
//! the order of tasks, and the evaluation of equal params. [`Threads`] computes on the CPUs of this
//! process.

use std::ops::Range;

use crate::data::FederationIndex;
use crate::memory::AlgorithmState;
use crate::model::Score;
use crate::params::Params;
use crate::question::RoundKey;
use crate::task::Task;
use crate::trainer::{LocalPlan, TrainerError};

mod threads;

pub use threads::Threads;

/// Some examples of a device, at most [`BLOCK`](crate::device::BLOCK) of them: the unit of a forward pass.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block {
    /// The device.
    pub device: FederationIndex,
    /// Which of its examples.
    pub examples: Range<usize>,
}

/// A local update that a device owes.
#[derive(Clone, Copy, Debug)]
pub struct UpdateTask<'a> {
    /// The device.
    pub device: FederationIndex,
    /// w.
    pub params: &'a Params,
    /// What the server sends beside w.
    pub sent: &'a [Params],
    /// What the device remembers, if it does.
    pub own: Option<&'a AlgorithmState>,
    /// How it trains.
    pub plan: &'a LocalPlan,
    /// α_k·ω_k.
    pub weight: f64,
    /// The sum that the update is added to.
    pub sum: usize,
}

/// Why devices could not be computed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ComputeError {
    /// A device could not be computed: its data, or a trainer that a user brought, failed or panicked.
    #[error("device {device}: {problem}")]
    Device {
        /// Its identity.
        device: String,
        /// What went wrong.
        problem: TrainerError,
    },
    /// The place where devices compute cannot be used.
    #[error("{place} cannot be used")]
    Unavailable {
        /// The place.
        place: String,
        /// Why not.
        source: TrainerError,
    },
}

/// What the devices of some tasks remember now: the place of a task, and the memory of its device. Whoever remembers nothing,
/// and whoever's update is not in the sum, is not listed.
pub type Remembered = Vec<(usize, AlgorithmState)>;

/// Where devices compute. The answers depend on the tasks alone: not on their order, nor on what else is asked.
pub trait Compute {
    /// How many devices are computed side by side.
    fn width(&self) -> usize;

    /// What is predicted: which metrics the scores come to.
    fn task(&self) -> Task;

    /// Tells which devices will be asked for soon.
    fn prefetch(&mut self, devices: &[FederationIndex]);

    /// Loss and figures of each block, for each of the params.
    fn scores(&mut self, blocks: &[Block], params: &[&Params]) -> Result<Vec<Vec<Score>>, ComputeError>;

    /// Adds each update, coded as integers for `key.members` devices, to the sum that it names. Tasks come largest
    /// first; a sum is as long as [`UpdateCode::len`](crate::params::UpdateCode::len) of its params says, and of what is sent
    /// beside them. Returns what the devices remember.
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
