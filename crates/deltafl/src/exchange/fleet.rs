//! The devices of a federation, computed in this process and its peers.
//!
//! This is the work shared by all [`Compute`] backends. Each loss is computed once per round, equal
//! params share one pass, the largest updates start first, and the next cohort is prefetched.

use std::cmp::Reverse;
use std::sync::Arc;

use super::peers::{cut, owners};
use super::recall::{self, Recalled};
use super::{
    Drawn, EvaluatedDevice, Evaluation, ExchangeError, Peers, Round, Share, SplitEvaluation, TrainIndex,
};
use crate::compute::{Block, Compute, UpdateTask};
use crate::data::{Federation, FederationIndex, Split};
use crate::device::{blocks, stream_key};
use crate::evaluation;
use crate::memory::Memory;
use crate::model::Score;
use crate::params::Params;
use crate::question::{Ask, Query};
use crate::superquantile::DeviceLoss;
use crate::terms::TrackSchedule;

/// The devices of a federation.
pub struct Fleet<'a, C, P> {
    compute: C,
    federation: &'a Federation,
    /// The federation index of each training device.
    train: Vec<FederationIndex>,
    /// n_k of the training devices.
    counts: Vec<u64>,
    peers: P,
    losses: LossCache,
    /// The federation index of each device's held-out examples, determined on first use.
    held_out: Option<Vec<Option<FederationIndex>>>,
    /// The cohort of the next round.
    next: Vec<Drawn>,
    share: Share,
}

/// F_k(w) of the devices of the current round, so that no device computes it twice.
#[derive(Default)]
struct LossCache {
    round: Option<(u64, u64)>,
    cohort: Vec<Drawn>,
    /// One vector of losses per distinct w, in cohort order.
    by_params: Vec<(Params, Vec<f64>)>,
}

impl LossCache {
    /// Returns F_k at these params, in cohort order.
    fn at(&self, params: &Params) -> Option<&[f64]> {
        let known = self.by_params.iter().find(|(known, _)| known.is_same(params));
        known.map(|(_, losses)| losses.as_slice())
    }
}

/// A pending update of a cohort member.
#[derive(Clone, Copy)]
struct Owed {
    query: usize,
    member: usize,
    /// α_k·ω_k, or NaN if the loss is NaN.
    weight: f64,
    /// The number of examples that the device processes.
    examples: u64,
}

/// The answers to some queries and the resulting memories of the devices.
pub(super) struct Answers {
    /// One per query or per member.
    pub(super) values: Vec<Vec<u64>>,
    recalled: Vec<Recalled>,
}

impl Answers {
    /// Returns the memories of a cohort for a query, by training index.
    pub(super) fn remembered(&mut self, round: &Round<'_>, query: usize) -> Vec<(TrainIndex, Memory)> {
        let recalled = self.recalled.extract_if(.., |recalled| recalled.query == query);
        recalled.map(|Recalled { member, memory, .. }| (round.cohort[member].device, memory)).collect()
    }
}

impl<'a, C: Compute, P: Peers> Fleet<'a, C, P> {
    /// Creates the devices of a federation, computed by `compute` in this process and by each of
    /// its peers.
    pub fn new(compute: C, federation: &'a Federation, peers: P) -> Result<Self, ExchangeError> {
        let train = federation.split(Split::Train);
        if train.is_empty() {
            return Err(ExchangeError::NoTrainDevices);
        }
        let counts = train.iter().map(|&k| federation.example_count(k)).collect();
        let (losses, next, share) = (LossCache::default(), Vec::new(), Share::default());
        Ok(Self { compute, federation, train, counts, peers, losses, held_out: None, next, share })
    }

    /// Returns the number of training devices.
    pub fn devices(&self) -> usize {
        self.train.len()
    }

    /// Returns the compute backend of this process.
    pub fn compute(&self) -> &C {
        &self.compute
    }

    /// Returns the processes that share the work.
    pub fn peers(&self) -> &P {
        &self.peers
    }

    /// Returns the work of this process so far.
    pub fn share(&self) -> Share {
        self.share
    }

    /// Sets the cohort of the next round.
    pub(super) fn announce(&mut self, next: &[Drawn]) {
        self.next = next.to_vec();
        let devices = self.federation_indices(next);
        self.compute.prefetch(&devices);
    }

    /// Returns F_k(w) of each answering member, per params. Devices with a non-finite loss are
    /// omitted.
    pub(super) fn losses(
        &mut self,
        round: &Round<'_>,
        params: &[&Params],
    ) -> Result<Vec<Vec<DeviceLoss>>, ExchangeError> {
        self.know_losses(round, params.iter().copied())?;
        let of_params = |params: &&Params| {
            let losses = self.losses.at(params).unwrap_or_default();
            let answering = round.cohort.iter().zip(losses).filter(|(drawn, _)| !drawn.dropped);
            let told = |(drawn, &loss): (&Drawn, &f64)| DeviceLoss::new(loss, self.weight(round, drawn)).ok();
            answering.filter_map(told).collect()
        };
        Ok(params.iter().map(of_params).collect())
    }

    /// Returns the sum of the answers over the cohort for each query.
    pub(super) fn sum(&mut self, round: &Round<'_>, queries: &[Query]) -> Result<Answers, ExchangeError> {
        self.know_losses(round, asked_losses(queries))?;
        let mut owed = self.owed(round, queries);
        let costs: Vec<u64> = owed.iter().map(|owed| owed.examples).collect();
        let mut owners = owners(&costs, self.peers.size()).into_iter();
        owed.retain(|_| owners.next() == Some(self.peers.rank()));
        let mut sums: Vec<Vec<u64>> = queries.iter().map(|query| vec![0; query.answer_len()]).collect();
        let recalled = self.update(round, queries, &owed, |owed| owed.query, &mut sums)?;
        let everybody: Vec<usize> = (0..round.cohort.len()).collect();
        let told = self.held_out_scores(round, queries, &everybody)?;
        if self.peers.rank() == 0 {
            for (query, sum) in queries.iter().zip(&mut sums) {
                for &member in &everybody {
                    self.add_quantile(round, query, member, sum);
                    self.add_evaluation(round, query, told.at(query, member), member, sum);
                }
            }
        }
        self.meet(round, queries, Answers { values: sums, recalled })
    }

    /// Returns the concatenated answers of some members to all queries, which are the inputs of a
    /// masked sum.
    pub(super) fn answers(
        &mut self,
        round: &Round<'_>,
        queries: &[Query],
        members: &[usize],
    ) -> Result<Answers, ExchangeError> {
        self.know_losses(round, asked_losses(queries))?;
        let place = |owed: &Owed| members.iter().position(|&member| member == owed.member);
        let mut owed = self.owed(round, queries);
        owed.retain(|owed| place(owed).is_some());
        let costs: Vec<u64> = owed.iter().map(|owed| owed.examples).collect();
        let mut owners = owners(&costs, self.peers.size()).into_iter();
        owed.retain(|_| owners.next() == Some(self.peers.rank()));

        let lens: Vec<usize> = queries.iter().map(Query::answer_len).collect();
        let mut parts: Vec<Vec<u64>> =
            members.iter().flat_map(|_| lens.iter().map(|&len| vec![0; len])).collect();
        let part = |owed: &Owed| place(owed).unwrap_or(0) * queries.len() + owed.query;
        let mut recalled = self.update(round, queries, &owed, part, &mut parts)?;
        let told = self.held_out_scores(round, queries, members)?;
        if self.peers.rank() == 0 {
            for (part, values) in parts.iter_mut().enumerate() {
                let (query, place) = (&queries[part % queries.len()], part / queries.len());
                self.add_quantile(round, query, members[place], values);
                self.add_evaluation(round, query, told.at(query, place), members[place], values);
            }
        }
        // Each process has the parts that it computed and zeros elsewhere. The sum over all
        // processes combines the parts.
        let mut whole = parts.concat();
        whole.push(recall::word(&recalled));
        let mut whole = self.peers.sum(whole, &mut || false)?;
        if whole.pop() != Some(0) {
            recalled = recall::meet(&mut self.peers, recalled)?;
        }
        let len: usize = lens.iter().sum();
        Ok(Answers { values: whole.chunks(len.max(1)).map(<[u64]>::to_vec).collect(), recalled })
    }

    /// Returns the loss and metrics of every device of a split, per params.
    pub(super) fn evaluate(
        &mut self,
        split: Split,
        params: &[&Params],
    ) -> Result<SplitEvaluation, ExchangeError> {
        let mut distinct: Vec<&Params> = Vec::new();
        let mut positions = Vec::with_capacity(params.len());
        for params in params {
            positions.push(position_of(params, &mut distinct));
        }
        let (devices, task) = (self.federation.evaluated(split), self.compute.task());
        let evaluations: Vec<Vec<Evaluation>> = self
            .scores(&devices, &distinct)?
            .iter()
            .map(|scores| {
                let of_device = |(score, &k): (&Score, &FederationIndex)| {
                    Evaluation::new(task, score, self.federation.example_count(k))
                };
                scores.iter().zip(&devices).map(of_device).collect()
            })
            .collect();
        let named = |&k: &FederationIndex| EvaluatedDevice {
            id: self.federation.id(k).to_owned(),
            examples: self.federation.example_count(k),
        };
        Ok(SplitEvaluation {
            split,
            task,
            devices: devices.iter().map(named).collect::<Arc<[_]>>(),
            tracks: positions.into_iter().map(|p| evaluations[p].clone()).collect(),
        })
    }

    fn federation_indices(&self, cohort: &[Drawn]) -> Vec<FederationIndex> {
        cohort.iter().map(|drawn| self.train[drawn.device.place()]).collect()
    }

    /// Returns α_k times the number of draws of the device.
    fn weight(&self, round: &Round<'_>, drawn: &Drawn) -> f64 {
        round.terms.weights.of(self.counts[drawn.device.place()]) as f64 * f64::from(drawn.times)
    }

    /// Computes F_k(w) of the cohort at these params if it is not cached. Equal params share one
    /// pass.
    fn know_losses<'p>(
        &mut self,
        round: &Round<'_>,
        params: impl Iterator<Item = &'p Params>,
    ) -> Result<(), ExchangeError> {
        let key = Some((round.seed, round.index));
        // A restarted round has another cohort.
        if self.losses.round != key || self.losses.cohort != round.cohort {
            self.losses = LossCache { round: key, cohort: round.cohort.to_vec(), by_params: Vec::new() };
        }
        let mut unknown: Vec<&Params> = Vec::new();
        for params in params.filter(|params| self.losses.at(params).is_none()) {
            position_of(params, &mut unknown);
        }
        if unknown.is_empty() {
            return Ok(());
        }
        let devices = self.federation_indices(round.cohort);
        let scores = self.scores(&devices, &unknown)?;
        for (params, scores) in unknown.into_iter().zip(scores) {
            let mean = |(score, &k): (&Score, &FederationIndex)| {
                score.loss / self.federation.example_count(k) as f64
            };
            let losses = scores.iter().zip(&devices).map(mean).collect();
            self.losses.by_params.push((params.clone(), losses));
        }
        Ok(())
    }

    /// Computes the loss and metrics of devices at each of the params, with forward passes only.
    fn scores(
        &mut self,
        devices: &[FederationIndex],
        params: &[&Params],
    ) -> Result<Vec<Vec<Score>>, ExchangeError> {
        let of_device = |(i, &device): (usize, &FederationIndex)| {
            let count = self.federation.example_count(device) as usize;
            blocks(count).map(move |examples| (i, Block { device, examples }))
        };
        let (owners, blocks): (Vec<usize>, Vec<Block>) =
            devices.iter().enumerate().flat_map(of_device).unzip();
        // Each process computes a range of the blocks, at all params.
        let cuts = cut(blocks.iter().map(|block| block.examples.len() as u64), self.peers.size());
        let mine = &blocks[cuts[self.peers.rank()].clone()];
        let examples = mine.iter().map(|block| block.examples.len() as u64).sum::<u64>();
        self.share.examples += examples * params.len() as u64;

        let part = self.compute.scores(mine, params)?.concat();
        let lengths: Vec<usize> = cuts.iter().map(|cut| cut.len() * params.len()).collect();
        let gathered = self.peers.gather(part, &lengths)?;
        let mut totals = vec![vec![Score::default(); devices.len()]; params.len()];
        let mut start = 0;
        for cut in cuts {
            for totals in &mut totals {
                for (&owner, &score) in owners[cut.clone()].iter().zip(&gathered[start..]) {
                    totals[owner] += score;
                }
                start += cut.len();
            }
        }
        Ok(totals)
    }

    /// Returns the pending updates of the cohort, largest first, so that no thread or process ends
    /// with a long task. A device that does not count costs nothing.
    fn owed(&self, round: &Round<'_>, queries: &[Query]) -> Vec<Owed> {
        let mut all = Vec::new();
        let answering = (0..round.cohort.len()).filter(|&i| !round.cohort[i].dropped);
        for member in answering {
            let drawn = &round.cohort[member];
            let track = self.assigned_track(round, member);
            for (query, Query { params, ask, track: asking, .. }) in queries.iter().enumerate() {
                let Ask::Update { weighting, plan } = ask else { continue };
                if track.is_some_and(|track| track != *asking) {
                    continue;
                }
                let known = if weighting.needs_loss() { self.losses.at(params) } else { None };
                let share = known.map_or(1.0, |losses| weighting.share(losses[member]));
                if share > 0.0 || share.is_nan() {
                    let examples = plan.examples(self.counts[drawn.device.place()]);
                    all.push(Owed { query, member, weight: self.weight(round, drawn) * share, examples });
                }
            }
        }
        all.sort_by_key(|owed| Reverse(owed.examples));
        all
    }

    /// Returns the track for which a member answers, if the tracks divide the cohort.
    fn assigned_track(&self, round: &Round<'_>, member: usize) -> Option<u32> {
        if round.terms.schedule != TrackSchedule::Apart {
            return None;
        }
        let device = self.train[round.cohort[member].device.place()];
        round.key().assigned_track(stream_key(self.federation.id(device)))
    }

    /// Returns `true` if a member answers a query.
    fn is_answering(&self, round: &Round<'_>, query: &Query, member: usize) -> bool {
        let answering = !round.cohort[member].dropped;
        answering && self.assigned_track(round, member).is_none_or(|track| track == query.track)
    }

    /// Computes updates and adds each to the sum given by `sum_of`.
    fn update(
        &mut self,
        round: &Round<'_>,
        queries: &[Query],
        owed: &[Owed],
        sum_of: impl Fn(&Owed) -> usize,
        sums: &mut [Vec<u64>],
    ) -> Result<Vec<Recalled>, ExchangeError> {
        self.share.updates += owed.len() as u64;
        self.share.examples += owed.iter().map(|owed| owed.examples).sum::<u64>();
        let task = |owed: &Owed| {
            let Query { params, sent, ask: Ask::Update { plan, .. }, .. } = &queries[owed.query] else {
                return None;
            };
            let drawn = round.cohort[owed.member].device;
            let own = round.own.get(owed.query).and_then(|devices| devices.get(drawn));
            let device = self.train[drawn.place()];
            Some(UpdateTask { device, params, sent, own, plan, weight: owed.weight, sum: sum_of(owed) })
        };
        let tasks: Vec<UpdateTask<'_>> = owed.iter().filter_map(task).collect();
        let remembered = self.compute.updates(&round.key(), &tasks, sums)?;
        let recalled = |(task, memory): (usize, Memory)| {
            let Owed { query, member, .. } = owed[task];
            Recalled { query, member, memory }
        };
        Ok(remembered.into_iter().map(recalled).collect())
    }

    /// Adds a member's answer to a step of a private quantile.
    fn add_quantile(&self, round: &Round<'_>, query: &Query, member: usize, sum: &mut [u64]) {
        let Ask::Quantile(ask) = &query.ask else { return };
        let drawn = &round.cohort[member];
        let loss = self.losses.at(&query.params).map(|losses| losses[member]);
        let device = loss.map(|loss| DeviceLoss::new(loss, self.weight(round, drawn)));
        if let (Some(Ok(device)), true) = (device, self.is_answering(round, query, member)) {
            ask.answer(device, sum);
        }
    }

    /// Computes the scores of some members on their held-out examples, at the params of each
    /// requested evaluation.
    fn held_out_scores(
        &mut self,
        round: &Round<'_>,
        queries: &[Query],
        members: &[usize],
    ) -> Result<HeldOutScores, ExchangeError> {
        let asked = queries.iter().filter(|query| matches!(query.ask, Ask::Evaluation(_)));
        let mut params: Vec<&Params> = Vec::new();
        asked.for_each(|query| _ = position_of(&query.params, &mut params));
        if params.is_empty() {
            return Ok(HeldOutScores::default());
        }
        let federation = self.federation;
        let held_out = self.held_out.get_or_insert_with(|| federation.held_out());
        let device = |&member: &usize| held_out[self.train[round.cohort[member].device.place()].place()];
        let of_members: Vec<Option<FederationIndex>> = members.iter().map(device).collect();
        let devices: Vec<FederationIndex> = of_members.iter().flatten().copied().collect();
        let scores = self.scores(&devices, &params)?;
        let by_member = |scores: Vec<Score>| {
            let mut scores = scores.into_iter();
            of_members.iter().map(|device| device.and_then(|device| Some((scores.next()?, device)))).collect()
        };
        let params: Vec<Params> = params.into_iter().cloned().collect();
        Ok(HeldOutScores { by_params: params.into_iter().zip(scores.into_iter().map(by_member)).collect() })
    }

    /// Adds a member's evaluation on its held-out examples.
    fn add_evaluation(
        &self,
        round: &Round<'_>,
        query: &Query,
        told: HeldOutScore,
        member: usize,
        sum: &mut [u64],
    ) {
        if let (Ask::Evaluation(measures), Some((score, device)), true) =
            (&query.ask, told, self.is_answering(round, query, member))
        {
            let task = self.compute.task();
            let evaluation = Evaluation::new(task, &score, self.federation.example_count(device));
            evaluation::answer(measures, task, &evaluation, sum);
        }
    }

    /// Computes the sums over all processes. They are sent as one vector. While other processes
    /// still train, the examples of the next cohort are read from disk.
    fn meet(
        &mut self,
        round: &Round<'_>,
        queries: &[Query],
        Answers { values, mut recalled }: Answers,
    ) -> Result<Answers, ExchangeError> {
        if self.peers.size() == 1 {
            return Ok(Answers { values, recalled });
        }
        let mut expected = self.expected(round, queries).into_iter();
        let federation = self.federation;
        let mut meanwhile = || expected.next().map(|k| federation.examples(k).touch()).is_some();
        let mut mine = values.concat();
        mine.push(recall::word(&recalled));
        let total = self.peers.sum(mine, &mut meanwhile)?;
        let mut rest = total.as_slice();
        let mut part = |sum: &Vec<u64>| {
            let (part, behind) = rest.split_at(sum.len());
            rest = behind;
            part.to_vec()
        };
        let values = values.iter().map(&mut part).collect();
        if rest != [0] {
            recalled = recall::meet(&mut self.peers, recalled)?;
        }
        Ok(Answers { values, recalled })
    }

    /// Returns the devices with which this process probably begins the next round: the losses of a
    /// range of the cohort, or the updates assigned to it. Returns none unless this is the long sum
    /// at the end of a round.
    fn expected(&self, round: &Round<'_>, queries: &[Query]) -> Vec<FederationIndex> {
        if !queries.iter().any(|query| matches!(query.ask, Ask::Update { .. })) {
            return Vec::new();
        }
        let devices = self.federation_indices(&self.next);
        if self.losses.by_params.is_empty() {
            let owed = self.owed(&Round { cohort: &self.next, ..*round }, queries);
            let costs: Vec<u64> = owed.iter().map(|owed| owed.examples).collect();
            let owners = owners(&costs, self.peers.size());
            let mine = owed.iter().zip(owners).filter(|(_, owner)| *owner == self.peers.rank());
            mine.map(|(owed, _)| devices[owed.member]).collect()
        } else {
            let costs = devices.iter().map(|&k| self.federation.example_count(k));
            devices[cut(costs, self.peers.size())[self.peers.rank()].clone()].to_vec()
        }
    }
}

/// The score of a member on its held-out examples, with the device that has them.
type HeldOutScore = Option<(Score, FederationIndex)>;

/// The scores of members on their held-out examples.
#[derive(Default)]
struct HeldOutScores {
    by_params: Vec<(Params, Vec<HeldOutScore>)>,
}

impl HeldOutScores {
    /// Returns the score of the member at this position, at the params of a query.
    fn at(&self, query: &Query, place: usize) -> HeldOutScore {
        let (_, members) = self.by_params.iter().find(|(params, _)| params.is_same(&query.params))?;
        members.get(place).copied().flatten()
    }
}

/// Returns the params at which some queries need losses.
fn asked_losses(queries: &[Query]) -> impl Iterator<Item = &Params> {
    queries.iter().filter(|query| query.needs_loss()).map(|query| &query.params)
}

/// Returns the index of these params among distinct ones. Appends them if they are new.
fn position_of<'p>(params: &'p Params, distinct: &mut Vec<&'p Params>) -> usize {
    distinct.iter().position(|known| known.is_same(params)).unwrap_or_else(|| {
        distinct.push(params);
        distinct.len() - 1
    })
}
