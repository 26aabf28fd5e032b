//! Content addresses of experiments and the serialised form of models never change: runs are stored under
//! the former, and devices receive the latter.

#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use deltafl::model::ModelSpec;
use deltafl_data::experiment::Experiment;

/// `[model]` sections, the addresses of experiments that contain them, and their serialised models.
const MODELS: [(&str, &str, &str); 17] = [
    ("kind = 'linear'", "bc0e1244b685c0c1", r#"{"kind":"linear","intercept":true}"#),
    ("kind = 'linear'\nintercept = true", "bc0e1244b685c0c1", r#"{"kind":"linear","intercept":true}"#),
    ("kind = 'linear'\nintercept = false", "23a44457ac0a1738", r#"{"kind":"linear"}"#),
    (
        "kind = 'linear'\nintercept = true\nhuber = 0.7\nl2 = 1e-4",
        "631a90e043562fbc",
        r#"{"kind":"linear","intercept":true,"huber":0.7}"#,
    ),
    (
        "kind = 'linear'\nintercept = false\nhuber = 0.12345678912",
        "d9fd6b988877f3b3",
        r#"{"kind":"linear","huber":0.12345679}"#,
    ),
    ("kind = 'linear'\nintercept = false\nhuber = 2", "26045e45cf5638a8", r#"{"kind":"linear","huber":2.0}"#),
    ("kind = 'logistic'\nintercept = true", "1331786191ec7449", r#"{"kind":"logistic","intercept":true}"#),
    ("kind = 'conv-net'", "a577c31e2e599f65", r#"{"kind":"conv-net","channels":[32,64]}"#),
    ("channels = [8, 16]\nkind = 'conv-net'", "07a783a38a5f81f2", r#"{"kind":"conv-net","channels":[8,16]}"#),
    ("kind = 'lstm'", "3253adb96ad23653", r#"{"kind":"lstm","hidden":50}"#),
    ("kind = 'lstm'\nhidden = 50", "77de66a173eb80d6", r#"{"kind":"lstm","hidden":50}"#),
    ("kind = 'gru'", "a5692b2c6e585cb5", r#"{"kind":"gru","hidden":128,"embedding":0}"#),
    ("kind = 'gru'\nembedding = 0", "85358e4f22783291", r#"{"kind":"gru","hidden":128,"embedding":0}"#),
    (
        "kind = 'gru'\nembedding = 8\nhidden = 64",
        "fdd79310e3924672",
        r#"{"kind":"gru","hidden":64,"embedding":8}"#,
    ),
    ("kind = 'perceptron'", "4898d21219c57556", r#"{"kind":"perceptron","hidden":100}"#),
    ("kind = 'perceptron'\nhidden = 33\nl2 = 1", "fe4b7506ab4b5cac", r#"{"kind":"perceptron","hidden":33}"#),
    ("kind = 'external'", "1d91ef1c37c5c381", r#"{"kind":"external"}"#),
];

#[test]
fn a_model_keeps_its_address_and_its_serialised_form() {
    for (model, address, json) in MODELS {
        let text = format!(
            "name = 'x'\nrounds = 4\ncohort = 3\n[data]\nsource = 'd'\n[model]\n{model}\n[local]\nepochs = 1\n\
             batch = 10\nlearning_rate = 0.1\n[[algorithm]]\nkind = 'delta-fl'\ntheta = [0.5, 1]\n"
        );
        let experiment = Experiment::parse(&text).unwrap();
        let spec = experiment.model().spec();
        assert_eq!(experiment.address(), address, "{model}");
        assert_eq!(serde_json::to_string(spec).unwrap(), json, "{model}");
        let read: ModelSpec = serde_json::from_str(json).unwrap();
        assert_eq!(serde_json::to_string(&read).unwrap(), json);
    }
}

/// Keys of the run, the data, the local update and an algorithm, with the address of the experiment.
const SECTIONS: [[&str; 5]; 5] = [
    [
        "secagg = 'real'\nseeds = 3\nclip = 0.5\nweights = 'bucketed'\n",
        "source = { kind = 'glyphs', devices = 10 }\nsplit = { train = 0.5, sample = 0.5 }\nnormalise = 'standard'\nevaluate_sample = 5",
        "epochs = 2\ndecay = { factor = 0.5, every = 2 }",
        "kind = 'fedavg'",
        "cf8060d949ad20c1",
    ],
    [
        "with_replacement = true\nseeds = [4, 5]\nevaluate_every = 7\n",
        "source = { kind = 'logistic' }\nsplit.within = { train = 0.8 }",
        "steps = 5",
        "kind = 'delta-fl'\ntheta = 0.5\nquantile = 'histogram'\nnu = 0.1\nl2 = 1e-3",
        "47690cf0cd77a81a",
    ],
    [
        "secagg = 'real'\nseeds = 3\nclip = 0.5\nweights = 'bucketed'\n",
        "source = { kind = 'roles', examples = { min = 1, median = 2, max = 3 } }\nsplit.given = { train = ['a'], test = ['b'] }",
        "epochs = 2\ndecay = { factor = 0.5, every = 2 }",
        "kind = 'fedprox'\nmu = [0.1, 1]",
        "56206d6d02b0822a",
    ],
    [
        "with_replacement = true\nseeds = [4, 5]\nevaluate_every = 7\n",
        "source = { kind = 'tweets', odd = 0.3 }\nsplit = {}",
        "steps = 5",
        "kind = 'fedadam'",
        "f9406aacc710f582",
    ],
    [
        "secagg = 'real'\nseeds = 3\nclip = 0.5\nweights = 'bucketed'\n",
        "source = 'memory:mine'",
        "epochs = 2\ndecay = { factor = 0.5, every = 2 }",
        "kind = 'fedavg'",
        "3440ea89ca27bdb1",
    ],
];

#[test]
fn every_section_keeps_its_address() {
    for [run, data, local, algorithm, address] in SECTIONS {
        let text = format!(
            "name = 'x'\nrounds = 4\ncohort = 3\n{run}[data]\n{data}\n[model]\nkind = 'linear'\nintercept = false\n[local]\n{local}\n\
             batch = 10\nlearning_rate = 0.1\n[availability]\ndrop_out = 0.1\ndiurnal = {{ period = 10, low = 0.5 }}\n\
             [[algorithm]]\n{algorithm}\n"
        );
        assert_eq!(Experiment::parse(&text).unwrap().address(), address, "{data}");
    }
}

#[test]
fn the_experiments_of_the_repository_keep_their_addresses() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../experiments");
    for (name, address) in [
        ("paper/emnist-convnet.toml", "fa66b7356c576618"),
        ("paper/emnist-linear.toml", "84df678da12eb163"),
        ("paper/sent140-linear.toml", "fb09245114d0c318"),
        ("paper/sent140-lstm.toml", "ff8dd8bfd3b43a27"),
        ("paper/shakespeare-gru.toml", "442af6d21225f34d"),
        ("quickstart.toml", "758d217ff100e5bc"),
    ] {
        let text = std::fs::read_to_string(folder.join(name)).unwrap();
        assert_eq!(Experiment::parse(&text).unwrap().address(), address, "{name}");
    }
}
