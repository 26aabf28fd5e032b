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
    let is_logistic = match stack.task {
        Task::Classes | Task::NextSymbol => false,
        Task::Binary if stack.output().len() == 1 => true,
        _ => return None,
    };
    // Softmax regression alone is the model `linear`, which stores W as inputs × classes.
    if let ([Layer::Dense { transposed, .. }], Task::Classes | Task::NextSymbol) =
        (&mut layers[..], stack.task)
    {
        *transposed = true;
    }
    Some(Network { input, layers, is_logistic })
}

/// Converts consecutive layers. `may_end_in_relu` is false within a residual, whose sum needs the
/// slopes before the ReLU.
fn converted(layers: &[ShapedLayer], may_end_in_relu: bool) -> Option<Vec<Layer>> {
    let layers: Vec<&ShapedLayer> = layers.iter().filter(|layer| !changes_nothing(layer)).collect();
    let (mut done, mut rest) = (Vec::with_capacity(layers.len()), &layers[..]);
    while let [first, after @ ..] = rest {
        let is_relu =
            |layer: Option<&&ShapedLayer>| layer.is_some_and(|layer| layer.layer == StackLayer::Relu);
        let fuses = |used: usize| may_end_in_relu || after.len() > used;
        let (layer, used) = match &first.layer {
            StackLayer::Dense { units, bias } => {
                let relu = is_relu(after.first()) && fuses(1);
                let layer = Layer::Dense { outputs: *units, bias: *bias, relu, transposed: false };
                (layer, usize::from(relu))
            }
            StackLayer::Conv2d { channels, size, stride, padding } => {
                if *size > LARGEST_FILTER {
                    return None;
                }
                let pools = |layer: Option<&&ShapedLayer>| {
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
                (layer, usize::from(relu) + usize::from(pool))
            }
            StackLayer::OneHot => {
                let ActivationShape::Tokens { vocabulary, .. } = first.input else { return None };
                let layer = recurrent(after, Some(vocabulary))?;
                (Layer::Recurrent(layer), 1 + usize::from(!layer.sequence))
            }
            StackLayer::Lstm { .. } | StackLayer::Gru { .. } => {
                let layer = recurrent(rest, None)?;
                (Layer::Recurrent(layer), usize::from(!layer.sequence))
            }
            _ => (single(first)?, 0),
        };
        done.push(layer);
        rest = &after[used..];
    }
    Some(done)
}

/// Returns a recurrent layer, together with a layer after it that takes its last step.
fn recurrent(layers: &[&ShapedLayer], symbols: Option<usize>) -> Option<Recurrent> {
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

/// Returns true if the entries of the output are those of the input, in the same order.
fn changes_nothing(layer: &ShapedLayer) -> bool {
    layer.layer == StackLayer::Flatten && !matches!(layer.input, ActivationShape::Sequence { .. })
}

/// Converts a layer that is not merged with others.
fn single(layer: &ShapedLayer) -> Option<Layer> {
    Some(match &layer.layer {
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
        StackLayer::Flatten => Layer::Flatten,
        StackLayer::Residual { .. } => {
            let layers = converted(&layer.layers, false)?;
            // Without layers, the slopes of x + x would replace those of x.
            return (!layers.is_empty()).then_some(Layer::Residual(layers));
        }
        // Dropout draws random numbers, for which there are no kernels.
        _ => return None,
    })
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

#[cfg(test)]
mod tests {
    use super::*;
    use deltafl::data::{DeviceExamples, FederationBuilder, InputKind, Split};
    use deltafl::model::stack::STACK;

    /// Returns the network of layers on two features.
    fn network_of(layers: Vec<StackLayer>, classes: usize) -> Option<Network> {
        let mut builder = FederationBuilder::new("t", InputKind::Dense { dim: 2 }, classes);
        builder.push("a", Split::Train, DeviceExamples::Dense(&[1.0, 2.0]), &[0]).unwrap();
        let stack = STACK.spec().with_layers(layers).stack(&builder.build()).unwrap().unwrap();
        network(&stack, NetworkInput::Dense { dim: 2 })
    }

    #[test]
    fn a_relu_that_ends_a_residual_is_separate_also_before_a_flatten_of_features() {
        let dense = || StackLayer::Dense { units: 2, bias: true };
        let layers = vec![dense(), StackLayer::Relu, StackLayer::Flatten];
        let network = network_of(vec![StackLayer::Residual { layers }], 3).unwrap();
        let [Layer::Residual(layers), _] = &network.layers[..] else { panic!("{network:?}") };
        assert!(matches!(layers[..], [Layer::Dense { relu: false, .. }, Layer::Relu]), "{layers:?}");
    }

    #[test]
    fn a_residual_without_an_operation_has_no_kernels() {
        let residual = StackLayer::Residual { layers: vec![StackLayer::Flatten] };
        assert_eq!(network_of(vec![residual], 3), None);
    }

    #[test]
    fn one_class_is_not_one_logit_for_two() {
        assert!(!network_of(Vec::new(), 1).unwrap().is_logistic);
    }
}
