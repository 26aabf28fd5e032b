//! Binary logistic regression: σ(x·w), without an intercept as in the paper, or with one (Sent140
//! linear).
//!
//! With the label y ∈ {0, 1} and z = x·w (+ b),
//!
//! ```text
//! f = log(1 + exp(z)) − y z,      ∇f = (σ(z) − y) x
//! ```

use super::{Batch, Model, ModelDefinition, Score, Step, Tensor};
use crate::kernel::{Granted, Isa, logistic};
use crate::options::{OptionDefault, OptionKind, OptionSpec, OptionValue};
use crate::stream::Stream;
use crate::task::Task;

/// The entry of the table.
pub static LOGISTIC: ModelDefinition = ModelDefinition {
    kind: "logistic",
    about: "binary logistic regression",
    tasks: &["binary"],
    options: &[INTERCEPT],
    build: |request| {
        request.two_classes()?;
        let model = Logistic::new(request.features()?, request.isa);
        let intercept = request.options.truth("intercept")?;
        Ok(Box::new(if intercept { model.with_intercept() } else { model }))
    },
};

/// The option of linear models that adds an intercept.
pub(super) const INTERCEPT: OptionSpec = OptionSpec::new(
    "intercept",
    OptionKind::Truth,
    OptionDefault::Value(OptionValue::Truth(false)),
    "adds an intercept, penalised like the other parameters; the models of the paper have none",
    OptionValue::Truth(false),
)
.usually(OptionValue::Truth(true));

/// Binary logistic regression.
#[derive(Clone, Debug)]
pub struct Logistic {
    inputs: usize,
    /// Whether the last parameter is the intercept b.
    intercept: bool,
    kernel: Granted,
}

impl Logistic {
    /// Creates a model of `inputs` features without an intercept.
    ///
    /// # Panics
    /// If this CPU does not support the instruction set.
    pub fn new(inputs: usize, isa: Isa) -> Self {
        Self { inputs, intercept: false, kernel: Granted::new(isa) }
    }

    /// Returns the same model with an intercept, the last parameter, penalised like the others.
    pub fn with_intercept(self) -> Self {
        Self { intercept: true, ..self }
    }
}

impl Model for Logistic {
    fn task(&self) -> Task {
        Task::Binary
    }

    fn num_params(&self) -> usize {
        self.inputs + usize::from(self.intercept)
    }

    fn tensors(&self) -> Vec<Tensor> {
        single_output(self.inputs, self.intercept)
    }

    fn init(&self, _stream: &mut Stream, params: &mut [f32]) {
        params.fill(0.0);
    }

    fn scratch_len(&self, batch: usize) -> usize {
        batch
    }

    fn gradient(&self, params: &[f32], batch: Batch<'_>, gradient: &mut [f32], scratch: &mut [f32]) -> f64 {
        let loss = self.evaluate(params, batch, scratch).loss / batch.len() as f64;
        let residuals = &mut scratch[..batch.len()];
        logistic::residuals(self.kernel, residuals, batch.targets.classes(), 1.0 / batch.len() as f32);
        gradient.fill(0.0);
        descend(self.kernel, self.inputs, batch.inputs.dense(), residuals, 1.0, gradient);
        loss
    }

    /// Writes the logits to `scratch`.
    fn evaluate(&self, working: &[f32], batch: Batch<'_>, scratch: &mut [f32]) -> Score {
        let logits = &mut scratch[..batch.len()];
        outputs(self.kernel, self.inputs, working, batch.inputs.dense(), logits);
        score(logits, batch.targets.classes())
    }

    fn step_scratch_len(&self, batch: usize) -> usize {
        batch
    }

    fn step(&self, working: &mut [f32], batch: Batch<'_>, step: Step<'_>, scratch: &mut [f32]) {
        let (x, residuals) = (batch.inputs.dense(), &mut scratch[..batch.len()]);
        outputs(self.kernel, self.inputs, working, x, residuals);
        let scale = -step.learning_rate / batch.len() as f32;
        logistic::residuals(self.kernel, residuals, batch.targets.classes(), scale);
        descend(self.kernel, self.inputs, x, residuals, step.decay(), working);
        step.add_pull(working);
    }
}

/// Returns the tensors of a linear model with one output.
pub(super) fn single_output(inputs: usize, intercept: bool) -> Vec<Tensor> {
    let mut tensors = vec![Tensor::new("fc.weight", &[1, inputs])];
    if intercept {
        tensors.push(Tensor::new("fc.bias", &[1]));
    }
    tensors
}

/// Computes x·w of each row, plus the intercept if there is one more parameter than inputs.
pub(super) fn outputs(kernel: Granted, inputs: usize, params: &[f32], x: &[f32], outputs: &mut [f32]) {
    let (slopes, intercept) = params.split_at(inputs);
    logistic::logits(kernel, x, slopes, outputs);
    if let [intercept] = intercept {
        outputs.iter_mut().for_each(|z| *z += intercept);
    }
}

/// Computes params ← decay·params + Σ residual · (x, 1).
pub(super) fn descend(
    kernel: Granted,
    inputs: usize,
    x: &[f32],
    residuals: &[f32],
    decay: f32,
    params: &mut [f32],
) {
    let (slopes, intercept) = params.split_at_mut(inputs);
    logistic::descend(kernel, x, residuals, decay, slopes);
    if let [intercept] = intercept {
        *intercept = decay * *intercept + residuals.iter().sum::<f32>();
    }
}

/// Returns loss and errors of logits. A logit of 0 is class 0, the first of the two.
pub(super) fn score(logits: &[f32], labels: &[u32]) -> Score {
    let (mut loss, mut errors) = (0.0, 0);
    for (&z, &label) in logits.iter().zip(labels) {
        loss += logistic_loss(z, label as f32);
        errors += u64::from((z > 0.0) != (label == 1));
    }
    Score::of_classes(loss, errors)
}

/// Returns log(1 + exp(z)) − y z, stable for any z.
fn logistic_loss(z: f32, y: f32) -> f64 {
    let z = f64::from(z);
    z.max(0.0) + (-z.abs()).exp().ln_1p() - f64::from(y) * z
}
