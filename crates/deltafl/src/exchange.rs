//! The aggregation of the answers of a cohort.
//!
//! The round loop asks an [`Exchange`] about a cohort, for all tracks at once, so that each device
//! does all its work in one visit. A [`Simulation`] computes the devices of a federation by any
//! [`Compute`](crate::compute::Compute), in this process and at any [`Peers`]. The devices of a
//! deployed federation answer over a network. All exchanges yield the same bits.

use std::sync::Arc;

use crate::compute::ComputeError;
use crate::data::Split;
use crate::memory::{AlgorithmState, DeviceMemories};
use crate::model::Score;
use crate::params::Params;
use crate::question::{Query, RoundKey};
use crate::superquantile::DeviceLoss;
use crate::task::Task;
use crate::terms::Terms;

mod fleet;
mod masked;
mod peers;
mod recall;
mod simulation;

use fleet::Fleet;
pub use masked::SLOTS;
pub use peers::{Alone, Peers, WorkDone};
pub use simulation::Simulation;

/// The place of a device among those that train: its place in the roster of a deployed federation. In a federation that also
/// holds devices that only test, a device has another index, by which its examples are found; the two cannot be taken for each
/// other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TrainIndex(pub u32);

impl TrainIndex {
    /// Where it stands in a list of the devices that train.
    pub fn place(self) -> usize {
        self.0 as usize
    }
}

/// A device of a cohort.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CohortMember {
    /// Which one.
    pub device: TrainIndex,
    /// How often it was drawn; more than once only with replacement.
    pub times: u32,
    /// Whether it vanishes before it answers.
    pub dropped: bool,
}

/// One round, as an exchange sees it.
#[derive(Clone, Copy, Debug)]
pub struct Round<'a> {
    /// The seed of the run.
    pub seed: u64,
    /// t, counted from 0.
    pub index: u64,
    /// S_t.
    pub cohort: &'a [CohortMember],
    /// On what terms its devices answer.
    pub terms: Terms,
    /// What the devices of a simulation remember, per update asked for; empty where nobody remembers anything. Devices of a
    /// deployed federation keep it to themselves.
    pub own: &'a [DeviceMemories],
}

impl Round<'_> {
    /// Devices of the cohort that do not vanish.
    pub fn answering(&self) -> u64 {
        self.cohort.iter().filter(|drawn| !drawn.dropped).count() as u64
    }

    /// What its devices need to know of it, in the first run of a federation.
    pub fn key(&self) -> RoundKey {
        let members = self.cohort.len() as u32;
        RoundKey { run: 0, seed: self.seed, round: self.index, members, terms: self.terms }
    }
}

/// What secure aggregation moved, over all devices of a cohort.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Calls of secure aggregation.
    pub sums: u64,
    /// Messages between devices and server.
    pub messages: u64,
    /// Bytes from the devices.
    pub bytes_up: u64,
    /// Bytes to the devices.
    pub bytes_down: u64,
}

impl Traffic {
    /// The part of track `i` of `n` that share one message; the sum counts for each of them.
    pub fn part(self, i: u64, n: u64) -> Self {
        let part = |total: u64| total / n + u64::from(i < total % n);
        Self {
            sums: self.sums,
            messages: part(self.messages),
            bytes_up: part(self.bytes_up),
            bytes_down: part(self.bytes_down),
        }
    }
}

impl std::ops::AddAssign for Traffic {
    fn add_assign(&mut self, other: Self) {
        self.sums += other.sums;
        self.messages += other.messages;
        self.bytes_up += other.bytes_up;
        self.bytes_down += other.bytes_down;
    }
}

/// The sum over the cohort of the answers to a query, in Z_2^64.
#[derive(Clone, Debug, PartialEq)]
pub struct CohortSum {
    /// Entry by entry.
    pub values: Vec<u64>,
    /// Devices of the cohort whose answers are in it.
    pub answered: u64,
    /// What it cost.
    pub traffic: Traffic,
    /// What the devices of a simulation remember of it, by their index among those that train; nothing where they keep it to
    /// themselves.
    pub remembered: Vec<(TrainIndex, AlgorithmState)>,
}

/// A device as the evaluation names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EvaluatedDevice {
    /// Its identity.
    pub id: String,
    /// n_k.
    pub examples: u64,
}

/// Loss and metrics of one device under one model.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Evaluation {
    /// Mean data loss.
    pub loss: f64,
    /// The metrics of the task, in the order of [`Task::metrics`]; zero behind them.
    pub metrics: [f64; Task::METRICS],
}

impl Evaluation {
    /// What the score of a device with so many examples comes to.
    pub fn new(task: Task, score: &Score, examples: u64) -> Self {
        Self { loss: score.loss / examples as f64, metrics: task.values(score, examples) }
    }

    /// A loss and the metric that tables report.
    pub fn of_primary(loss: f64, primary: f64) -> Self {
        Self { loss, metrics: [primary, 0.0, 0.0] }
    }

    /// The metric that tables report, [`Task::primary`].
    pub fn primary(&self) -> f64 {
        self.metrics[0]
    }
}

/// Loss and metrics of every device of a split, per track.
#[derive(Clone, Debug, PartialEq)]
pub struct SplitEvaluation {
    /// Which devices.
    pub split: Split,
    /// What the metrics are of.
    pub task: Task,
    /// The devices.
    pub devices: Arc<[EvaluatedDevice]>,
    /// For each track, an evaluation per device.
    pub tracks: Vec<Vec<Evaluation>>,
}

/// Why an exchange could not answer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ExchangeError {
    /// There is nobody to train.
    #[error("the federation has no train devices")]
    NoTrainDevices,
    /// Devices could not be computed.
    #[error(transparent)]
    Compute(#[from] ComputeError),
    /// The cohort came to no sum: too many of its devices left, or one of them lied. The round can be begun anew with
    /// another cohort.
    #[error("the cohort came to no sum")]
    NoSum {
        /// The verdict.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The exchange's own transport failed.
    #[error("{context}")]
    Transport {
        /// What was being done.
        context: &'static str,
        /// Why it failed.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

/// Who can be drawn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reachable {
    /// Every device.
    Everyone,
    /// Device k where entry k says so.
    Some(Vec<bool>),
}

impl Reachable {
    /// Whether device `device` can be drawn.
    pub fn contains(&self, device: TrainIndex) -> bool {
        match self {
            Self::Everyone => true,
            Self::Some(devices) => devices.get(device.place()).copied().unwrap_or(false),
        }
    }
}

/// How the answers of a cohort meet. No method has a default: whoever wraps an exchange passes on all of them.
pub trait Exchange {
    /// How many devices train.
    fn devices(&self) -> usize;

    /// How many cohorts a round is begun with before it is given up; never, where devices come and go.
    fn attempts(&self) -> u64;

    /// Who can be asked now. An exchange whose devices come and go waits until a cohort can be made up.
    fn reachable(&mut self) -> Result<Reachable, ExchangeError>;

    /// Tells who will be asked in the round after this one, so that an exchange that waits can prepare.
    fn announce(&mut self, next: &[CohortMember]);

    /// F_k(w) of each cohort device that answers, per params (open mode; Algorithm 2, lines 3–4).
    /// A device whose loss is not finite is left out.
    fn losses(
        &mut self,
        round: &Round<'_>,
        params: &[&Params],
    ) -> Result<Vec<Vec<DeviceLoss>>, ExchangeError>;

    /// For each query, the sum over the cohort of what the devices answer.
    fn secure_sum(&mut self, round: &Round<'_>, queries: &[Query]) -> Result<Vec<CohortSum>, ExchangeError>;

    /// Loss and metrics of every device of a split, per params; `None` where devices keep them to themselves.
    fn evaluate(
        &mut self,
        split: Split,
        params: &[&Params],
    ) -> Result<Option<SplitEvaluation>, ExchangeError>;
}
