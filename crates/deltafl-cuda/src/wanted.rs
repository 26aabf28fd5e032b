//! The local updates of a call, and the parameter vectors from which they start.

use std::collections::HashSet;

use deltafl::compute::{NoisyEncoding, TrainedTask, UpdateTask};
use deltafl::params::Params;

/// A requested local update.
#[derive(Clone, Copy)]
pub(crate) struct RequestedUpdate<'a> {
    pub(crate) task: UpdateTask<'a>,
    /// The index of the starting parameters.
    pub(crate) vector: u32,
    /// The index of the task in the call.
    pub(crate) index: usize,
    pub(crate) adder: Adder,
}

impl<'a> RequestedUpdate<'a> {
    /// Returns the updates of all tasks of a call.
    pub(crate) fn all(tasks: &[UpdateTask<'a>], vectors: &[u32]) -> Vec<Self> {
        let update = |(index, (task, &vector)): (usize, (&UpdateTask<'a>, &u32))| Self {
            task: *task,
            vector,
            index,
            adder: Adder::new(task),
        };
        tasks.iter().zip(vectors).enumerate().map(update).collect()
    }

    /// Returns the task with w_k of its device.
    pub(crate) fn trained<'b>(&self, local: &'b [f32]) -> TrainedTask<'b>
    where
        'a: 'b,
    {
        TrainedTask { task: self.task, index: self.index, local }
    }
}

/// The place where an update is added to its sum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Adder {
    /// The GPU, without noise.
    Plain,
    /// The GPU, with noise.
    Noisy,
    /// The host: the answer contains more than w_k, or depends on numbers that only the host has.
    Host,
}

impl Adder {
    pub(crate) const ALL: [Self; 3] = [Self::Plain, Self::Noisy, Self::Host];

    /// Returns where the update of a task is added to its sum.
    fn new(task: &UpdateTask<'_>) -> Self {
        if task.plan.correction.is_some() || task.report.is_some() {
            return Self::Host;
        }
        match &task.noise {
            None => Self::Plain,
            Some(noisy) if noisy.noise.clip.is_some() && NoisyEncoding::has_short_tables(&noisy.noise) => {
                Self::Noisy
            }
            Some(_) => Self::Host,
        }
    }
}

/// Returns the distinct parameter vectors, and the index of the vector of each task.
pub(crate) fn shared_params<'a>(tasks: &[UpdateTask<'a>]) -> (Vec<&'a Params>, Vec<u32>) {
    let mut params: Vec<&Params> = Vec::new();
    let vector = |task: &UpdateTask<'a>| {
        let known = params.iter().position(|known| known.is_same(task.params));
        known.unwrap_or_else(|| {
            params.push(task.params);
            params.len() - 1
        }) as u32
    };
    let vectors = tasks.iter().map(vector).collect();
    (params, vectors)
}

/// Returns the index in GPU memory of each task's vector, or `None` if one is missing.
pub(crate) fn positions<'a>(tasks: &[UpdateTask<'a>], sent: &[Params]) -> Option<Vec<u32>> {
    let mut last: Option<(&'a Params, u32)> = None;
    let position = |task: &UpdateTask<'a>| match last {
        // The tasks of a track are consecutive, so vectors are compared once per track.
        Some((params, position)) if std::ptr::eq(params, task.params) => Some(position),
        _ => {
            let position = sent.iter().position(|known| known.is_same(task.params))? as u32;
            last = Some((task.params, position));
            Some(position)
        }
    };
    tasks.iter().map(position).collect()
}

/// Returns the distinct values in the order of their first occurrence.
pub(crate) fn distinct<T: Copy + Eq + std::hash::Hash>(values: impl Iterator<Item = T>) -> Vec<T> {
    let mut seen = HashSet::new();
    values.filter(|&value| seen.insert(value)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use deltafl::data::FederationIndex;
    use deltafl::trainer::{LocalPlan, Work};

    #[test]
    fn equal_params_are_sent_once() {
        let (a, b) = (Params::from(vec![1.0]), Params::from(vec![2.0]));
        let plan = LocalPlan {
            work: Work::Epochs(1),
            batch: 4,
            learning_rate: 0.1,
            l2: 0.0,
            proximal: 0.0,
            correction: None,
        };
        let task = |params| UpdateTask::new(FederationIndex(0), 1.0, params, &plan);
        let (params, vectors) = shared_params(&[task(&a), task(&b), task(&a)]);
        assert_eq!((params.len(), vectors), (2, vec![0, 1, 0]));
        let sent = [Params::from(vec![2.0]), Params::from(vec![3.0]), a.clone()];
        assert_eq!(positions(&[task(&a), task(&b)], &sent), Some(vec![2, 0]));
        assert_eq!(positions(&[task(&a), task(&b)], &sent[1..]), None);
    }
}
