//! The devices in this process, spread over threads.
//!
//! A step of SGD is too small to split, so threads share devices, never a step. Tasks are taken largest
//! first from a common counter; sums are integers and a device's loss is a sum of fixed blocks in order, so
//! who computes what leaves no trace in the bits. That holds between processes too: an engine with [`Peers`]
//! computes its part of every answer and lets the parts meet.

use std::cell::Cell;
use std::cmp::Reverse;
use std::ops::Range;
use std::sync::Arc;

use super::peers::{Alone, Peers, Share, cut, owners};
use super::{
    Drawn, Engine, EngineError, EvaluatedDevice, Evaluation, Query, Round, SplitEvaluation, Sum, Traffic,
};
use crate::data::{Federation, Split};
use crate::device::{Admission, LocalPlan, Work, Workspace, blocks};
use crate::model::{Model, Score};
use crate::params::{Params, add_wrapping};
use crate::superquantile::DeviceLoss;

mod crew;

use crew::{Block, Crew, ForwardPass};

/// The engine of this process, or of this process and its peers.
pub struct Threads<'a, P = Alone> {
    crew: Crew<'a>,
    peers: P,
    /// α_k = n_k of the train devices.
    weights: Vec<u64>,
    losses: LossCache,
    /// The cohort of the next round.
    next: Vec<Drawn>,
    share: Share,
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

/// An answer that a device owes: query `query` to member `member` of the cohort.
struct Task {
    query: usize,
    member: usize,
    /// Examples that the device passes over.
    examples: u64,
}

impl<'a> Threads<'a> {
    /// An engine of `threads` threads over a federation; 0 means one per core.
    pub fn new(
        model: &'a dyn Model,
        federation: &'a Federation,
        threads: usize,
    ) -> Result<Self, EngineError> {
        Self::with_peers(model, federation, threads, Alone)
    }

    /// The answers of some members of the cohort to all queries, one behind the other: the inputs of a masked sum.
    pub(super) fn answers(
        &mut self,
        round: &Round<'_>,
        queries: &[Query<'_>],
        members: &[usize],
    ) -> Result<Vec<Vec<u64>>, EngineError> {
        self.know_losses(round, queries.iter().filter(|query| query.needs_loss()).map(Query::params))?;
        let (crew, known) = (&self.crew, &self.losses);
        let answer =
            |t: usize, at: &Cell<u32>, workspace: &mut Workspace, done: &mut Vec<(usize, Vec<u64>)>| {
                let drawn = round.cohort[members[t]];
                at.set(crew.train[drawn.device as usize]);
                let mut answer = Vec::new();
                for query in queries {
                    let start = answer.len();
                    answer.resize(start + query.answer_len(), 0);
                    let loss = if query.needs_loss() { known.loss(query.params(), members[t]) } else { None };
                    let sum = &mut answer[start..];
                    crew.member(drawn.device, drawn.times).answer(round, query, loss, workspace, sum);
                }
                done.push((t, answer));
            };
        let parts = crew.share(members.len(), Vec::new, answer)?;
        let mut answers: Vec<(usize, Vec<u64>)> = parts.into_iter().flatten().collect();
        answers.sort_unstable_by_key(|(t, _)| *t);
        Ok(answers.into_iter().map(|(_, answer)| answer).collect())
    }
}

impl<'a, P: Peers> Threads<'a, P> {
    /// An engine of `threads` threads in each of several processes.
    pub fn with_peers(
        model: &'a dyn Model,
        federation: &'a Federation,
        threads: usize,
        peers: P,
    ) -> Result<Self, EngineError> {
        let crew = Crew::new(model, federation, threads)?;
        let weights = crew.train.iter().map(|&k| federation.count(k)).collect();
        let (losses, next, share) = (LossCache::default(), Vec::new(), Share::default());
        Ok(Self { crew, peers, weights, losses, next, share })
    }

    /// Number of threads.
    pub fn threads(&self) -> usize {
        self.crew.threads()
    }

    /// What this process has computed so far.
    pub fn share(&self) -> Share {
        self.share
    }

    /// The processes that share the work.
    pub fn peers(&self) -> &P {
        &self.peers
    }

    /// Loss and errors of devices (federation indices), for each of the tracks: forward passes only.
    fn scores(&mut self, devices: &[u32], tracks: &[&Params]) -> Result<Vec<Vec<Score>>, EngineError> {
        let blocks = self.blocks(devices);
        let costs = (0..tracks.len()).flat_map(|_| blocks.iter().map(|(_, examples)| examples.len() as u64));
        let cuts = cut(costs, self.peers.size());
        let mine = cuts[self.peers.rank()].clone();
        let examples = mine.clone().map(|t| blocks[t % blocks.len()].1.len() as u64);
        self.share.examples += examples.sum::<u64>();

        let pass = ForwardPass { devices, blocks: &blocks, tracks };
        let part = self.crew.scores(&pass, mine)?;
        let lengths: Vec<usize> = cuts.iter().map(Range::len).collect();
        let mut scores = self.peers.gather(part, &lengths)?.into_iter();
        let of_track = |_| {
            let mut totals = vec![Score::default(); devices.len()];
            blocks.iter().zip(&mut scores).for_each(|((i, _), score)| totals[*i] += score);
            totals
        };
        Ok((0..tracks.len()).map(of_track).collect())
    }

    /// The blocks of a forward pass over devices (federation indices).
    fn blocks(&self, devices: &[u32]) -> Vec<Block> {
        let of_device = |(i, &k): (usize, &u32)| {
            blocks(self.crew.federation.count(k) as usize).map(move |block| (i, block))
        };
        devices.iter().enumerate().flat_map(of_device).collect()
    }

    /// Makes sure that F_k(w) of the cohort is known for these parameters; equal parameters share one pass.
    fn know_losses<'p>(
        &mut self,
        round: &Round<'_>,
        params: impl Iterator<Item = &'p Params>,
    ) -> Result<(), EngineError> {
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
            return Ok(());
        }
        let devices = self.federation_indices(round.cohort);
        let scores = self.scores(&devices, &unknown)?;
        for (params, scores) in unknown.into_iter().zip(scores) {
            let losses = scores
                .iter()
                .zip(&devices)
                .map(|(score, &k)| score.loss / self.crew.federation.count(k) as f64)
                .collect();
            self.losses.by_params.push((params.clone(), losses));
        }
        Ok(())
    }

    fn federation_indices(&self, cohort: &[Drawn]) -> Vec<u32> {
        cohort.iter().map(|drawn| self.crew.train[drawn.device as usize]).collect()
    }

    /// The answers that this process computes, largest first, so that no thread and no process is left with a
    /// giant at the end. A device that does not admit itself costs nothing.
    fn tasks(&self, round: &Round<'_>, queries: &[Query<'_>]) -> Vec<Task> {
        let answering = (0..round.cohort.len()).filter(|&i| !round.cohort[i].dropped);
        let task = |query: usize, member: usize| {
            let points = self.weights[round.cohort[member].device as usize];
            let examples = match &queries[query] {
                Query::Quantile { .. } => 0,
                Query::LocalUpdate { params, admission, plan } => {
                    let loss = if admission.needs_loss() { self.losses.loss(params, member) } else { None };
                    examples_trained(*admission, plan, points, loss)
                }
            };
            Task { query, member, examples }
        };
        let mut tasks: Vec<Task> =
            answering.flat_map(|member| (0..queries.len()).map(move |query| task(query, member))).collect();
        tasks.sort_by_key(|task| Reverse(task.examples));
        let costs: Vec<u64> = tasks.iter().map(|task| task.examples).collect();
        let mut owners = owners(&costs, self.peers.size()).into_iter();
        tasks.retain(|_| owners.next() == Some(self.peers.rank()));
        tasks
    }

    /// The devices (federation indices) with which this process begins the next round, if that round goes as
    /// this one did: the losses of a cut of the cohort, or the updates it owns. Nobody, unless this is the long
    /// sum at the end of a round and there are peers to wait for.
    fn expected(&self, round: &Round<'_>, queries: &[Query<'_>]) -> Vec<u32> {
        if self.peers.size() == 1 || !queries.iter().any(|query| matches!(query, Query::LocalUpdate { .. })) {
            return Vec::new();
        }
        let devices = self.federation_indices(&self.next);
        if self.losses.by_params.is_empty() {
            let tasks = self.tasks(&Round { cohort: &self.next, ..*round }, queries);
            tasks.iter().map(|task| devices[task.member]).collect()
        } else {
            let costs = devices.iter().map(|&k| self.crew.federation.count(k));
            devices[cut(costs, self.peers.size())[self.peers.rank()].clone()].to_vec()
        }
    }
}

impl<P: Peers> Engine for Threads<'_, P> {
    fn devices(&self) -> usize {
        self.weights.len()
    }

    fn losses(&mut self, round: &Round<'_>, tracks: &[&Params]) -> Result<Vec<Vec<DeviceLoss>>, EngineError> {
        self.know_losses(round, tracks.iter().copied())?;
        let of_track = |params: &&Params| {
            let answering = round.cohort.iter().enumerate().filter(|(_, drawn)| !drawn.dropped);
            answering
                .filter_map(|(i, drawn)| {
                    let weight = self.weights[drawn.device as usize] * u64::from(drawn.times);
                    DeviceLoss::new(self.losses.loss(params, i)?, weight as f64).ok()
                })
                .collect()
        };
        Ok(tracks.iter().map(of_track).collect())
    }

    fn secure_sum(&mut self, round: &Round<'_>, queries: &[Query<'_>]) -> Result<Vec<Sum>, EngineError> {
        self.know_losses(round, queries.iter().filter(|query| query.needs_loss()).map(Query::params))?;
        let tasks = self.tasks(round, queries);
        self.share.updates += tasks.iter().filter(|task| task.examples > 0).count() as u64;
        self.share.examples += tasks.iter().map(|task| task.examples).sum::<u64>();

        // The answers to all queries stand in one vector, so that they meet in one sum.
        let mut len = 0;
        let place = |query: &Query<'_>| {
            len += query.answer_len();
            len - query.answer_len()..len
        };
        let places: Vec<Range<usize>> = queries.iter().map(place).collect();
        let (crew, known) = (&self.crew, &self.losses);
        let parts = crew.share(
            tasks.len(),
            || vec![0; len],
            |t, at, workspace, sums: &mut Vec<u64>| {
                let Task { query, member, .. } = tasks[t];
                let (drawn, place) = (round.cohort[member], places[query].clone());
                let query = &queries[query];
                at.set(crew.train[drawn.device as usize]);
                let loss = if query.needs_loss() { known.loss(query.params(), member) } else { None };
                let device = crew.member(drawn.device, drawn.times);
                device.answer(round, query, loss, workspace, &mut sums[place]);
            },
        )?;
        let mut parts = parts.into_iter();
        let mut total = parts.next().unwrap_or_else(|| vec![0; len]);
        parts.for_each(|part| add_wrapping(&mut total, &part));

        // While others still train, the examples of the next cohort are read from the disk.
        let mut expected = self.expected(round, queries).into_iter();
        let federation = self.crew.federation;
        let mut meanwhile = || expected.next().map(|k| federation.examples(k).touch()).is_some();
        let total = self.peers.sum(total, &mut meanwhile)?;
        let sums = places.into_iter().zip(queries);
        Ok(sums
            .map(|(place, query)| Sum {
                values: total[place].to_vec(),
                answered: round.answering(),
                traffic: plain_traffic(round, query),
            })
            .collect())
    }

    fn announce(&mut self, next: &[Drawn]) {
        self.next = next.to_vec();
        self.crew.prefetch(next);
    }

    fn evaluate(&mut self, split: Split, tracks: &[&Params]) -> Result<Option<SplitEvaluation>, EngineError> {
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
        let (devices, task) = (self.crew.federation.split(split), self.crew.model.task());
        let evaluations: Vec<Vec<Evaluation>> = self
            .scores(&devices, &distinct)?
            .iter()
            .map(|scores| {
                let of_device =
                    |(score, &k): (&Score, &u32)| Evaluation::new(task, score, self.crew.federation.count(k));
                scores.iter().zip(&devices).map(of_device).collect()
            })
            .collect();
        let named = |&k: &u32| EvaluatedDevice {
            id: self.crew.federation.id(k).to_owned(),
            examples: self.crew.federation.count(k),
        };
        Ok(Some(SplitEvaluation {
            split,
            task,
            devices: devices.iter().map(named).collect::<Arc<[_]>>(),
            tracks: positions.into_iter().map(|p| evaluations[p].clone()).collect(),
        }))
    }
}

/// What a sum costs when it goes unmasked: a question down, an answer up. The parameters travel once per
/// round and are counted with the update.
fn plain_traffic(round: &Round<'_>, query: &Query<'_>) -> Traffic {
    let answering = round.answering();
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

/// How many examples a device passes over for an update.
fn examples_trained(admission: Admission, plan: &LocalPlan, points: u64, loss: Option<f64>) -> u64 {
    let share = loss.map_or(1.0, |loss| admission.share(loss));
    match plan.work {
        _ if share <= 0.0 => 0,
        Work::Epochs(epochs) => points * u64::from(epochs),
        Work::Steps(steps) => u64::from(steps) * plan.batch as u64,
    }
}
