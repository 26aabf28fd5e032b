//! ONNX graphs of stacks of layers.
//!
//! Activations have PyTorch's layouts: images are batch × channels × rows × columns, and sequences
//! are batch × steps × entries.

use deltafl::model::NamedTensor;
use deltafl::model::stack::{ActivationShape, Layer, ShapedLayer, Stack};

use super::{Attribute, FLOAT, GraphBuilder, reordered, tensor};

/// Adds the layers of a stack, and returns the name of the outputs.
///
/// `vectors` are the frozen word vectors of the data: their values and the entries of each.
pub(super) fn layers(
    builder: &mut GraphBuilder,
    x: &str,
    stack: &Stack,
    tensors: &[NamedTensor],
    vectors: Option<(&[f32], usize)>,
) -> Option<String> {
    let mut graph = StackGraph { builder, tensors, vectors, words: x.to_owned() };
    let x = match stack.input {
        ActivationShape::Image { channels, height, width } => {
            let shape = graph.builder.integers("image", &[-1, channels as i64, height as i64, width as i64]);
            graph.builder.node("Reshape", &[x, &shape], &[])
        }
        _ => x.to_owned(),
    };
    graph.sequence(&stack.layers, x)
}

struct StackGraph<'a> {
    builder: &'a mut GraphBuilder,
    tensors: &'a [NamedTensor],
    vectors: Option<(&'a [f32], usize)>,
    /// The input, which contains the words of texts.
    words: String,
}

impl StackGraph<'_> {
    fn sequence(&mut self, layers: &[ShapedLayer], mut x: String) -> Option<String> {
        for layer in layers {
            x = self.layer(layer, x)?;
        }
        Some(x)
    }

    /// Adds a tensor of a layer as an initializer, and returns its name.
    fn tensor(&mut self, layer: &ShapedLayer, suffix: &str) -> Option<String> {
        let found = tensor(self.tensors, &format!("{}.{suffix}", layer.name))?;
        Some(self.builder.floats(&found.name, &found.shape, &found.values))
    }

    /// Returns a new name for an initializer.
    fn name(&self, stem: &str) -> String {
        format!("{stem}_{}", self.builder.graph.initializer.len())
    }

    fn floats(&mut self, stem: &str, dims: &[usize], values: &[f32]) -> String {
        let name = self.name(stem);
        self.builder.floats(&name, dims, values)
    }

    fn integers(&mut self, stem: &str, values: &[i64]) -> String {
        let name = self.name(stem);
        self.builder.integers(&name, values)
    }

    fn layer(&mut self, layer: &ShapedLayer, x: String) -> Option<String> {
        let pair = |value: &usize| [*value as i64, *value as i64];
        Some(match &layer.layer {
            Layer::Dense { bias, .. } => self.dense(layer, &x, *bias)?,
            Layer::Conv2d { size, stride, padding, .. } => {
                let (weight, bias) = (self.tensor(layer, "weight")?, self.tensor(layer, "bias")?);
                let (kernel, strides, pads) = (pair(size), pair(stride), [*padding as i64; 4]);
                let attributes = [
                    ("kernel_shape", Attribute::Ints(&kernel)),
                    ("strides", Attribute::Ints(&strides)),
                    ("pads", Attribute::Ints(&pads)),
                ];
                self.builder.node("Conv", &[&x, &weight, &bias], &attributes)
            }
            Layer::MaxPool { size, stride } | Layer::AvgPool { size, stride } => {
                let (kernel, strides) = (pair(size), pair(stride));
                let attributes =
                    [("kernel_shape", Attribute::Ints(&kernel)), ("strides", Attribute::Ints(&strides))];
                let is_max = matches!(layer.layer, Layer::MaxPool { .. });
                self.builder.node(if is_max { "MaxPool" } else { "AveragePool" }, &[&x], &attributes)
            }
            Layer::GroupNorm { groups } => self.group_norm(layer, &x, *groups)?,
            Layer::LayerNorm => {
                let (weight, bias) = (self.tensor(layer, "weight")?, self.tensor(layer, "bias")?);
                let axis = if matches!(layer.input, ActivationShape::Image { .. }) { 1 } else { -1 };
                let attributes = [("axis", Attribute::Int(axis))];
                self.builder.node("LayerNormalization", &[&x, &weight, &bias], &attributes)
            }
            Layer::Relu => self.builder.node("Relu", &[&x], &[]),
            Layer::Tanh => self.builder.node("Tanh", &[&x], &[]),
            Layer::Gelu => {
                let constants = [std::f32::consts::FRAC_1_SQRT_2, 1.0, 0.5];
                let [root, one, half] = constants.map(|value| self.floats("gelu", &[1], &[value]));
                let scaled = self.builder.node("Mul", &[&x, &root], &[]);
                let erf = self.builder.node("Erf", &[&scaled], &[]);
                let sum = self.builder.node("Add", &[&erf, &one], &[]);
                let share = self.builder.node("Mul", &[&sum, &half], &[]);
                self.builder.node("Mul", &[&x, &share], &[])
            }
            // Nothing is random in a prediction.
            Layer::Dropout { .. } => x,
            Layer::Embedding { .. } => {
                let weight = self.tensor(layer, "weight")?;
                self.builder.node("Gather", &[&weight, &x], &[])
            }
            Layer::WordVectors => {
                let (values, entries) = self.vectors?;
                let vectors = self.floats("vectors", &[values.len() / entries.max(1), entries], values);
                self.builder.node("Gather", &[&vectors, &x], &[])
            }
            Layer::OneHot => {
                let ActivationShape::Tokens { vocabulary, .. } = layer.input else { return None };
                let one = |i: usize| if i / vocabulary == i % vocabulary { 1.0 } else { 0.0 };
                let units: Vec<f32> = (0..vocabulary * vocabulary).map(one).collect();
                let units = self.floats("units", &[vocabulary, vocabulary], &units);
                self.builder.node("Gather", &[&units, &x], &[])
            }
            // PyTorch's gates i, f, g, o in ONNX's order i, o, f, c; and r, z, n in the order z, r,
            // h.
            Layer::Lstm { hidden } => self.recurrent(layer, "LSTM", &x, *hidden, &[0, 3, 1, 2])?,
            Layer::Gru { hidden } => self.recurrent(layer, "GRU", &x, *hidden, &[1, 0, 2])?,
            Layer::Last { padding } => self.last(layer, &x, *padding)?,
            Layer::Mean => self.mean(layer, &x)?,
            Layer::Flatten => self.builder.node("Flatten", &[&x], &[("axis", Attribute::Int(1))]),
            Layer::Residual { .. } => {
                let inner = self.sequence(&layer.layers, x.clone())?;
                self.builder.node("Add", &[&x, &inner], &[])
            }
            _ => return None,
        })
    }

    fn dense(&mut self, layer: &ShapedLayer, x: &str, has_bias: bool) -> Option<String> {
        let weight = self.tensor(layer, "weight")?;
        let bias = if has_bias { Some(self.tensor(layer, "bias")?) } else { None };
        if let ActivationShape::Sequence { .. } = layer.input {
            let transposed =
                self.builder.node("Transpose", &[&weight], &[("perm", Attribute::Ints(&[1, 0]))]);
            let product = self.builder.node("MatMul", &[x, &transposed], &[]);
            return Some(match bias {
                Some(bias) => self.builder.node("Add", &[&product, &bias], &[]),
                None => product,
            });
        }
        let inputs: Vec<&str> = [x, weight.as_str()].into_iter().chain(bias.as_deref()).collect();
        Some(self.builder.node("Gemm", &inputs, &[("transB", Attribute::Int(1))]))
    }

    /// Normalises each group as an instance, then scales the channels.
    fn group_norm(&mut self, layer: &ShapedLayer, x: &str, groups: usize) -> Option<String> {
        let (shape, affine): (Vec<i64>, Vec<usize>) = match layer.input {
            ActivationShape::Image { channels, height, width } => {
                (vec![-1, channels as i64, height as i64, width as i64], vec![channels, 1, 1])
            }
            ActivationShape::Features(features) => (vec![-1, features as i64], vec![features]),
            _ => return None,
        };
        let grouped = self.integers("groups", &[0, groups as i64, -1]);
        let back = self.integers("shape", &shape);
        let ones = self.floats("ones", &[groups], &vec![1.0; groups]);
        let zeros = self.floats("zeros", &[groups], &vec![0.0; groups]);
        let x = self.builder.node("Reshape", &[x, &grouped], &[]);
        let x = self.builder.node("InstanceNormalization", &[&x, &ones, &zeros], &[]);
        let x = self.builder.node("Reshape", &[&x, &back], &[]);
        let weight = tensor(self.tensors, &format!("{}.weight", layer.name))?;
        let bias = tensor(self.tensors, &format!("{}.bias", layer.name))?;
        let weight = self.builder.floats(&weight.name, &affine, &weight.values);
        let bias = self.builder.floats(&bias.name, &affine, &bias.values);
        let scaled = self.builder.node("Mul", &[&x, &weight], &[]);
        Some(self.builder.node("Add", &[&scaled, &bias], &[]))
    }

    /// Adds a recurrent layer, whose steps are outermost in ONNX.
    fn recurrent(
        &mut self,
        layer: &ShapedLayer,
        op: &str,
        x: &str,
        hidden: usize,
        order: &[usize],
    ) -> Option<String> {
        let find = |name: &str| tensor(self.tensors, &format!("{}.{name}_l0", layer.name));
        let (w, r) = (find("weight_ih")?, find("weight_hh")?);
        let (rows, inputs) = (w.shape[0], w.shape[1]);
        let (w, r) = (reordered(w, order), reordered(r, order));
        let mut bias = reordered(find("bias_ih")?, order);
        bias.extend(reordered(find("bias_hh")?, order));
        let w = self.floats("W", &[1, rows, inputs], &w);
        let r = self.floats("R", &[1, rows, hidden], &r);
        let bias = self.floats("B", &[1, 2 * rows], &bias);
        let by_step = self.builder.node("Transpose", &[x], &[("perm", Attribute::Ints(&[1, 0, 2]))]);
        let mut attributes = vec![("hidden_size", Attribute::Int(hidden as i64))];
        if op == "GRU" {
            attributes.push(("linear_before_reset", Attribute::Int(1)));
        }
        let states = self.builder.node(op, &[&by_step, &w, &r, &bias], &attributes);
        let direction = self.integers("direction", &[1]);
        let states = self.builder.node("Squeeze", &[&states, &direction], &[]);
        Some(self.builder.node("Transpose", &[&states], &[("perm", Attribute::Ints(&[1, 0, 2]))]))
    }

    /// Returns 1 for each word and 0 for padding, as floats.
    fn is_word(&mut self) -> String {
        let zero = self.integers("padding", &[0]);
        let is_word = self.builder.node("Greater", &[&self.words.clone(), &zero], &[]);
        self.builder.node("Cast", &[&is_word], &[("to", Attribute::Int(FLOAT.into()))])
    }

    /// Returns the sum of the steps of a sequence, each with its factor.
    fn weighted_sum(&mut self, x: &str, factors: &str) -> String {
        let [last, time] = [self.integers("last", &[2]), self.integers("time", &[1])];
        let factors = self.builder.node("Unsqueeze", &[factors, &last], &[]);
        let products = self.builder.node("Mul", &[x, &factors], &[]);
        self.builder.node("ReduceSum", &[&products, &time], &[("keepdims", Attribute::Int(0))])
    }

    fn last(&mut self, layer: &ShapedLayer, x: &str, reads_padding: bool) -> Option<String> {
        let ActivationShape::Sequence { len, entries, padded } = layer.input else { return None };
        if reads_padding || !padded {
            let index = self.integers("step", &[len as i64 - 1]);
            let step = self.builder.node("Gather", &[x, &index], &[("axis", Attribute::Int(1))]);
            let shape = self.integers("shape", &[-1, entries as i64]);
            return Some(self.builder.node("Reshape", &[&step, &shape], &[]));
        }
        let numbers: Vec<f32> = (0..len).map(|t| t as f32).collect();
        let numbers = self.floats("steps", &[1, len], &numbers);
        let is_word = self.is_word();
        let numbered = self.builder.node("Mul", &[&is_word, &numbers], &[]);
        let attributes = [("axes", Attribute::Ints(&[1])), ("keepdims", Attribute::Int(1))];
        let last = self.builder.node("ReduceMax", &[&numbered], &attributes);
        let is_last = self.builder.node("Equal", &[&numbers, &last], &[]);
        let is_last = self.builder.node("Cast", &[&is_last], &[("to", Attribute::Int(FLOAT.into()))]);
        Some(self.weighted_sum(x, &is_last))
    }

    fn mean(&mut self, layer: &ShapedLayer, x: &str) -> Option<String> {
        let ActivationShape::Sequence { padded, .. } = layer.input else { return None };
        if !padded {
            let attributes = [("axes", Attribute::Ints(&[1])), ("keepdims", Attribute::Int(0))];
            return Some(self.builder.node("ReduceMean", &[x], &attributes));
        }
        let is_word = self.is_word();
        let sum = self.weighted_sum(x, &is_word);
        let [time, one] = [self.integers("time", &[1]), self.floats("one_word", &[1], &[1.0])];
        let count = self.builder.node("ReduceSum", &[&is_word, &time], &[("keepdims", Attribute::Int(1))]);
        let count = self.builder.node("Max", &[&count, &one], &[]);
        Some(self.builder.node("Div", &[&sum, &count], &[]))
    }
}
