//! Stacks in one line: `mlp`, `cnn` and `rnn`.

use super::{HUBER, HeadOptions, Layer, build};
use crate::model::{ModelDefinition, ModelMismatch, ModelRequest};
use crate::options::{Interval, InvalidOption, OptionDefault, OptionKind, OptionSpec, OptionValue};

const fn size(name: &'static str, default: u64, about: &'static str, example: u64) -> OptionSpec {
    let (kind, example) = (OptionKind::Whole(1), OptionValue::Whole(example));
    OptionSpec::new(name, kind, OptionDefault::Value(OptionValue::Whole(default)), about, example)
}

/// The most hidden layers of a preset.
const MOST_LAYERS: u64 = 1000;

const DROPOUT: OptionSpec = OptionSpec::new(
    "dropout",
    OptionKind::Real(Interval { least: 0.0, open: false, most: 0.999 }),
    OptionDefault::Value(OptionValue::Real(0.0)),
    "the probability of zero after each hidden layer, in training",
    OptionValue::Real(0.25),
);

const ACTIVATION: OptionSpec = OptionSpec::new(
    "activation",
    OptionKind::Word(&["relu", "gelu", "tanh"]),
    OptionDefault::Value(OptionValue::Word("relu")),
    "the function after each hidden layer",
    OptionValue::Word("gelu"),
);

/// The multilayer perceptron.
pub static MLP: ModelDefinition = ModelDefinition {
    kind: "mlp",
    about: "dense layers with an activation after each, for features",
    tasks: &["classes", "regression"],
    options: &[
        size("hidden", 200, "units of each hidden layer", 64),
        size("depth", 1, "the number of hidden layers", 2),
        ACTIVATION,
        DROPOUT,
        HUBER,
    ],
    build: build_preset,
};

/// The convolutional network.
pub static CNN: ModelDefinition = ModelDefinition {
    kind: "cnn",
    about: "two convolutions, max-pooling and a hidden layer, for grey and coloured images",
    tasks: &["classes", "regression"],
    options: &[
        OptionSpec::new(
            "channels",
            OptionKind::WholePair(1),
            OptionDefault::Value(OptionValue::WholePair([32, 64])),
            "channels of the two convolutions",
            OptionValue::WholePair([8, 16]),
        ),
        size("size", 3, "the side of the filters", 5),
        size("hidden", 512, "units of the hidden layer", 64),
        DROPOUT,
        HUBER,
    ],
    build: build_preset,
};

/// The recurrent network.
pub static RNN: ModelDefinition = ModelDefinition {
    kind: "rnn",
    about: "a trained embedding and a recurrent layer, for texts",
    tasks: &["classes", "next-symbol", "regression"],
    options: &[
        OptionSpec::new(
            "cell",
            OptionKind::Word(&["gru", "lstm"]),
            OptionDefault::Value(OptionValue::Word("gru")),
            "the kind of recurrent layer",
            OptionValue::Word("lstm"),
        ),
        size("embedding", 64, "entries of the trained vector of a word", 16),
        size("hidden", 64, "units of the recurrent layer", 32),
        OptionSpec::new(
            "over_time",
            OptionKind::Word(&["last", "mean"]),
            OptionDefault::Value(OptionValue::Word("last")),
            "the part of the states that is used: the last word, or the mean over all words",
            OptionValue::Word("mean"),
        ),
        DROPOUT,
        HUBER,
    ],
    build: build_preset,
};

/// Builds a preset.
pub(in crate::model) fn build_preset(
    request: &ModelRequest<'_>,
) -> Result<Box<dyn crate::model::Model>, ModelMismatch> {
    match layers(request)? {
        Some((layers, head)) => build(request, &layers, head),
        None => unreachable!("every preset has layers"),
    }
}

/// Returns the layers and the head of a preset; `None` for another model.
pub(super) fn layers(request: &ModelRequest<'_>) -> Result<Option<(Vec<Layer>, HeadOptions)>, ModelMismatch> {
    let options = request.options;
    let huber = |options: &crate::options::OptionValues| options.optional_real("huber");
    let dropout = || -> Result<Option<Layer>, ModelMismatch> {
        let rate = options.real("dropout")? as f32;
        Ok((rate > 0.0).then_some(Layer::Dropout { rate }))
    };
    let mut layers = Vec::new();
    match request.model {
        "mlp" => {
            let activation = match options.word("activation")? {
                "gelu" => Layer::Gelu,
                "tanh" => Layer::Tanh,
                _ => Layer::Relu,
            };
            request.features()?;
            let depth = options.whole("depth")?;
            if depth > MOST_LAYERS {
                let reason = format!("expected at most {MOST_LAYERS}, got {depth}");
                return Err(InvalidOption::new("depth", reason).into());
            }
            for _ in 0..depth {
                layers.push(Layer::Dense { units: request.size("hidden")?, bias: true });
                layers.push(activation.clone());
                layers.extend(dropout()?);
            }
        }
        "perceptron" => {
            request.features()?;
            layers.push(Layer::Dense { units: request.size("hidden")?, bias: true });
            layers.push(Layer::Relu);
            return Ok(Some((layers, HeadOptions::with_bias(None))));
        }
        "cnn" => {
            request.features()?;
            let size = request.size("size")?;
            for channels in options.whole_pair("channels")? {
                layers.push(Layer::Conv2d { channels: channels as usize, size, stride: 1, padding: 0 });
                layers.push(Layer::Relu);
            }
            layers.extend([Layer::MaxPool { size: 2, stride: 2 }, Layer::Flatten]);
            layers.push(Layer::Dense { units: request.size("hidden")?, bias: true });
            layers.push(Layer::Relu);
            layers.extend(dropout()?);
        }
        "rnn" => {
            request.sequences()?;
            layers.push(Layer::Embedding { entries: request.size("embedding")? });
            let hidden = request.size("hidden")?;
            let is_lstm = options.word("cell")? == "lstm";
            layers.push(if is_lstm { Layer::Lstm { hidden } } else { Layer::Gru { hidden } });
            let is_mean = options.word("over_time")? == "mean";
            layers.push(if is_mean { Layer::Mean } else { Layer::Last { padding: false } });
            layers.extend(dropout()?);
        }
        _ => return Ok(None),
    }
    Ok(Some((layers, HeadOptions::with_bias(huber(options)?))))
}
