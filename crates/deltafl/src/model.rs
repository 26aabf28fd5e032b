//! The models. Each has a file and a line in [`MODELS`].
//!
//! A [`Model`] is a loss f(w; ξ) with its gradient, over a flat parameter vector. It owns no
//! parameters: it reads and writes `f32` slices of the caller. A step allocates no memory: the
//! caller provides the scratch memory of a batch.
//!
//! A [`ModelDefinition`] lists the options of a model and builds it. The experiment file, its
//! schema and reference, the Python classes and the GPU read the table. To add a model, implement
//! the five required methods of [`Model`] (and [`Model::task`] if it does not predict classes),
//! write its definition in the same file, and add its line to [`MODELS`]. The other methods allow
//! faster implementations.

use std::ops::Range;

use crate::kernel::{Granted, sums};
use crate::stream::Stream;
use crate::task::{Targets, Task};

pub mod conv_net;
mod definition;
mod external;
pub mod fourier;
mod full;
pub mod gru;
mod layout;
pub mod linear;
pub mod logistic;
pub mod lstm;
mod network;
pub mod perceptron;
mod predict;
pub mod regression;
mod spec;
pub mod stack;
mod tensors;
pub mod text_bag;

pub use conv_net::{CONV_NET, ConvNet};
pub use definition::{ModelDefinition, ModelMismatch, ModelRequest};
pub use external::EXTERNAL;
pub use fourier::FOURIER;
pub use gru::{Embedding, GRU, Gru};
pub use linear::{LINEAR, Linear};
pub use logistic::{LOGISTIC, Logistic};
pub use lstm::{LSTM, Lstm};
pub use perceptron::{PERCEPTRON, Perceptron};
pub use predict::Predictor;
pub use regression::Regression;
pub use spec::ModelSpec;
pub use stack::{CNN, MLP, RNN, STACK};
pub use tensors::{
    InvalidState, NamedTensor, Tensor, flat_params, from_state_dict, named_tensors, state_dict,
};
pub use text_bag::{TEXT_BAG, TextBag};

/// Every model that an experiment can name.
pub static MODELS: &[&ModelDefinition] = &[
    &LINEAR,
    &LOGISTIC,
    &CONV_NET,
    &LSTM,
    &GRU,
    &PERCEPTRON,
    &FOURIER,
    &TEXT_BAG,
    &MLP,
    &CNN,
    &RNN,
    &STACK,
    &EXTERNAL,
];

/// Returns the model of this name.
pub fn find(kind: &str) -> Option<&'static ModelDefinition> {
    MODELS.iter().copied().find(|model| model.kind == kind)
}

/// A mini-batch, gathered into contiguous memory.
#[derive(Clone, Copy, Debug)]
pub struct Batch<'a> {
    /// The inputs of the examples, one after the other.
    pub inputs: Inputs<'a>,
    /// The target of each example.
    pub targets: Targets<'a>,
}

/// The inputs of a batch.
#[derive(Clone, Copy, Debug)]
pub enum Inputs<'a> {
    /// `batch × dim` features.
    Dense(&'a [f32]),
    /// `batch × len` symbols or words.
    Tokens(&'a [u32]),
}

impl<'a> Batch<'a> {
    /// Returns a range of the examples.
    pub(crate) fn part(self, range: Range<usize>) -> Self {
        let inputs = match self.inputs {
            Inputs::Dense(values) => Inputs::Dense(part(values, self.len(), range.clone())),
            Inputs::Tokens(ids) => Inputs::Tokens(part(ids, self.len(), range.clone())),
        };
        Batch { inputs, targets: self.targets.part(range) }
    }

    /// Returns the number of examples.
    pub fn len(&self) -> usize {
        self.targets.len()
    }

    /// Returns `true` if there are no examples.
    pub fn is_empty(&self) -> bool {
        self.targets.is_empty()
    }
}

/// The rows of a matrix of `count` rows.
fn part<T>(rows: &[T], count: usize, range: Range<usize>) -> &[T] {
    let width = rows.len() / count.max(1);
    &rows[range.start * width..range.end * width]
}

impl<'a> Inputs<'a> {
    /// The features, for a model that takes dense inputs.
    ///
    /// # Panics
    /// When the inputs are tokens: an experiment pairs models with data before training starts.
    pub fn dense(self) -> &'a [f32] {
        match self {
            Self::Dense(values) => values,
            Self::Tokens(_) => panic!("a model of dense inputs was given tokens"),
        }
    }

    /// The tokens, for a model that takes sequences.
    ///
    /// # Panics
    /// When the inputs are dense: an experiment pairs models with data before training starts.
    pub fn tokens(self) -> &'a [u32] {
        match self {
            Self::Tokens(ids) => ids,
            Self::Dense(_) => panic!("a model of sequences was given dense inputs"),
        }
    }
}

/// One step of stochastic gradient descent: w ← w − γ(∇f + λw) + p.
///
/// A term (μ/2)‖w − c‖² of the loss adds μ to λ and γμc to p. A drift d of the gradient adds −γd to
/// p.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Step<'a> {
    /// γ_t.
    pub learning_rate: f32,
    /// λ: the multiple of w that is added to the gradient.
    pub l2: f32,
    /// p, in working form, if there is a pull.
    pub pull: Option<&'a [f32]>,
    /// The key of the random numbers of the step, which dropout draws.
    pub key: u64,
}

impl Step<'_> {
    /// Returns 1 − γλ, the factor of w.
    pub fn decay(&self) -> f32 {
        1.0 - self.learning_rate * self.l2
    }

    /// Adds the pull, if there is one, to parameters in working form.
    pub(crate) fn add_pull(&self, working: &mut [f32]) {
        if let Some(pull) = self.pull {
            // Every instruction set gives the same bits.
            sums::add_rows(Granted::best(), pull, working);
        }
    }
}

/// Sums over examples: their losses, and the sums from which a task computes its metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Score {
    /// The sum of the data losses, without ℓ₂.
    pub loss: f64,
    /// The sums that the task defines. For classes, the first is the number of misclassified
    /// examples. For a regression, see [`Task::regression_sums`].
    pub sums: [f64; Self::SUMS],
}

impl Score {
    /// The number of sums.
    pub const SUMS: usize = 4;

    /// Creates the score of a classification task.
    pub fn of_classes(loss: f64, errors: u64) -> Self {
        Self { loss, sums: [errors as f64, 0.0, 0.0, 0.0] }
    }
}

impl std::ops::AddAssign for Score {
    fn add_assign(&mut self, other: Self) {
        self.loss += other.loss;
        self.sums.iter_mut().zip(other.sums).for_each(|(sum, other)| *sum += other);
    }
}

/// A loss with a gradient, on flat `f32` slices.
///
/// `params` always has [`Model::num_params`] entries. Fast models may train on another layout of
/// the same numbers (padded rows, a transposed copy): the *working* form. The trainer calls
/// [`Model::load`] once per device and round, then [`Model::step`] for each batch, then
/// [`Model::store`].
pub trait Model: Send + Sync {
    /// Returns d, the length of the parameter vector w.
    fn num_params(&self) -> usize;

    /// Writes the initial iterate w₀.
    fn init(&self, stream: &mut Stream, params: &mut [f32]);

    /// Returns the floats of scratch memory that `gradient` and `evaluate` need for a batch of this
    /// size.
    fn scratch_len(&self, batch: usize) -> usize;

    /// Returns the mean loss over the batch, and overwrites `gradient` with its gradient, without
    /// ℓ₂.
    fn gradient(&self, params: &[f32], batch: Batch<'_>, gradient: &mut [f32], scratch: &mut [f32]) -> f64;

    /// Returns the prediction task, which computes metrics from a [`Score`].
    fn task(&self) -> Task {
        Task::Classes
    }

    /// Returns the tensors of w in its order, with PyTorch's names. By default, w is one vector.
    fn tensors(&self) -> Vec<Tensor> {
        vec![Tensor::new("params", &[self.num_params()])]
    }

    /// Returns the score of the batch, for parameters in working form.
    fn evaluate(&self, working: &[f32], batch: Batch<'_>, scratch: &mut [f32]) -> Score;

    /// Returns the length of the working form.
    fn working_len(&self) -> usize {
        self.num_params()
    }

    /// Writes the working form of `params`.
    fn load(&self, params: &[f32], working: &mut [f32]) {
        working.copy_from_slice(params);
    }

    /// Writes the parameters from their working form.
    fn store(&self, working: &[f32], params: &mut [f32]) {
        params.copy_from_slice(working);
    }

    /// Returns `true` if a step draws random numbers, which depend on [`Step::key`].
    fn draws_in_steps(&self) -> bool {
        false
    }

    /// Returns the floats of scratch memory that `step` needs for a batch of this size.
    fn step_scratch_len(&self, batch: usize) -> usize {
        self.num_params() + self.scratch_len(batch)
    }

    /// Performs one SGD step on the working form (Algorithm 2, line 11).
    fn step(&self, working: &mut [f32], batch: Batch<'_>, step: Step<'_>, scratch: &mut [f32]) {
        let (gradient, scratch) = scratch.split_at_mut(self.num_params());
        self.gradient(working, batch, gradient, scratch);
        for (w, g) in working.iter_mut().zip(gradient) {
            *w -= step.learning_rate * (*g + step.l2 * *w);
        }
        step.add_pull(working);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::OptionDefault;

    #[test]
    fn models_and_options_have_unique_names_and_no_option_is_required() {
        for model in MODELS {
            assert!(std::ptr::eq(find(model.kind).unwrap(), *model), "two models {}", model.kind);
            for (i, option) in model.options.iter().enumerate() {
                assert!(model.options[..i].iter().all(|other| other.name != option.name), "{}", option.name);
                assert!(!["kind", "l2", "layers"].contains(&option.name), "{} is taken", option.name);
                assert_ne!(option.default, OptionDefault::Required, "{} {}", model.kind, option.name);
            }
        }
    }
}
