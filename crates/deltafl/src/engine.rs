//! Where the devices live.
//!
//! The round loop asks an engine three kinds of questions about a cohort, for all tracks at once, because a
//! device that is visited once should do all its work. [`Threads`] answers them in this process; other
//! engines answer them over MPI or a network, with the same bits.

use std::sync::Arc;

use crate::data::Split;
use crate::device::{Admission, LocalPlan};
use crate::model::Score;
use crate::params::{Params, UpdateCode};
use crate::superquantile::DeviceLoss;
use crate::superquantile::private::QuantileQuery;
use crate::task::Task;

mod masked;
mod peers;
mod question;
mod threads;

pub use masked::{Masked, SLOTS};
pub use peers::{Alone, Peers, Share};
pub use question::context;
pub use threads::Threads;

/// A device of a cohort.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Drawn {
    /// Index among the devices that train.
    pub device: u32,
    /// How often it was drawn; more than once only with replacement.
    pub times: u32,
    /// Whether it vanishes before it answers.
    pub dropped: bool,
}

/// One round, as the engine sees it.
#[derive(Clone, Copy, Debug)]
pub struct Round<'a> {
    /// The seed of the run.
    pub seed: u64,
    /// t, counted from 0.
    pub index: u64,
    /// S_t.
    pub cohort: &'a [Drawn],
}

impl Round<'_> {
    /// Devices of the cohort that do not vanish.
    pub fn answering(&self) -> u64 {
        self.cohort.iter().filter(|drawn| !drawn.dropped).count() as u64
    }
}

/// What a device computes; its answer is an integer vector that leaves it only inside a sum.
#[derive(Clone, Debug)]
pub enum Query<'a> {
    /// A step of a private quantile of the losses F_k(w) (Algorithm 3, line 5).
    Quantile {
        /// w.
        params: &'a Params,
        /// The step.
        query: QuantileQuery,
    },
    /// The local update of the devices that admit themselves (Algorithm 2, lines 6–9).
    LocalUpdate {
        /// w.
        params: &'a Params,
        /// Who takes part.
        admission: Admission,
        /// How they train.
        plan: LocalPlan,
    },
}

impl Query<'_> {
    /// w.
    pub fn params(&self) -> &Params {
        match self {
            Self::Quantile { params, .. } | Self::LocalUpdate { params, .. } => params,
        }
    }

    /// Length of an answer.
    pub fn answer_len(&self) -> usize {
        match self {
            Self::Quantile { query, .. } => query.len(),
            Self::LocalUpdate { params, .. } => UpdateCode::len(params.len()),
        }
    }

    /// Whether a device needs F_k(w) to answer.
    pub fn needs_loss(&self) -> bool {
        match self {
            Self::Quantile { .. } => true,
            Self::LocalUpdate { admission, .. } => admission.needs_loss(),
        }
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
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sum {
    /// Entry by entry.
    pub values: Vec<u64>,
    /// Devices of the cohort whose answers are in it.
    pub answered: u64,
    /// What it cost.
    pub traffic: Traffic,
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

/// Why an engine could not answer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EngineError {
    /// There is nobody to train.
    #[error("the federation has no train devices")]
    NoTrainDevices,
    /// Threads could not be started.
    #[error("could not start {threads} threads")]
    Threads {
        /// How many were asked for.
        threads: usize,
        /// Why.
        source: rayon::ThreadPoolBuildError,
    },
    /// A device could not be computed: its data, or a model that a user brought, made the computation panic.
    #[error("device {device}: {panic}")]
    Device {
        /// Its identity.
        device: String,
        /// What the panic said.
        panic: String,
    },
    /// The cohort came to no sum: too many of its devices left, or one of them lied. Nothing was revealed, and the round
    /// can be begun anew with another cohort.
    #[error("the cohort came to no sum")]
    NoSum {
        /// The verdict.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The engine's own transport failed.
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
    pub fn contains(&self, device: u32) -> bool {
        match self {
            Self::Everyone => true,
            Self::Some(devices) => devices.get(device as usize).copied().unwrap_or(false),
        }
    }
}

/// Where the devices live.
pub trait Engine {
    /// How many devices train.
    fn devices(&self) -> usize;

    /// Who can be asked now. An engine whose devices come and go waits until a cohort can be made up.
    fn reachable(&mut self) -> Result<Reachable, EngineError> {
        Ok(Reachable::Everyone)
    }

    /// F_k(w) of each cohort device that answers, per track (open mode; Algorithm 2, lines 3–4).
    /// A device whose loss is not finite is left out.
    fn losses(&mut self, round: &Round<'_>, tracks: &[&Params]) -> Result<Vec<Vec<DeviceLoss>>, EngineError>;

    /// For each query, the sum over the cohort of what the devices answer.
    fn secure_sum(&mut self, round: &Round<'_>, queries: &[Query<'_>]) -> Result<Vec<Sum>, EngineError>;

    /// Tells who will be asked in the round after this one, so that an engine that waits can prepare.
    fn announce(&mut self, next: &[Drawn]) {
        let _ = next;
    }

    /// Loss and metrics of every device of a split, per track; `None` where devices keep them to themselves.
    fn evaluate(&mut self, split: Split, tracks: &[&Params]) -> Result<Option<SplitEvaluation>, EngineError>;
}
