//! Stacks that equal a model with fused kernels.

use super::{ActivationShape, HeadOptions, Layer, Stack};
use crate::kernel::conv::{FILTER, Sizes};
use crate::model::{
    ConvNet, Embedding, Gru, Linear, Logistic, Lstm, Model, ModelRequest, Regression, TextBag,
};
use crate::task::Task;

/// Returns the model with fused kernels that computes a stack, if there is one.
pub(super) fn equal_model(
    request: &ModelRequest<'_>,
    stack: &Stack,
    layers: &[Layer],
    head: HeadOptions,
) -> Option<Box<dyn Model>> {
    let isa = request.isa;
    let outputs = stack.output().len();
    match (layers, stack.input) {
        ([] | [Layer::Flatten], ActivationShape::Features(inputs)) => Some(match stack.task {
            Task::Regression(loss) => Box::new(Regression::new(inputs, loss, head.has_bias, isa)),
            Task::Binary => {
                let model = Logistic::new(inputs, isa);
                Box::new(if head.has_bias { model.with_intercept() } else { model })
            }
            Task::Classes | Task::NextSymbol => {
                let model = Linear::new(inputs, outputs, isa);
                Box::new(if head.has_bias { model.with_intercept() } else { model })
            }
        }),
        _ if !head.has_bias => None,
        (
            [
                Layer::Conv2d { channels: first, size: FILTER, stride: 1, padding: 0 },
                Layer::Relu,
                Layer::MaxPool { size: 2, stride: 2 },
                Layer::Conv2d { channels: second, size: FILTER, stride: 1, padding: 0 },
                Layer::Relu,
                Layer::MaxPool { size: 2, stride: 2 },
                Layer::Flatten,
            ],
            ActivationShape::Image { channels: 1, height, width },
        ) if height == width && stack.task == Task::Classes => {
            Sizes::new(height, [*first, *second])?;
            Some(Box::new(ConvNet::new(height, [*first, *second], outputs, isa)))
        }
        (
            [Layer::WordVectors, Layer::Lstm { hidden }, Layer::Last { padding: true }],
            ActivationShape::Tokens { len, .. },
        ) if stack.task == Task::Binary => {
            let vectors = request.federation.vectors()?.clone();
            Some(Box::new(Lstm::new(vectors, len, *hidden, isa)))
        }
        (
            [embedding, Layer::Gru { hidden }, Layer::Last { padding }],
            ActivationShape::Tokens { len, vocabulary, padded },
        ) if matches!(stack.task, Task::Classes | Task::NextSymbol) && (*padding || !padded) => {
            let embedding = match embedding {
                Layer::OneHot => Embedding::OneHot,
                // The GRU also trains the vector of padding.
                Layer::Embedding { entries } if !padded => Embedding::Trained(*entries),
                _ => return None,
            };
            let gru = Gru::new(len, vocabulary, embedding, *hidden, outputs, isa);
            Some(Box::new(if stack.task == Task::Classes { gru.of_classes() } else { gru }))
        }
        (
            [Layer::Embedding { entries }, Layer::Mean],
            ActivationShape::Tokens { len, vocabulary, padded: true },
        ) if stack.task == Task::Classes => {
            Some(Box::new(TextBag::new(len, vocabulary, *entries, outputs, isa)))
        }
        _ => None,
    }
}
