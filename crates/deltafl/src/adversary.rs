//! Devices of a simulation that lie.
//!
//! [`Adversarial`] computes the devices of a simulation by any [`Compute`] and falsifies the
//! answers of the liars: their updates, their losses, or both. [`flip_labels`] falsifies their
//! examples. A simulation with liars measures how much each algorithm loses. [`Adversary`] is the
//! section `[adversary]` of an experiment.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::cohort::Probability;
use crate::compute::{Block, Compute, ComputeError, Remembered, UpdateTask};
use crate::data::{Federation, FederationIndex, Split, TargetColumn};
use crate::model::Score;
use crate::number::{NonNegative, Positive};
use crate::params::{Params, add_wrapping};
use crate::question::RoundKey;
use crate::stream::{Purpose, Stream};
use crate::task::Task;

/// The liars of a simulation and their lies.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Adversary {
    /// The share of the training devices that lie.
    pub share: Probability,
    /// The factor of the length of a liar's update.
    pub scale: NonNegative,
    /// Whether a liar flips the sign of its update.
    pub flip_sign: bool,
    /// Whether a liar trains on wrong classes.
    pub flip_labels: bool,
    /// The factor of a liar's loss.
    pub loss: Positive,
    /// The seed with which the liars are drawn.
    pub seed: u64,
}

/// No device lies. A liar with the default lies is honest.
impl Default for Adversary {
    fn default() -> Self {
        let one = "1 is positive";
        Self {
            share: Probability::default(),
            scale: NonNegative::try_from(1.0).expect(one),
            flip_sign: false,
            flip_labels: false,
            loss: Positive::try_from(1.0).expect(one),
            seed: 1,
        }
    }
}

impl Adversary {
    /// Returns `true` if all values are the defaults.
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }

    /// Returns `true` if no device lies.
    pub fn is_none(&self) -> bool {
        self.share.get() <= 0.0
    }

    /// Returns the federation with the examples of the liars, or `None` if it is unchanged.
    pub fn falsified(&self, federation: &Federation) -> Option<Federation> {
        let is_changed = self.flip_labels && !self.is_none();
        is_changed.then(|| flip_labels(federation, &draw_liars(federation, self.share.get(), self.seed)))
    }

    /// Returns the backend with the liars of a federation.
    pub fn wrap<'a>(
        &self,
        compute: Box<dyn Compute + Send + 'a>,
        federation: &Federation,
    ) -> Box<dyn Compute + Send + 'a> {
        let sign = if self.flip_sign { -1.0 } else { 1.0 };
        let lie = Lie { update: sign * self.scale.get(), loss: self.loss.get() };
        if self.is_none() || lie == Lie::NONE {
            return compute;
        }
        let liars = draw_liars(federation, self.share.get(), self.seed);
        Box::new(Adversarial::new(compute, liars, lie))
    }
}

/// Replaces each class of the liars' examples by the next one. Real targets and the symbols of
/// texts stay.
pub fn flip_labels(federation: &Federation, liars: &BTreeSet<FederationIndex>) -> Federation {
    let classes = federation.classes().max(1);
    let examples = |device: &FederationIndex| {
        let first = federation.offset(*device) as usize;
        first..first + federation.example_count(*device) as usize
    };
    let places = || liars.iter().flat_map(examples);
    let targets = match &federation.targets {
        TargetColumn::Few(column) => {
            let mut labels = column.to_vec();
            places().for_each(|i| labels[i] = ((usize::from(labels[i]) + 1) % classes) as u16);
            TargetColumn::Few(labels.into())
        }
        TargetColumn::Many(column) => {
            let mut labels = column.to_vec();
            places().for_each(|i| labels[i] = ((labels[i] as usize + 1) % classes) as u32);
            TargetColumn::Many(labels.into())
        }
        unchanged @ (TargetColumn::Values(_) | TargetColumn::InText) => unchanged.clone(),
    };
    Federation { targets, ..federation.clone() }
}

/// The lies of a device.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Lie {
    /// The factor of the update: −1 flips its sign, 10 boosts it, 1 is honest.
    pub update: f64,
    /// The factor of the loss, in the questions of a round and in evaluations. A factor above 1
    /// puts the device into every tail.
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
