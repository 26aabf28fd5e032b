//! The five models of the paper with random data of the paper's shape, and the model of an
//! experiment.

use deltafl::data::{
    DeviceExamples, Federation, FederationBuilder, InputKind, Normalise, Split, WordVectors,
};
use deltafl::model::{CONV_NET, GRU, LSTM, ModelSpec};
use deltafl::stream::{Purpose, Stream};
use deltafl::task::Targets;
use deltafl_data::experiment::Experiment;
use deltafl_run::{RunError, session};

/// A model and its training parameters in the paper (`experiments/paper`).
pub(super) struct Case {
    pub(super) name: String,
    pub(super) spec: ModelSpec,
    pub(super) batch: usize,
    pub(super) learning_rate: f32,
    pub(super) l2: f32,
    /// Operations per example for training, as counted in docs/src/explanation/kernels.md.
    pub(super) train_flops: f64,
    /// Operations per example of a forward pass.
    pub(super) eval_flops: f64,
    data: CaseData,
}

/// The data of a case.
enum CaseData {
    /// Random data.
    Random(DataShape),
    /// The data of an experiment.
    Loaded(Box<Federation>),
}

/// The shape of the data.
#[derive(Clone, Copy)]
enum DataShape {
    Images,
    Features,
    Words,
    Text,
}

const VOCABULARY: usize = 20_000;

/// Returns all cases.
pub(super) fn all() -> Vec<Case> {
    vec![emnist_linear(), emnist_conv_net(), sent140_linear(), sent140_lstm(), shakespeare_gru()]
}

fn emnist_linear() -> Case {
    let forward = 2.0 * 784.0 * 62.0;
    Case {
        name: "emnist-linear".to_owned(),
        spec: ModelSpec::LINEAR,
        batch: 10,
        learning_rate: 1.0,
        l2: 1e-7,
        train_flops: 2.0 * forward,
        eval_flops: forward,
        data: CaseData::Random(DataShape::Images),
    }
}

fn emnist_conv_net() -> Case {
    let (first, second) = (24.0 * 24.0 * 32.0 * 25.0 * 2.0, 8.0 * 8.0 * 64.0 * 800.0 * 2.0);
    let full = 1024.0 * 62.0 * 2.0;
    let forward = first + second + full;
    // The pool passes one position in four, and the image needs no gradient.
    let backward = first / 4.0 + 2.0 * second / 4.0 + 2.0 * full;
    Case {
        name: "emnist-convnet".to_owned(),
        spec: CONV_NET.spec(),
        batch: 16,
        // On noise, the paper's rate of 0.32 deactivates the ReLUs within a few steps and thus
        // reduces the work of the backward pass. Training on real images deactivates some as well:
        // a third to a half stay active, here three quarters.
        learning_rate: 0.01,
        l2: 0.0,
        train_flops: forward + backward,
        eval_flops: forward,
        data: CaseData::Random(DataShape::Images),
    }
}

fn sent140_linear() -> Case {
    let forward = 2.0 * 50.0;
    Case {
        name: "sent140-linear".to_owned(),
        spec: ModelSpec::LOGISTIC,
        batch: 10,
        learning_rate: 0.01,
        l2: 1e-6,
        train_flops: 2.0 * forward,
        eval_flops: forward,
        data: CaseData::Random(DataShape::Features),
    }
}

fn sent140_lstm() -> Case {
    // h₀ = 0 saves the recurrent product of the first of the 20 steps. The word vectors need no
    // gradient.
    let (input, recurrent, full) = (20.0 * 50.0 * 200.0 * 2.0, 19.0 * 50.0 * 200.0 * 2.0, 2.0 * 50.0);
    Case {
        name: "sent140-lstm".to_owned(),
        spec: LSTM.spec(),
        batch: 10,
        learning_rate: 2.0,
        l2: 0.0,
        train_flops: 2.0 * input + 3.0 * recurrent + 3.0 * full,
        eval_flops: input + recurrent + full,
        data: CaseData::Random(DataShape::Words),
    }
}

fn shakespeare_gru() -> Case {
    // One-hot input is a look-up and is not counted.
    let (recurrent, full) = (19.0 * 128.0 * 384.0 * 2.0, 128.0 * 53.0 * 2.0);
    Case {
        name: "shakespeare-gru".to_owned(),
        spec: GRU.spec(),
        batch: 16,
        learning_rate: 0.1,
        l2: 0.0,
        train_flops: 3.0 * (recurrent + full),
        eval_flops: recurrent + full,
        data: CaseData::Random(DataShape::Text),
    }
}

impl Case {
    /// Returns the model of an experiment on its data.
    pub(super) fn of_experiment(experiment: &Experiment) -> Result<Self, RunError> {
        let federation = session::load(experiment)?;
        let spec = experiment.model().spec().clone();
        // Backward, a product becomes two. The operations of other models are not counted.
        let forward = spec.stack(&federation)?.map_or(f64::NAN, |stack| stack.operations() as f64);
        Ok(Self {
            name: experiment.name().to_owned(),
            spec,
            batch: experiment.local().batch,
            learning_rate: experiment.local().learning_rate as f32,
            l2: experiment.model().l2() as f32,
            train_flops: 3.0 * forward,
            eval_flops: forward,
            data: CaseData::Loaded(Box::new(federation)),
        })
    }

    /// Returns devices with as many examples as the median device of the paper's data.
    pub(super) fn federation(&self, devices: usize) -> Federation {
        let data = match &self.data {
            CaseData::Random(data) => *data,
            CaseData::Loaded(federation) => return Federation::clone(federation),
        };
        let stream = &mut Stream::new(1, Purpose::Synthesis, 0, 0);
        let (kind, classes) = match data {
            DataShape::Images => (InputKind::Bytes { dim: 784 }, 62),
            DataShape::Features => (InputKind::Dense { dim: 50 }, 2),
            DataShape::Words => (InputKind::Tokens { len: 20, vocabulary: VOCABULARY }, 2),
            DataShape::Text => (InputKind::Windows { len: 20, alphabet: 53 }, 53),
        };
        let mut builder = FederationBuilder::new(self.name.as_str(), kind, classes);
        if let DataShape::Words = data {
            builder.vectors(word_vectors(stream));
        }
        for k in 0..devices {
            data.push_device(&mut builder, &format!("device {k}"), stream);
        }
        // Centred, as in the paper's experiments.
        builder.build().normalised(Normalise::MeanRatio)
    }
}

impl DataShape {
    fn push_device(self, builder: &mut FederationBuilder, id: &str, stream: &mut Stream) {
        let mut below =
            |n: u64, count: usize| -> Vec<u32> { (0..count).map(|_| stream.below(n) as u32).collect() };
        let bytes = |values: Vec<u32>| -> Vec<u8> { values.into_iter().map(|v| v as u8).collect() };
        let added = match self {
            Self::Images => {
                let labels = below(62, 179);
                builder.push(id, Split::Train, DeviceExamples::Bytes(&bytes(below(256, 179 * 784))), &labels)
            }
            Self::Features => {
                let labels = below(2, 69);
                let values: Vec<f32> = (0..69 * 50).map(|_| stream.normal() as f32).collect();
                builder.push(id, Split::Train, DeviceExamples::Dense(&values), &labels)
            }
            Self::Words => {
                let labels = below(2, 69);
                builder.push(
                    id,
                    Split::Train,
                    DeviceExamples::Tokens(&below(VOCABULARY as u64, 69 * 20)),
                    &labels,
                )
            }
            Self::Text => builder.push(
                id,
                Split::Train,
                DeviceExamples::Text(&bytes(below(53, 1288 + 20))),
                Targets::IN_TEXT,
            ),
        };
        added.expect("the examples have the shape of their federation");
    }
}

fn word_vectors(stream: &mut Stream) -> WordVectors {
    let mut values: Vec<f32> = (0..VOCABULARY * 50).map(|_| stream.uniform(-0.5, 0.5) as f32).collect();
    values[..50].fill(0.0);
    WordVectors { dim: 50, values: values.into() }
}
