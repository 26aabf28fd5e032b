//! The exchange of a simulation: the devices of this process and its peers.

use std::num::NonZeroUsize;

use super::masked::MaskedSums;
use super::{
    Alone, CohortAnswers, CohortMember, CohortSum, Evaluation, Exchange, ExchangeError, Fleet, NamedLoss,
    Peers, PersonalModels, Reachable, Round, SplitEvaluation, Traffic, WorkDone,
};
use crate::compute::{Compute, Threads};
use crate::data::{Federation, Split};
use crate::params::{Params, add_wrapping};
use crate::question::{Ask, Query};
use crate::trainer::LocalTrainer;

/// Maximum number of cohorts that a simulated round tries. If this many cohorts in a row fail, the
/// next one would fail as well.
const ATTEMPTS: u64 = 50;

/// The exchange of a simulation: all devices of a federation, computed by this process and its
/// peers.
///
/// Answers are added up as plain integers, or by the protocol of secure aggregation
/// ([`masked`](Self::masked)). Both yield the same sums.
pub struct Simulation<'a, C = Threads<'a>, P = Alone> {
    fleet: Fleet<'a, C, P>,
    masks: Option<MaskedSums>,
}

impl<'a> Simulation<'a> {
    /// Creates a simulation that computes on all cores of this machine.
    ///
    /// # Errors
    ///
    /// Fails if the federation has no train devices, or if the threads cannot be started.
    pub fn new(trainer: &'a dyn LocalTrainer, federation: &'a Federation) -> Result<Self, ExchangeError> {
        Self::with_threads(trainer, federation, None)
    }

    /// Creates a simulation that computes on this number of threads; `None` is one per core. The
    /// results do not depend on the number.
    ///
    /// # Errors
    ///
    /// Fails if the federation has no train devices, or if the threads cannot be started.
    pub fn with_threads(
        trainer: &'a dyn LocalTrainer,
        federation: &'a Federation,
        threads: Option<NonZeroUsize>,
    ) -> Result<Self, ExchangeError> {
        Self::with_compute(Threads::new(trainer, federation, threads)?, federation)
    }
}

impl<'a> Simulation<'a, Box<dyn Compute + Send + 'a>> {
    /// Returns the simulation as an exchange. This crate compiles its loops, and not the crate of
    /// the caller, which may be optimised less.
    pub fn boxed(self) -> Box<dyn Exchange + Send + 'a> {
        Box::new(self)
    }
}

impl<'a, C: Compute> Simulation<'a, C> {
    /// Creates a simulation of a federation whose devices are computed by `compute`.
    ///
    /// # Errors
    ///
    /// Fails if the federation has no train devices.
    pub fn with_compute(compute: C, federation: &'a Federation) -> Result<Self, ExchangeError> {
        Self::with_peers(compute, federation, Alone)
    }
}

impl<'a, C: Compute, P: Peers> Simulation<'a, C, P> {
    /// Creates one process of a simulation that several processes share. Each of them computes its
    /// part of the devices by its `compute`.
    ///
    /// # Errors
    ///
    /// Fails if the federation has no train devices.
    pub fn with_peers(compute: C, federation: &'a Federation, peers: P) -> Result<Self, ExchangeError> {
        Ok(Self { fleet: Fleet::new(compute, federation, peers)?, masks: None })
    }

    /// Adds answers up by the protocol of secure aggregation. Devices drop out with probability
    /// `drop_out`, which determines the communication graph.
    #[must_use]
    pub fn masked(self, drop_out: f64) -> Self {
        Self { masks: Some(MaskedSums::new(drop_out)), ..self }
    }

    /// Returns the compute of this process.
    pub fn compute(&self) -> &C {
        self.fleet.compute()
    }

    /// Returns the processes that share the work.
    pub fn peers(&self) -> &P {
        self.fleet.peers()
    }

    /// Returns the work that this process has done so far.
    pub fn work_done(&self) -> WorkDone {
        self.fleet.work_done()
    }
}

impl<C: Compute, P: Peers> Exchange for Simulation<'_, C, P> {
    fn devices(&self) -> usize {
        self.fleet.devices()
    }

    fn attempts(&self) -> u64 {
        ATTEMPTS
    }

    fn reachable(&mut self) -> Result<Reachable, ExchangeError> {
        Ok(Reachable::Everyone)
    }

    fn announce(&mut self, next: &[CohortMember]) {
        self.fleet.announce(next);
    }

    fn losses(
        &mut self,
        round: &Round<'_>,
        params: &[&Params],
    ) -> Result<Vec<Vec<NamedLoss>>, ExchangeError> {
        self.fleet.losses(round, params)
    }

    fn secure_sum(&mut self, round: &Round<'_>, queries: &[Query]) -> Result<Vec<CohortSum>, ExchangeError> {
        match &mut self.masks {
            Some(masks) => masks.sum(&mut self.fleet, round, queries),
            None => plain_sum(&mut self.fleet, round, queries),
        }
    }

    fn each_answer(
        &mut self,
        round: &Round<'_>,
        queries: &[Query],
    ) -> Result<Vec<CohortAnswers>, ExchangeError> {
        match &self.masks {
            Some(_) => Err(ExchangeError::SumsOnly),
            None => plain_answers(&mut self.fleet, round, queries),
        }
    }

    fn evaluate(
        &mut self,
        split: Split,
        params: &[&Params],
    ) -> Result<Option<SplitEvaluation>, ExchangeError> {
        self.fleet.evaluate(split, params).map(Some)
    }

    fn evaluate_personal(
        &mut self,
        split: Split,
        models: &PersonalModels<'_>,
    ) -> Result<Option<Vec<Evaluation>>, ExchangeError> {
        self.fleet.evaluate_personal(split, models).map(Some)
    }
}

/// Adds the answers up without masks.
fn plain_sum<C: Compute, P: Peers>(
    fleet: &mut Fleet<'_, C, P>,
    round: &Round<'_>,
    queries: &[Query],
) -> Result<Vec<CohortSum>, ExchangeError> {
    let mut answers = fleet.sum(round, queries)?;
    let answered = round.answering();
    let values = std::mem::take(&mut answers.values);
    let sum = |(i, (values, query))| {
        let remembered = answers.remembered(round, i);
        CohortSum { values, answered, traffic: plain_traffic(round, query), remembered }
    };
    Ok(values.into_iter().zip(queries).enumerate().map(sum).collect())
}

/// Returns the answer of each device that does not drop out.
fn plain_answers<C: Compute, P: Peers>(
    fleet: &mut Fleet<'_, C, P>,
    round: &Round<'_>,
    queries: &[Query],
) -> Result<Vec<CohortAnswers>, ExchangeError> {
    let members: Vec<usize> = (0..round.cohort.len()).filter(|&i| !round.cohort[i].dropped).collect();
    let mut answers = fleet.answers(round, queries, &members)?;
    let mut rest = std::mem::take(&mut answers.values);
    let mut all = Vec::with_capacity(queries.len());
    for (i, query) in queries.iter().enumerate() {
        let later = |answer: &mut Vec<u64>| answer.split_off(query.answer_len());
        let behind: Vec<Vec<u64>> = rest.iter_mut().map(later).collect();
        let each = std::mem::replace(&mut rest, behind);
        let mut values = vec![0; query.answer_len()];
        each.iter().for_each(|answer| add_wrapping(&mut values, answer));
        let (answered, traffic) = (round.answering(), plain_traffic(round, query));
        let sum = CohortSum { values, answered, traffic, remembered: answers.remembered(round, i) };
        all.push(CohortAnswers { each, sum });
    }
    Ok(all)
}

/// The cost of a sum without masks: a question down, an answer up. The params are sent once per
/// round and are counted with the update.
fn plain_traffic(round: &Round<'_>, query: &Query) -> Traffic {
    let answering = round.answering();
    let asked = round.cohort.len() as u64;
    let question = match query.ask {
        Ask::Quantile(_) | Ask::Evaluation(_) => 24,
        Ask::Update { .. } => 4 * query.params.len() as u64,
    };
    Traffic {
        sums: 1,
        messages: asked + answering,
        bytes_up: answering * if query.noise.is_some() { 4 } else { 8 } * query.answer_len() as u64,
        bytes_down: asked * question,
    }
}
