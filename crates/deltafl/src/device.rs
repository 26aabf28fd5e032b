//! A device that takes part in a round: what it answers to a question.
//!
//! A simulation computes many devices at once through [`Compute`](crate::compute::Compute); a device of a deployed
//! federation answers for itself with [`Member`]. Both add the same integers.

use std::fmt;
use std::ops::Range;

use crate::data::Examples;
use crate::evaluation;
use crate::exchange::Evaluation;
use crate::memory::Memory;
use crate::model::Score;
use crate::params::{Params, UpdateCode};
use crate::question::{Ask, Query, RoundKey};
use crate::stream::{Purpose, Stream};
use crate::superquantile::DeviceLoss;
use crate::task::Task;
use crate::trainer::{LocalTask, TrainerError, Worker};

/// Examples per block of a forward pass. A device's loss is the sum of its blocks, in order, so that the
/// blocks of a large device can be spread over threads without changing a bit.
pub const BLOCK: usize = 256;

/// The blocks of a forward pass over `count` examples.
pub fn blocks(count: usize) -> impl Iterator<Item = Range<usize>> {
    (0..count).step_by(BLOCK).map(move |start| start..(start + BLOCK).min(count))
}

/// The part of a stream's key that stands for a device: its identity, hashed, so that a device draws the
/// same numbers wherever it stands in a table.
pub fn stream_key(id: &str) -> u64 {
    let hash = blake3::hash(id.as_bytes());
    u64::from_le_bytes(hash.as_bytes()[..8].try_into().expect("a BLAKE3 hash has 32 bytes"))
}

/// The random numbers of a device's local update in a reproducible run: the same in a simulation and on a device.
pub fn update_stream(key: &RoundKey, device: u64) -> Stream {
    Stream::new(key.seed, Purpose::LocalUpdate, key.round, device)
}

/// Where the random numbers of a local update come from: the order of the examples, and with it the batches.
#[derive(Clone, Copy, Default)]
pub enum UpdateRandomness {
    /// From the seed of the run, which the server knows ([`update_stream`]). Two updates from one w are then equal, so that
    /// the difference of two sums is exactly the update of the device that is missing from one of them.
    #[default]
    Reproducible,
    /// From a secret of the device, drawn anew for every question.
    Secret([u8; 32]),
}

impl UpdateRandomness {
    /// The random numbers of a device's local update.
    pub fn stream(&self, key: &RoundKey, device: u64) -> Stream {
        match self {
            Self::Reproducible => update_stream(key, device),
            Self::Secret(secret) => Stream::from_key(*secret),
        }
    }
}

/// Without the secret.
impl fmt::Debug for UpdateRandomness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Reproducible => "Reproducible",
            Self::Secret(_) => "Secret(..)",
        })
    }
}

/// A device that answers for itself.
#[derive(Clone, Copy, Debug)]
pub struct Member<'a> {
    /// Its data.
    pub examples: Examples<'a>,
    /// What its random numbers depend on beside the seed and the round: see [`stream_key`].
    pub key: u64,
    /// Where the random numbers of its updates come from.
    pub randomness: UpdateRandomness,
    /// The examples that never train; `None` where it holds none out, or tells nothing of them.
    pub held_out: Option<HeldOut<'a>>,
}

/// The examples of a device that never train.
#[derive(Clone, Copy, Debug)]
pub struct HeldOut<'a> {
    /// One at least.
    pub examples: Examples<'a>,
    /// What is predicted of them.
    pub task: Task,
}

impl Member<'_> {
    /// F_k(w): the mean data loss over all examples of the device (Algorithm 2, line 4).
    pub fn loss(&self, params: &Params, worker: &mut dyn Worker) -> Result<f64, TrainerError> {
        let total = score(&self.examples, params, worker)?;
        Ok(total.loss / self.examples.len() as f64)
    }

    /// α_k, on the terms of the question.
    pub fn weight(&self, key: &RoundKey) -> f64 {
        key.terms.weights.of(self.examples.len() as u64) as f64
    }

    /// Adds the answer to a query to `sum`. The caller decides whether the device answers the query's track
    /// ([`RoundKey::is_answered_by`]). `loss` is F_k at the query's params, where the query needs it.
    ///
    /// A device whose loss is not finite counts as refused in an update and stays out of a quantile. `own` is what the device
    /// remembers from round to round; it stays as it is unless the update is in the sum.
    pub fn answer(
        &self,
        key: &RoundKey,
        query: &Query,
        loss: Option<f64>,
        worker: &mut dyn Worker,
        own: &mut Memory,
        sum: &mut [u64],
    ) -> Result<(), TrainerError> {
        match &query.ask {
            Ask::Quantile(query) => {
                if let Some(Ok(device)) = loss.map(|loss| DeviceLoss::new(loss, self.weight(key))) {
                    query.answer(device, sum);
                }
            }
            Ask::Update { weighting, plan } => {
                let (weight, share) = (self.weight(key), loss.map_or(1.0, |loss| weighting.share(loss)));
                if share.is_nan() {
                    UpdateCode::refuse(sum);
                } else if share > 0.0 {
                    let mut stream = self.randomness.stream(key, self.key);
                    let params = query.params.as_slice();
                    let task = LocalTask { params, sent: &query.sent, examples: &self.examples, plan };
                    let mut next = own.clone();
                    let answer = worker.update(&task, &mut next, &mut stream)?;
                    // A refused update is counted inside the sum: the server learns how many, not who.
                    if add_update(&key.code(), &task, answer, weight * share, sum)? {
                        *own = next;
                    }
                }
            }
            Ask::Evaluation(measures) => {
                if let Some(HeldOut { examples, task }) = self.held_out {
                    let score = score(&examples, &query.params, worker)?;
                    let evaluation = Evaluation::new(task, &score, examples.len() as u64);
                    evaluation::answer(measures, task, &evaluation, sum);
                }
            }
        }
        Ok(())
    }
}

/// Loss and figures over examples, block by block in order.
fn score(examples: &Examples<'_>, params: &Params, worker: &mut dyn Worker) -> Result<Score, TrainerError> {
    worker.load(params.as_slice());
    let mut total = Score::default();
    for block in blocks(examples.len()) {
        total += worker.score(examples, block)?;
    }
    Ok(total)
}

/// Adds the answer of a worker to `sum`: w_k, and the changes to what was sent beside w. Whether it is in the sum; an update
/// that is not finite is counted there instead.
pub(crate) fn add_update(
    code: &UpdateCode,
    task: &LocalTask<'_>,
    answer: &[f32],
    weight: f64,
    sum: &mut [u64],
) -> Result<bool, TrainerError> {
    let (params, expected) = (task.params, task.params.len() * (1 + task.plan.sent()));
    if answer.len() != expected {
        let problem =
            format!("the trainer answers with {} entries where {expected} were expected", answer.len());
        return Err(problem.into());
    }
    let (local, changes) = answer.split_at(params.len());
    if changes.is_empty() {
        return Ok(code.add(params, local, weight, sum).is_ok());
    }
    if code.clip().is_some() {
        return Err(
            "updates are clipped, and a bound on their length says nothing of what is sent beside w: \
                    clip with an algorithm that sends w alone"
                .into(),
        );
    }
    let zero = vec![0.0; params.len()];
    let mut parts = vec![(local, params)];
    parts.extend(changes.chunks(params.len().max(1)).map(|change| (change, &zero[..])));
    Ok(code.add_parts(&parts, weight, sum).is_ok())
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
}
