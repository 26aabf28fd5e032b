//! The answers of devices that a backend has trained together.
//!
//! A backend that trains many devices in one call returns w_k of each. An answer can contain more:
//! the changes of the vectors sent with w, reported numbers, noise. These parts and the new memory
//! of a device are computed here, by the code for a device that trains alone.

use std::ops::Range;

use rayon::prelude::*;

use super::{ComputeError, Remembered, UpdateTask, add_task};
use crate::data::{Examples, Federation};
use crate::kernel::flush_denormals;
use crate::memory::AlgorithmState;
use crate::model::Score;
use crate::params::add_wrapping;
use crate::question::RoundKey;
use crate::stream::Stream;
use crate::trainer::{LocalTask, TrainerError, Worker};

/// A task whose device has been trained.
#[derive(Clone, Copy, Debug)]
pub struct TrainedTask<'a> {
    /// The task.
    pub task: UpdateTask<'a>,
    /// The index of the task among those of the call.
    pub index: usize,
    /// w_k. Not used if the answer is a refusal or only noise.
    pub local: &'a [f32],
}

/// Adds the answers of trained devices to their sums, on all threads. Returns the new memories of
/// the devices.
///
/// # Errors
///
/// Returns an error if w_k of a device has the wrong length.
pub fn add_trained(
    key: &RoundKey,
    federation: &Federation,
    trained: &[TrainedTask<'_>],
    sums: &mut [Vec<u64>],
) -> Result<Remembered, ComputeError> {
    let lens: Vec<usize> = sums.iter().map(Vec::len).collect();
    let chunk = trained.len().div_ceil(rayon::current_num_threads()).max(1);
    let add_chunk = |trained: &[TrainedTask<'_>]| {
        let _flushed = flush_denormals();
        // A thread has memory only for the sums that it adds to.
        let (mut sums, mut remembered) = (vec![Vec::new(); lens.len()], Remembered::new());
        for TrainedTask { task, index, local } in trained {
            let sum = &mut sums[task.sum];
            sum.resize(lens[task.sum], 0);
            let mut worker = TrainedWorker { local, answer: Vec::new() };
            let memory = add_task(key, federation, task, &mut worker, sum).map_err(|problem| {
                let device = federation.id(task.device).to_owned();
                ComputeError::Device { device, problem }
            })?;
            remembered.extend(memory.map(|memory| (*index, memory)));
        }
        Ok((sums, remembered))
    };
    let parts: Vec<_> = trained.par_chunks(chunk).map(add_chunk).collect::<Result<_, ComputeError>>()?;
    let mut all = Remembered::new();
    for (part, remembered) in parts {
        all.extend(remembered);
        for (sum, part) in sums.iter_mut().zip(part).filter(|(_, part)| !part.is_empty()) {
            add_wrapping(sum, &part);
        }
    }
    Ok(all)
}

/// A worker whose device has been trained.
struct TrainedWorker<'a> {
    local: &'a [f32],
    /// w_k and the changes of the vectors that were sent with w.
    answer: Vec<f32>,
}

impl Worker for TrainedWorker<'_> {
    fn load(&mut self, _: &[f32]) {}

    fn score(&mut self, _: &Examples<'_>, _: Range<usize>) -> Result<Score, TrainerError> {
        Err("a trained device computes no losses".into())
    }

    fn update(
        &mut self,
        task: &LocalTask<'_>,
        own: &mut AlgorithmState,
        _: &mut Stream,
    ) -> Result<&[f32], TrainerError> {
        self.answer = self.local.to_vec();
        if let Some(correction) = task.plan.correction {
            correction.append_changes(task, own, &mut self.answer);
        }
        Ok(&self.answer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::CONTROL_VARIATE;
    use crate::data::synthetic::Glyphs;
    use crate::device::{stream_key, update_stream};
    use crate::kernel::Isa;
    use crate::model::ModelSpec;
    use crate::params::{Params, UpdateCode};
    use crate::terms::Terms;
    use crate::trainer::{LocalPlan, LocalTrainer, Sgd, Work};

    #[test]
    fn the_answers_of_trained_devices_equal_those_of_devices_that_train_alone() {
        let federation = Glyphs { devices: 5.try_into().unwrap(), ..Glyphs::default() }.build();
        let model = ModelSpec::LINEAR.build(&federation, Isa::detect()).unwrap();
        let trainer = Sgd::new(&*model);
        let params = Params::from(vec![0.0; model.num_params()]);
        let sent = [Params::from(vec![1e-3; params.len()])];
        let plan = LocalPlan {
            work: Work::Epochs(1),
            batch: 10,
            learning_rate: 0.1,
            l2: 0.0,
            proximal: 0.0,
            correction: Some(&CONTROL_VARIATE),
        };
        let task = |device| UpdateTask { sent: &sent, ..UpdateTask::new(device, 2.0, &params, &plan) };
        let key = RoundKey { run: 0, seed: 1, round: 2, members: 5, terms: Terms::OPEN };
        let len = UpdateCode::len(params.len() * 2);
        let (mut alone, mut memories, mut locals) = (vec![0; len], Remembered::new(), Vec::new());
        let _flushed = flush_denormals();
        for (index, device) in federation.devices().enumerate() {
            let mut worker = trainer.worker();
            let memory = add_task(&key, &federation, &task(device), &mut *worker, &mut alone).unwrap();
            memories.extend(memory.map(|memory| (index, memory)));
            let examples = federation.examples(device);
            let local =
                LocalTask { params: params.as_slice(), sent: &sent, examples: &examples, plan: &plan };
            let mut stream = update_stream(&key, stream_key(federation.id(device)));
            let answer = worker.update(&local, &mut AlgorithmState::default(), &mut stream).unwrap();
            locals.push(answer[..params.len()].to_vec());
        }
        let trained: Vec<TrainedTask<'_>> = federation
            .devices()
            .zip(&locals)
            .enumerate()
            .map(|(index, (device, local))| TrainedTask { task: task(device), index, local })
            .collect();
        let mut together = [vec![0; len]];
        let remembered = add_trained(&key, &federation, &trained, &mut together).unwrap();
        assert_eq!(together[0], alone);
        let bytes =
            |of: Remembered| of.into_iter().map(|(i, memory)| (i, memory.to_bytes())).collect::<Vec<_>>();
        assert_eq!(memories.len(), 5, "every device has a control variate");
        assert_eq!(bytes(remembered), bytes(memories));
    }
}
