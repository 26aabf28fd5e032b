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
    Bytes { dim: usize },
    Dense { dim: usize },
    /// Windows of a text. The label is the symbol after the window.
    Text { len: usize },
    /// Numbers of words.
    Words { len: usize },
}

/// A layer. Parameters are in the order of the layers, and within a layer in that of PyTorch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
    FrozenVectors { dim: usize },
    /// A trained vector per symbol.
    Embedding { symbols: usize, dim: usize },
    /// Recurrent units. The last state is the output. `symbols` is the alphabet of one-hot inputs.
    Recurrent { cell: Cell, hidden: usize, symbols: Option<usize> },
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

    /// Returns channels, height and width of the output.
    pub(crate) fn output(&self) -> [usize; 3] {
        let [height, width] = self.size().map(|side| if self.pool { side / 2 } else { side });
        [self.filters, height, width]
    }
}

/// A network that predicts classes. With one logit, the classes are 0 and 1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Network {
    pub(crate) input: NetworkInput,
    pub(crate) layers: Vec<Layer>,
    pub(crate) logits: usize,
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
        let network = |layers, logits| Ok(Self { input, layers, logits });
        let bias = setup.spec.options().truth("intercept") == Ok(true);
        if is(&LINEAR) {
            let layer = Layer::Dense { outputs: classes, bias, relu: false, transposed: true };
            network(vec![layer], classes)
        } else if is(&LOGISTIC) {
            network(vec![Layer::Dense { outputs: 1, bias, relu: false, transposed: false }], 1)
        } else if is(&PERCEPTRON) {
            let outputs = setup.size("hidden")?;
            let hidden = Layer::Dense { outputs, bias: true, relu: true, transposed: false };
            network(vec![hidden, full(classes)], classes)
        } else if is(&CONV_NET) {
            let channels = setup.spec.options().whole_pair("channels");
            let channels = channels.map_err(|error| setup.unsupported(error.to_string()))?;
            let side = super::super::linear::dim(kind).isqrt();
            let [first, second] = channels.map(|channels| convolution(channels as usize));
            let first = Convolution { input: [1, side, side], ..first };
            let second = Convolution { input: first.output(), ..second };
            let layers = vec![Layer::Convolution(first), Layer::Convolution(second), full(classes)];
            network(layers, classes)
        } else if is(&LSTM) {
            let dim = setup.federation.vectors().map_or(0, |vectors| vectors.dim);
            let units = Layer::Recurrent { cell: Cell::Lstm, hidden: setup.size("hidden")?, symbols: None };
            network(vec![Layer::FrozenVectors { dim }, units, full(1)], 1)
        } else if is(&GRU) {
            let symbols = match kind {
                InputKind::Windows { alphabet, .. } => alphabet,
                InputKind::Tokens { vocabulary, .. } => vocabulary,
                InputKind::Bytes { .. } | InputKind::Dense { .. } => 0,
            };
            let units = |symbols| Layer::Recurrent {
                cell: Cell::Gru,
                hidden: setup.size("hidden").unwrap_or(0),
                symbols,
            };
            let layers = match setup.size("embedding")? {
                0 => vec![units(Some(symbols)), full(classes)],
                dim => vec![Layer::Embedding { symbols, dim }, units(None), full(classes)],
            };
            network(layers, classes)
        } else {
            Err(setup.unsupported("of any shape"))
        }
    }
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
