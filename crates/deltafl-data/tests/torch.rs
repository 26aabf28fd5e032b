//! Checkpoints in PyTorch itself: `torch.nn.Module.load_state_dict` takes them, strictly, and the module computes our losses.
//!
//! Any `python3` with torch will do; on Debian `apt-get install python3-torch` brings one to /usr/bin/python3. Where there is
//! none the tests say so and pass over; `tests/state_dict.rs` of the core holds the same layouts against a pass in Rust.
#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::process::Command;

use deltafl::data::{FederationBuilder, InputKind, WordVectors};
use deltafl::kernel::{Aligned, Isa};
use deltafl::model::stack::{ActivationShape, STACK, ShapedLayer, StackNetwork};
use deltafl::model::{
    Batch, ConvNet, Embedding, Gru, Inputs, Linear, Lstm, Model, Perceptron, Tensor, state_dict,
};
use deltafl::stream::{Purpose, Stream};
use deltafl::task::Targets;
use deltafl::training::{State, TrackState};
use deltafl_data::run_folder::checkpoint_bytes;
use serde_json::{Value, json};

/// A python3 that has torch.
fn python_with_torch() -> Option<&'static str> {
    let has_torch = |python: &&str| {
        let tried = Command::new(python).args(["-c", "import torch"]).output();
        tried.is_ok_and(|output| output.status.success())
    };
    let found = ["python3", "/usr/bin/python3"].into_iter().find(has_torch);
    if found.is_none() {
        eprintln!("passed over: no python3 with torch (on Debian: apt-get install python3-torch)");
    }
    found
}

fn normals(count: usize, key: u64) -> Vec<f32> {
    let stream = &mut Stream::new(19, Purpose::Synthesis, 0, key);
    (0..count).map(|_| 0.3 * stream.normal() as f32).collect()
}

fn symbols(count: usize, below: u64) -> Vec<u32> {
    let stream = &mut Stream::new(19, Purpose::Synthesis, 1, below);
    (0..count).map(|_| stream.below(below) as u32).collect()
}

/// Examples of a model, and their inputs as torch reads them.
enum Examples {
    Dense(Vec<f32>),
    Tokens(Vec<u32>),
}

impl Examples {
    fn rows(&self, count: usize) -> Value {
        match self {
            Self::Dense(values) => json!(values.chunks(values.len() / count).collect::<Vec<_>>()),
            Self::Tokens(ids) => json!(ids.chunks(ids.len() / count).collect::<Vec<_>>()),
        }
    }

    fn range(&self, i: usize, count: usize) -> Inputs<'_> {
        match self {
            Self::Dense(values) => Inputs::Dense(values.chunks(values.len() / count).nth(i).unwrap()),
            Self::Tokens(ids) => Inputs::Tokens(ids.chunks(ids.len() / count).nth(i).unwrap()),
        }
    }
}

/// Writes a checkpoint of the model, lets torch load it, and compares the losses of some examples.
fn torch_agrees(python: &str, model: &dyn Model, mut case: Value, examples: &Examples, labels: &[u32]) {
    let mut params = normals(model.num_params(), 5);
    if let Some(Tensor { name, shape, .. }) = model.tensors().first()
        && case["kind"] == "stack"
        && name == "embedding.weight"
    {
        // The vector of padding is zero and is not trained.
        params[..shape[1]].fill(0.0);
    }
    let tracks = vec![TrackState::new(params.clone().into())];
    let state = State { seed: 1, round: 3, tensors: model.tensors().into(), tracks };
    let folder = tempfile::tempdir().unwrap();
    let [checkpoint, about] = ["seed-1.safetensors", "case.json"].map(|name| folder.path().join(name));
    std::fs::write(&checkpoint, checkpoint_bytes(&state).unwrap()).unwrap();
    case["labels"] = json!(labels);
    case["inputs_of_examples"] = examples.rows(labels.len());
    std::fs::write(&about, case.to_string()).unwrap();

    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/torch/load.py");
    let output = Command::new(python).arg(script).args([&checkpoint, &about]).output().unwrap();
    assert!(output.status.success(), "{case}: {}", String::from_utf8_lossy(&output.stderr));
    let printed: Value = serde_json::from_slice(&output.stdout).unwrap();
    let theirs: Vec<f64> = serde_json::from_value(printed["losses"].clone()).unwrap();

    let mut working = Aligned::zeroed(model.working_len());
    model.load(&params, &mut working);
    let mut scratch = Aligned::zeroed(model.scratch_len(1));
    assert_eq!(theirs.len(), labels.len());
    for (i, theirs) in theirs.into_iter().enumerate() {
        let batch =
            Batch { inputs: examples.range(i, labels.len()), targets: Targets::Classes(&labels[i..=i]) };
        let ours = model.evaluate(&working, batch, &mut scratch).loss;
        assert!(
            (ours - theirs).abs() < 1e-4 * theirs.abs().max(1.0),
            "{}: {ours} and {theirs}",
            case["kind"]
        );
    }
    if case["kind"] == "stack" {
        gradients_agree(model, &params, examples, labels, &printed["gradients"]);
    }
}

/// Compares the gradient of the mean loss with that of torch, tensor by tensor.
fn gradients_agree(model: &dyn Model, params: &[f32], examples: &Examples, labels: &[u32], theirs: &Value) {
    let mut gradient = vec![0.0; params.len()];
    let inputs = match examples {
        Examples::Dense(values) => Inputs::Dense(values),
        Examples::Tokens(ids) => Inputs::Tokens(ids),
    };
    let batch = Batch { inputs, targets: Targets::Classes(labels) };
    model.gradient(params, batch, &mut gradient, &mut Aligned::zeroed(model.scratch_len(labels.len())));
    for tensor in state_dict(model, &gradient) {
        let theirs: Vec<f32> = serde_json::from_value(theirs[&tensor.name].clone()).unwrap();
        assert_eq!(theirs.len(), tensor.values.len(), "{}", tensor.name);
        for (i, (ours, theirs)) in tensor.values.iter().zip(theirs).enumerate() {
            let is_close = (ours - theirs).abs() < 1e-5 + 1e-4 * theirs.abs();
            assert!(is_close, "{}, entry {i}: {ours} and {theirs}", tensor.name);
        }
    }
}

/// The layers of a stack as load.py reads them: with the shape of their input.
fn described(layers: &[ShapedLayer]) -> Value {
    let of_layer = |shaped: &ShapedLayer| {
        let mut layer = serde_json::to_value(&shaped.layer).unwrap();
        layer["input"] = match shaped.input {
            ActivationShape::Features(features) => json!([features]),
            ActivationShape::Image { channels, height, width } => json!([channels, height, width]),
            ActivationShape::Tokens { len, vocabulary, .. } => json!([len, vocabulary]),
            ActivationShape::Sequence { len, entries, .. } => json!([len, entries]),
            other => panic!("{other}"),
        };
        if !shaped.layers.is_empty() {
            layer["layers"] = described(&shaped.layers);
        }
        layer
    };
    layers.iter().map(of_layer).collect()
}

fn stack_agrees(python: &str, layers: &str, kind: InputKind, examples: &Examples, labels: &[u32]) {
    let spec = STACK.spec().with_layers(serde_json::from_str(layers).unwrap());
    let federation = FederationBuilder::new("t", kind, 5).build();
    let stack = spec.stack(&federation).unwrap().unwrap();
    let count = |prefix: &str| {
        let tensors = stack.tensors();
        let names = tensors.iter().filter_map(|tensor| tensor.name.split_once('.')).map(|(name, _)| name);
        names.filter(|name| name.starts_with(prefix)).collect::<std::collections::BTreeSet<_>>().len()
    };
    let image = match stack.input {
        ActivationShape::Image { channels, height, width } => json!([channels, height, width]),
        _ => json!(null),
    };
    let stems = ["fc", "conv", "norm", "embedding", "lstm", "gru"];
    let counts: serde_json::Map<String, Value> =
        stems.iter().map(|stem| ((*stem).to_owned(), count(stem).into())).collect();
    let case = json!({
        "kind": "stack", "layers": described(&stack.layers), "counts": counts, "image": image,
        "dense": matches!(examples, Examples::Dense(_)),
    });
    let model = StackNetwork::new(stack, None, Isa::detect());
    torch_agrees(python, &model, case, examples, labels);
}

#[test]
#[ignore = "needs a python3 with torch"]
fn torch_has_the_losses_and_gradients_of_stacks() {
    let python = python_with_torch().expect("a python3 with torch");
    let labels = [2, 0, 3, 1, 4];
    let conv = r#"{"kind":"conv2d","channels":6,"size":3,"padding":1}"#;
    let layers = format!(
        r#"[{conv},{{"kind":"group-norm","groups":2}},{{"kind":"gelu"}},{{"kind":"residual","layers":[{conv},{{"kind":"relu"}}]}},
            {{"kind":"max-pool","size":2}},{{"kind":"conv2d","channels":5,"size":3,"stride":2}},{{"kind":"layer-norm"}},
            {{"kind":"avg-pool","size":2,"stride":1}},{{"kind":"flatten"}},{{"kind":"dense","units":9,"bias":false}},{{"kind":"tanh"}}]"#
    );
    let images = Examples::Dense(normals(5 * 3 * 14 * 14, 7));
    stack_agrees(python, &layers, InputKind::Dense { dim: 3 * 14 * 14 }, &images, &labels);
    let words = Examples::Tokens(symbols(5 * 6, 8));
    for (cell, over_time) in [("lstm", "last"), ("gru", "mean")] {
        let layers = format!(
            r#"[{{"kind":"embedding","entries":7}},{{"kind":"{cell}","hidden":6}},{{"kind":"layer-norm"}},
                {{"kind":"dense","units":4}},{{"kind":"{over_time}"}}]"#
        );
        stack_agrees(python, &layers, InputKind::Tokens { len: 6, vocabulary: 8 }, &words, &labels);
    }
}

#[test]
fn torch_loads_checkpoints_of_models_of_features_and_has_their_losses() {
    let Some(python) = python_with_torch() else { return };
    let labels = [2, 0, 3, 1, 4];
    let features = Examples::Dense(normals(5 * 12, 1));
    for bias in [false, true] {
        let linear = Linear::new(12, 5, Isa::detect());
        let linear = if bias { linear.with_intercept() } else { linear };
        let case = json!({ "kind": "linear", "inputs": 12, "classes": 5, "bias": bias });
        torch_agrees(python, &linear, case, &features, &labels);
    }
    let case = json!({ "kind": "perceptron", "inputs": 12, "hidden": 7, "classes": 5 });
    torch_agrees(python, &Perceptron::new(12, 7, 5), case, &features, &labels);
    let images = Examples::Dense(normals(5 * 256, 2));
    let case = json!({ "kind": "conv-net", "side": 16, "channels": [3, 4], "classes": 5 });
    torch_agrees(python, &ConvNet::new(16, [3, 4], 5, Isa::detect()), case, &images, &labels);
}

#[test]
fn torch_loads_checkpoints_of_recurrent_models_and_has_their_losses() {
    let Some(python) = python_with_torch() else { return };
    let tokens = Examples::Tokens(symbols(5 * 4, 6));
    let vectors = normals(6 * 3, 3);
    let case = json!({ "kind": "lstm", "hidden": 5, "vectors": vectors.chunks(3).collect::<Vec<_>>() });
    let lstm = Lstm::new(WordVectors { dim: 3, values: vectors.into() }, 4, 5, Isa::detect());
    torch_agrees(python, &lstm, case, &tokens, &[0, 1, 1, 0, 1]);
    for (embedding, dim) in [(Embedding::OneHot, 0), (Embedding::Trained(3), 3)] {
        let case = json!({ "kind": "gru", "alphabet": 6, "embedding": dim, "hidden": 5, "classes": 6 });
        let gru = Gru::new(4, 6, embedding, 5, 6, Isa::detect());
        torch_agrees(python, &gru, case, &tokens, &[4, 0, 5, 2, 1]);
    }
}
