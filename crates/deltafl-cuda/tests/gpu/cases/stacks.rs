//! Stacks of layers: every layer with kernels, and its combinations with others.

use deltafl::model::ModelSpec;
use deltafl::model::stack::{Layer, STACK};

use super::{Case, NamedCase, case, images, tables, texts, words};

fn stack(layers: Vec<Layer>) -> ModelSpec {
    STACK.spec().with_layers(layers)
}

/// Returns a stack with a layer that has no kernels.
pub(super) fn with_dropout() -> ModelSpec {
    stack(vec![Layer::Dense { units: 8, bias: true }, Layer::Dropout { rate: 0.5 }])
}

/// Returns a stack with a hidden layer.
pub(super) fn with_hidden_layer() -> ModelSpec {
    stack(vec![Layer::Dense { units: 5, bias: true }, Layer::Tanh])
}

pub(super) fn cases() -> Vec<NamedCase> {
    let conv = |channels, size, padding| Layer::Conv2d { channels, size, stride: 1, padding };
    let dense = |units| Layer::Dense { units, bias: true };
    let halved = || Layer::MaxPool { size: 2, stride: 2 };
    let network = move |first, second| {
        let layers = [conv(first, 5, 0), Layer::Relu, halved(), conv(second, 5, 0), Layer::Relu, halved()];
        stack(layers.into_iter().chain([Layer::Flatten]).collect())
    };
    let residual = vec![
        conv(8, 3, 1),
        Layer::GroupNorm { groups: 4 },
        Layer::Relu,
        Layer::Residual {
            layers: vec![
                conv(8, 3, 1),
                Layer::GroupNorm { groups: 2 },
                Layer::Gelu,
                conv(8, 3, 1),
                Layer::Relu,
            ],
        },
        Layer::Conv2d { channels: 6, size: 3, stride: 2, padding: 1 },
        Layer::Tanh,
        Layer::LayerNorm,
        Layer::AvgPool { size: 3, stride: 2 },
        Layer::Flatten,
        Layer::Dense { units: 20, bias: false },
        Layer::Gelu,
    ];
    let recurrent = vec![
        Layer::Embedding { entries: 12 },
        Layer::Lstm { hidden: 20 },
        Layer::LayerNorm,
        Layer::Gru { hidden: 17 },
        Layer::Last { padding: false },
        dense(9),
        Layer::Tanh,
    ];
    let bag = vec![Layer::Embedding { entries: 10 }, Layer::Tanh, Layer::Mean, dense(33), Layer::Relu];
    let flat = vec![Layer::OneHot, Layer::Gru { hidden: 18 }, dense(5), Layer::Relu, Layer::Flatten];
    let vectors =
        vec![Layer::WordVectors, dense(8), Layer::Gru { hidden: 64 }, Layer::Last { padding: true }];
    // Maps that do not fit into shared memory.
    let large = vec![conv(48, 3, 0), Layer::Relu, conv(6, 3, 0), Layer::Relu, halved(), Layer::Flatten];
    // Maps of nine positions, of several examples per block.
    let small = vec![conv(8, 3, 1), Layer::Relu, conv(12, 3, 1), Layer::Tanh, conv(9, 3, 0), Layer::Flatten];
    let pooled = vec![conv(7, 3, 0), Layer::MaxPool { size: 3, stride: 2 }, Layer::Relu, Layer::Flatten];
    let normal = vec![
        dense(40),
        Layer::LayerNorm,
        Layer::Residual { layers: vec![dense(40), Layer::Tanh, dense(40)] },
        Layer::GroupNorm { groups: 5 },
        Layer::Gelu,
    ];
    // The flatten changes nothing, so the ReLU ends the residual.
    let flattened = vec![
        dense(20),
        Layer::Relu,
        Layer::Residual { layers: vec![dense(20), Layer::Relu, Layer::Flatten] },
        dense(9),
    ];
    vec![
        case!("stack of colour images", images(3 * 24 * 24, 7), network(12, 20), 16, 0.1).loose(),
        case!("stack of large maps", images(3 * 26 * 26, 5), stack(large), 8, 0.05).loose(),
        case!("stack of small maps", tables(3 * 9, 4), stack(small), 10, 0.05).loose(),
        case!("stack with residuals", tables(256, 4), stack(residual), 10, 0.05).loose(),
        case!("stack with other pools", tables(3 * 81, 4), stack(pooled), 20, 0.05).loose(),
        case!("stack with norms", tables(30, 4), stack(normal), 16, 0.05).loose(),
        case!("stack with a flatten in a residual", tables(30, 4), stack(flattened), 10, 0.05).loose(),
        case!("stack of recurrent layers", words(7, 60, 5), stack(recurrent), 12, 0.2),
        case!("stack of a bag", words(7, 60, 5), stack(bag), 16, 0.2),
        case!("stack of one-hot texts", texts(4, 20), stack(flat), 16, 0.2),
        case!("stack on vectors", words(6, 60, 3), stack(vectors), 33, 0.2),
        case!("stack that is linear", tables(61, 10), stack(Vec::new()), 8, 0.05),
    ]
}
