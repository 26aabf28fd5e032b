//! Stacks of layers: gradients of every layer and of random stacks against central differences, and
//! stacks that equal a model of the paper against that model, to the bit.

use deltafl::data::{
    BatchBuffer, DeviceExamples, Federation, FederationBuilder, FederationIndex, InputKind, WordVectors,
};
use deltafl::kernel::{Aligned, Isa};
use deltafl::model::stack::{ActivationShape, Layer, STACK};
use deltafl::model::{Batch, Model, ModelSpec, Step};
use deltafl::options::OptionValue;
use deltafl::stream::{Purpose, Stream};
use deltafl::task::Targets;

use super::table::{EXAMPLES, check, normals, single};

/// Every layer, in stacks that the federations of the table accept.
pub(crate) const LAYERS: [&str; 18] = [
    r#"[{"kind":"dense","units":7},{"kind":"tanh"},{"kind":"dense","units":5,"bias":false},{"kind":"gelu"}]"#,
    r#"[{"kind":"relu"},{"kind":"tanh"},{"kind":"gelu"},{"kind":"relu"},{"kind":"dense","units":3}]"#,
    r#"[{"kind":"layer-norm"},{"kind":"dense","units":20},{"kind":"group-norm","groups":5},{"kind":"tanh"}]"#,
    r#"[{"kind":"conv2d","channels":3,"size":3},{"kind":"gelu"},{"kind":"conv2d","channels":17,"size":3,"stride":2,"padding":1},
        {"kind":"tanh"},{"kind":"flatten"},{"kind":"dense","units":6}]"#,
    r#"[{"kind":"conv2d","channels":6,"size":3,"padding":2},{"kind":"group-norm","groups":3},{"kind":"gelu"},
        {"kind":"max-pool","size":2},{"kind":"layer-norm"},{"kind":"avg-pool","size":2,"stride":1},{"kind":"flatten"}]"#,
    r#"[{"kind":"avg-pool","size":2},{"kind":"flatten"},{"kind":"layer-norm"}]"#,
    r#"[{"kind":"group-norm","groups":1},{"kind":"max-pool","size":3,"stride":2},{"kind":"flatten"},{"kind":"gelu"}]"#,
    r#"[{"kind":"residual","layers":[{"kind":"conv2d","channels":4,"size":3,"padding":1}]},{"kind":"flatten"}]"#,
    r#"[{"kind":"conv2d","channels":5,"size":3},{"kind":"residual","layers":[{"kind":"tanh"},{"kind":"conv2d","channels":5,
        "size":3,"padding":1},{"kind":"relu"}]},{"kind":"max-pool","size":2},{"kind":"flatten"}]"#,
    r#"[{"kind":"residual","layers":[{"kind":"dense","units":5},{"kind":"tanh"},{"kind":"residual","layers":[{"kind":"gelu"},
        {"kind":"dense","units":5}]}]},{"kind":"tanh"}]"#,
    r#"[{"kind":"embedding","entries":5},{"kind":"mean"},{"kind":"dense","units":4},{"kind":"tanh"}]"#,
    r#"[{"kind":"embedding","entries":3},{"kind":"lstm","hidden":5},{"kind":"last"}]"#,
    r#"[{"kind":"embedding","entries":17},{"kind":"gru","hidden":5},{"kind":"last","reads_padding":true},{"kind":"relu"}]"#,
    r#"[{"kind":"word-vectors"},{"kind":"gru","hidden":4},{"kind":"lstm","hidden":3},{"kind":"tanh"},{"kind":"mean"}]"#,
    r#"[{"kind":"one-hot"},{"kind":"dense","units":6},{"kind":"layer-norm"},{"kind":"flatten"}]"#,
    r#"[{"kind":"one-hot"},{"kind":"lstm","hidden":6},{"kind":"residual","layers":[{"kind":"gru","hidden":6}]},{"kind":"last"}]"#,
    r#"[{"kind":"embedding","entries":4},{"kind":"flatten"},{"kind":"tanh"}]"#,
    r#"[{"kind":"flatten"},{"kind":"residual","layers":[{"kind":"layer-norm"},{"kind":"tanh"}]},{"kind":"dense","units":2}]"#,
];

fn spec(json: &str) -> ModelSpec {
    STACK.spec().with_layers(serde_json::from_str(json).unwrap())
}

#[test]
fn every_layer_occurs_in_a_tested_stack() {
    for layer in deltafl::model::stack::LAYERS {
        let json = format!("\"kind\":\"{}\"", layer.kind);
        // A gradient of dropout needs a fixed key, see `dropout_draws_from_the_key_of_the_step`.
        assert!(
            layer.kind == "dropout" || LAYERS.iter().any(|stack| stack.contains(&json)),
            "{}",
            layer.kind
        );
    }
}

fn images(side: usize, channels: usize, classes: usize) -> Federation {
    let dim = side * side * channels;
    let builder = FederationBuilder::new("images", InputKind::Dense { dim }, classes);
    let labels: Vec<u32> = (0..EXAMPLES as u32).map(|i| i % classes as u32).collect();
    single(builder, DeviceExamples::Dense(&normals(dim * EXAMPLES)), &labels)
}

fn words(vocabulary: usize, len: usize) -> Federation {
    let mut builder = FederationBuilder::new("words", InputKind::Tokens { len, vocabulary }, 2);
    builder.vectors(WordVectors { dim: 3, values: normals(3 * vocabulary).into() });
    let ids: Vec<u32> = (0..(len * EXAMPLES) as u32).map(|i| i * 7 % vocabulary as u32).collect();
    let labels: Vec<u32> = (0..EXAMPLES as u32).map(|i| i % 2).collect();
    single(builder, DeviceExamples::Tokens(&ids), &labels)
}

fn windows(len: usize, alphabet: usize) -> Federation {
    let builder = FederationBuilder::new("windows", InputKind::Windows { len, alphabet }, alphabet);
    let text: Vec<u8> = (0..EXAMPLES + len).map(|i| (i * 5 % alphabet) as u8).collect();
    single(builder, DeviceExamples::Text(&text), Targets::IN_TEXT)
}

/// A layer that fits the shape, drawn at random.
fn random_layer(stream: &mut Stream, shape: ActivationShape, depth: usize) -> Layer {
    let mut size = |from: usize, most: usize| from + stream.below((most - from + 1) as u64) as usize;
    let kind = size(0, 7);
    match (shape, kind) {
        (ActivationShape::Image { .. }, 0 | 1) => {
            let (channels, filter) = (size(1, 9), size(1, 3));
            Layer::Conv2d { channels, size: filter, stride: size(1, 2), padding: size(0, filter - 1) }
        }
        (ActivationShape::Image { height, width, .. }, 2) => {
            let (window, stride) = (size(1, height.min(width).min(3)), size(1, 2));
            let is_max = size(0, 1) == 0;
            if is_max {
                Layer::MaxPool { size: window, stride }
            } else {
                Layer::AvgPool { size: window, stride }
            }
        }
        (ActivationShape::Image { channels, .. } | ActivationShape::Features(channels), 3) => {
            let divisors: Vec<usize> = (1..=channels).filter(|groups| channels % groups == 0).collect();
            let groups = divisors[size(0, divisors.len() - 1)];
            // A group of one entry has the slope 0 and a kink of infinite size at equal entries.
            match shape {
                ActivationShape::Features(_) if groups * 3 > channels => Layer::Tanh,
                _ => Layer::GroupNorm { groups },
            }
        }
        (ActivationShape::Features(_) | ActivationShape::Sequence { .. }, 0 | 1) => {
            Layer::Dense { units: size(4, 20), bias: size(0, 1) == 0 }
        }
        (ActivationShape::Sequence { .. }, 2) => Layer::Lstm { hidden: size(3, 9) },
        (ActivationShape::Sequence { .. }, 3) => Layer::Gru { hidden: size(3, 9) },
        (ActivationShape::Sequence { .. }, 4) => Layer::Flatten,
        (ActivationShape::Sequence { .. }, 5) => Layer::Mean,
        (ActivationShape::Tokens { .. }, 0..4) => Layer::Embedding { entries: size(4, 18) },
        (ActivationShape::Tokens { .. }, _) => Layer::OneHot,
        (_, 4 | 5) if depth == 0 => {
            let inner = random_layer(stream, shape, 1);
            Layer::Residual { layers: vec![inner, Layer::Tanh] }
        }
        (_, 6) => Layer::Gelu,
        _ => Layer::Tanh,
    }
}

/// Draws layers until a stack fits the data.
fn random_stack(stream: &mut Stream, federation: &Federation) -> ModelSpec {
    loop {
        let mut layers: Vec<Layer> = match federation.kind() {
            InputKind::Dense { .. } if stream.below(2) == 0 => {
                vec![Layer::Conv2d { channels: 4, size: 3, stride: 1, padding: 1 }]
            }
            _ => Vec::new(),
        };
        for _ in 0..1 + stream.below(5) {
            // A stack without its last layers may lack a flatten, so shapes are read from a longer
            // one.
            let ending = |layers: &[Layer]| [layers, &[Layer::Flatten]].concat();
            let known = STACK.spec().with_layers(ending(&layers)).stack(federation);
            let shape = match known {
                Ok(Some(stack)) => stack.layers.get(layers.len()).map_or(stack.input, |layer| layer.input),
                _ if layers.is_empty() => match federation.kind() {
                    InputKind::Tokens { len, vocabulary } => {
                        ActivationShape::Tokens { len, vocabulary, padded: true }
                    }
                    InputKind::Windows { len, alphabet } => {
                        ActivationShape::Tokens { len, vocabulary: alphabet, padded: false }
                    }
                    InputKind::Bytes { dim } | InputKind::Dense { dim } => ActivationShape::Features(dim),
                },
                _ => break,
            };
            layers.push(random_layer(stream, shape, 0));
        }
        for end in [vec![], vec![Layer::Flatten], vec![Layer::Last { padding: false }]] {
            let spec = STACK.spec().with_layers([&layers[..], &end[..]].concat());
            if layers.len() > 1 && spec.stack(federation).is_ok() {
                return spec;
            }
        }
    }
}

#[test]
fn random_stacks_have_the_gradient_of_their_loss() {
    let federations = [images(6, 1, 3), images(5, 3, 4), words(9, 5), windows(4, 7)];
    let stream = &mut Stream::new(23, Purpose::Synthesis, 0, 0);
    for i in 0..60 {
        let federation = &federations[i % federations.len()];
        let spec = random_stack(stream, federation);
        let isa = Isa::available().nth(i / 4 % Isa::available().count()).unwrap();
        let built = spec.build(federation, isa).unwrap();
        let mut buffer = BatchBuffer::default();
        let batch = buffer.gather(&federation.examples(FederationIndex(0)), 0..EXAMPLES);
        let json = serde_json::to_string(&spec).unwrap();
        assert_eq!(serde_json::from_str::<ModelSpec>(&json).unwrap(), spec, "{json}");
        check(&*built, batch, &format!("{json} on {} {isa}", federation.name()));
    }
}

/// Parameters after a few steps of both models from the same initial iterate.
fn trained(model: &dyn Model, federation: &Federation, keys: impl Iterator<Item = u64>) -> Vec<f32> {
    let mut params = vec![0.0; model.num_params()];
    model.init(&mut Stream::new(1, Purpose::Init, 0, 0), &mut params);
    let mut working = Aligned::zeroed(model.working_len());
    let mut scratch = Aligned::zeroed(model.step_scratch_len(EXAMPLES));
    model.load(&params, &mut working);
    let mut buffer = BatchBuffer::default();
    let batch = buffer.gather(&federation.examples(FederationIndex(0)), 0..EXAMPLES);
    for key in keys {
        let step = Step { learning_rate: 0.1, l2: 1e-3, pull: None, key };
        model.step(&mut working, batch, step, &mut scratch);
    }
    model.store(&working, &mut params);
    params
}

#[test]
fn a_stack_equal_to_a_model_of_the_table_has_its_bits_and_its_tensors() {
    let option = |name, value| (name, value);
    let no_intercept = option("no_intercept", OptionValue::Truth(true));
    let logistic = option("head", OptionValue::Word("logistic"));
    let conv = r#"{"kind":"conv2d","channels":3,"size":5},{"kind":"relu"},{"kind":"max-pool","size":2}"#;
    let conv_net = format!("[{conv},{},{{\"kind\":\"flatten\"}}]", conv.replace(":3,", ":6,"));
    let lstm = r#"[{"kind":"word-vectors"},{"kind":"lstm","hidden":5},{"kind":"last","reads_padding":true}]"#;
    let cases: [(&str, &str, Vec<_>, Federation); 11] = [
        (r#"{"kind":"linear"}"#, "[]", vec![no_intercept], images(4, 1, 3)),
        (r#"{"kind":"linear","intercept":true}"#, r#"[{"kind":"flatten"}]"#, vec![], images(4, 1, 3)),
        (r#"{"kind":"logistic"}"#, "[]", vec![no_intercept, logistic], images(4, 1, 2)),
        (r#"{"kind":"conv-net","channels":[3,6]}"#, &conv_net, vec![], images(17, 1, 3)),
        (r#"{"kind":"lstm","hidden":5}"#, lstm, vec![logistic], words(9, 5)),
        (
            r#"{"kind":"gru","hidden":5}"#,
            r#"[{"kind":"one-hot"},{"kind":"gru","hidden":5},{"kind":"last"}]"#,
            vec![],
            windows(4, 7),
        ),
        (
            r#"{"kind":"gru","hidden":5,"embedding":3}"#,
            r#"[{"kind":"embedding","entries":3},{"kind":"gru","hidden":5},{"kind":"last"}]"#,
            vec![],
            windows(4, 7),
        ),
        (
            r#"{"kind":"gru","hidden":5}"#,
            r#"[{"kind":"one-hot"},{"kind":"gru","hidden":5},{"kind":"last","reads_padding":true}]"#,
            vec![],
            words(9, 5),
        ),
        (
            r#"{"kind":"text-bag","embedding":7}"#,
            r#"[{"kind":"embedding","entries":7},{"kind":"mean"}]"#,
            vec![],
            words(9, 5),
        ),
        (
            r#"{"kind":"perceptron","hidden":9}"#,
            r#"[{"kind":"dense","units":9},{"kind":"relu"}]"#,
            vec![],
            images(4, 1, 3),
        ),
        (
            r#"{"kind":"mlp","hidden":9}"#,
            r#"[{"kind":"dense","units":9},{"kind":"relu"}]"#,
            vec![],
            images(4, 1, 3),
        ),
    ];
    for (named, layers, options, federation) in cases {
        let named: ModelSpec = serde_json::from_str(named).unwrap();
        let stack = STACK.spec_with(options).unwrap().with_layers(serde_json::from_str(layers).unwrap());
        for isa in Isa::available() {
            let [named, stack] = [&named, &stack].map(|spec| spec.build(&federation, isa).unwrap());
            assert_eq!(named.tensors(), stack.tensors(), "{layers}");
            assert_eq!(named.task(), stack.task(), "{layers}");
            let [named, stack] = [&*named, &*stack].map(|model| trained(model, &federation, 0..5));
            assert!(named.iter().zip(&stack).all(|(a, b)| a.to_bits() == b.to_bits()), "{isa}: {layers}");
        }
    }
}

#[test]
fn the_perceptron_is_the_plain_perceptron() {
    let federation = images(4, 1, 3);
    let plain = deltafl::model::Perceptron::new(16, 9, 3);
    for isa in Isa::available() {
        let fast = deltafl::model::PERCEPTRON.spec_with([("hidden", OptionValue::Whole(9))]).unwrap();
        let fast = fast.build(&federation, isa).unwrap();
        assert_eq!(plain.tensors(), fast.tensors());
        let [expected, got] = [&plain as &dyn Model, &*fast].map(|model| trained(model, &federation, 0..20));
        let worst = expected.iter().zip(&got).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(worst < 1e-5, "{isa}: off by {worst}");
    }
}

#[test]
fn dropout_draws_from_the_key_of_the_step() {
    let federation = images(4, 1, 3);
    let dropped = r#"[{"kind":"dense","units":40},{"kind":"tanh"},{"kind":"dropout","rate":0.5}]"#;
    let plain = r#"[{"kind":"dense","units":40},{"kind":"tanh"}]"#;
    let build = |json: &str| spec(json).build(&federation, Isa::detect()).unwrap();
    let (model, whole) = (build(dropped), build(plain));
    assert!(model.draws_in_steps() && !whole.draws_in_steps());
    assert_eq!(trained(&*model, &federation, 1..4), trained(&*model, &federation, 1..4));
    assert_ne!(trained(&*model, &federation, 1..4), trained(&*model, &federation, 2..5));
    assert_ne!(trained(&*model, &federation, 1..4), trained(&*whole, &federation, 1..4));
    // The mean of the steps of many keys is near the step without dropout, because kept entries are
    // divided by their probability. An evaluation draws nothing.
    let count = 400;
    let mut mean = vec![0.0f64; model.num_params()];
    for key in 0..count {
        for (mean, w) in mean.iter_mut().zip(trained(&*model, &federation, key..key + 1)) {
            *mean += f64::from(w) / count as f64;
        }
    }
    let expected = trained(&*whole, &federation, 0..1);
    let start = trained(&*whole, &federation, 0..0);
    let norm =
        |a: &[f64], b: &[f32]| a.iter().zip(b).map(|(a, b)| (a - f64::from(*b)).powi(2)).sum::<f64>().sqrt();
    let step = norm(&start.iter().map(|w| f64::from(*w)).collect::<Vec<_>>(), &expected);
    assert!(norm(&mean, &expected) < 0.25 * step, "{} of {step}", norm(&mean, &expected));
    let mut buffer = BatchBuffer::default();
    let batch: Batch<'_> = buffer.gather(&federation.examples(FederationIndex(0)), 0..EXAMPLES);
    let losses = [&model, &whole].map(|model| {
        let mut working = Aligned::zeroed(model.working_len());
        model.load(&expected, &mut working);
        model.evaluate(&working, batch, &mut Aligned::zeroed(model.scratch_len(EXAMPLES))).loss.to_bits()
    });
    assert_eq!(losses[0], losses[1]);
}

#[test]
fn a_layer_that_does_not_fit_is_named_with_its_position() {
    let [grey, text] = [images(4, 1, 3), words(9, 5)];
    for (json, federation, path, reason) in [
        (
            r#"[{"kind":"relu"},{"kind":"lstm","hidden":3}]"#,
            &grey,
            vec![1],
            "layer 2 (lstm): it needs a sequence of vectors",
        ),
        (
            r#"[{"kind":"conv2d","channels":3,"size":5}]"#,
            &grey,
            vec![0],
            "layer 1 (conv2d): windows of side 5 do not fit into 4 × 4",
        ),
        (
            r#"[{"kind":"conv2d","channels":3,"size":3},{"kind":"relu"}]"#,
            &grey,
            vec![1],
            "layer 2 (relu): the outputs cannot follow it: it needs features: add a flatten layer before it",
        ),
        (
            r#"[{"kind":"conv2d","channels":3,"size":3},{"kind":"group-norm","groups":2}]"#,
            &grey,
            vec![1],
            "layer 2 (group-norm): 2 groups do not divide 3 channels",
        ),
        (
            r#"[{"kind":"residual","layers":[{"kind":"relu"},{"kind":"max-pool","size":9}]}]"#,
            &grey,
            vec![0, 1],
            "layer 1.2 (max-pool): windows of side 9 do not fit",
        ),
        (
            r#"[{"kind":"residual","layers":[{"kind":"dense","units":3}]}]"#,
            &grey,
            vec![0],
            "layer 1 (residual): its layers turn 16 into 3, which cannot be added",
        ),
        (
            r#"[{"kind":"dense","units":3}]"#,
            &text,
            vec![0],
            "layer 1 (dense): it needs features: add an embedding",
        ),
        (
            r#"[{"kind":"embedding","entries":3},{"kind":"gru","hidden":2}]"#,
            &text,
            vec![1],
            "layer 2 (gru): its output is a sequence",
        ),
        (
            r#"[{"kind":"max-pool","size":2},{"kind":"flatten"}]"#,
            &words(9, 5),
            vec![0],
            "layer 1 (max-pool): it needs images",
        ),
        (
            r#"[{"kind":"relu"},{"kind":"dense","units":90000000}]"#,
            &grey,
            vec![1],
            "layer 2 (dense): more than",
        ),
        (r#"[{"kind":"dense","units":9000000000}]"#, &grey, vec![0], "layer 1 (dense): more than"),
    ] {
        let error = spec(json).build(federation, Isa::detect()).err().expect(json);
        let deltafl::model::ModelMismatch::Layer(layer) = &error else { panic!("{error}") };
        assert_eq!(layer.path, path, "{json}");
        assert!(error.to_string().starts_with(reason), "{json}: {error}");
    }
    let deep = deltafl::model::MLP.spec_with([("depth", OptionValue::Whole(1 << 40))]).unwrap();
    let error = deep.build(&grey, Isa::detect()).err().unwrap().to_string();
    assert_eq!(error, "model option depth: expected at most 1000, got 1099511627776");
    let odd = images(1, 7, 2);
    let error = spec(r#"[{"kind":"relu"},{"kind":"avg-pool","size":2},{"kind":"flatten"}]"#)
        .build(&odd, Isa::detect());
    let error = error.err().unwrap().to_string();
    assert!(error.starts_with("layer 2 (avg-pool): it needs images; 7 features"), "{error}");
}

#[test]
fn a_large_batch_has_the_gradient_of_its_parts() {
    let federation = images(5, 3, 4);
    let model = spec(LAYERS[4]).build(&federation, Isa::detect()).unwrap();
    let mut params = vec![0.0; model.num_params()];
    model.init(&mut Stream::new(1, Purpose::Init, 0, 0), &mut params);
    let mut buffer = BatchBuffer::default();
    let rows: Vec<usize> = (0..75).map(|i| i % EXAMPLES).collect();
    let mut sum = vec![0.0f64; params.len()];
    for &row in &rows {
        let batch = buffer.gather(&federation.examples(FederationIndex(0)), row..row + 1);
        let mut one = vec![0.0; params.len()];
        model.gradient(&params, batch, &mut one, &mut Aligned::zeroed(model.scratch_len(1)));
        sum.iter_mut().zip(one).for_each(|(sum, g)| *sum += f64::from(g) / 75.0);
    }
    let batch = buffer.gather(&federation.examples(FederationIndex(0)), rows.iter().copied());
    let mut all = vec![0.0; params.len()];
    model.gradient(&params, batch, &mut all, &mut Aligned::zeroed(model.scratch_len(75)));
    for (i, (a, b)) in all.iter().zip(&sum).enumerate() {
        assert!((f64::from(*a) - b).abs() < 1e-5, "entry {i}: {a} {b}");
    }
}
