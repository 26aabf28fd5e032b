//! Models as stacks of layers.
//!
//! A [`Stack`] is a plain description: the layers with the shapes that the data determines. The
//! head is added by the task: a dense layer with an output per class, or with one output.
//! [`StackNetwork`] trains it on the CPU. A stack that equals a model of the paper is built as that
//! model, with its fused kernels and the same bits.
//!
//! ```
//! use deltafl::data::{FederationBuilder, InputKind};
//! use deltafl::model::stack::{Layer, STACK};
//!
//! let layers = vec![Layer::Dense { units: 200, bias: true }, Layer::Relu];
//! let spec = STACK.spec_with([])?.with_layers(layers);
//! let federation = FederationBuilder::new("images", InputKind::Bytes { dim: 784 }, 62).build();
//! let stack = spec.stack(&federation)?.expect("the model is a stack");
//! assert_eq!(stack.params(), 784 * 200 + 200 + 200 * 62 + 62);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod convolution;
mod dense;
mod elementwise;
mod layer;
mod maps;
mod network;
mod operation;
mod paper;
mod presets;
mod program;
mod recurrent;
mod sequence;
mod shape;

pub use layer::{LAYERS, Layer, LayerDefinition, RESIDUAL};
pub use network::StackNetwork;
pub(in crate::model) use presets::build_preset;
pub use presets::{CNN, MLP, RNN};
pub use shape::{ActivationShape, InvalidLayer, ShapedLayer};

use super::{Model, ModelDefinition, ModelMismatch, ModelRequest, Tensor};
use crate::data::{Federation, InputKind, TargetKind};
use crate::options::{Interval, OptionDefault, OptionKind, OptionSpec, OptionValue};
use crate::task::{RegressionLoss, Task};

/// The entry of the table.
pub static STACK: ModelDefinition = ModelDefinition {
    kind: "stack",
    about: "a stack of `layers`, with a head for the task",
    tasks: &["classes", "binary", "next-symbol", "regression"],
    options: &[
        OptionSpec::new(
            "head",
            OptionKind::Word(&["softmax", "logistic"]),
            OptionDefault::Value(OptionValue::Word("softmax")),
            "the outputs for classes: one per class, or a single one for two classes",
            OptionValue::Word("logistic"),
        ),
        OptionSpec::new(
            "no_intercept",
            OptionKind::Truth,
            OptionDefault::Value(OptionValue::Truth(false)),
            "the last layer has no intercept, as in the linear models of the paper",
            OptionValue::Truth(true),
        ),
        HUBER,
    ],
    build: |request| build(request, request.layers, HeadOptions::of_stack(request)?),
};

/// The option of regressions that replaces the squared loss.
const HUBER: OptionSpec = OptionSpec::new(
    "huber",
    OptionKind::Real(Interval::POSITIVE),
    OptionDefault::Unset("the squared loss"),
    "the width of the Huber loss, if the targets are real numbers",
    OptionValue::Real(0.5),
)
.with_symbol("δ");

/// A stack of layers with the shapes of the data.
#[derive(Clone, Debug, PartialEq)]
pub struct Stack {
    /// The shape of an example. Images are channel by channel.
    pub input: ActivationShape,
    /// The layers in their order. The last one is the head.
    pub layers: Vec<ShapedLayer>,
    /// The task, which determines the loss of the outputs.
    pub task: Task,
}

impl Stack {
    /// Returns the shape of the outputs.
    pub fn output(&self) -> ActivationShape {
        self.layers.last().map_or(self.input, |layer| layer.output)
    }

    /// Returns the number of parameters.
    pub fn params(&self) -> usize {
        self.layers.iter().map(|layer| layer.params).sum()
    }

    /// Returns the multiplications and additions of a forward pass of one example.
    pub fn operations(&self) -> u64 {
        self.layers.iter().map(|layer| layer.operations).sum()
    }

    /// Returns the tensors in the order of w, with PyTorch's names and shapes.
    pub fn tensors(&self) -> Vec<Tensor> {
        self.layers.iter().flat_map(ShapedLayer::tensors).collect()
    }
}

/// The options of the head.
#[derive(Clone, Copy, Debug, PartialEq)]
struct HeadOptions {
    /// Whether two classes have a single logit.
    is_logistic: bool,
    has_bias: bool,
    huber: Option<f64>,
}

impl HeadOptions {
    /// The head of a stack in a file.
    fn of_stack(request: &ModelRequest<'_>) -> Result<Self, ModelMismatch> {
        Ok(Self {
            is_logistic: request.options.word("head")? == "logistic",
            has_bias: !request.options.truth("no_intercept")?,
            huber: request.options.optional_real("huber")?,
        })
    }

    /// The head of a preset.
    fn with_bias(huber: Option<f64>) -> Self {
        Self { is_logistic: false, has_bias: true, huber }
    }

    /// Returns the task and the number of outputs.
    fn task(&self, request: &ModelRequest<'_>) -> Result<(Task, usize), ModelMismatch> {
        let model = request.model;
        match request.federation.targets() {
            TargetKind::Values => {
                let loss =
                    self.huber.map_or(RegressionLoss::Squared, |delta| RegressionLoss::Huber(delta as f32));
                Ok((Task::Regression(loss), 1))
            }
            TargetKind::Classes(_) if self.huber.is_some() => {
                Err(ModelMismatch::OptionNeedsValues { model, option: "huber" })
            }
            TargetKind::Classes(_) if self.is_logistic => {
                request.two_classes()?;
                Ok((Task::Binary, 1))
            }
            TargetKind::Classes(classes) => match request.federation.kind() {
                InputKind::Windows { .. } => Ok((Task::NextSymbol, classes)),
                _ => Ok((Task::Classes, classes)),
            },
        }
    }
}

/// Builds a stack, or the model of the paper that it equals.
fn build(
    request: &ModelRequest<'_>,
    layers: &[Layer],
    head: HeadOptions,
) -> Result<Box<dyn Model>, ModelMismatch> {
    let stack = shaped(request, layers, head)?;
    if let Some(model) = paper::equal_model(request, &stack, layers, head) {
        return Ok(model);
    }
    Ok(Box::new(StackNetwork::new(stack, request.federation.vectors(), request.isa)))
}

/// Infers the shapes of a stack.
fn shaped(request: &ModelRequest<'_>, layers: &[Layer], head: HeadOptions) -> Result<Stack, ModelMismatch> {
    let (task, outputs) = head.task(request)?;
    let input = input_shape(request.federation, layers)?;
    let mut all = layers.to_vec();
    all.push(Layer::Dense { units: outputs, bias: head.has_bias });
    let vectors = request.federation.vectors().map(|vectors| vectors.dim);
    let mut shaped = shape::infer(&all, input, vectors).map_err(|error| head_error(error, layers))?;
    if let Some(ActivationShape::Sequence { .. }) = shaped.last().map(|layer| layer.output) {
        shaped.pop();
        let reason = "its output is a sequence of vectors: add last, mean or flatten after it".to_owned();
        return Err(at_last_layer(layers, reason).into());
    }
    Ok(Stack { input, layers: shaped, task })
}

/// An error of the head is an error of the layer before it, because the file does not contain the
/// head.
fn head_error(error: InvalidLayer, layers: &[Layer]) -> InvalidLayer {
    if error.path != [layers.len()] {
        return error;
    }
    at_last_layer(layers, format!("the outputs cannot follow it: {}", error.reason))
}

fn at_last_layer(layers: &[Layer], reason: String) -> InvalidLayer {
    let kind = layers.last().map_or("stack", Layer::kind);
    InvalidLayer { path: vec![layers.len().saturating_sub(1)], kind, reason }
}

/// Returns the shape of the data. Features are images if a layer needs images.
fn input_shape(federation: &Federation, layers: &[Layer]) -> Result<ActivationShape, InvalidLayer> {
    let dim = match federation.kind() {
        InputKind::Tokens { len, vocabulary } => {
            return Ok(ActivationShape::Tokens { len, vocabulary, padded: true });
        }
        InputKind::Windows { len, alphabet } => {
            return Ok(ActivationShape::Tokens { len, vocabulary: alphabet, padded: false });
        }
        InputKind::Bytes { dim } | InputKind::Dense { dim } => dim,
    };
    let mut path = Vec::new();
    let Some(kind) = first_of_images(layers, &mut path) else {
        return Ok(ActivationShape::Features(dim));
    };
    let known = federation.coding().and_then(|coding| coding.image).filter(|image| image.features() == dim);
    if let Some(image) = known {
        let (channels, height, width) = (image.channels, image.height, image.width);
        return Ok(ActivationShape::Image { channels, height, width });
    }
    for channels in [1, 3] {
        let side = (dim / channels).isqrt();
        if side * side * channels == dim && side > 0 {
            return Ok(ActivationShape::Image { channels, height: side, width: side });
        }
    }
    let reason = format!("it needs images; {dim} features are neither a square grey nor a square RGB image");
    Err(InvalidLayer { path, kind, reason })
}

/// Finds the first layer that needs images, before any layer that turns them into features.
fn first_of_images(layers: &[Layer], path: &mut Vec<usize>) -> Option<&'static str> {
    for (i, layer) in layers.iter().enumerate() {
        path.push(i);
        match layer {
            Layer::Conv2d { .. } | Layer::MaxPool { .. } | Layer::AvgPool { .. } => {
                return Some(layer.kind());
            }
            Layer::Relu
            | Layer::Gelu
            | Layer::Tanh
            | Layer::Dropout { .. }
            | Layer::GroupNorm { .. }
            | Layer::LayerNorm => {}
            Layer::Residual { layers } => {
                if let Some(kind) = first_of_images(layers, path) {
                    return Some(kind);
                }
            }
            _ => return None,
        }
        path.pop();
    }
    None
}

/// Returns the stack that a model of the table is on this data; `None` for a model that is no
/// stack.
pub(super) fn of_request(request: &ModelRequest<'_>) -> Result<Option<Stack>, ModelMismatch> {
    if request.model == STACK.kind {
        return shaped(request, request.layers, HeadOptions::of_stack(request)?).map(Some);
    }
    match presets::layers(request)? {
        Some((layers, head)) => shaped(request, &layers, head).map(Some),
        None => Ok(None),
    }
}
