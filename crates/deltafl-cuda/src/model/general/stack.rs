//! A stack of layers as a network.
//!
//! A ReLU after a full layer or a convolution is part of that layer, and so is a max-pooling of 2 × 2
//! after a convolution and its ReLU.

use deltafl::model::stack::{ActivationShape, Layer as StackLayer, ShapedLayer, Stack};
use deltafl::task::Task;

use super::network::{Cell, Convolution, Layer, Network, NetworkInput, Norm, Pool, Recurrent};

/// The largest side of a filter: a bit of a word per tap.
const LARGEST_FILTER: usize = 8;

/// Returns the network of a stack, or `None` if one of its layers has no kernels.
pub(super) fn network(stack: &Stack, input: NetworkInput) -> Option<Network> {
    let mut layers = converted(&stack.layers, true)?;
    let logits = stack.output().len();
    match stack.task {
        Task::Classes | Task::NextSymbol => {}
        Task::Binary if logits == 1 => {}
        _ => return None,
    }
    // Softmax regression alone is the model `linear`, which stores W as inputs × classes.
    if let ([Layer::Dense { transposed, .. }], Task::Classes | Task::NextSymbol) =
        (&mut layers[..], stack.task)
    {
        *transposed = true;
    }
    Some(Network { input, layers, logits })
}

/// Converts consecutive layers. `may_end_in_relu` is false within a residual, whose sum needs the
/// slopes before the ReLU.
fn converted(layers: &[ShapedLayer], may_end_in_relu: bool) -> Option<Vec<Layer>> {
    let (mut done, mut rest) = (Vec::with_capacity(layers.len()), layers);
    while let [first, after @ ..] = rest {
        let is_relu =
            |layer: Option<&ShapedLayer>| layer.is_some_and(|layer| layer.layer == StackLayer::Relu);
        let fuses = |used: usize| may_end_in_relu || after.len() > used;
        let (layer, used) = match &first.layer {
            StackLayer::Dense { units, bias } => {
                let relu = is_relu(after.first()) && fuses(1);
                let layer = Layer::Dense { outputs: *units, bias: *bias, relu, transposed: false };
                (Some(layer), usize::from(relu))
            }
            StackLayer::Conv2d { channels, size, stride, padding } => {
                if *size > LARGEST_FILTER {
                    return None;
                }
                let pools = |layer: Option<&ShapedLayer>| {
                    layer.is_some_and(|layer| layer.layer == StackLayer::MaxPool { size: 2, stride: 2 })
                };
                let pool = is_relu(after.first()) && pools(after.get(1));
                let relu = pool || is_relu(after.first()) && fuses(1);
                let layer = Layer::Convolution(Convolution {
                    input: image(first.input)?,
                    filters: *channels,
                    side: *size,
                    padding: *padding,
                    stride: *stride,
                    bias: true,
                    relu,
                    pool,
                });
                (Some(layer), usize::from(relu) + usize::from(pool))
            }
            StackLayer::OneHot => {
                let ActivationShape::Tokens { vocabulary, .. } = first.input else { return None };
                let layer = recurrent(after, Some(vocabulary))?;
                (Some(Layer::Recurrent(layer)), 1 + usize::from(!layer.sequence))
            }
            StackLayer::Lstm { .. } | StackLayer::Gru { .. } => {
                let layer = recurrent(rest, None)?;
                (Some(Layer::Recurrent(layer)), usize::from(!layer.sequence))
            }
            _ => (single(first)?, 0),
        };
        done.extend(layer);
        rest = &after[used..];
    }
    Some(done)
}

/// Returns a recurrent layer, together with a layer after it that takes its last step.
fn recurrent(layers: &[ShapedLayer], symbols: Option<usize>) -> Option<Recurrent> {
    let [units, after @ ..] = layers else { return None };
    let (cell, hidden) = match units.layer {
        StackLayer::Gru { hidden } => (Cell::Gru, hidden),
        StackLayer::Lstm { hidden } => (Cell::Lstm, hidden),
        _ => return None,
    };
    let takes_last = after.first().is_some_and(|layer| match layer.layer {
        StackLayer::Last { padding } => padding || !is_padded(layer.input),
        _ => false,
    });
    Some(Recurrent { cell, hidden, symbols, sequence: !takes_last })
}

/// Converts a layer that is not merged with others. `None` within `Some` if it changes nothing.
fn single(layer: &ShapedLayer) -> Option<Option<Layer>> {
    let converted = match &layer.layer {
        StackLayer::Relu => Layer::Relu,
        StackLayer::Tanh => Layer::Tanh,
        StackLayer::Gelu => Layer::Gelu,
        StackLayer::MaxPool { size, stride } => pool(layer, *size, *stride, true)?,
        StackLayer::AvgPool { size, stride } => pool(layer, *size, *stride, false)?,
        StackLayer::GroupNorm { groups } => norm(layer.input, Some(*groups))?,
        StackLayer::LayerNorm => norm(layer.input, None)?,
        StackLayer::Embedding { entries } => {
            let ActivationShape::Tokens { vocabulary, padded, .. } = layer.input else { return None };
            Layer::Embedding { symbols: vocabulary, dim: *entries, padded }
        }
        StackLayer::WordVectors => {
            let ActivationShape::Sequence { entries, .. } = layer.output else { return None };
            Layer::FrozenVectors { dim: entries }
        }
        StackLayer::Last { padding } => Layer::Last { skips_padding: !padding && is_padded(layer.input) },
        StackLayer::Mean => Layer::Mean { skips_padding: is_padded(layer.input) },
        StackLayer::Flatten => match layer.input {
            ActivationShape::Sequence { .. } => Layer::Flatten,
            _ => return Some(None),
        },
        StackLayer::Residual { .. } => Layer::Residual(converted(&layer.layers, false)?),
        // Dropout draws random numbers, for which there are no kernels.
        _ => return None,
    };
    Some(Some(converted))
}

fn pool(layer: &ShapedLayer, side: usize, stride: usize, is_max: bool) -> Option<Layer> {
    Some(Layer::Pool(Pool { input: image(layer.input)?, side, stride, is_max }))
}

/// Returns a normalisation of groups of channels, or of all entries of a row or an image.
fn norm(input: ActivationShape, groups: Option<usize>) -> Option<Layer> {
    let (channels, cells, is_image) = match input {
        ActivationShape::Features(features) => (features, 1, false),
        ActivationShape::Image { channels, height, width } => (channels, height * width, true),
        ActivationShape::Sequence { entries, .. } => (entries, 1, false),
        _ => return None,
    };
    let by_cell = is_image && groups.is_none();
    Some(Layer::Norm(Norm { channels, cells, groups: groups.unwrap_or(1), by_cell }))
}

/// Returns channels, height and width.
fn image(shape: ActivationShape) -> Option<[usize; 3]> {
    match shape {
        ActivationShape::Image { channels, height, width } => Some([channels, height, width]),
        _ => None,
    }
}

fn is_padded(shape: ActivationShape) -> bool {
    matches!(shape, ActivationShape::Sequence { padded: true, .. })
}
