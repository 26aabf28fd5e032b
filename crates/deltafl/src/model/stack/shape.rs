//! The shapes of the activations of a stack, inferred from the data and the layers.

use std::fmt;

use super::Layer;
use crate::model::Tensor;

/// The shape of the activations of one example.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ActivationShape {
    /// Real features.
    Features(usize),
    /// An image. In parameters and in the data, its entries are in the order channel, row, column.
    Image {
        /// Entries per cell.
        channels: usize,
        /// Rows.
        height: usize,
        /// Columns.
        width: usize,
    },
    /// Words or symbols.
    Tokens {
        /// Words per example.
        len: usize,
        /// The number of words or symbols.
        vocabulary: usize,
        /// Whether word 0 is padding.
        padded: bool,
    },
    /// A vector per step.
    Sequence {
        /// Steps per example.
        len: usize,
        /// Entries of a vector.
        entries: usize,
        /// Whether the steps of word 0 are padding.
        padded: bool,
    },
}

impl ActivationShape {
    /// Returns the number of entries.
    pub fn len(self) -> usize {
        match self {
            Self::Features(features) => features,
            Self::Image { channels, height, width } => channels * height * width,
            Self::Tokens { len, .. } => len,
            Self::Sequence { len, entries, .. } => len * entries,
        }
    }

    /// Returns `true` if there are no entries.
    pub fn is_empty(self) -> bool {
        self.len() == 0
    }

    /// Returns its kind in words.
    fn noun(self) -> &'static str {
        match self {
            Self::Features(_) => "features",
            Self::Image { .. } => "images",
            Self::Tokens { .. } => "words",
            Self::Sequence { .. } => "sequences of vectors",
        }
    }
}

/// The entries per axis, such as `32 × 28 × 28`.
impl fmt::Display for ActivationShape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Features(features) => write!(f, "{features}"),
            Self::Image { channels, height, width } => write!(f, "{channels} × {height} × {width}"),
            Self::Tokens { len, .. } => write!(f, "{len} words"),
            Self::Sequence { len, entries, .. } => write!(f, "{len} × {entries}"),
        }
    }
}

/// A layer with the shapes around it.
#[derive(Clone, Debug, PartialEq)]
pub struct ShapedLayer {
    /// The layer.
    pub layer: Layer,
    /// The name of its tensors, such as `conv1`. Empty for a layer without parameters.
    pub name: String,
    /// The shape of its input.
    pub input: ActivationShape,
    /// The shape of its output.
    pub output: ActivationShape,
    /// The parameters of this layer and of those inside it.
    pub params: usize,
    /// Multiplications and additions of a forward pass of one example.
    pub operations: u64,
    /// The layers inside it.
    pub layers: Vec<Self>,
}

impl ShapedLayer {
    /// Returns its tensors in the order of w, with PyTorch's shapes.
    pub fn tensors(&self) -> Vec<Tensor> {
        let own = tensor_shapes(&self.layer, self.input);
        let own =
            own.into_iter().map(|(suffix, shape)| Tensor::new(&format!("{}.{suffix}", self.name), &shape));
        own.chain(self.layers.iter().flat_map(Self::tensors)).collect()
    }
}

/// Returns the shapes of the tensors of a layer, without those of layers inside it.
fn tensor_shapes(layer: &Layer, input: ActivationShape) -> Vec<(&'static str, Vec<usize>)> {
    use ActivationShape::{Features, Image, Sequence, Tokens};
    let affine = |shape: Vec<usize>| vec![("weight", shape.clone()), ("bias", shape)];
    let recurrent = |gates: usize, hidden: usize, entries: usize| {
        let rows = gates * hidden;
        let matrices = [("weight_ih_l0", vec![rows, entries]), ("weight_hh_l0", vec![rows, hidden])];
        matrices.into_iter().chain([("bias_ih_l0", vec![rows]), ("bias_hh_l0", vec![rows])]).collect()
    };
    match (layer, input) {
        (Layer::Dense { units, bias }, Features(inputs) | Sequence { entries: inputs, .. }) => {
            let bias = bias.then(|| ("bias", vec![*units]));
            std::iter::once(("weight", vec![*units, inputs])).chain(bias).collect()
        }
        (Layer::Conv2d { channels, size, .. }, Image { channels: inputs, .. }) => {
            vec![("weight", vec![*channels, inputs, *size, *size]), ("bias", vec![*channels])]
        }
        (Layer::GroupNorm { .. }, Image { channels, .. } | Features(channels)) => affine(vec![channels]),
        (Layer::LayerNorm, Image { channels, height, width }) => affine(vec![channels, height, width]),
        (Layer::LayerNorm, Features(entries) | Sequence { entries, .. }) => affine(vec![entries]),
        (Layer::Embedding { entries }, Tokens { vocabulary, .. }) => {
            vec![("weight", vec![vocabulary, *entries])]
        }
        (Layer::Lstm { hidden }, Sequence { entries, .. }) => recurrent(4, *hidden, entries),
        (Layer::Gru { hidden }, Sequence { entries, .. }) => recurrent(3, *hidden, entries),
        _ => Vec::new(),
    }
}

/// A layer that does not fit the output of the layer before it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("layer {} ({kind}): {reason}", path.iter().map(|i| (i + 1).to_string()).collect::<Vec<_>>().join("."))]
pub struct InvalidLayer {
    /// The position of the layer, counted from 0. A layer inside a residual has a further position.
    pub path: Vec<usize>,
    /// The kind of the layer.
    pub kind: &'static str,
    /// The reason.
    pub reason: String,
}

/// The most parameters of a stack.
const MOST: usize = 1 << 31;
/// The most entries of all activations of an example. A server cannot exhaust the memory of its
/// devices.
const MOST_ENTRIES: usize = 1 << 26;

/// Infers the shapes of layers. `data` describes the frozen vectors, if there are any.
pub(super) fn infer(
    layers: &[Layer],
    input: ActivationShape,
    vectors: Option<usize>,
) -> Result<Vec<ShapedLayer>, InvalidLayer> {
    let mut inference = ShapeInference { vectors, path: Vec::new(), params: 0, entries: 0 };
    let mut shaped = inference.sequence(layers, input)?;
    name(&mut shaped);
    Ok(shaped)
}

struct ShapeInference {
    /// Entries of the frozen word vectors.
    vectors: Option<usize>,
    path: Vec<usize>,
    /// The parameters and the entries of the activations up to here.
    params: usize,
    entries: usize,
}

impl ShapeInference {
    fn sequence(
        &mut self,
        layers: &[Layer],
        mut shape: ActivationShape,
    ) -> Result<Vec<ShapedLayer>, InvalidLayer> {
        let mut shaped = Vec::with_capacity(layers.len());
        for (i, layer) in layers.iter().enumerate() {
            self.path.push(i);
            let next = self.layer(layer, shape)?;
            self.path.pop();
            shape = next.output;
            shaped.push(next);
        }
        Ok(shaped)
    }

    fn refuse<T>(&self, layer: &Layer, reason: String) -> Result<T, InvalidLayer> {
        Err(InvalidLayer { path: self.path.clone(), kind: layer.kind(), reason })
    }

    fn layer(&mut self, layer: &Layer, input: ActivationShape) -> Result<ShapedLayer, InvalidLayer> {
        let output = match self.output(layer, input) {
            Ok(output) => output,
            Err(reason) => return self.refuse(layer, reason),
        };
        let product = |shape: &[usize]| shape.iter().fold(1usize, |len, &axis| len.saturating_mul(axis));
        let own = tensor_shapes(layer, input)
            .iter()
            .map(|(_, shape)| product(shape))
            .fold(0, usize::saturating_add);
        self.params = self.params.saturating_add(own);
        let entries = match output {
            ActivationShape::Features(features) => features,
            ActivationShape::Image { channels, height, width } => product(&[channels, height, width]),
            ActivationShape::Tokens { len, .. } => len,
            ActivationShape::Sequence { len, entries, .. } => product(&[len, entries]),
        };
        self.entries = self.entries.saturating_add(entries);
        if self.params > MOST || self.entries > MOST_ENTRIES {
            let reason = format!("more than {MOST} parameters, or {MOST_ENTRIES} entries of all outputs");
            return self.refuse(layer, reason);
        }
        let layers = self.sequence(layer.layers(), input)?;
        if let (Layer::Residual { .. }, Some(last)) = (layer, layers.last())
            && last.output != input
        {
            let reason = format!("its layers turn {input} into {}, which cannot be added", last.output);
            return self.refuse(layer, reason);
        }
        let inside: usize = layers.iter().map(|layer| layer.params).sum();
        let operations =
            operations(layer, input, output) + layers.iter().map(|layer| layer.operations).sum::<u64>();
        let (layer, name, params) = (layer.clone(), String::new(), own + inside);
        Ok(ShapedLayer { layer, name, input, output, params, operations, layers })
    }

    fn output(&self, layer: &Layer, input: ActivationShape) -> Result<ActivationShape, String> {
        use ActivationShape::{Features, Image, Sequence, Tokens};
        let needs = |what: &str| Err(format!("it needs {what}; its input is {} ({input})", input.noun()));
        match (layer, input) {
            (Layer::Dense { units, .. }, Features(_)) => Ok(Features(*units)),
            (Layer::Dense { units, .. }, Sequence { len, padded, .. }) => {
                Ok(Sequence { len, entries: *units, padded })
            }
            (Layer::Dense { .. }, Image { .. }) => needs("features: add a flatten layer before it"),
            (Layer::Dense { .. }, Tokens { .. }) => needs("features: add an embedding and mean or last"),
            (Layer::Conv2d { channels, size, stride, padding }, Image { height, width, .. }) => {
                let [height, width] = windows([height, width], *size, *stride, *padding)?;
                Ok(Image { channels: *channels, height, width })
            }
            (
                Layer::MaxPool { size, stride } | Layer::AvgPool { size, stride },
                Image { channels, height, width },
            ) => {
                let [height, width] = windows([height, width], *size, *stride, 0)?;
                Ok(Image { channels, height, width })
            }
            (Layer::Conv2d { .. } | Layer::MaxPool { .. } | Layer::AvgPool { .. }, _) => needs("images"),
            (Layer::GroupNorm { groups }, Image { channels, .. } | Features(channels)) => {
                match channels.is_multiple_of(*groups) {
                    true => Ok(input),
                    false => Err(format!("{groups} groups do not divide {channels} channels")),
                }
            }
            (Layer::GroupNorm { .. }, _) => needs("images or features"),
            (
                Layer::LayerNorm | Layer::Relu | Layer::Gelu | Layer::Tanh | Layer::Dropout { .. },
                Features(_) | Image { .. } | Sequence { .. },
            ) => Ok(input),
            (Layer::LayerNorm | Layer::Relu | Layer::Gelu | Layer::Tanh | Layer::Dropout { .. }, _) => {
                needs("real numbers: add an embedding before it")
            }
            (Layer::Embedding { entries }, Tokens { len, padded, .. }) => {
                Ok(Sequence { len, entries: *entries, padded })
            }
            (Layer::OneHot, Tokens { len, vocabulary, padded }) => {
                Ok(Sequence { len, entries: vocabulary, padded })
            }
            (Layer::WordVectors, Tokens { len, padded, .. }) => match self.vectors {
                Some(entries) => Ok(Sequence { len, entries, padded }),
                None => Err("the data has no word vectors: use an embedding".to_owned()),
            },
            (Layer::Embedding { .. } | Layer::OneHot | Layer::WordVectors, _) => needs("words or symbols"),
            (Layer::Lstm { hidden } | Layer::Gru { hidden }, Sequence { len, padded, .. }) => {
                Ok(Sequence { len, entries: *hidden, padded })
            }
            (Layer::Last { .. } | Layer::Mean, Sequence { entries, .. }) => Ok(Features(entries)),
            (Layer::Lstm { .. } | Layer::Gru { .. } | Layer::Last { .. } | Layer::Mean, Tokens { .. }) => {
                needs("a sequence of vectors: add an embedding before it")
            }
            (Layer::Lstm { .. } | Layer::Gru { .. } | Layer::Last { .. } | Layer::Mean, _) => {
                needs("a sequence of vectors")
            }
            (Layer::Flatten, Tokens { .. }) => needs("real numbers: add an embedding before it"),
            (Layer::Flatten, _) => Ok(Features(input.len())),
            (Layer::Residual { .. }, Tokens { .. }) => needs("real numbers: add an embedding before it"),
            (Layer::Residual { .. }, _) => Ok(input),
        }
    }
}

/// Returns the number of windows per side.
fn windows(sides: [usize; 2], size: usize, stride: usize, padding: usize) -> Result<[usize; 2], String> {
    let around = padding.checked_mul(2).filter(|_| padding < MOST);
    let along = |side: usize| Some((side.checked_add(around?)?.checked_sub(size)?) / stride + 1);
    if padding >= size {
        return Err(format!("a padding of {padding} is not smaller than the filters of side {size}"));
    }
    match sides.map(along) {
        [Some(height), Some(width)] => Ok([height, width]),
        _ => Err(format!("windows of side {size} do not fit into {} × {}", sides[0], sides[1])),
    }
}

/// Returns the multiplications and additions of a forward pass of one example.
fn operations(layer: &Layer, input: ActivationShape, output: ActivationShape) -> u64 {
    use ActivationShape::{Features, Image, Sequence};
    let (inputs, outputs) = (input.len() as u64, output.len() as u64);
    match (layer, input) {
        (Layer::Dense { .. }, Features(entries) | Sequence { entries, .. }) => 2 * entries as u64 * outputs,
        (Layer::Conv2d { size, .. }, Image { channels, .. }) => 2 * (size * size * channels) as u64 * outputs,
        (Layer::MaxPool { size, .. } | Layer::AvgPool { size, .. }, _) => (size * size) as u64 * outputs,
        (Layer::GroupNorm { .. } | Layer::LayerNorm, _) => 6 * outputs,
        (Layer::Relu | Layer::Gelu | Layer::Tanh | Layer::Residual { .. }, _) => outputs,
        (Layer::Lstm { hidden }, Sequence { entries, .. }) => 8 * (entries + hidden) as u64 * outputs,
        (Layer::Gru { hidden }, Sequence { entries, .. }) => 6 * (entries + hidden) as u64 * outputs,
        (Layer::Mean, _) => inputs,
        _ => 0,
    }
}

/// Names the tensors: the kind, and a number if there are several of the kind. Convolutions and
/// normalisations always have a number.
fn name(layers: &mut [ShapedLayer]) {
    fn stem(layer: &Layer) -> Option<(&'static str, bool)> {
        match layer {
            Layer::Dense { .. } => Some(("fc", false)),
            Layer::Conv2d { .. } => Some(("conv", true)),
            Layer::GroupNorm { .. } | Layer::LayerNorm => Some(("norm", true)),
            Layer::Embedding { .. } => Some(("embedding", false)),
            Layer::Lstm { .. } => Some(("lstm", false)),
            Layer::Gru { .. } => Some(("gru", false)),
            _ => None,
        }
    }
    fn count(layers: &[ShapedLayer], stem_name: &str) -> usize {
        let own =
            |layer: &ShapedLayer| usize::from(stem(&layer.layer).is_some_and(|(name, _)| name == stem_name));
        layers.iter().map(|layer| own(layer) + count(&layer.layers, stem_name)).sum()
    }
    fn assign(layers: &mut [ShapedLayer], totals: &dyn Fn(&str) -> usize, given: &mut Vec<&'static str>) {
        for layer in layers {
            if let Some((stem, always)) = stem(&layer.layer) {
                given.push(stem);
                let number = given.iter().filter(|name| **name == stem).count();
                let is_numbered = always || totals(stem) > 1;
                layer.name = if is_numbered { format!("{stem}{number}") } else { stem.to_owned() };
            }
            assign(&mut layer.layers, totals, given);
        }
    }
    let all = layers.to_vec();
    assign(layers, &|stem| count(&all, stem), &mut Vec::new());
}
