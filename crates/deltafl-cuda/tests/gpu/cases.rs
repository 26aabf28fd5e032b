//! A small federation and a model per case, in the sizes of the paper and in others.

use deltafl::data::{
    DeviceExamples, Federation, FederationBuilder, InputKind, Normalise, Split, WordVectors,
};
use deltafl::kernel::Isa;
use deltafl::model::{
    CONV_NET, FOURIER, GRU, LINEAR, LOGISTIC, LSTM, Model, ModelDefinition, ModelSpec, PERCEPTRON,
};
use deltafl::options::OptionValue;
use deltafl::params::Params;
use deltafl::stream::{Purpose, Stream};
use deltafl::task::Targets;
use deltafl_cuda::{GpuDevice, KernelCache};

mod stacks;

/// A model on a federation.
pub(crate) struct Case {
    pub(crate) name: String,
    pub(crate) federation: Federation,
    pub(crate) spec: ModelSpec,
    pub(crate) model: Box<dyn Model>,
    pub(crate) params: Params,
    pub(crate) batch: usize,
    pub(crate) rate: f32,
    /// The tolerance of a single step.
    pub(crate) step_tolerance: f64,
}

impl Case {
    fn new(name: &str, federation: Federation, spec: ModelSpec, batch: usize, rate: f32) -> Self {
        let model = spec.build(&federation, Isa::detect()).unwrap();
        let params = drawn(&*model, 1);
        Self { name: name.to_owned(), federation, spec, model, params, batch, rate, step_tolerance: 1e-5 }
    }

    /// Returns a different w.
    pub(crate) fn other_params(&self) -> Params {
        drawn(&*self.model, 2)
    }
}

/// A case that is built when a test needs it.
struct NamedCase {
    name: &'static str,
    build: Box<dyn FnOnce() -> Case>,
}

impl NamedCase {
    /// A max-pool or ReLU that flips changes a path, so single devices may differ more.
    fn loose(self) -> Self {
        self.within(1e-2)
    }

    /// Sets the tolerance of a single step.
    fn within(self, step_tolerance: f64) -> Self {
        Self { name: self.name, build: Box::new(move || Case { step_tolerance, ..(self.build)() }) }
    }
}

/// Returns a `NamedCase` of the arguments of `Case::new`.
macro_rules! case {
    ($name:expr, $federation:expr, $spec:expr, $batch:expr, $rate:expr $(,)?) => {
        NamedCase {
            name: $name,
            build: Box::new(move || Case::new($name, $federation, $spec, $batch, $rate)),
        }
    };
}
use case;

/// Returns a perturbed initial iterate, because some models start from zero.
fn drawn(model: &dyn Model, seed: u64) -> Params {
    let mut stream = Stream::new(seed, Purpose::Init, 0, 0);
    let mut params = vec![0.0; model.num_params()];
    model.init(&mut stream, &mut params);
    params.iter_mut().for_each(|w| *w += stream.uniform(-0.01, 0.01) as f32);
    params.into()
}

/// Devices of different sizes: short last batches, more than one block of a forward pass, a single
/// example.
const COUNTS: [usize; 7] = [179, 16, 1, 300, 101, 33, 64];

fn stream(device: usize) -> Stream {
    Stream::new(11, Purpose::Synthesis, 0, device as u64)
}

/// Features around a mean per class.
fn features(dim: usize, classes: usize, device: usize, count: usize) -> (Vec<f32>, Vec<u32>) {
    let mut stream = stream(device);
    let (mut values, mut labels) = (Vec::new(), Vec::new());
    for _ in 0..count {
        let label = stream.below(classes as u64) as u32;
        labels.push(label);
        for j in 0..dim {
            let mean = ((j as f64 * 0.37 + f64::from(label) * 1.7).sin() + 1.0) / 3.0;
            values.push((mean + 0.2 * stream.unit()) as f32);
        }
    }
    (values, labels)
}

fn images(dim: usize, classes: usize) -> Federation {
    let mut builder = FederationBuilder::new("images", InputKind::Bytes { dim }, classes);
    for (k, &count) in COUNTS.iter().enumerate() {
        let (values, labels) = features(dim, classes, k, count);
        let bytes: Vec<u8> = values.iter().map(|v| (v.clamp(0.0, 1.0) * 255.0) as u8).collect();
        builder.push(&format!("d{k}"), Split::Train, DeviceExamples::Bytes(&bytes), &labels).unwrap();
    }
    builder.build()
}

fn tables(dim: usize, classes: usize) -> Federation {
    let mut builder = FederationBuilder::new("tables", InputKind::Dense { dim }, classes);
    for (k, &count) in COUNTS.iter().enumerate() {
        let (values, labels) = features(dim, classes, k, count);
        builder.push(&format!("d{k}"), Split::Train, DeviceExamples::Dense(&values), &labels).unwrap();
    }
    builder.build()
}

fn texts(len: usize, alphabet: usize) -> Federation {
    let mut builder = FederationBuilder::new("texts", InputKind::Windows { len, alphabet }, alphabet);
    for (k, &count) in COUNTS.iter().enumerate() {
        let mut stream = stream(k);
        let mut text = vec![0u8];
        while text.len() < count + len {
            let last = u64::from(text[text.len() - 1]);
            text.push(((last * 3 + 1 + stream.below(4)) % alphabet as u64) as u8);
        }
        builder.push(&format!("d{k}"), Split::Train, DeviceExamples::Text(&text), Targets::IN_TEXT).unwrap();
    }
    builder.build()
}

fn words(len: usize, vocabulary: usize, classes: usize) -> Federation {
    let mut builder = FederationBuilder::new("words", InputKind::Tokens { len, vocabulary }, classes);
    let mut stream = stream(100);
    let values: Vec<f32> = (0..vocabulary * 50).map(|_| 0.5 * stream.normal() as f32).collect();
    builder.vectors(WordVectors { dim: 50, values: values.into() });
    for (k, &count) in COUNTS.iter().enumerate() {
        let mut stream = self::stream(k);
        let labels: Vec<u32> = (0..count).map(|_| stream.below(classes as u64) as u32).collect();
        let word = |i: usize| u64::from(labels[i / len]) + 3 * stream.below(vocabulary as u64 / 3 - 1);
        let ids: Vec<u32> =
            (0..count * len).map(word).map(|id| id.min(vocabulary as u64 - 1) as u32).collect();
        builder.push(&format!("d{k}"), Split::Train, DeviceExamples::Tokens(&ids), &labels).unwrap();
    }
    builder.build()
}

/// Returns every case with kernels. If `DELTAFL_GPU_CASES` is set, only those whose names start
/// with one of its comma-separated words, because a memory checker takes minutes for all of them.
pub(crate) fn every_case() -> impl Iterator<Item = Case> {
    let mut cases = all_cases();
    if let Ok(words) = std::env::var("DELTAFL_GPU_CASES") {
        cases.retain(|case| words.split(',').any(|word| case.name.starts_with(word)));
        assert!(!cases.is_empty(), "DELTAFL_GPU_CASES={words} names no case");
    }
    cases.into_iter().map(|case| (case.build)())
}

fn all_cases() -> Vec<NamedCase> {
    let gru = |embedding| sized(&GRU, "embedding", embedding);
    vec![
        case!("linear, images", images(784, 62), ModelSpec::LINEAR, 10, 0.05),
        case!(
            "linear, normalised images",
            images(77, 5).normalised(Normalise::Standard),
            ModelSpec::LINEAR,
            16,
            0.05,
        ),
        case!("linear, images of many classes", images(100, 100), ModelSpec::LINEAR, 16, 0.05),
        case!("linear, images in large batches", images(784, 62), ModelSpec::LINEAR, 20, 0.05),
        case!("linear, tables", tables(61, 10), ModelSpec::LINEAR, 8, 0.05),
        case!("perceptron, images", images(784, 62), PERCEPTRON.spec(), 10, 0.1),
        case!("perceptron, tables", tables(13, 3), sized(&PERCEPTRON, "hidden", 33), 16, 0.5),
        case!("logistic, tables", tables(50, 2), ModelSpec::LOGISTIC, 10, 0.5),
        case!("logistic, images", images(785, 2), ModelSpec::LOGISTIC, 10, 0.01),
        case!("conv-net, images", images(784, 62), conv_net(), 16, 0.1).loose(),
        case!("conv-net, tables", tables(784, 10), conv_net(), 10, 0.1).loose(),
        case!("lstm, words", words(25, 2000, 2), LSTM.spec(), 10, 0.5),
        case!("lstm, short texts", words(4, 300, 2), LSTM.spec(), 16, 0.5),
        case!("gru, texts", texts(20, 53), gru(0), 16, 0.5),
        case!("gru, words", words(5, 40, 7), gru(0), 10, 0.5),
        case!("gru, texts with an embedding", texts(9, 31), gru(8), 16, 0.2),
    ]
    .into_iter()
    .chain(general_cases())
    .chain(stacks::cases())
    .collect()
}

/// Returns shapes without specialised kernels.
fn general_cases() -> Vec<NamedCase> {
    let channels = |pair| CONV_NET.spec_with([("channels", OptionValue::WholePair(pair))]).unwrap();
    let intercept =
        |model: &'static ModelDefinition| model.spec_with([("intercept", OptionValue::Truth(true))]).unwrap();
    let embedded = |hidden| {
        let options = [("hidden", OptionValue::Whole(hidden)), ("embedding", OptionValue::Whole(8))];
        GRU.spec_with(options).unwrap()
    };
    let convolutions = vec![
        case!("general conv-net", images(784, 10), channels([8, 16]), 16, 0.1),
        case!("general conv-net in large batches", images(784, 62), conv_net(), 20, 0.1),
        case!("general conv-net, larger tables", tables(1024, 7), channels([33, 70]), 10, 0.1),
        case!("general odd conv-net", tables(17 * 17, 3), channels([3, 5]), 8, 0.1),
    ];
    let convolutions = convolutions.into_iter().map(NamedCase::loose);
    vec![
        case!("general linear", tables(3072, 100), ModelSpec::LINEAR, 10, 0.005),
        case!("general wide linear", images(100, 200), ModelSpec::LINEAR, 20, 0.05),
        case!("general linear, intercept", tables(61, 10), intercept(&LINEAR), 8, 0.05),
        case!("general logistic, intercept", tables(50, 2), intercept(&LOGISTIC), 10, 0.5),
        case!("general perceptron", images(784, 62), sized(&PERCEPTRON, "hidden", 600), 40, 0.1),
        case!("general linear, large batches", tables(61, 10), ModelSpec::LINEAR, 600, 0.05),
        // The device of one example adds it 4200 times. The rounding errors of equal terms do not cancel.
        case!("general logistic, large batches", tables(50, 2), ModelSpec::LOGISTIC, 4200, 0.5).within(1e-4),
        case!("general perceptron, large batches", tables(13, 3), sized(&PERCEPTRON, "hidden", 33), 200, 0.5)
            .loose(),
        case!("general gru 64", texts(20, 53), sized(&GRU, "hidden", 64), 16, 0.5),
        case!("general gru 96, large batches", texts(7, 90), sized(&GRU, "hidden", 96), 33, 0.5),
        case!("general gru 256", texts(12, 53), sized(&GRU, "hidden", 256), 16, 0.5),
        case!("general gru 49, words", words(5, 40, 7), sized(&GRU, "hidden", 49), 10, 0.5),
        case!("general gru 37, embedded", texts(9, 31), embedded(37), 16, 0.2),
        case!("general gru 300", texts(4, 31), sized(&GRU, "hidden", 300), 16, 0.2),
        case!("general gru 129", texts(6, 31), sized(&GRU, "hidden", 129), 10, 0.2),
        case!("general gru of one time step", texts(1, 31), sized(&GRU, "hidden", 16), 16, 0.2),
        case!("general lstm 64", words(25, 2000, 2), sized(&LSTM, "hidden", 64), 10, 0.5),
        case!("general lstm 49", words(4, 300, 2), sized(&LSTM, "hidden", 49), 16, 0.5),
        case!("general lstm 270", words(4, 300, 2), sized(&LSTM, "hidden", 270), 10, 0.5),
        case!("general lstm 256", words(11, 300, 2), sized(&LSTM, "hidden", 256), 20, 0.5),
    ]
    .into_iter()
    .chain(convolutions)
    .collect()
}

fn conv_net() -> ModelSpec {
    CONV_NET.spec()
}

fn sized(model: &'static ModelDefinition, option: &str, size: u64) -> ModelSpec {
    model.spec_with([(option, OptionValue::Whole(size))]).unwrap()
}

/// Returns a case with more devices than a grid has rows.
pub(crate) fn many_devices() -> Case {
    let mut builder = FederationBuilder::new("many devices", InputKind::Dense { dim: 2 }, 2);
    for k in 0..70_000 {
        let (values, labels) = features(2, 2, k, 1);
        builder.push(&format!("d{k}"), Split::Train, DeviceExamples::Dense(&values), &labels).unwrap();
    }
    Case::new("linear, many devices", builder.build(), ModelSpec::LINEAR, 1, 0.05)
}

/// Returns a case with one class: the loss and its gradient are zero.
pub(crate) fn one_class() -> Case {
    Case::new("stack of one class", tables(20, 1), stacks::with_hidden_layer(), 16, 0.5)
}

/// Returns models without kernels.
pub(crate) fn unsupported() -> Vec<Case> {
    vec![
        Case::new("fourier", tables(20, 3), FOURIER.spec(), 16, 0.1),
        Case::new("stack", tables(20, 3), stacks::with_dropout(), 16, 0.1),
    ]
}

/// Returns the GPU, or prints that there is none.
pub(crate) fn device() -> Option<GpuDevice> {
    let cache = KernelCache::in_folder(std::env::temp_dir().join("deltafl-test-kernels"));
    match GpuDevice::open(0, cache) {
        Ok(device) => Some(device),
        Err(error) => {
            // On a machine that should have a GPU, `scripts/test-gpu` makes this an error.
            assert!(std::env::var_os("DELTAFL_NEEDS_GPU").is_none(), "{error}");
            eprintln!("passed over: {error}");
            None
        }
    }
}
