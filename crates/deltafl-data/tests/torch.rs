//! Checkpoints in PyTorch itself: `torch.nn.Module.load_state_dict` takes them, strictly, and the module computes our losses.
//!
//! Any `python3` with torch will do; on Debian `apt-get install python3-torch` brings one to /usr/bin/python3. Where there is
//! none the tests say so and pass over; `tests/state_dict.rs` of the core holds the same layouts against a pass in Rust.
#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::process::Command;

use deltafl::data::WordVectors;
use deltafl::kernel::{Aligned, Isa};
use deltafl::model::{Batch, ConvNet, Embedding, Gru, Inputs, Linear, Lstm, Model, Perceptron};
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
    let params = normals(model.num_params(), 5);
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
    let theirs: Vec<f64> = serde_json::from_slice(&output.stdout).unwrap();

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
