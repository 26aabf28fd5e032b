//! Losses and metrics of devices, by forward passes.

use std::sync::Arc;

use super::Fleet;
use crate::compute::{Block, Compute};
use crate::data::{FederationIndex, Split};
use crate::device::{LossCache, blocks, mean_loss};
use crate::exchange::peers::cut;
use crate::exchange::{EvaluatedDevice, Evaluation, ExchangeError, Peers, Round, SplitEvaluation};
use crate::model::Score;
use crate::params::Params;
use crate::question::Query;

impl<C: Compute, P: Peers> Fleet<'_, C, P> {
    /// Returns the loss and metrics of every device of a split, per params.
    pub(in crate::exchange) fn evaluate(
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

    /// F_k(w) of a member of the cohort, if it is known.
    pub(super) fn loss(&self, params: &Params, member: usize) -> Option<f64> {
        self.losses.get(params).map(|losses| losses[member])
    }

    /// Computes F_k(w) of the cohort at these params if it is not cached. Equal params share one
    /// pass.
    pub(super) fn know_losses<'p>(
        &mut self,
        round: &Round<'_>,
        params: impl Iterator<Item = &'p Params>,
    ) -> Result<(), ExchangeError> {
        // A round that starts again has another cohort.
        if self.cohort != round.cohort {
            self.losses = LossCache::default();
            self.cohort = round.cohort.to_vec();
        }
        self.losses.begin_round(round.seed, round.index);
        let mut unknown: Vec<&Params> = Vec::new();
        for params in params.filter(|params| self.losses.get(params).is_none()) {
            position_of(params, &mut unknown);
        }
        if unknown.is_empty() {
            return Ok(());
        }
        let devices = self.federation_indices(round.cohort);
        let scores = self.scores(&devices, &unknown)?;
        for (params, scores) in unknown.into_iter().zip(scores) {
            let mean =
                |(score, &k): (&Score, &FederationIndex)| mean_loss(score, self.federation.example_count(k));
            let losses = scores.iter().zip(&devices).map(mean).collect();
            self.losses.insert(params.clone(), losses);
        }
        Ok(())
    }

    /// Computes the loss and metrics of devices at each of the params, with forward passes only.
    pub(super) fn scores(
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
        self.work_done.examples += examples * params.len() as u64;

        let part = self.peers.compute(|| self.compute.scores(mine, params))?.concat();
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
}

/// Returns the params at which some queries need losses.
pub(super) fn asked_losses(queries: &[Query]) -> impl Iterator<Item = &Params> {
    queries.iter().filter(|query| query.needs_loss()).map(|query| &query.params)
}

/// Returns the index of these params among distinct ones. Appends them if they are new.
pub(super) fn position_of<'p>(params: &'p Params, distinct: &mut Vec<&'p Params>) -> usize {
    distinct.iter().position(|known| known.is_same(params)).unwrap_or_else(|| {
        distinct.push(params);
        distinct.len() - 1
    })
}
