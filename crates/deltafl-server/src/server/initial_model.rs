//! A model that only devices know.

use std::ops::Range;

use deltafl::data::Examples;
use deltafl::memory::AlgorithmState;
use deltafl::model::{Score, Tensor};
use deltafl::stream::Stream;
use deltafl::task::Task;
use deltafl::trainer::{LocalTask, LocalTrainer, TrainerError, Worker};

/// The initial params of a model that devices train by their own trainer. The server cannot compute
/// it.
#[derive(Clone, Debug)]
pub struct InitialModel {
    tensors: Vec<Tensor>,
    params: Vec<f32>,
    task: Task,
}

impl InitialModel {
    /// A model of these tensors, each with its name and shape, that starts at zero.
    pub fn zeros(tensors: &[(&str, &[usize])]) -> Self {
        let length = |shape: &[usize]| shape.iter().product::<usize>();
        let params = vec![0.0; tensors.iter().map(|(_, shape)| length(shape)).sum()];
        let tensors = tensors.iter().map(|(name, shape)| Tensor::new(name, shape)).collect();
        Self { tensors, params, task: Task::default() }
    }

    /// A model of one tensor that starts at these params.
    pub fn from_params(params: Vec<f32>) -> Self {
        Self { tensors: vec![Tensor::new("params", &[params.len()])], params, task: Task::default() }
    }

    /// The task that the devices' trainers report.
    #[must_use]
    pub fn with_task(mut self, task: Task) -> Self {
        self.task = task;
        self
    }
}

impl LocalTrainer for InitialModel {
    fn num_params(&self) -> usize {
        self.params.len()
    }

    fn init(&self, _: &mut Stream, params: &mut [f32]) {
        params.copy_from_slice(&self.params);
    }

    fn task(&self) -> Task {
        self.task
    }

    fn tensors(&self) -> Vec<Tensor> {
        self.tensors.clone()
    }

    fn worker(&self) -> Box<dyn Worker + '_> {
        Box::new(NoWorker)
    }
}

/// Rejects every computation: devices compute.
struct NoWorker;

const UNKNOWN: &str = "only devices know this model";

impl Worker for NoWorker {
    fn load(&mut self, _: &[f32]) {}

    fn score(&mut self, _: &Examples<'_>, _: Range<usize>) -> Result<Score, TrainerError> {
        Err(UNKNOWN.into())
    }

    fn update(
        &mut self,
        _: &LocalTask<'_>,
        _: &mut AlgorithmState,
        _: &mut Stream,
    ) -> Result<&[f32], TrainerError> {
        Err(UNKNOWN.into())
    }
}
