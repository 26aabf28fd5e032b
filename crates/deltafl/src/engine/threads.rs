//! The devices in this process, spread over threads.
//!
//! A step of SGD is too small to split, so threads share devices, never a step. Tasks are taken largest
//! first from a common counter; sums are integers and a device's loss is a sum of fixed blocks in order, so
//! who computes what leaves no trace in the bits.

use std::cmp::Reverse;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use super::{
    Engine, EngineError, EvaluatedDevice, Evaluation, Query, Roster, Round, SplitEvaluation, Sum, Traffic,
};
use crate::data::{Federation, Split};
use crate::device::{Member, Workspace, blocks, stream_key};
use crate::kernel;
use crate::model::{Model, Score};
use crate::params::{Params, add_wrapping};
use crate::superquantile::DeviceLoss;

/// The engine of this process.
pub struct Threads<'a> {
    model: &'a dyn Model,
    federation: &'a Federation,
    /// Federation index of each train device.
    train: Vec<u32>,
    roster: Roster,
    pool: rayon::ThreadPool,
    workers: Vec<Mutex<Workspace>>,
    losses: LossCache,
}

/// F_k(w) of the devices of the present round, so that no device computes it twice.
#[derive(Default)]
struct LossCache {
    round: Option<(u64, u64)>,
    /// A vector of losses per distinct w, in the order of the cohort.
    by_params: Vec<(Params, Vec<f64>)>,
}

impl LossCache {
    fn position(&self, params: &Params) -> Option<usize> {
        self.by_params.iter().position(|(known, _)| known.is_same(params))
    }

    /// F_k of member `i` of the cohort.
    fn loss(&self, params: &Params, i: usize) -> Option<f64> {
        self.position(params).map(|p| self.by_params[p].1[i])
    }
}

impl<'a> Threads<'a> {
    /// An engine of `threads` threads over a federation; 0 means one per core.
    pub fn new(
        model: &'a dyn Model,
        federation: &'a Federation,
        threads: usize,
    ) -> Result<Self, EngineError> {
        let train = federation.split(Split::Train);
        if train.is_empty() {
            return Err(EngineError::NoTrainDevices);
        }
        let pool = rayon::ThreadPoolBuilder::new()
            .num_threads(threads)
            .build()
            .map_err(|source| EngineError::Threads { threads, source })?;
        let workers = (0..pool.current_num_threads()).map(|_| Mutex::default()).collect();
        let roster = Roster { weights: train.iter().map(|&k| federation.count(k)).collect() };
        Ok(Self { model, federation, train, roster, pool, workers, losses: LossCache::default() })
    }

    /// Number of threads.
    pub fn threads(&self) -> usize {
        self.workers.len()
    }

    fn member(&self, device: u32, times: u32) -> Member<'_> {
        let k = self.train[device as usize];
        Member {
            model: self.model,
            examples: self.federation.examples(k),
            weight: self.federation.count(k) as f64 * f64::from(times),
            key: stream_key(self.federation.id(k)),
        }
    }

    /// Lets every thread take tasks from `0..tasks` until none is left; returns a state per thread.
    fn share<S: Send>(
        &self,
        tasks: usize,
        state: impl Fn() -> S + Sync,
        task: impl Fn(usize, &mut Workspace, &mut S) + Sync,
    ) -> Vec<S> {
        let next = AtomicUsize::new(0);
        self.pool.broadcast(|thread| {
            let _flushed = kernel::flush_denormals();
            let mut workspace = self.workers[thread.index()].lock().unwrap_or_else(PoisonError::into_inner);
            let mut state = state();
            loop {
                let i = next.fetch_add(1, Ordering::Relaxed);
                if i >= tasks {
                    return state;
                }
                task(i, &mut workspace, &mut state);
            }
        })
    }

    /// Loss and errors of devices (federation indices), for each of the tracks: forward passes only.
    fn scores(&self, devices: &[u32], tracks: &[&Params]) -> Vec<Vec<Score>> {
        // (track, device, block), the blocks of one device next to each other: a thread reloads w rarely.
        let mut tasks = Vec::new();
        for track in 0..tracks.len() {
            for (i, &k) in devices.iter().enumerate() {
                tasks.extend(blocks(self.federation.count(k) as usize).map(|block| (track, i, block)));
            }
        }
        // Several blocks per turn when there are many, so that a turn outweighs loading w.
        let turn = tasks.len().div_ceil(self.threads() * 64).clamp(1, 64);
        let turns: Vec<_> = tasks.chunks(turn).collect();
        let done =
            self.share(turns.len(), Vec::new, |t, workspace, scores: &mut Vec<(usize, Vec<Score>)>| {
                let mut loaded = None;
                let score = |(track, i, block): &(usize, usize, std::ops::Range<usize>)| {
                    if loaded != Some(*track) {
                        workspace.load(self.model, tracks[*track].as_slice());
                        loaded = Some(*track);
                    }
                    let examples = self.federation.examples(devices[*i]);
                    workspace.score(self.model, &examples, block.clone())
                };
                scores.push((t, turns[t].iter().map(score).collect()));
            });
        let mut by_turn: Vec<(usize, Vec<Score>)> = done.into_iter().flatten().collect();
        by_turn.sort_unstable_by_key(|(t, _)| *t);
        let mut totals = vec![vec![Score::default(); devices.len()]; tracks.len()];
        for ((track, i, _), score) in tasks.iter().zip(by_turn.into_iter().flat_map(|(_, scores)| scores)) {
            totals[*track][*i] += score;
        }
        totals
    }

    /// Makes sure that F_k(w) of the cohort is known for these parameters; equal parameters share one pass.
    fn know_losses<'p>(&mut self, round: &Round<'_>, params: impl Iterator<Item = &'p Params>) {
        if self.losses.round != Some((round.seed, round.index)) {
            self.losses = LossCache { round: Some((round.seed, round.index)), by_params: Vec::new() };
        }
        let mut unknown: Vec<&Params> = Vec::new();
        for params in params {
            if self.losses.position(params).is_none() && !unknown.iter().any(|known| known.is_same(params)) {
                unknown.push(params);
            }
        }
        if unknown.is_empty() {
            return;
        }
        let devices: Vec<u32> = round.cohort.iter().map(|drawn| self.train[drawn.device as usize]).collect();
        let scores = self.scores(&devices, &unknown);
        for (params, scores) in unknown.into_iter().zip(scores) {
            let losses = scores
                .iter()
                .zip(&devices)
                .map(|(score, &k)| score.loss / self.federation.count(k) as f64)
                .collect();
            self.losses.by_params.push((params.clone(), losses));
        }
    }
}

impl Engine for Threads<'_> {
    fn roster(&self) -> &Roster {
        &self.roster
    }

    fn losses(&mut self, round: &Round<'_>, tracks: &[&Params]) -> Result<Vec<Vec<DeviceLoss>>, EngineError> {
        self.know_losses(round, tracks.iter().copied());
        let of_track = |params: &&Params| {
            let answering = round.cohort.iter().enumerate().filter(|(_, drawn)| !drawn.dropped);
            answering
                .filter_map(|(i, drawn)| {
                    let weight = self.roster.weights[drawn.device as usize] * u64::from(drawn.times);
                    DeviceLoss::new(self.losses.loss(params, i)?, weight as f64).ok()
                })
                .collect()
        };
        Ok(tracks.iter().map(of_track).collect())
    }

    fn secure_sum(&mut self, round: &Round<'_>, queries: &[Query<'_>]) -> Result<Vec<Sum>, EngineError> {
        self.know_losses(round, queries.iter().filter(|query| query.needs_loss()).map(Query::params));

        // Largest first, so that no thread is left with a giant at the end.
        let answering = (0..round.cohort.len()).filter(|&i| !round.cohort[i].dropped);
        let mut tasks: Vec<(usize, usize)> =
            answering.flat_map(|i| (0..queries.len()).map(move |q| (q, i))).collect();
        tasks.sort_by_key(|&(_, i)| Reverse(self.roster.weights[round.cohort[i].device as usize]));

        let zeros = || queries.iter().map(|query| vec![0; query.answer_len()]).collect::<Vec<Vec<u64>>>();
        let parts = self.share(tasks.len(), zeros, |t, workspace, sums| {
            let (q, i) = tasks[t];
            let (query, drawn) = (&queries[q], round.cohort[i]);
            let loss = if query.needs_loss() { self.losses.loss(query.params(), i) } else { None };
            self.member(drawn.device, drawn.times).answer(round, query, loss, workspace, &mut sums[q]);
        });
        let mut total = zeros();
        for part in parts {
            total.iter_mut().zip(&part).for_each(|(sum, part)| add_wrapping(sum, part));
        }
        let sums = total.into_iter().zip(queries);
        Ok(sums.map(|(values, query)| Sum { traffic: plain_traffic(round, query), values }).collect())
    }

    fn evaluate(&mut self, split: Split, tracks: &[&Params]) -> Result<SplitEvaluation, EngineError> {
        let mut distinct: Vec<&Params> = Vec::new();
        let positions: Vec<usize> = tracks
            .iter()
            .map(|params| {
                distinct.iter().position(|known| known.is_same(params)).unwrap_or_else(|| {
                    distinct.push(params);
                    distinct.len() - 1
                })
            })
            .collect();
        let devices = self.federation.split(split);
        let evaluations: Vec<Vec<Evaluation>> = self
            .scores(&devices, &distinct)
            .iter()
            .map(|scores| {
                let of_device = |(score, &k): (&Score, &u32)| {
                    let count = self.federation.count(k) as f64;
                    Evaluation { loss: score.loss / count, error: score.errors as f64 / count }
                };
                scores.iter().zip(&devices).map(of_device).collect()
            })
            .collect();
        let named = |&k: &u32| EvaluatedDevice {
            id: self.federation.id(k).to_owned(),
            examples: self.federation.count(k),
        };
        Ok(SplitEvaluation {
            split,
            devices: devices.iter().map(named).collect::<Arc<[_]>>(),
            tracks: positions.into_iter().map(|p| evaluations[p].clone()).collect(),
        })
    }
}

/// What a sum costs when it goes unmasked: a question down, an answer up. The parameters travel once per
/// round and are counted with the update.
fn plain_traffic(round: &Round<'_>, query: &Query<'_>) -> Traffic {
    let answering = round.cohort.iter().filter(|drawn| !drawn.dropped).count() as u64;
    let asked = round.cohort.len() as u64;
    let question = match query {
        Query::Quantile { .. } => 24,
        Query::LocalUpdate { params, .. } => 4 * params.len() as u64,
    };
    Traffic {
        sums: 1,
        messages: asked + answering,
        bytes_up: answering * 8 * query.answer_len() as u64,
        bytes_down: asked * question,
    }
}
