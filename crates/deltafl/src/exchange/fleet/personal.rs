//! The evaluation of personal models.
//!
//! The examples of an evaluated device belong to a training device: to the device itself, or to the
//! device of the same identity whose examples are split. Devices without a training device are
//! evaluated with the shared model.

use std::collections::HashMap;

use super::Fleet;
use crate::compute::{Compute, UpdateTask};
use crate::data::{FederationIndex, Split};
use crate::exchange::{Evaluation, ExchangeError, Peers, TrainIndex};
use crate::memory::DeviceMemories;
use crate::params::{Params, UpdateCode, UpdateSum};
use crate::question::RoundKey;
use crate::trainer::{LocalPlan, PERSONAL, PersonalMethod};

/// The number of devices that are fine-tuned in one call.
const CHUNK: usize = 32;

/// The personal models to evaluate.
#[derive(Clone, Copy, Debug)]
pub struct PersonalModels<'a> {
    /// The shared model.
    pub params: &'a Params,
    /// The memories of the training devices.
    pub memories: &'a DeviceMemories,
    /// The training of the personal models.
    pub method: PersonalMethod,
    /// The local training plan.
    pub plan: &'a LocalPlan,
    /// The seed, the round and the terms of the evaluation.
    pub key: RoundKey,
}

impl<C: Compute, P: Peers> Fleet<'_, C, P> {
    /// Returns the loss and metrics of every device of a split under its personal model.
    pub(in crate::exchange) fn evaluate_personal(
        &mut self,
        split: Split,
        models: &PersonalModels<'_>,
    ) -> Result<Vec<Evaluation>, ExchangeError> {
        let devices = self.federation.evaluated(split);
        let owners = self.owners_of_examples();
        let mut evaluations = Vec::with_capacity(devices.len());
        for devices in devices.chunks(CHUNK) {
            let owners: Vec<Option<TrainIndex>> =
                devices.iter().map(|device| owners.get(device).copied()).collect();
            let personal = match models.method {
                PersonalMethod::Regularised { .. } | PersonalMethod::Mixed { .. } => {
                    remembered(&owners, models)
                }
                PersonalMethod::FineTuned => self.fine_tuned(&owners, models)?,
            };
            for (&device, params) in devices.iter().zip(&personal) {
                let score = self.scores(&[device], &[params])?[0][0];
                let examples = self.federation.example_count(device);
                evaluations.push(Evaluation::new(self.compute.task(), &score, examples));
            }
        }
        Ok(evaluations)
    }

    /// Returns the training device of each device whose identity trains, in every split.
    fn owners_of_examples(&self) -> HashMap<FederationIndex, TrainIndex> {
        let federation = self.federation;
        let places = self.train.iter().enumerate();
        let trained: HashMap<&str, TrainIndex> =
            places.map(|(place, &device)| (federation.id(device), TrainIndex(place as u32))).collect();
        let owner = |device| Some((device, *trained.get(federation.id(device))?));
        federation.devices().filter_map(owner).collect()
    }

    /// Trains each device from the shared model. Returns the shared model for a device without
    /// training examples and for one whose update is not finite.
    fn fine_tuned(
        &mut self,
        owners: &[Option<TrainIndex>],
        models: &PersonalModels<'_>,
    ) -> Result<Vec<Params>, ExchangeError> {
        let PersonalModels { params, plan, key, .. } = *models;
        let mut sums = vec![vec![0; UpdateCode::len(params.len())]; owners.len()];
        let task = |(sum, owner): (usize, &Option<TrainIndex>)| {
            let device = self.train[owner.as_ref()?.place()];
            Some(UpdateTask { sum, ..UpdateTask::new(device, 1.0, params, plan) })
        };
        let tasks: Vec<UpdateTask<'_>> = owners.iter().enumerate().filter_map(task).collect();
        // Every process computes all updates.
        self.compute.updates(&key, &tasks, &mut sums)?;
        let tuned = |sum| {
            let sum = UpdateSum::new(sum, params.len()).ok();
            sum.and_then(|sum| sum.applied_to(params)).unwrap_or_else(|| params.clone())
        };
        Ok(sums.into_iter().map(tuned).collect())
    }
}

/// Returns the stored model of each device, or the shared one.
fn remembered(owners: &[Option<TrainIndex>], models: &PersonalModels<'_>) -> Vec<Params> {
    let own = |owner: &Option<TrainIndex>| {
        let stored = models.memories.get((*owner)?)?.vector(PERSONAL)?;
        Some(match models.method {
            PersonalMethod::Mixed { share } => mixed(stored, models.params, share),
            PersonalMethod::Regularised { .. } | PersonalMethod::FineTuned => stored.clone(),
        })
    };
    owners.iter().map(|owner| own(owner).unwrap_or_else(|| models.params.clone())).collect()
}

/// Returns a v + (1 − a) w.
fn mixed(personal: &Params, shared: &Params, share: f32) -> Params {
    let entries = personal.as_slice().iter().zip(shared.as_slice());
    entries.map(|(v, w)| share * v + (1.0 - share) * w).collect::<Vec<f32>>().into()
}
