//! The layers of a model, for the general engine.

use deltafl::data::InputKind;
use deltafl::model::{CONV_NET, GRU, LINEAR, LOGISTIC, LSTM, ModelDefinition, PERCEPTRON};

use crate::GpuError;
use crate::model::KernelSetup;

/// The side of the filters of the convolutional network.
const FILTER_SIDE: usize = 5;

/// The inputs of a network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NetworkInput {
    /// Grey levels, one byte each.
    Bytes {
        dim: usize,
    },
    Dense {
        dim: usize,
    },
    /// Windows of a text. The label is the symbol after the window.
    Text {
        len: usize,
    },
    /// Numbers of words.
    Words {
        len: usize,
    },
}

/// A layer. Parameters are in the order of the layers, and within a layer in that of PyTorch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Layer {
    Convolution(Convolution),
    Dense {
        outputs: usize,
        bias: bool,
        relu: bool,
        /// Whether the matrix is stored as inputs × outputs.
        transposed: bool,
    },
    /// The frozen word vectors of the federation.
    FrozenVectors {
        dim: usize,
    },
    /// A trained vector per symbol. If `padded`, the vector of symbol 0 remains zero.
    Embedding {
        symbols: usize,
        dim: usize,
        padded: bool,
    },
    Recurrent(Recurrent),
    Relu,
    Tanh,
    Gelu,
    Pool(Pool),
    Norm(Norm),
    /// x + f(x).
    Residual(Vec<Self>),
    /// The last step of a sequence. If `skips_padding`, the last step whose symbol is not 0.
    Last {
        skips_padding: bool,
    },
    /// The mean over the steps of a sequence. If `skips_padding`, over those whose symbol is not 0.
    Mean {
        skips_padding: bool,
    },
    /// A sequence as features, step by step.
    Flatten,
}

/// A recurrent layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Recurrent {
    pub(crate) cell: Cell,
    pub(crate) hidden: usize,
    /// The alphabet of one-hot inputs.
    pub(crate) symbols: Option<usize>,
    /// Whether the output is the state after each step. Otherwise it is the last state.
    pub(crate) sequence: bool,
}

/// Windows of the maps of an image: the largest entry or the mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pool {
    /// Channels, height and width of the input.
    pub(crate) input: [usize; 3],
    pub(crate) side: usize,
    pub(crate) stride: usize,
    pub(crate) is_max: bool,
}

impl Pool {
    /// Returns the number of windows along the height and the width.
    pub(crate) fn size(&self) -> [usize; 2] {
        let [_, height, width] = self.input;
        [height, width].map(|side| (side - self.side) / self.stride + 1)
    }
}

/// A normalisation of groups of channels, each of which has `cells` entries per row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Norm {
    pub(crate) channels: usize,
    pub(crate) cells: usize,
    pub(crate) groups: usize,
    /// Whether every entry has its own scale. Otherwise every channel has one.
    pub(crate) by_cell: bool,
}

/// The kind of recurrent units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cell {
    Gru,
    Lstm,
}

impl Cell {
    /// Returns the number of gates.
    pub(crate) fn gates(self) -> usize {
        match self {
            Self::Gru => 3,
            Self::Lstm => 4,
        }
    }
}

/// A convolution of a map, with max-pooling of 2 × 2 if `pool`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Convolution {
    /// Channels, height and width of the input.
    pub(crate) input: [usize; 3],
    pub(crate) filters: usize,
    pub(crate) side: usize,
    pub(crate) padding: usize,
    pub(crate) stride: usize,
    pub(crate) bias: bool,
    pub(crate) relu: bool,
    pub(crate) pool: bool,
}

impl Convolution {
    /// Returns height and width of the convolution.
    pub(crate) fn size(&self) -> [usize; 2] {
        let [_, height, width] = self.input;
        [height, width].map(|side| (side + 2 * self.padding - self.side) / self.stride + 1)
    }

    /// Returns the side of the windows of the pooling, 1 without pooling.
    pub(crate) fn pool_side(&self) -> usize {
        if self.pool { 2 } else { 1 }
    }

    /// Returns the height and width of the convolution without a last odd line or column, which the
    /// pooling omits.
    pub(crate) fn used_size(&self) -> [usize; 2] {
        self.size().map(|side| side / self.pool_side() * self.pool_side())
    }

    /// Returns channels, height and width of the output.
    pub(crate) fn output(&self) -> [usize; 3] {
        let [height, width] = self.size().map(|side| side / self.pool_side());
        [self.filters, height, width]
    }

    /// Returns the number of entries of a filter in one channel.
    pub(crate) fn taps(&self) -> usize {
        self.side * self.side
    }
}

/// A network that predicts classes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Network {
    pub(crate) input: NetworkInput,
    pub(crate) layers: Vec<Layer>,
    /// Whether one logit decides between the classes 0 and 1. Otherwise every class has a logit.
    pub(crate) is_logistic: bool,
}

impl Network {
    /// Returns the layers of a model on a federation.
    pub(crate) fn for_model(setup: &KernelSetup<'_>) -> Result<Self, GpuError> {
        let (kind, classes) = (setup.federation.kind(), setup.federation.classes());
        let is = |model: &'static ModelDefinition| std::ptr::eq(model, setup.spec.definition());
        let input = match kind {
            InputKind::Bytes { dim } => NetworkInput::Bytes { dim },
            InputKind::Dense { dim } => NetworkInput::Dense { dim },
            InputKind::Windows { len, .. } => NetworkInput::Text { len },
            InputKind::Tokens { len, .. } => NetworkInput::Words { len },
        };
        let full = |outputs| Layer::Dense { outputs, bias: true, relu: false, transposed: false };
        let network = |layers| Ok(Self { input, layers, is_logistic: false });
        let logistic = |layers| Ok(Self { input, layers, is_logistic: true });
        let bias = setup.spec.options().truth("intercept") == Ok(true);
        if is(&LINEAR) {
            let layer = Layer::Dense { outputs: classes, bias, relu: false, transposed: true };
            network(vec![layer])
        } else if is(&LOGISTIC) {
            logistic(vec![Layer::Dense { outputs: 1, bias, relu: false, transposed: false }])
        } else if is(&PERCEPTRON) {
            let outputs = setup.size("hidden")?;
            let hidden = Layer::Dense { outputs, bias: true, relu: true, transposed: false };
            network(vec![hidden, full(classes)])
        } else if is(&CONV_NET) {
            let channels = setup.spec.options().whole_pair("channels");
            let channels = channels.map_err(|error| setup.unsupported(error.to_string()))?;
            let side = super::super::linear::dim(kind).isqrt();
            let [first, second] = channels.map(|channels| convolution(channels as usize));
            let first = Convolution { input: [1, side, side], ..first };
            let second = Convolution { input: first.output(), ..second };
            network(vec![Layer::Convolution(first), Layer::Convolution(second), full(classes)])
        } else if is(&LSTM) {
            let dim = setup.federation.vectors().map_or(0, |vectors| vectors.dim);
            let units = last_state(Cell::Lstm, setup.size("hidden")?, None);
            logistic(vec![Layer::FrozenVectors { dim }, units, full(1)])
        } else if is(&GRU) {
            let symbols = match kind {
                InputKind::Windows { alphabet, .. } => alphabet,
                InputKind::Tokens { vocabulary, .. } => vocabulary,
                InputKind::Bytes { .. } | InputKind::Dense { .. } => 0,
            };
            let hidden = setup.size("hidden")?;
            let units = |symbols| last_state(Cell::Gru, hidden, symbols);
            let layers = match setup.size("embedding")? {
                0 => vec![units(Some(symbols)), full(classes)],
                dim => vec![Layer::Embedding { symbols, dim, padded: false }, units(None), full(classes)],
            };
            network(layers)
        } else {
            let stack = setup.spec.stack(setup.federation).ok().flatten();
            let network = stack.and_then(|stack| super::stack::network(&stack, input));
            network.ok_or_else(|| setup.unsupported("with these layers"))
        }
    }
}

/// Returns recurrent units whose last state is the output.
fn last_state(cell: Cell, hidden: usize, symbols: Option<usize>) -> Layer {
    Layer::Recurrent(Recurrent { cell, hidden, symbols, sequence: false })
}

/// Returns a layer of the convolutional network, without its input.
fn convolution(filters: usize) -> Convolution {
    Convolution {
        input: [1, 0, 0],
        filters,
        side: FILTER_SIDE,
        padding: 0,
        stride: 1,
        bias: true,
        relu: true,
        pool: true,
    }
}
