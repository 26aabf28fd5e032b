//! ONNX: the network of a model with its preparation, for onnxruntime and other programs.
//!
//! The messages are the part of `onnx.proto` that these graphs need. A table with categories or
//! missing values has an input per column. Other data has one input of all features or words.

use deltafl::data::{DataContract, FeatureColumn, Federation, InputKind, MISSING};
use deltafl::model::stack::Stack;
use deltafl::model::{Model, NamedTensor, state_dict};
use deltafl::task::Task;
use prost::Message as _;

mod messages;
mod stack;

use messages::{
    OnnxAttribute, OnnxDim, OnnxGraph, OnnxModel, OnnxNode, OnnxOpset, OnnxProperty, OnnxShape, OnnxTensor,
    OnnxTensorType, OnnxType, OnnxValue,
};

/// The version of the operators.
pub(super) const OPSET: i64 = 17;

const FLOAT: i32 = 1;
const INT64: i32 = 7;
const STRING: i32 = 8;

/// A graph that is being built.
#[derive(Default)]
struct GraphBuilder {
    graph: OnnxGraph,
    uses_ml: bool,
}

/// A value of an attribute.
enum Attribute<'a> {
    Int(i64),
    Ints(&'a [i64]),
    Strings(&'a [String]),
}

impl GraphBuilder {
    fn input(&mut self, name: &str, elem_type: i32, width: usize) {
        self.graph.input.push(value_info(name, elem_type, Some(width)));
    }

    fn floats(&mut self, name: &str, dims: &[usize], values: &[f32]) -> String {
        let raw_data = values.iter().flat_map(|x| x.to_le_bytes()).collect();
        self.initializer(name, dims, FLOAT, raw_data)
    }

    fn integers(&mut self, name: &str, values: &[i64]) -> String {
        let raw_data = values.iter().flat_map(|x| x.to_le_bytes()).collect();
        self.initializer(name, &[values.len()], INT64, raw_data)
    }

    fn initializer(&mut self, name: &str, dims: &[usize], data_type: i32, raw_data: Vec<u8>) -> String {
        let dims = dims.iter().map(|&dim| dim as i64).collect();
        self.graph.initializer.push(OnnxTensor { dims, data_type, name: name.to_owned(), raw_data });
        name.to_owned()
    }

    /// Adds a node with one output and returns the name of the output.
    fn node(&mut self, op: &str, inputs: &[&str], attributes: &[(&str, Attribute<'_>)]) -> String {
        let name = format!("{}_{}", op.to_lowercase(), self.graph.node.len());
        self.named(op, inputs, &name, attributes);
        name
    }

    fn named(&mut self, op: &str, inputs: &[&str], output: &str, attributes: &[(&str, Attribute<'_>)]) {
        let attribute = |(name, value): &(&str, Attribute<'_>)| {
            let mut attribute = OnnxAttribute { name: (*name).to_owned(), ..OnnxAttribute::default() };
            match value {
                Attribute::Int(i) => (attribute.i, attribute.kind) = (Some(*i), 2),
                Attribute::Ints(ints) => (attribute.ints, attribute.kind) = (ints.to_vec(), 7),
                Attribute::Strings(texts) => {
                    attribute.strings = texts.iter().map(|text| text.as_bytes().to_vec()).collect();
                    attribute.kind = 8;
                }
            }
            attribute
        };
        let is_ml = op == "OneHotEncoder";
        self.uses_ml |= is_ml;
        self.graph.node.push(OnnxNode {
            input: inputs.iter().map(|&input| input.to_owned()).collect(),
            output: vec![output.to_owned()],
            name: format!("node_{}", self.graph.node.len()),
            op_type: op.to_owned(),
            attribute: attributes.iter().map(attribute).collect(),
            domain: if is_ml { "ai.onnx.ml".to_owned() } else { String::new() },
        });
    }

    /// Computes xWᵀ + b with tensors of these names.
    fn gemm(&mut self, x: &str, layer: &str) -> String {
        let (weight, bias) = (format!("{layer}.weight"), format!("{layer}.bias"));
        let has_bias = self.graph.initializer.iter().any(|tensor| tensor.name == bias);
        let inputs: Vec<&str> = if has_bias { vec![x, &weight, &bias] } else { vec![x, &weight] };
        self.node("Gemm", &inputs, &[("transB", Attribute::Int(1))])
    }
}

fn value_info(name: &str, elem_type: i32, width: Option<usize>) -> OnnxValue {
    let batch = OnnxDim { value: None, name: Some("batch".to_owned()) };
    let width = width.map(|width| OnnxDim { value: Some(width as i64), name: None });
    let shape = OnnxShape { dim: std::iter::once(batch).chain(width).collect() };
    let tensor = OnnxTensorType { elem_type, shape: Some(shape) };
    OnnxValue { name: name.to_owned(), kind: Some(OnnxType { tensor: Some(tensor) }) }
}

/// Encodes a model with the preparation of its inputs. Returns `None` for a model without a graph.
///
/// The federation provides frozen word vectors; an empty one of the same shape will do for other
/// models.
pub(super) fn encode(
    kind: &str,
    stack: Option<&Stack>,
    model: &dyn Model,
    params: &[f32],
    contract: &DataContract,
    federation: &Federation,
) -> Option<Vec<u8>> {
    let mut builder = GraphBuilder::default();
    let tensors = state_dict(model, params);
    let x = inputs(&mut builder, contract);
    if stack.is_none() && !matches!(kind, "gru" | "lstm") {
        add_tensors(&mut builder, &tensors);
    }
    let output = match kind {
        "linear" if contract.classes == 0 => {
            let z = builder.gemm(&x, "fc");
            builder.named("Identity", &[&z], "prediction", &[]);
            ("prediction", 1)
        }
        "linear" => {
            let z = builder.gemm(&x, "fc");
            softmax(&mut builder, &z, contract.classes)
        }
        "logistic" => {
            let z = builder.gemm(&x, "fc");
            sigmoid(&mut builder, &z)
        }
        "conv-net" => {
            let z = conv_net(&mut builder, &x, contract)?;
            softmax(&mut builder, &z, contract.classes)
        }
        "text-bag" => {
            let z = text_bag(&mut builder, &x);
            softmax(&mut builder, &z, contract.classes)
        }
        "gru" => {
            let z = gru(&mut builder, &x, &tensors, contract)?;
            softmax(&mut builder, &z, contract.classes)
        }
        "lstm" => {
            let z = lstm(&mut builder, &x, &tensors, federation)?;
            sigmoid(&mut builder, &z)
        }
        _ => {
            let stack = stack?;
            let vectors = federation.vectors().map(|vectors| (&vectors.values[..], vectors.dim));
            let z = stack::layers(&mut builder, &x, stack, &tensors, vectors)?;
            match stack.task {
                Task::Binary => sigmoid(&mut builder, &z),
                Task::Regression(_) => {
                    builder.named("Identity", &[&z], "prediction", &[]);
                    ("prediction", 1)
                }
                _ => softmax(&mut builder, &z, contract.classes),
            }
        }
    };
    builder.graph.output.push(value_info(output.0, FLOAT, Some(output.1)));
    Some(finish(builder, kind, contract))
}

fn finish(mut builder: GraphBuilder, kind: &str, contract: &DataContract) -> Vec<u8> {
    builder.graph.name = kind.to_owned();
    let mut opset_import = vec![OnnxOpset { domain: String::new(), version: OPSET }];
    if builder.uses_ml {
        opset_import.push(OnnxOpset { domain: "ai.onnx.ml".to_owned(), version: 3 });
    }
    let property = |key: &str, value: String| OnnxProperty { key: key.to_owned(), value };
    let contract_json = String::from_utf8(contract.to_bytes()).unwrap_or_default();
    let model = OnnxModel {
        ir_version: 8,
        producer_name: "deltafl".to_owned(),
        graph: Some(builder.graph),
        opset_import,
        metadata_props: vec![
            property("classes", contract.class_names.join("\n")),
            property("contract", contract_json),
        ],
    };
    model.encode_to_vec()
}

fn add_tensors(builder: &mut GraphBuilder, tensors: &[NamedTensor]) {
    for tensor in tensors {
        builder.floats(&tensor.name, &tensor.shape, &tensor.values);
    }
}

fn softmax(builder: &mut GraphBuilder, logits: &str, classes: usize) -> (&'static str, usize) {
    builder.named("Softmax", &[logits], "probabilities", &[("axis", Attribute::Int(1))]);
    ("probabilities", classes)
}

/// The probabilities of the classes 0 and 1 from the logit of class 1.
fn sigmoid(builder: &mut GraphBuilder, logit: &str) -> (&'static str, usize) {
    let one = builder.floats("one", &[1], &[1.0]);
    let second = builder.node("Sigmoid", &[logit], &[]);
    let first = builder.node("Sub", &[&one, &second], &[]);
    builder.named("Concat", &[&first, &second], "probabilities", &[("axis", Attribute::Int(1))]);
    ("probabilities", 2)
}

/// Declares the inputs, and returns the name of the prepared features or of the words.
fn inputs(builder: &mut GraphBuilder, contract: &DataContract) -> String {
    let (dim, unit) = match contract.inputs {
        InputKind::Tokens { len, .. } | InputKind::Windows { len, .. } => {
            builder.input("words", INT64, len);
            return "words".to_owned();
        }
        InputKind::Bytes { dim } => (dim, 1.0 / 255.0),
        InputKind::Dense { dim } => (dim, 1.0),
    };
    let is_plain = contract.columns.iter().all(FeatureColumn::is_plain);
    let width: usize = contract.columns.iter().map(FeatureColumn::width).sum();
    let raw = if is_plain || width != dim {
        builder.input("input", FLOAT, dim);
        "input".to_owned()
    } else {
        columns(builder, &contract.columns)
    };
    match &contract.normalisation {
        Some(normalisation) => {
            let scale = builder.floats("scale", &[dim], &normalisation.scale);
            let shift = builder.floats("shift", &[dim], &normalisation.shift);
            let scaled = builder.node("Mul", &[&raw, &scale], &[]);
            builder.node("Add", &[&scaled, &shift], &[])
        }
        None if unit < 1.0 => {
            let scale = builder.floats("scale", &[1], &[unit]);
            builder.node("Mul", &[&raw, &scale], &[])
        }
        None => raw,
    }
}

/// Declares an input per column of a table, and returns the features of all columns.
fn columns(builder: &mut GraphBuilder, columns: &[FeatureColumn]) -> String {
    let mut features = Vec::new();
    for (i, column) in columns.iter().enumerate() {
        if column.categories.is_empty() {
            builder.input(&column.name, FLOAT, 1);
            let is_missing = builder.node("IsNaN", &[&column.name], &[]);
            let fill = builder.floats(&format!("fill_{i}"), &[1], &[column.fill.unwrap_or(0.0)]);
            features.push(builder.node("Where", &[&is_missing, &fill, &column.name], &[]));
            if column.indicator {
                features.push(builder.node("Cast", &[&is_missing], &[("to", Attribute::Int(FLOAT.into()))]));
            }
            continue;
        }
        builder.input(&column.name, STRING, 1);
        // An empty text is a missing value.
        let categories: Vec<String> = column
            .categories
            .iter()
            .map(|category| if category == MISSING { String::new() } else { category.clone() })
            .collect();
        let attributes = [("cats_strings", Attribute::Strings(&categories)), ("zeros", Attribute::Int(1))];
        let hot = builder.node("OneHotEncoder", &[&column.name], &attributes);
        let shape = builder.integers(&format!("shape_{i}"), &[-1, categories.len() as i64]);
        let hot = builder.node("Reshape", &[&hot, &shape], &[]);
        features.push(hot.clone());
        if column.other {
            let axes = builder.integers(&format!("axes_{i}"), &[1]);
            let known = builder.node("ReduceSum", &[&hot, &axes], &[]);
            let one = builder.floats(&format!("one_{i}"), &[1], &[1.0]);
            features.push(builder.node("Sub", &[&one, &known], &[]));
        }
    }
    let features: Vec<&str> = features.iter().map(String::as_str).collect();
    builder.node("Concat", &features, &[("axis", Attribute::Int(1))])
}

fn conv_net(builder: &mut GraphBuilder, x: &str, contract: &DataContract) -> Option<String> {
    let (InputKind::Bytes { dim } | InputKind::Dense { dim }) = contract.inputs else { return None };
    let side = dim.isqrt() as i64;
    let shape = builder.integers("image", &[-1, 1, side, side]);
    let mut x = builder.node("Reshape", &[x, &shape], &[]);
    for layer in ["conv1", "conv2"] {
        let (weight, bias) = (format!("{layer}.weight"), format!("{layer}.bias"));
        x = builder.node("Conv", &[&x, &weight, &bias], &[]);
        x = builder.node("Relu", &[&x], &[]);
        let pool = [("kernel_shape", Attribute::Ints(&[2, 2])), ("strides", Attribute::Ints(&[2, 2]))];
        x = builder.node("MaxPool", &[&x], &pool);
    }
    let x = builder.node("Flatten", &[&x], &[("axis", Attribute::Int(1))]);
    Some(builder.gemm(&x, "fc"))
}

/// The mean of the vectors of the words, without padding.
fn text_bag(builder: &mut GraphBuilder, words: &str) -> String {
    let zero = builder.integers("padding", &[0]);
    let axes = builder.integers("time", &[1]);
    let last = builder.integers("last", &[2]);
    let one = builder.floats("one_word", &[1], &[1.0]);
    let is_word = builder.node("Greater", &[words, &zero], &[]);
    let is_word = builder.node("Cast", &[&is_word], &[("to", Attribute::Int(FLOAT.into()))]);
    let vectors = builder.node("Gather", &["embedding.weight", words], &[]);
    let mask = builder.node("Unsqueeze", &[&is_word, &last], &[]);
    let masked = builder.node("Mul", &[&vectors, &mask], &[]);
    let sum = builder.node("ReduceSum", &[&masked, &axes], &[("keepdims", Attribute::Int(0))]);
    let count = builder.node("ReduceSum", &[&is_word, &axes], &[("keepdims", Attribute::Int(1))]);
    let count = builder.node("Max", &[&count, &one], &[]);
    let mean = builder.node("Div", &[&sum, &count], &[]);
    builder.gemm(&mean, "fc")
}

fn tensor<'t>(tensors: &'t [NamedTensor], name: &str) -> Option<&'t NamedTensor> {
    tensors.iter().find(|tensor| tensor.name == name)
}

/// Reorders the gates of a tensor of `order.len()` blocks of rows.
fn reordered(tensor: &NamedTensor, order: &[usize]) -> Vec<f32> {
    let block = tensor.values.len() / order.len();
    order.iter().flat_map(|&gate| tensor.values[gate * block..(gate + 1) * block].iter().copied()).collect()
}

/// Adds the weights of a recurrent layer under the names W, R and B, with the gates in ONNX's
/// order.
fn recurrent(
    builder: &mut GraphBuilder,
    tensors: &[NamedTensor],
    layer: &str,
    order: &[usize],
) -> Option<usize> {
    let find = |name: &str| tensor(tensors, &format!("{layer}.{name}_l0"));
    let (w, r) = (find("weight_ih")?, find("weight_hh")?);
    let (rows, inputs, hidden) = (w.shape[0], w.shape[1], r.shape[1]);
    builder.floats("W", &[1, rows, inputs], &reordered(w, order));
    builder.floats("R", &[1, rows, hidden], &reordered(r, order));
    let mut bias = reordered(find("bias_ih")?, order);
    bias.extend(reordered(find("bias_hh")?, order));
    builder.floats("B", &[1, 2 * rows], &bias);
    for name in ["fc.weight", "fc.bias"] {
        let tensor = tensor(tensors, name)?;
        builder.floats(name, &tensor.shape, &tensor.values);
    }
    Some(hidden)
}

/// Returns the last state of a recurrent layer over vectors of shape batch × time × entries.
fn last_state(builder: &mut GraphBuilder, op: &str, vectors: &str, hidden: usize) -> String {
    let by_time = builder.node("Transpose", &[vectors], &[("perm", Attribute::Ints(&[1, 0, 2]))]);
    let mut attributes = vec![("hidden_size", Attribute::Int(hidden as i64))];
    if op == "GRU" {
        attributes.push(("linear_before_reset", Attribute::Int(1)));
    }
    let name = format!("{}_states", op.to_lowercase());
    builder.named(op, &[&by_time, "W", "R", "B"], &name, &attributes);
    // The second output is the last state, of shape 1 × batch × hidden.
    let last = format!("{name}_last");
    if let Some(node) = builder.graph.node.last_mut() {
        node.output.push(last.clone());
    }
    let axes = builder.integers("direction", &[0]);
    builder.node("Squeeze", &[&last, &axes], &[])
}

/// PyTorch's gates r, z, n in ONNX's order z, r, h.
fn gru(
    builder: &mut GraphBuilder,
    words: &str,
    tensors: &[NamedTensor],
    contract: &DataContract,
) -> Option<String> {
    let hidden = recurrent(builder, tensors, "gru", &[1, 0, 2])?;
    let symbols = match contract.inputs {
        InputKind::Windows { alphabet, .. } => alphabet,
        InputKind::Tokens { vocabulary, .. } => vocabulary,
        _ => return None,
    };
    let (dims, values) = match tensor(tensors, "embedding.weight") {
        Some(embedding) => (embedding.shape.clone(), embedding.values.clone()),
        None => {
            let one = |i: usize| if i / symbols == i % symbols { 1.0 } else { 0.0 };
            (vec![symbols, symbols], (0..symbols * symbols).map(one).collect())
        }
    };
    builder.floats("embedding.weight", &dims, &values);
    let vectors = builder.node("Gather", &["embedding.weight", words], &[]);
    let state = last_state(builder, "GRU", &vectors, hidden);
    Some(builder.gemm(&state, "fc"))
}

/// PyTorch's gates i, f, g, o in ONNX's order i, o, f, c.
fn lstm(
    builder: &mut GraphBuilder,
    words: &str,
    tensors: &[NamedTensor],
    federation: &Federation,
) -> Option<String> {
    let hidden = recurrent(builder, tensors, "lstm", &[0, 3, 1, 2])?;
    let vectors = federation.vectors()?;
    let rows = vectors.values.len() / vectors.dim.max(1);
    builder.floats("vectors", &[rows, vectors.dim], &vectors.values);
    let vectors = builder.node("Gather", &["vectors", words], &[]);
    let state = last_state(builder, "LSTM", &vectors, hidden);
    Some(builder.gemm(&state, "fc"))
}
