//! What a device computes: its loss F_k(w), its local update, and its answer to a question of the server.
//!
//! Every engine runs this code, in the same process, on another rank or on a phone, so that the bits agree.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::data::{BatchBuffer, Examples};
use crate::engine::{Query, Round};
use crate::kernel::Aligned;
use crate::model::{Model, Score, Step};
use crate::params::{Params, UpdateCode};
use crate::stream::{Purpose, Stream};
use crate::superquantile::DeviceLoss;
use crate::superquantile::smooth::Smoothing;

/// Examples per block of a forward pass. A device's loss is the sum of its blocks, in order, so that the
/// blocks of a large device can be spread over threads without changing a bit.
pub const BLOCK: usize = 256;

/// How long a device trains: epochs over its data, or steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Work {
    /// Passes over a shuffle of the device's examples; the last short batch is kept.
    Epochs(u32),
    /// n_local steps, each on a batch drawn with replacement.
    Steps(u32),
}

/// LocalUpdate of Algorithm 2, lines 10–12: plain SGD.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LocalPlan {
    /// Epochs or steps.
    pub work: Work,
    /// Examples per step.
    pub batch: usize,
    /// γ_t and λ.
    pub step: Step,
}

/// Which devices take part in an update (Algorithm 2, line 6). The device tests itself.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Admission {
    /// Every device of the cohort: FedAvg.
    Everyone,
    /// The tail: F_k(w) ≥ η.
    Tail {
        /// η_t.
        eta: f64,
    },
    /// The smoothed tail: device k counts with g'_ν(F_k(w) − η).
    Smooth {
        /// η_t.
        eta: f64,
        /// ν.
        nu: Smoothing,
    },
}

impl Admission {
    /// ω_k ∈ [0, 1], the share of its weight with which a device of this loss counts.
    pub fn share(self, loss: f64) -> f64 {
        match self {
            Self::Everyone => 1.0,
            Self::Tail { eta } => f64::from(u8::from(loss >= eta)),
            Self::Smooth { eta, nu } => nu.slope(loss - eta),
        }
    }

    /// Whether the device needs its loss to decide.
    pub fn needs_loss(self) -> bool {
        self != Self::Everyone
    }
}

/// Memory in which a device trains and evaluates, reused from device to device.
#[derive(Debug, Default)]
pub struct Workspace {
    working: Aligned,
    scratch: Aligned,
    local: Vec<f32>,
    order: Vec<u32>,
    batch: BatchBuffer,
}

impl Workspace {
    /// Loads w for [`Workspace::score`].
    pub fn load(&mut self, model: &dyn Model, params: &[f32]) {
        self.working.resize(model.working_len());
        model.load(params, &mut self.working);
        self.scratch.resize(model.scratch_len(BLOCK));
    }

    /// Loss and errors over some examples at the loaded w; at most [`BLOCK`] of them.
    pub fn score(&mut self, model: &dyn Model, examples: &Examples<'_>, block: Range<usize>) -> Score {
        let batch = self.batch.gather(examples, block);
        model.evaluate(&self.working, batch, &mut self.scratch)
    }

    /// Runs LocalUpdate from `params` and returns w_k (Algorithm 2, lines 10–12).
    pub fn local_update(
        &mut self,
        model: &dyn Model,
        params: &[f32],
        examples: &Examples<'_>,
        plan: &LocalPlan,
        stream: &mut Stream,
    ) -> &[f32] {
        self.working.resize(model.working_len());
        model.load(params, &mut self.working);
        self.scratch.resize(model.step_scratch_len(plan.batch));
        match plan.work {
            Work::Epochs(epochs) => (0..epochs).for_each(|_| self.epoch(model, examples, plan, stream)),
            Work::Steps(steps) => (0..steps).for_each(|_| self.drawn_step(model, examples, plan, stream)),
        }
        self.local.resize(model.num_params(), 0.0);
        model.store(&self.working, &mut self.local);
        &self.local
    }

    /// One pass over a shuffle of the examples.
    fn epoch(&mut self, model: &dyn Model, examples: &Examples<'_>, plan: &LocalPlan, stream: &mut Stream) {
        self.order.clear();
        self.order.extend(0..examples.len() as u32);
        stream.shuffle(&mut self.order);
        for indices in self.order.chunks(plan.batch) {
            let batch = self.batch.gather(examples, indices.iter().map(|&i| i as usize));
            model.step(&mut self.working, batch, plan.step, &mut self.scratch);
        }
    }

    /// One step on ξ ~ q_k.
    fn drawn_step(
        &mut self,
        model: &dyn Model,
        examples: &Examples<'_>,
        plan: &LocalPlan,
        stream: &mut Stream,
    ) {
        self.order.clear();
        self.order.extend((0..plan.batch).map(|_| stream.below(examples.len() as u64) as u32));
        let batch = self.batch.gather(examples, self.order.iter().map(|&i| i as usize));
        model.step(&mut self.working, batch, plan.step, &mut self.scratch);
    }
}

/// The blocks of a forward pass over `count` examples.
pub fn blocks(count: usize) -> impl Iterator<Item = Range<usize>> {
    (0..count).step_by(BLOCK).map(move |start| start..(start + BLOCK).min(count))
}

/// A device that takes part in a round.
#[derive(Clone, Copy)]
pub struct Member<'a> {
    /// The model it trains.
    pub model: &'a dyn Model,
    /// Its data.
    pub examples: Examples<'a>,
    /// α_k, times how often the device was drawn.
    pub weight: f64,
    /// What its random numbers depend on beside the seed and the round: see [`stream_key`].
    pub key: u64,
}

/// The part of a stream's key that stands for a device: its identity, hashed, so that a device draws the
/// same numbers wherever it stands in a table.
pub fn stream_key(id: &str) -> u64 {
    let hash = blake3::hash(id.as_bytes());
    u64::from_le_bytes(hash.as_bytes()[..8].try_into().expect("a BLAKE3 hash has 32 bytes"))
}

impl Member<'_> {
    /// F_k(w): the mean data loss over all examples of the device (Algorithm 2, line 4).
    pub fn loss(&self, params: &Params, workspace: &mut Workspace) -> f64 {
        workspace.load(self.model, params.as_slice());
        let mut total = Score::default();
        for block in blocks(self.examples.len()) {
            total += workspace.score(self.model, &self.examples, block);
        }
        total.loss / self.examples.len() as f64
    }

    /// Adds the answer to a query to `sum`. `loss` is F_k at the query's parameters, where the query needs it.
    ///
    /// A device whose loss is not finite counts as refused in an update and stays out of a quantile.
    pub fn answer(
        &self,
        round: &Round<'_>,
        query: &Query<'_>,
        loss: Option<f64>,
        workspace: &mut Workspace,
        sum: &mut [u64],
    ) {
        match query {
            Query::Quantile { query, .. } => {
                if let Some(Ok(device)) = loss.map(|loss| DeviceLoss::new(loss, self.weight)) {
                    query.answer(device, sum);
                }
            }
            Query::LocalUpdate { params, admission, plan } => {
                let share = loss.map_or(1.0, |loss| admission.share(loss));
                if share.is_nan() || share > 0.0 {
                    let mut stream = Stream::new(round.seed, Purpose::LocalUpdate, round.index, self.key);
                    let local = workspace.local_update(
                        self.model,
                        params.as_slice(),
                        &self.examples,
                        plan,
                        &mut stream,
                    );
                    // A refused update is counted inside the sum: the server learns how many, not who.
                    let _ = UpdateCode::new(round.cohort.len()).add(
                        params.as_slice(),
                        local,
                        self.weight * share,
                        sum,
                    );
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_cover_every_example_once() {
        for count in [0, 1, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK + 7] {
            let covered: Vec<usize> = blocks(count).flatten().collect();
            assert_eq!(covered, (0..count).collect::<Vec<_>>());
        }
    }

    #[test]
    fn the_boundary_device_is_in_the_tail() {
        let tail = Admission::Tail { eta: 0.5 };
        assert_eq!([0.4, 0.5, 0.6].map(|loss| tail.share(loss)), [0.0, 1.0, 1.0]);
    }

    #[test]
    fn the_smoothed_tail_grows_linearly_over_nu() {
        let smooth = Admission::Smooth { eta: 1.0, nu: Smoothing::try_from(0.5).unwrap() };
        assert_eq!([0.9, 1.0, 1.25, 1.5, 2.0].map(|loss| smooth.share(loss)), [0.0, 0.0, 0.5, 1.0, 1.0]);
    }
}
