//! Models as stacks of layers, from the experiment file to predictions and exported networks.

use std::fs;

use crate::support::{Workdir, checkpoints};

const EXPERIMENT: &str = r#"
name = "tiny"
rounds = 2
cohort = 4

[data]
source = { kind = "glyphs", devices = 12, seed = 5 }

[local]
epochs = 1
batch = 10
learning_rate = 0.05

[[algorithm]]
kind = "delta-fl"
theta = 0.5

[model]
kind = "stack"

[[model.layers]]
kind = "conv2d"
channels = 4
size = 5
stride = 2

[[model.layers]]
kind = "group-norm"
groups = 2

[[model.layers]]
kind = "residual"

[[model.layers.layers]]
kind = "conv2d"
channels = 4
size = 3
padding = 1

[[model.layers.layers]]
kind = "gelu"

[[model.layers]]
kind = "avg-pool"
size = 3

[[model.layers]]
kind = "flatten"

[[model.layers]]
kind = "dropout"
rate = 0.1
"#;

#[test]
fn a_stack_trains_to_the_same_bits_on_any_threads_resumed_or_not_and_is_exported() {
    let workdir = Workdir::with(EXPERIMENT);
    let output = workdir.run("run x.toml --out one --threads 1 --compute auto");
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{told}");
    let lines: Vec<Vec<&str>> = told.lines().map(|line| line.split_whitespace().collect()).collect();
    let has = |words: &[&str]| lines.iter().any(|line| line == words);
    assert!(has(&["layer", "output", "parameters", "operations"]), "{told}");
    let conv = "conv2d channels = 4, size = 5, stride = 2 4 × 12 × 12 104 28,800";
    assert!(has(&conv.split(' ').collect::<Vec<_>>()), "{told}");
    assert!(has(&["flatten", "64"]), "{told}");
    assert!(told.contains("devices compute on the"), "{told}");

    workdir.printed("run x.toml --out two --threads 2 --quiet");
    workdir.printed("run x.toml --out short --set rounds=1 --quiet");
    workdir.printed("run x.toml --out short --resume --quiet");
    let trained = |run: &str| checkpoints(&workdir.path(run));
    assert!(trained("one") == trained("two") && trained("one") == trained("short"));

    workdir.printed("data synth glyphs --devices 8 --seed 99 --out other");
    assert!(workdir.printed("evaluate one --data other").contains("0.5"));
    workdir.printed("predict one other --out predictions.csv");
    assert!(fs::read_to_string(workdir.path("predictions.csv")).unwrap().lines().count() > 8);
    for format in ["onnx", "safetensors", "torch"] {
        let written = workdir.printed(&format!("export one --format {format}"));
        assert!(
            fs::metadata(workdir.path(written.lines().next().unwrap())).unwrap().len() > 1000,
            "{written}"
        );
    }
    let resolved = fs::read_to_string(workdir.path("one/experiment.toml")).unwrap();
    assert!(resolved.contains("[[model.layers]]"), "{resolved}");
}

#[test]
fn a_layer_that_does_not_fit_the_data_is_refused_at_its_line() {
    let workdir = Workdir::with(&EXPERIMENT.replace("groups = 2", "groups = 3"));
    let line = 1 + EXPERIMENT[..EXPERIMENT.find("\"group-norm\"").unwrap()].matches('\n').count();
    let refused = workdir.refusal("run x.toml");
    assert!(refused.contains("layer 2 (group-norm): 3 groups do not divide 4 channels"), "{refused}");
    assert!(refused.contains(&format!("x.toml:{line}:")), "{refused}");
    assert!(!workdir.path("runs").exists());
    let refused = workdir.refusal("bench --experiment x.toml");
    assert!(refused.contains(&format!("x.toml:{line}:")), "{refused}");
    // A layer of an override is not in the file.
    let refused = workdir.refusal("run x.toml --set model.layers.1.groups=5");
    assert!(refused.contains("5 groups do not divide") && !refused.contains("x.toml:"), "{refused}");
}

#[test]
fn presets_are_one_line_and_every_model_of_an_experiment_can_be_measured() {
    let head = EXPERIMENT.split("[model]").next().unwrap();
    for model in [
        "kind = 'mlp'\nhidden = 9\ndepth = 2",
        "kind = 'cnn'\nchannels = [3, 4]\nhidden = 7",
        "kind = 'linear'",
    ] {
        let workdir = Workdir::with(&format!("{head}[model]\n{model}\n"));
        workdir.printed("run x.toml --quiet --set rounds=1");
        let figures = workdir.printed("bench --experiment x.toml --seconds 0.01 --json");
        let figures: serde_json::Value = serde_json::from_str(&figures).unwrap();
        let measured = &figures["models"][0];
        assert_eq!((&measured["model"], &measured["batch"]), (&"tiny".into(), &10.into()));
        assert!(measured["train_examples_per_s"].as_f64() > Some(0.0), "{measured}");
        assert_eq!(measured["train_gflops"].is_null(), model.contains("linear"), "{measured}");
    }
}
