//! The devices of a federation, computed in this process and its peers.
//!
//! This is the work shared by all [`Compute`] backends. Each loss is computed once per round, equal
//! params share one pass, the largest updates start first, and the next cohort is prefetched.

mod counts;
mod held_out;
mod personal;
mod scores;

use std::cmp::Reverse;

use super::peers::{cut, owners};
use super::recall::{self, MemoryUpdate};
use super::{CohortMember, ExchangeError, NamedLoss, Peers, Round, TrainIndex, WorkDone};
use crate::compute::{Compute, KeptParts, TaskNoise, UpdateTask};
use crate::data::{Federation, FederationIndex, Split};
use crate::device::{Contribution, Held, LossCache, stream_key};
use crate::memory::AlgorithmState;
use crate::params::{Params, UpdateCode};
use crate::question::{Ask, Query};
use crate::selection::Report;
use crate::superquantile::DeviceLoss;
use crate::terms::TrackSchedule;

pub use personal::PersonalModels;
use scores::asked_losses;

/// The devices of a federation.
pub(super) struct Fleet<'a, C, P> {
    compute: C,
    federation: &'a Federation,
    /// The federation index of each training device.
    train: Vec<FederationIndex>,
    /// n_k of the training devices.
    counts: Vec<u64>,
    peers: P,
    /// F_k(w) of the devices of the current cohort, in its order.
    losses: LossCache<Params, Vec<f64>>,
    /// The cohort whose losses are known.
    cohort: Vec<CohortMember>,
    /// The places of the held-out examples of each device, by federation index; computed on first
    /// use.
    held_out: Option<Vec<Option<FederationIndex>>>,
    /// The cohort of the next round.
    next: Vec<CohortMember>,
    work_done: WorkDone,
}

/// A pending update of a cohort member.
#[derive(Clone, Copy)]
struct PendingUpdate<'q> {
    query: usize,
    member: usize,
    /// α_k·ω_k, or NaN if the loss is NaN.
    weight: f64,
    report: Option<Report<'q>>,
    /// The number of examples that the device processes.
    examples: u64,
}

/// The answers to some queries and the resulting memories of the devices.
pub(super) struct FleetAnswers {
    /// One per query or per member.
    pub(super) values: Vec<Vec<u64>>,
    memory_updates: Vec<MemoryUpdate>,
}

impl FleetAnswers {
    /// The memories of a cohort for a query, by training index.
    pub(super) fn remembered(
        &mut self,
        round: &Round<'_>,
        query: usize,
    ) -> Vec<(TrainIndex, AlgorithmState)> {
        let memory_updates =
            self.memory_updates.extract_if(.., |memory_updates| memory_updates.query == query);
        memory_updates
            .map(|MemoryUpdate { member, memory, .. }| (round.cohort[member].device, memory))
            .collect()
    }
}

impl<'a, C: Compute, P: Peers> Fleet<'a, C, P> {
    /// The devices of a federation, computed by `compute` in this process and by each of its peers.
    pub(super) fn new(compute: C, federation: &'a Federation, peers: P) -> Result<Self, ExchangeError> {
        let train = federation.split(Split::Train);
        if train.is_empty() {
            return Err(ExchangeError::NoTrainDevices);
        }
        let counts = train.iter().map(|&k| federation.example_count(k)).collect();
        Ok(Self {
            compute,
            federation,
            train,
            counts,
            peers,
            losses: LossCache::default(),
            cohort: Vec::new(),
            held_out: None,
            next: Vec::new(),
            work_done: WorkDone::default(),
        })
    }

    /// How many devices train.
    pub(super) fn devices(&self) -> usize {
        self.train.len()
    }

    /// Where the devices of this process compute.
    pub(super) fn compute(&self) -> &C {
        &self.compute
    }

    /// The processes that share the work.
    pub(super) fn peers(&self) -> &P {
        &self.peers
    }

    /// What this process has computed so far.
    pub(super) fn work_done(&self) -> WorkDone {
        self.work_done
    }

    /// Stores the cohort of the next round.
    pub(super) fn announce(&mut self, next: &[CohortMember]) {
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
    ) -> Result<Vec<Vec<NamedLoss>>, ExchangeError> {
        self.know_losses(round, params.iter().copied())?;
        let of_params = |params: &&Params| {
            let losses = self.losses.get(params).map_or(&[][..], Vec::as_slice);
            let answering = round.cohort.iter().zip(losses).filter(|(drawn, _)| !drawn.dropped);
            let named = |(drawn, &loss): (&CohortMember, &f64)| {
                let loss = DeviceLoss::new(loss, self.weight(round, drawn)).ok()?;
                Some(NamedLoss { device: drawn.device, loss })
            };
            answering.filter_map(named).collect()
        };
        Ok(params.iter().map(of_params).collect())
    }

    /// Returns the sum of the answers over the cohort for each query.
    pub(super) fn sum(
        &mut self,
        round: &Round<'_>,
        queries: &[Query],
    ) -> Result<FleetAnswers, ExchangeError> {
        self.know_losses(round, asked_losses(queries))?;
        let mut pending = self.pending_updates(round, queries);
        let costs: Vec<u64> = pending.iter().map(|pending| pending.examples).collect();
        let mut owners = owners(&costs, self.peers.size()).into_iter();
        pending.retain(|_| owners.next() == Some(self.peers.rank()));
        let mut sums: Vec<Vec<u64>> =
            queries.iter().map(|query| UpdateCode::zeros(query.answer_len())).collect();
        let memory_updates = self.update(round, queries, &pending, |pending| pending.query, &mut sums)?;
        let everybody: Vec<usize> = (0..round.cohort.len()).collect();
        let told = self.held_out_scores(round, queries, &everybody)?;
        if self.peers.rank() == 0 {
            let kept = KeptParts::new(queries, round.answering());
            for (query, sum) in queries.iter().zip(&mut sums) {
                for &member in &everybody {
                    self.add_counts(round, query, told.at(query, member), member, kept, sum);
                }
            }
        }
        self.meet(round, queries, FleetAnswers { values: sums, memory_updates })
    }

    /// Returns the concatenated answers of some members to all queries, which are the inputs of a
    /// masked sum.
    pub(super) fn answers(
        &mut self,
        round: &Round<'_>,
        queries: &[Query],
        members: &[usize],
    ) -> Result<FleetAnswers, ExchangeError> {
        self.know_losses(round, asked_losses(queries))?;
        let place = |pending: &PendingUpdate<'_>| members.iter().position(|&member| member == pending.member);
        let mut pending = self.pending_updates(round, queries);
        pending.retain(|pending| place(pending).is_some());
        let costs: Vec<u64> = pending.iter().map(|pending| pending.examples).collect();
        let mut owners = owners(&costs, self.peers.size()).into_iter();
        pending.retain(|_| owners.next() == Some(self.peers.rank()));

        let lens: Vec<usize> = queries.iter().map(Query::answer_len).collect();
        let mut parts: Vec<Vec<u64>> =
            members.iter().flat_map(|_| lens.iter().map(|&len| vec![0; len])).collect();
        let part = |pending: &PendingUpdate<'_>| place(pending).unwrap_or(0) * queries.len() + pending.query;
        let mut memory_updates = self.update(round, queries, &pending, part, &mut parts)?;
        let told = self.held_out_scores(round, queries, members)?;
        if self.peers.rank() == 0 {
            let kept = KeptParts::new(queries, round.answering());
            for (part, values) in parts.iter_mut().enumerate() {
                let (query, place) = (&queries[part % queries.len()], part / queries.len());
                self.add_counts(round, query, told.at(query, place), members[place], kept, values);
            }
        }
        if self.peers.size() == 1 {
            let values = match queries.len() {
                1 => parts,
                several => parts.chunks(several.max(1)).map(<[Vec<u64>]>::concat).collect(),
            };
            return Ok(FleetAnswers { values, memory_updates });
        }
        // Each process has the parts that it computed and zeros elsewhere. The sum over all
        // processes combines the parts.
        let mut whole = parts.concat();
        whole.push(recall::word(&memory_updates));
        let mut whole = self.peers.sum(whole, &mut || false)?;
        if whole.pop() != Some(0) {
            memory_updates = recall::meet(&mut self.peers, memory_updates)?;
        }
        let len: usize = lens.iter().sum();
        Ok(FleetAnswers { values: whole.chunks(len.max(1)).map(<[u64]>::to_vec).collect(), memory_updates })
    }

    fn federation_indices(&self, cohort: &[CohortMember]) -> Vec<FederationIndex> {
        cohort.iter().map(|drawn| self.train[drawn.device.place()]).collect()
    }

    /// α_k, times how often the device was drawn.
    fn weight(&self, round: &Round<'_>, drawn: &CohortMember) -> f64 {
        round.terms.weights.weight(self.counts[drawn.device.place()]) as f64 * f64::from(drawn.times)
    }

    /// The updates that the cohort owes, largest first, so that no thread and no process is left
    /// with a giant at the end. A device that does not count costs nothing.
    fn pending_updates<'q>(&self, round: &'q Round<'_>, queries: &'q [Query]) -> Vec<PendingUpdate<'q>> {
        let mut all = Vec::new();
        let answering = (0..round.cohort.len()).filter(|&i| !round.cohort[i].dropped);
        for member in answering {
            let drawn = &round.cohort[member];
            let track = self.assigned_track(round, member);
            for (query, Query { params, ask, track: asking, noise, .. }) in queries.iter().enumerate() {
                let is_assigned = track.is_none_or(|track| track == *asking);
                if !matches!(ask, Ask::Update { .. }) {
                    continue;
                }
                let idle = PendingUpdate { query, member, weight: 0.0, report: None, examples: 0 };
                if !is_assigned {
                    all.extend(noise.map(|_| idle));
                    continue;
                }
                let loss = if ask.needs_loss() { self.loss(params, member) } else { None };
                let held = self.held(drawn);
                let share = round.own.get(query).map_or(1.0, |update| update.share(member));
                if share <= 0.0 {
                    continue;
                }
                let rule = round.own.get(query).and_then(|update| update.rule.as_deref());
                let contribution = Contribution::new(ask, share * self.weight(round, drawn), held, loss);
                if let Contribution::Update { plan, weight, report } = contribution.with_rule(rule) {
                    let examples = plan.examples(held.examples);
                    all.push(PendingUpdate { query, member, weight, report, examples });
                } else {
                    // A device outside the tail adds noise around zero.
                    all.extend(noise.map(|_| idle));
                }
            }
        }
        all.sort_by_key(|pending| Reverse(pending.examples));
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
    fn update<'q>(
        &mut self,
        round: &Round<'_>,
        queries: &'q [Query],
        pending: &[PendingUpdate<'q>],
        sum_of: impl Fn(&PendingUpdate<'q>) -> usize,
        sums: &mut [Vec<u64>],
    ) -> Result<Vec<MemoryUpdate>, ExchangeError> {
        self.work_done.updates += pending.iter().filter(|pending| pending.weight > 0.0).count() as u64;
        self.work_done.examples += pending.iter().map(|pending| pending.examples).sum::<u64>();
        let kept = KeptParts::new(queries, round.answering());
        let task = |pending: &PendingUpdate<'q>| {
            let Query { params, sent, ask: Ask::Update { plan, .. }, .. } = &queries[pending.query] else {
                return None;
            };
            let drawn = round.cohort[pending.member].device;
            let own = round.own.get(pending.query).and_then(|update| update.memories.get(drawn));
            let device = self.train[drawn.place()];
            let PendingUpdate { weight, report, .. } = *pending;
            let personal = round.own.get(pending.query).and_then(|update| update.personal);
            let (sum, query) = (sum_of(pending), &queries[pending.query]);
            let noise = query.noise.map(|noise| TaskNoise { noise, query: query.number(), kept });
            Some(UpdateTask { device, params, sent, own, plan, weight, report, personal, noise, sum })
        };
        let tasks: Vec<UpdateTask<'_>> = pending.iter().filter_map(task).collect();
        let remembered = self.peers.compute(|| self.compute.updates(&round.key(), &tasks, sums))?;
        let memory_updates = |(task, memory): (usize, AlgorithmState)| {
            let PendingUpdate { query, member, .. } = pending[task];
            MemoryUpdate { query, member, memory }
        };
        Ok(remembered.into_iter().map(memory_updates).collect())
    }

    /// Returns the examples and the group of a cohort member.
    fn held(&self, drawn: &CohortMember) -> Held {
        let place = drawn.device.place();
        let group = self.federation.group_place(self.train[place]).unwrap_or(0);
        Held { examples: self.counts[place], group }
    }

    /// Adds a member's answer to a step of a private quantile.
    fn add_quantile(&self, round: &Round<'_>, query: &Query, member: usize, sum: &mut [u64]) {
        let drawn = &round.cohort[member];
        if !matches!(query.ask, Ask::Quantile(_)) || !self.is_answering(round, query, member) {
            return;
        }
        let (loss, held) = (self.loss(&query.params, member), self.held(drawn));
        if let Contribution::Loss(query, loss) =
            Contribution::new(&query.ask, self.weight(round, drawn), held, loss)
        {
            query.answer(loss, sum);
        }
    }

    /// Computes the sums over all processes. They are sent as one vector. While other processes
    /// still train, the examples of the next cohort are read from disk.
    fn meet(
        &mut self,
        round: &Round<'_>,
        queries: &[Query],
        FleetAnswers { values, mut memory_updates }: FleetAnswers,
    ) -> Result<FleetAnswers, ExchangeError> {
        if self.peers.size() == 1 {
            return Ok(FleetAnswers { values, memory_updates });
        }
        let mut expected = self.expected(round, queries).into_iter();
        let federation = self.federation;
        let mut meanwhile = || expected.next().map(|k| federation.examples(k).touch()).is_some();
        let mut mine = values.concat();
        mine.push(recall::word(&memory_updates));
        let total = self.peers.sum(mine, &mut meanwhile)?;
        let mut rest = total.as_slice();
        let mut part = |sum: &Vec<u64>| {
            let (part, behind) = rest.split_at(sum.len());
            rest = behind;
            part.to_vec()
        };
        let values = values.iter().map(&mut part).collect();
        if rest != [0] {
            memory_updates = recall::meet(&mut self.peers, memory_updates)?;
        }
        Ok(FleetAnswers { values, memory_updates })
    }

    /// Returns the devices with which this process probably begins the next round: the losses of a
    /// range of the cohort, or the updates assigned to it. Returns none unless this is the long sum
    /// at the end of a round.
    fn expected(&self, round: &Round<'_>, queries: &[Query]) -> Vec<FederationIndex> {
        if !queries.iter().any(|query| matches!(query.ask, Ask::Update { .. })) {
            return Vec::new();
        }
        let devices = self.federation_indices(&self.next);
        if self.losses.is_empty() {
            let next = Round { cohort: &self.next, ..*round };
            let pending = self.pending_updates(&next, queries);
            let costs: Vec<u64> = pending.iter().map(|pending| pending.examples).collect();
            let owners = owners(&costs, self.peers.size());
            let mine = pending.iter().zip(owners).filter(|(_, owner)| *owner == self.peers.rank());
            mine.map(|(pending, _)| devices[pending.member]).collect()
        } else {
            let costs = devices.iter().map(|&k| self.federation.example_count(k));
            devices[cut(costs, self.peers.size())[self.peers.rank()].clone()].to_vec()
        }
    }
}
