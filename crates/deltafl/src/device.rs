//! The answer of a device to a question.
//!
//! A simulation computes many devices at once by a [`Compute`](crate::compute::Compute). A device
//! of a deployed federation computes its own answer as a [`Member`]. Both use the same
//! contributions and the same [`LossCache`], so that they add the same integers.

use std::fmt;
use std::ops::Range;

use crate::data::Examples;
use crate::evaluation::Measure;
use crate::memory::AlgorithmState;
use crate::model::Score;
use crate::params::{Params, ParamsId};
use crate::privacy::ExcessKey;
use crate::privacy::excess::{NoiseLevels, is_removable};
use crate::question::{Ask, Query, Question, RoundKey};
use crate::stream::{Purpose, Stream};
use crate::task::Task;
use crate::trainer::{LocalTask, TrainerError, Worker};

mod contribution;
mod loss_cache;

pub(crate) use contribution::{
    Contribution, Held, NoisyShare, Share, add_evaluation, add_noisy_update, add_update, mean_loss,
};
pub use loss_cache::LossCache;

/// The number of examples per block of a forward pass. A device's loss is the sum of its blocks in
/// order, so threads can share the blocks of a large device without changing a bit.
pub const BLOCK: usize = 256;

/// Returns the blocks of a forward pass over `count` examples.
pub fn blocks(count: usize) -> impl Iterator<Item = Range<usize>> {
    (0..count).step_by(BLOCK).map(move |start| start..(start + BLOCK).min(count))
}

/// Returns the part of a stream's key that identifies a device: the hash of its identity. A device
/// thus draws the same numbers at any index of a table.
pub fn stream_key(id: &str) -> u64 {
    let hash = blake3::hash(id.as_bytes());
    u64::from_le_bytes(hash.as_bytes()[..8].try_into().expect("a BLAKE3 hash has 32 bytes"))
}

/// Returns the random numbers of a device's local update in a reproducible run. They are the same
/// in a simulation and on a device.
pub fn update_stream(key: &RoundKey, device: u64) -> Stream {
    Stream::new(key.seed, Purpose::LocalUpdate, key.round, device)
}

/// The source of the random numbers of a local update, which determine the order of the examples
/// and the batches.
#[derive(Clone, Copy, Default)]
pub enum UpdateRandomness {
    /// The seed of the run, which the server knows ([`update_stream`]). Two updates from one w are
    /// then equal. The difference of two sums is therefore exactly the update of the device that is
    /// missing in one of them.
    #[default]
    Reproducible,
    /// A secret of the device, drawn for each question.
    Secret([u8; 32]),
}

impl UpdateRandomness {
    /// Returns the random numbers of a device's local update.
    pub fn stream(&self, key: &RoundKey, device: u64) -> Stream {
        match self {
            Self::Reproducible => update_stream(key, device),
            Self::Secret(secret) => Stream::from_key(*secret),
        }
    }

    /// Returns the key of the noise that can be removed from a sum, for the question whose first
    /// query has this number.
    pub(crate) fn excess_key(&self, key: &RoundKey, device: u64, question: u32) -> ExcessKey {
        ExcessKey::first(match self {
            Self::Reproducible => {
                Stream::for_query(key.seed, Purpose::ExcessNoise, key.round, device, question)
            }
            Self::Secret(secret) => {
                Stream::from_key(blake3::derive_key("deltafl removable noise of a device v1", secret))
            }
        })
    }

    /// Returns the random numbers of a device's noise for one query of a round.
    pub(crate) fn noise_stream(&self, key: &RoundKey, device: u64, query: u32) -> Stream {
        match self {
            Self::Reproducible => Stream::for_query(key.seed, Purpose::Noise, key.round, device, query),
            Self::Secret(secret) => {
                let mut hasher = blake3::Hasher::new_derive_key("deltafl noise of a device v1");
                hasher.update(secret).update(&query.to_le_bytes());
                Stream::from_key(*hasher.finalize().as_bytes())
            }
        }
    }
}

/// Omits the secret.
impl fmt::Debug for UpdateRandomness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Reproducible => "Reproducible",
            Self::Secret(_) => "Secret(..)",
        })
    }
}

/// A device that computes its own answers.
#[derive(Clone, Copy, Debug)]
pub struct Member<'a> {
    /// Its data.
    pub examples: Examples<'a>,
    /// The device's part of the key of its random numbers: see [`stream_key`].
    pub key: u64,
    /// The source of the random numbers of its updates.
    pub randomness: UpdateRandomness,
    /// The held-out examples; `None` if there are none or if they are not evaluated.
    pub held_out: Option<HeldOut<'a>>,
    /// Whether the device trains although it is outside of the tail, and computes losses and
    /// evaluations of tracks for which it does not answer. It discards the results. The time of its
    /// answer then reveals neither its membership nor its track.
    pub trains_always: bool,
}

/// The held-out examples of a device.
#[derive(Clone, Copy, Debug)]
pub struct HeldOut<'a> {
    /// At least one example.
    pub examples: Examples<'a>,
    /// The task of the prediction.
    pub task: Task,
}

impl Member<'_> {
    /// Returns F_k(w): the mean data loss over all examples of the device (Algorithm 2, line 4).
    pub fn loss(&self, params: &Params, worker: &mut dyn Worker) -> Result<f64, TrainerError> {
        let total = score(&self.examples, params, worker)?;
        Ok(mean_loss(&total, self.examples.len() as u64))
    }

    /// Returns α_k, on the terms of the question.
    pub fn weight(&self, key: &RoundKey) -> f64 {
        key.terms.weights.weight(self.examples.len() as u64) as f64
    }

    /// Returns the answers to all queries of a question, one after the other.
    ///
    /// `is_answered` receives each query with its place. The answer is zero if it returns `false`,
    /// for example for a track that the device does not answer ([`RoundKey::is_answered_by`]). The
    /// answer to a noisy query is then noise around zero. `own` is the memory of the device per
    /// query.
    ///
    /// # Errors
    ///
    /// Fails if the worker fails.
    pub fn answers(
        &self,
        question: &Question,
        is_answered: impl Fn(usize, &Query) -> bool,
        losses: &mut LossCache<ParamsId, f64>,
        own: &mut [AlgorithmState],
        worker: &mut dyn Worker,
    ) -> Result<Vec<u64>, TrainerError> {
        let Question { key, queries } = question;
        losses.begin_round(key.seed, key.round);
        let mut values = Vec::with_capacity(queries.iter().map(Query::answer_len).sum());
        for (i, query) in queries.iter().enumerate() {
            let start = values.len();
            values.resize(start + query.answer_len(), 0);
            if let (Some(noise), Some(first)) = (&query.noise, self.excess_key(question)) {
                noise.add_all_parts(first, query.number(), &mut values[start..]);
            }
            if !is_answered(i, query) {
                self.work_for_nothing(query, losses, worker)?;
                if let Some(noise) = &query.noise {
                    noise.add_to(&mut values[start..], &mut self.noise_stream(key, query));
                }
                continue;
            }
            let loss = match query.needs_loss() {
                true => Some(self.cached_loss(&query.params, losses, worker)?),
                false => None,
            };
            self.answer(key, query, loss, worker, &mut own[i], &mut values[start..])?;
        }
        Ok(values)
    }

    /// Computes the loss or the evaluation of a query that the device does not answer, if it works
    /// in any case, and discards the result. The time of its answer then does not reveal the track
    /// that it serves. Devices train for one track only, because all tracks ask for the same work.
    fn work_for_nothing(
        &self,
        query: &Query,
        losses: &mut LossCache<ParamsId, f64>,
        worker: &mut dyn Worker,
    ) -> Result<(), TrainerError> {
        if self.trains_always && query.needs_loss() {
            self.cached_loss(&query.params, losses, worker)?;
        }
        if let (true, Ask::Evaluation(_), Some(held_out)) = (self.trains_always, &query.ask, self.held_out) {
            score(&held_out.examples, &query.params, worker)?;
        }
        Ok(())
    }

    /// Returns the key of the removable noise in the answers to a question.
    fn excess_key<P>(&self, Question { key, queries }: &Question<P>) -> Option<ExcessKey> {
        let first = queries.first().filter(|_| is_removable(queries))?;
        Some(self.randomness.excess_key(key, self.key, first.number()))
    }

    /// Returns the keys that the device reveals after the survivors of a sum are known, each with
    /// the fewest survivors for which it is revealed, those for the most survivors first. Returns
    /// none if no noise of the question can be removed.
    pub fn excess_keys<P>(&self, question: &Question<P>) -> Vec<(u64, [u8; 32])> {
        let Some(first) = self.excess_key(question) else { return Vec::new() };
        let noises = question.queries.iter().filter_map(|query| query.noise.as_ref());
        let levels: Vec<NoiseLevels> = noises.map(NoiseLevels::new).collect();
        let removable = levels.iter().map(NoiseLevels::removable).max().unwrap_or(0);
        // The parts up to this one must suffice for every query.
        let fewest = |part: u32| {
            let longer = levels.iter().filter(|levels| levels.removable() > part);
            longer.map(|levels| levels.fewest(part)).max().unwrap_or(0)
        };
        (0..removable).map(|part| (fewest(part), first.later(part + 1).bytes())).collect()
    }

    fn cached_loss(
        &self,
        params: &Params,
        losses: &mut LossCache<ParamsId, f64>,
        worker: &mut dyn Worker,
    ) -> Result<f64, TrainerError> {
        if let Some(&loss) = losses.get(&params.id()) {
            return Ok(loss);
        }
        let loss = self.loss(params, worker)?;
        losses.insert(params.id(), loss);
        Ok(loss)
    }

    /// Adds the answer to a query to `sum`. `loss` is F_k at the params of the query, which must be
    /// present if the query needs it.
    ///
    /// A device whose loss is not finite counts as refused in an update and contributes nothing to
    /// a quantile. `own` is the memory of the device. It changes only if the update is in the sum.
    ///
    /// # Errors
    ///
    /// Fails if the worker fails.
    pub fn answer(
        &self,
        key: &RoundKey,
        query: &Query,
        loss: Option<f64>,
        worker: &mut dyn Worker,
        own: &mut AlgorithmState,
        sum: &mut [u64],
    ) -> Result<(), TrainerError> {
        if query.noise.is_some() {
            return self.noisy_answer(key, query, loss, worker, own, sum);
        }
        // Deployed devices declare no group.
        let held = Held { examples: self.examples.len() as u64, group: 0 };
        match Contribution::new(&query.ask, self.weight(key), held, loss) {
            Contribution::Nothing => {
                if let (true, Ask::Update { plan, .. }) = (self.trains_always, &query.ask) {
                    let params = query.params.as_slice();
                    let task = LocalTask { params, sent: &query.sent, examples: &self.examples, plan };
                    let share = Share { weight: 0.0, report: None, personal: None };
                    let mut stream = self.randomness.stream(key, self.key);
                    let mut discarded = vec![0; sum.len()];
                    add_update(&key.code(), &task, share, Some(own), &mut stream, worker, &mut discarded)?;
                }
            }
            Contribution::Loss(query, loss) => query.answer(loss, sum),
            Contribution::Update { plan, weight, report } => {
                let mut stream = self.randomness.stream(key, self.key);
                let params = query.params.as_slice();
                let task = LocalTask { params, sent: &query.sent, examples: &self.examples, plan };
                let (code, share) = (key.code(), Share { weight, report, personal: None });
                if let Some(next) = add_update(&code, &task, share, Some(own), &mut stream, worker, sum)? {
                    *own = next;
                }
            }
            Contribution::Evaluation(measures) => {
                self.add_evaluation(measures, query, worker, sum)?;
            }
        }
        Ok(())
    }

    fn add_evaluation(
        &self,
        measures: &[Measure],
        query: &Query,
        worker: &mut dyn Worker,
        sum: &mut [u64],
    ) -> Result<(), TrainerError> {
        if let Some(HeldOut { examples, task }) = self.held_out {
            let score = score(&examples, &query.params, worker)?;
            add_evaluation(measures, task, &score, examples.len() as u64, sum);
        }
        Ok(())
    }

    fn noise_stream(&self, key: &RoundKey, query: &Query) -> Stream {
        self.randomness.noise_stream(key, self.key, query.number())
    }

    /// Adds the answer to a noisy query to `sum`, with the noise of the device.
    fn noisy_answer(
        &self,
        key: &RoundKey,
        query: &Query,
        loss: Option<f64>,
        worker: &mut dyn Worker,
        own: &mut AlgorithmState,
        sum: &mut [u64],
    ) -> Result<(), TrainerError> {
        let Some(noise) = &query.noise else { return Ok(()) };
        let mut private = self.noise_stream(key, query);
        // Deployed devices declare no group.
        let held = Held { examples: self.examples.len() as u64, group: 0 };
        let contribution = Contribution::new(&query.ask, self.weight(key), held, loss);
        if let Ask::Update { plan, .. } = &query.ask {
            let weight = if let Contribution::Update { weight, .. } = contribution { weight } else { 0.0 };
            let mut stream = self.randomness.stream(key, self.key);
            let params = query.params.as_slice();
            let task = LocalTask { params, sent: &query.sent, examples: &self.examples, plan };
            if self.trains_always && (weight.is_nan() || weight <= 0.0) {
                worker.update(&task, &mut own.clone(), &mut stream.clone())?;
            }
            let share = NoisyShare { noise, weight, signs: key.rotation(query.number()), private };
            if let Some(next) = add_noisy_update(share, &task, Some(own), &mut stream, worker, sum)? {
                *own = next;
            }
            return Ok(());
        }
        let mut counts = vec![0; sum.len()];
        match contribution {
            Contribution::Loss(query, loss) => query.answer(loss, &mut counts),
            Contribution::Evaluation(measures) => {
                self.add_evaluation(measures, query, worker, &mut counts)?;
            }
            Contribution::Nothing | Contribution::Update { .. } => {}
        }
        noise.add_counts(&counts, sum);
        noise.add_to(sum, &mut private);
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
