//! Devices of a simulation that lie.
//!
//! [`Adversarial`] computes the devices of a simulation by any [`Compute`] and falsifies the answers
//! of the liars: their updates, their losses, or both. A simulation with liars measures how much each
//! algorithm loses.

use std::collections::BTreeSet;

use crate::compute::{Block, Compute, ComputeError, Remembered, UpdateTask};
use crate::data::{Federation, FederationIndex, Split};
use crate::model::Score;
use crate::params::{Params, add_wrapping};
use crate::question::RoundKey;
use crate::stream::{Purpose, Stream};
use crate::task::Task;

/// The lies of a device.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Lie {
    /// The factor of the update: −1 flips its sign, 10 boosts it, 1 is honest.
    pub update: f64,
    /// The factor of the loss, in the questions of a round and in evaluations. A factor above 1 puts
    /// the device into every tail.
    pub loss: f64,
}

impl Lie {
    /// An honest device.
    pub const NONE: Self = Self { update: 1.0, loss: 1.0 };
}

/// Draws a share of the training devices, rounded to the nearest number.
pub fn draw_liars(federation: &Federation, share: f64, seed: u64) -> BTreeSet<FederationIndex> {
    let mut devices = federation.split(Split::Train);
    let count = (share.clamp(0.0, 1.0) * devices.len() as f64).round() as usize;
    Stream::new(seed, Purpose::Adversary, 0, 0).shuffle(&mut devices);
    devices.into_iter().take(count).collect()
}

/// Computes devices, of which some lie.
pub struct Adversarial<C> {
    inner: C,
    liars: BTreeSet<FederationIndex>,
    lie: Lie,
}

impl<C: Compute> Adversarial<C> {
    /// Creates a backend whose liars tell this lie.
    pub fn new(inner: C, liars: BTreeSet<FederationIndex>, lie: Lie) -> Self {
        Self { inner, liars, lie }
    }

    /// Computes the update of one liar and multiplies its entries.
    fn falsified(
        &mut self,
        key: &RoundKey,
        task: &UpdateTask<'_>,
        len: usize,
    ) -> Result<(Vec<u64>, Remembered), ComputeError> {
        let mut sums = [vec![0; len]];
        let remembered = self.inner.updates(key, &[UpdateTask { sum: 0, ..*task }], &mut sums)?;
        let [mut answer] = sums;
        for entry in &mut answer[..task.params.len()] {
            *entry = (self.lie.update * (*entry as i64 as f64)).round_ties_even() as i64 as u64;
        }
        Ok((answer, remembered))
    }
}

impl<C: Compute> Compute for Adversarial<C> {
    fn width(&self) -> usize {
        self.inner.width()
    }

    fn task(&self) -> Task {
        self.inner.task()
    }

    fn prefetch(&mut self, devices: &[FederationIndex]) {
        self.inner.prefetch(devices);
    }

    fn scores(&mut self, blocks: &[Block], params: &[&Params]) -> Result<Vec<Vec<Score>>, ComputeError> {
        let mut scores = self.inner.scores(blocks, params)?;
        for scores in &mut scores {
            let lying = scores.iter_mut().zip(blocks).filter(|(_, block)| self.liars.contains(&block.device));
            lying.for_each(|(score, _)| score.loss *= self.lie.loss);
        }
        Ok(scores)
    }

    fn updates(
        &mut self,
        key: &RoundKey,
        tasks: &[UpdateTask<'_>],
        sums: &mut [Vec<u64>],
    ) -> Result<Remembered, ComputeError> {
        let is_liar = |place: &usize| self.liars.contains(&tasks[*place].device);
        let (lying, honest): (Vec<usize>, Vec<usize>) = (0..tasks.len()).partition(is_liar);
        let of_honest: Vec<UpdateTask<'_>> = honest.iter().map(|&place| tasks[place]).collect();
        let remembered = self.inner.updates(key, &of_honest, sums)?;
        let mut all: Remembered =
            remembered.into_iter().map(|(place, memory)| (honest[place], memory)).collect();
        for place in lying {
            let task = &tasks[place];
            let (answer, remembered) = self.falsified(key, task, sums[task.sum].len())?;
            add_wrapping(&mut sums[task.sum], &answer);
            all.extend(remembered.into_iter().map(|(_, memory)| (place, memory)));
        }
        all.sort_unstable_by_key(|(place, _)| *place);
        Ok(all)
    }
}
