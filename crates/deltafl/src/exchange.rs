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
use crate::selection::DeviceRule;
use crate::superquantile::DeviceLoss;
use crate::task::Task;
use crate::terms::Terms;
use crate::trainer::PersonalMethod;

mod fleet;
mod masked;
mod peers;
mod recall;
mod simulation;

use fleet::Fleet;
pub use fleet::PersonalModels;
pub use masked::SLOTS;
pub use peers::{Alone, Peers, WorkDone};
pub use simulation::Simulation;

/// The index of a device among the training devices, which is its position on the roster of a
/// deployed federation. Examples are found by a different index, because a federation may also
/// contain test devices. The types keep the two apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TrainIndex(pub u32);

impl TrainIndex {
    /// Returns the position in a list of the training devices.
    pub fn place(self) -> usize {
        self.0 as usize
    }
}

/// A device of a cohort.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CohortMember {
    /// Which one.
    pub device: TrainIndex,
    /// The number of times it was drawn, more than one only with replacement.
    pub times: u32,
    /// Whether it drops out before it answers.
    pub dropped: bool,
}

/// A round as an exchange sees it.
#[derive(Clone, Copy, Debug)]
pub struct Round<'a> {
    /// The seed of the run.
    pub seed: u64,
    /// t, starting at 0.
    pub index: u64,
    /// S_t.
    pub cohort: &'a [CohortMember],
    /// On what terms its devices answer.
    pub terms: Terms,
    /// The additions of a simulation to each requested update; empty in a deployment.
    pub own: &'a [SimulatedUpdate],
}

/// The additions of a simulation to a requested update. Devices of a deployed federation keep their
/// memories private and weigh themselves.
#[derive(Clone, Debug, Default)]
pub struct SimulatedUpdate {
    /// The memories of the devices.
    pub memories: DeviceMemories,
    /// A factor of the weight of each cohort member in the order of the cohort, if the server names
    /// them.
    pub shares: Option<Vec<f64>>,
    /// The training of personal models.
    pub personal: Option<PersonalMethod>,
    /// The weighting of the devices, if the caller's program computes it.
    pub rule: Option<Arc<dyn DeviceRule>>,
}

impl SimulatedUpdate {
    /// Returns the factor of the weight of a cohort member.
    pub(crate) fn share(&self, member: usize) -> f64 {
        self.shares.as_ref().and_then(|shares| shares.get(member)).copied().unwrap_or(1.0)
    }
}

/// The loss of a device whose identity the server knows (open mode).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NamedLoss {
    /// The device.
    pub device: TrainIndex,
    /// F_k(w) and α_k.
    pub loss: DeviceLoss,
}

/// The answers of a cohort to a query, one per answering device in the order of the cohort, with
/// their sum.
#[derive(Clone, Debug, PartialEq)]
pub struct CohortAnswers {
    /// The answers.
    pub each: Vec<Vec<u64>>,
    /// Their sum.
    pub sum: CohortSum,
}

impl Round<'_> {
    /// Returns the devices of the cohort that do not drop out.
    pub fn answering(&self) -> u64 {
        self.cohort.iter().filter(|drawn| !drawn.dropped).count() as u64
    }

    /// Returns the key of the round for its devices, in the first run of a federation.
    pub fn key(&self) -> RoundKey {
        let members = self.cohort.len() as u32;
        RoundKey { run: 0, seed: self.seed, round: self.index, members, terms: self.terms }
    }
}

/// The traffic of secure aggregation over all devices of a cohort.
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
    /// Returns the share of track `i` if `n` tracks share one message. Every track counts the sum.
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
    /// The number of devices with answers in the sum.
    pub answered: u64,
    /// The traffic.
    pub traffic: Traffic,
    /// The new memories of simulated devices, by their index among the training devices. Deployed
    /// devices keep their memories private.
    pub remembered: Vec<(TrainIndex, AlgorithmState)>,
}

/// A device in an evaluation.
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
    /// The metrics of the task in the order of [`Task::metrics`], followed by zeros.
    pub metrics: [f64; Task::METRICS],
}

impl Evaluation {
    /// Computes the evaluation from the score of a device with this many examples.
    pub fn new(task: Task, score: &Score, examples: u64) -> Self {
        Self { loss: score.loss / examples as f64, metrics: task.values(score, examples) }
    }

    /// Creates an evaluation from a loss and the primary metric.
    pub fn of_primary(loss: f64, primary: f64) -> Self {
        Self { loss, metrics: [primary, 0.0, 0.0] }
    }

    /// Returns the primary metric, [`Task::primary`].
    pub fn primary(&self) -> f64 {
        self.metrics[0]
    }
}

/// The loss and metrics of every device of a split, per track.
#[derive(Clone, Debug, PartialEq)]
pub struct SplitEvaluation {
    /// The split.
    pub split: Split,
    /// The task of the metrics.
    pub task: Task,
    /// The devices.
    pub devices: Arc<[EvaluatedDevice]>,
    /// One evaluation per device, for each track.
    pub tracks: Vec<Vec<Evaluation>>,
}

/// The reason for which an exchange failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ExchangeError {
    /// There are no training devices.
    #[error("the federation has no train devices")]
    NoTrainDevices,
    /// The computation of devices failed.
    #[error(transparent)]
    Compute(#[from] ComputeError),
    /// The aggregation of the cohort failed: too many of its devices left, or one of them was
    /// malicious. The round can restart with another cohort.
    #[error("the aggregation of the cohort failed")]
    NoSum {
        /// The error reported by the exchange.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The server sees sums only, but an algorithm needs the answer of each device.
    #[error("an algorithm needs the update of each device, but the server sees sums only")]
    SumsOnly,
    /// The transport of the exchange failed.
    #[error("{context}")]
    Transport {
        /// The operation that failed.
        context: &'static str,
        /// The error reported by the transport.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

/// The devices that can be drawn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reachable {
    /// Every device.
    Everyone,
    /// Device k if entry k is `true`.
    Some(Vec<bool>),
}

impl Reachable {
    /// Returns `true` if device `device` can be drawn.
    pub fn contains(&self, device: TrainIndex) -> bool {
        match self {
            Self::Everyone => true,
            Self::Some(devices) => devices.get(device.place()).copied().unwrap_or(false),
        }
    }
}

/// Aggregates the answers of a cohort. No method has a default, so a wrapper forwards all of them.
pub trait Exchange {
    /// Returns the number of training devices.
    fn devices(&self) -> usize;

    /// Returns the number of cohorts that a round tries before it fails, unlimited if devices
    /// connect and disconnect.
    fn attempts(&self) -> u64;

    /// Returns the devices that are available now. An exchange with devices that connect and
    /// disconnect waits until a cohort is available.
    fn reachable(&mut self) -> Result<Reachable, ExchangeError>;

    /// Announces the cohort of the next round, so that an idle exchange can prepare it.
    fn announce(&mut self, next: &[CohortMember]);

    /// Returns F_k(w) of each answering cohort device, per params (open mode; Algorithm 2, lines
    /// 3–4). Devices with a non-finite loss are omitted.
    fn losses(&mut self, round: &Round<'_>, params: &[&Params])
    -> Result<Vec<Vec<NamedLoss>>, ExchangeError>;

    /// Returns the sum of the answers over the cohort for each query.
    fn secure_sum(&mut self, round: &Round<'_>, queries: &[Query]) -> Result<Vec<CohortSum>, ExchangeError>;

    /// Returns the answer of each device to each query (open mode). Fails with
    /// [`ExchangeError::SumsOnly`] if the server of this exchange sees sums only.
    fn each_answer(
        &mut self,
        round: &Round<'_>,
        queries: &[Query],
    ) -> Result<Vec<CohortAnswers>, ExchangeError>;

    /// Returns the loss and metrics of every device of a split, per params. Returns `None` if
    /// devices keep them private.
    fn evaluate(
        &mut self,
        split: Split,
        params: &[&Params],
    ) -> Result<Option<SplitEvaluation>, ExchangeError>;

    /// Returns the loss and metrics of every device of a split under its personal model, in the
    /// order of [`evaluate`](Self::evaluate). Returns `None` if devices keep them private.
    fn evaluate_personal(
        &mut self,
        split: Split,
        models: &PersonalModels<'_>,
    ) -> Result<Option<Vec<Evaluation>>, ExchangeError>;
}
