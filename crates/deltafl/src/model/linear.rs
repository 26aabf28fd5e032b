//! Softmax regression with cross-entropy (EMNIST linear): softmax(xW), without an intercept as in
//! the paper, or with one.
//!
//! W is `inputs × classes`, row by row. For one example, with p = softmax(xW) and label y,
//!
//! ```text
//! f = log Σ_c exp(z_c) − z_y,     ∂f/∂W_jc = x_j (p_c − 1[c = y])
//! ```
//!
//! The gradient of a batch of b is a matrix of rank b. It is not stored, but added to W as the
//! product of the inputs and the residuals. An intercept is an additional last row of W whose input
//! is 1.

use super::logistic::INTERCEPT;
use super::{Batch, Model, ModelDefinition, ModelMismatch, ModelRequest, Regression, Score, Step, Tensor};
use crate::data::TargetKind;
use crate::kernel::product::{Entries, Layout, Shape, padded, panels_len, product, product_plus};
use crate::kernel::softmax::{self, Rows};
use crate::kernel::{Granted, Isa, sums};
use crate::options::{Interval, OptionDefault, OptionKind, OptionSpec, OptionValue};
use crate::stream::Stream;
use crate::task::RegressionLoss;

/// The entry of the table. It also serves real-valued targets, through [`Regression`].
pub static LINEAR: ModelDefinition = ModelDefinition {
    kind: "linear",
    about: "softmax regression; linear regression if the targets are real numbers",
    tasks: &["classes", "regression"],
    options: &[
        INTERCEPT,
        OptionSpec::new(
            "huber",
            OptionKind::Real(Interval::POSITIVE),
            OptionDefault::Unset("the squared loss"),
            "the width of the Huber loss, if the targets are real numbers",
            OptionValue::Real(0.5),
        )
        .with_symbol("δ"),
    ],
    build,
};

fn build(request: &ModelRequest<'_>) -> Result<Box<dyn Model>, ModelMismatch> {
    let intercept = request.options.truth("intercept")?;
    let huber = request.options.optional_real("huber")?;
    let features = request.features()?;
    match (request.federation.targets(), huber) {
        (TargetKind::Values, huber) => {
            let loss = huber.map_or(RegressionLoss::Squared, |delta| RegressionLoss::Huber(delta as f32));
            Ok(Box::new(Regression::new(features, loss, intercept, request.isa)))
        }
        (TargetKind::Classes(_), Some(_)) => {
            Err(ModelMismatch::OptionNeedsValues { model: request.model, option: "huber" })
        }
        (TargetKind::Classes(classes), None) => {
            let model = Linear::new(features, classes, request.isa);
            Ok(Box::new(if intercept { model.with_intercept() } else { model }))
        }
    }
}

/// Softmax regression.
#[derive(Clone, Debug)]
pub struct Linear {
    inputs: usize,
    classes: usize,
    intercept: bool,
    kernel: Granted,
}

impl Linear {
    /// Creates a model of `inputs` features and `classes` classes without an intercept.
    ///
    /// # Panics
    /// If this CPU does not support the instruction set.
    pub fn new(inputs: usize, classes: usize, isa: Isa) -> Self {
        Self { inputs, classes, intercept: false, kernel: Granted::new(isa) }
    }

    /// Returns the same model with an intercept per class, penalised like the other parameters.
    pub fn with_intercept(self) -> Self {
        Self { intercept: true, ..self }
    }

    /// Returns the floats of the intercepts in working form: a padded row after the panels.
    fn intercept_len(&self) -> usize {
        if self.intercept { self.rows().stride } else { 0 }
    }

    /// Returns the floats of the panels.
    fn panels_len(&self) -> usize {
        panels_len(self.inputs, padded(self.classes))
    }

    fn rows(&self) -> Rows {
        Rows { classes: self.classes, stride: padded(self.classes) }
    }

    /// Computes Z = XW.
    fn logits(&self, working: &[f32], x: &[f32], logits: &mut [f32]) {
        let stride = self.rows().stride;
        let shape = Shape { m: logits.len() / stride, n: stride, k: self.inputs };
        let x = Entries { values: x, row: self.inputs, column: 1 };
        let layouts = [Layout::panels(self.inputs), Layout::rows(stride)];
        let (panels, intercept) = working.split_at(self.panels_len());
        if self.intercept {
            logits.chunks_exact_mut(stride).for_each(|row| row.copy_from_slice(intercept));
        }
        let kept = if self.intercept { 1.0 } else { 0.0 };
        product(self.kernel, shape, x, panels, layouts[0], logits, layouts[1], kept);
    }

    /// Computes W ← decay·W + Xᵀ R for residuals R, and adds the pull if there is one.
    fn descend(&self, working: &mut [f32], x: &[f32], residuals: &[f32], decay: f32, pull: Option<&[f32]>) {
        let stride = self.rows().stride;
        let shape = Shape { m: self.inputs, n: stride, k: residuals.len() / stride };
        let x = Entries { values: x, row: 1, column: self.inputs };
        let layouts = [Layout::rows(stride), Layout::panels(self.inputs)];
        let kernel = self.kernel;
        let (panels, intercept) = working.split_at_mut(self.panels_len());
        let pull = pull.map(|pull| pull.split_at(panels.len()));
        match pull {
            None => product(kernel, shape, x, residuals, layouts[0], panels, layouts[1], decay),
            // In the same pass over W, because a separate pass would cost a fifth of the step.
            Some((pull, _)) => {
                product_plus(kernel, shape, x, residuals, layouts[0], panels, layouts[1], decay, pull);
            }
        }
        if self.intercept {
            intercept.iter_mut().for_each(|b| *b *= decay);
            sums::add_rows(kernel, residuals, intercept);
            if let Some((_, pull)) = pull {
                sums::add_rows(kernel, pull, intercept);
            }
        }
    }
}

impl Model for Linear {
    fn num_params(&self) -> usize {
        (self.inputs + usize::from(self.intercept)) * self.classes
    }

    fn tensors(&self) -> Vec<Tensor> {
        let mut tensors = vec![Tensor::transposed("fc.weight", [self.classes, self.inputs])];
        if self.intercept {
            tensors.push(Tensor::new("fc.bias", &[self.classes]));
        }
        tensors
    }

    fn init(&self, _stream: &mut Stream, params: &mut [f32]) {
        params.fill(0.0);
    }

    fn scratch_len(&self, batch: usize) -> usize {
        2 * self.working_len() + self.step_scratch_len(batch)
    }

    fn gradient(&self, params: &[f32], batch: Batch<'_>, gradient: &mut [f32], scratch: &mut [f32]) -> f64 {
        let (working, scratch) = scratch.split_at_mut(self.working_len());
        let (total, scratch) = scratch.split_at_mut(self.working_len());
        self.load(params, working);
        let x = batch.inputs.dense();
        let residuals = &mut scratch[..batch.len() * self.rows().stride];
        self.logits(working, x, residuals);
        let labels = batch.targets.classes();
        let score = softmax::score(self.kernel, self.rows(), residuals, labels);
        softmax::residuals(self.kernel, self.rows(), residuals, labels, 1.0 / batch.len() as f32);
        self.descend(total, x, residuals, 0.0, None);
        self.store(total, gradient);
        score.loss / batch.len() as f64
    }

    fn evaluate(&self, working: &[f32], batch: Batch<'_>, scratch: &mut [f32]) -> Score {
        let logits = &mut scratch[..batch.len() * self.rows().stride];
        self.logits(working, batch.inputs.dense(), logits);
        softmax::score(self.kernel, self.rows(), logits, batch.targets.classes())
    }

    fn working_len(&self) -> usize {
        self.panels_len() + self.intercept_len()
    }

    fn load(&self, params: &[f32], working: &mut [f32]) {
        let (weights, intercept) = params.split_at(self.inputs * self.classes);
        let (panels, padded) = working.split_at_mut(self.panels_len());
        super::layout::to_panels(weights, self.inputs, self.classes, panels);
        padded.fill(0.0);
        padded[..intercept.len()].copy_from_slice(intercept);
    }

    fn store(&self, working: &[f32], params: &mut [f32]) {
        let (weights, intercept) = params.split_at_mut(self.inputs * self.classes);
        let (panels, padded) = working.split_at(self.panels_len());
        super::layout::from_panels(panels, self.inputs, self.classes, weights);
        let len = intercept.len();
        intercept.copy_from_slice(&padded[..len]);
    }

    fn step_scratch_len(&self, batch: usize) -> usize {
        batch * self.rows().stride
    }

    fn step(&self, working: &mut [f32], batch: Batch<'_>, step: Step<'_>, scratch: &mut [f32]) {
        let x = batch.inputs.dense();
        let residuals = &mut scratch[..batch.len() * self.rows().stride];
        self.logits(working, x, residuals);
        let scale = -step.learning_rate / batch.len() as f32;
        softmax::residuals(self.kernel, self.rows(), residuals, batch.targets.classes(), scale);
        self.descend(working, x, residuals, step.decay(), step.pull);
    }
}
