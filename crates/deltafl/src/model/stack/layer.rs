//! The layers of a stack: a plain description, and the table from which files are read.

use serde::de::Error as _;
use serde::ser::SerializeMap;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::options::{
    Interval, InvalidOption, OptionDefault, OptionKind, OptionSpec, OptionValue, OptionValues, RawTable,
    RawValue,
};

/// A layer of a [`Stack`](super::Stack). The data and the layers before it determine the size of
/// its input.
///
/// Its serialised form is a table such as `{"kind":"dense","units":200}`.
///
/// ```
/// use deltafl::model::stack::Layer;
///
/// let layer: Layer = serde_json::from_str(r#"{"kind":"conv2d","channels":32,"size":3}"#)?;
/// assert_eq!(layer, Layer::Conv2d { channels: 32, size: 3, stride: 1, padding: 0 });
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Layer {
    /// y = xW + b, for features or for each step of a sequence.
    Dense {
        /// Entries of the output.
        units: usize,
        /// Whether there is a b.
        bias: bool,
    },
    /// A convolution of images with square filters, and a bias per channel.
    Conv2d {
        /// Channels of the output.
        channels: usize,
        /// The side of the filters.
        size: usize,
        /// Cells between two windows.
        stride: usize,
        /// Zeros around the image.
        padding: usize,
    },
    /// The largest entry of each window of an image.
    MaxPool {
        /// The side of the windows.
        size: usize,
        /// Cells between two windows.
        stride: usize,
    },
    /// The mean of each window of an image.
    AvgPool {
        /// The side of the windows.
        size: usize,
        /// Cells between two windows.
        stride: usize,
    },
    /// Normalises groups of channels over the whole image, with a trained scale and shift per
    /// channel.
    GroupNorm {
        /// The number of groups.
        groups: usize,
    },
    /// Normalises all features of an example or of a step, with a trained scale and shift per
    /// feature.
    LayerNorm,
    /// max(0, x).
    Relu,
    /// x Φ(x), with the normal distribution function Φ.
    Gelu,
    /// The hyperbolic tangent.
    Tanh,
    /// In training, sets each entry to zero with this probability and divides the others by 1 −
    /// rate.
    Dropout {
        /// The probability, a multiple of 1/65,536 below 1.
        rate: f32,
    },
    /// A trained vector per word or symbol. The vector of the padding of texts remains zero.
    Embedding {
        /// Entries of a vector.
        entries: usize,
    },
    /// The frozen vector of each word, which the data contains.
    WordVectors,
    /// A unit vector per word or symbol.
    OneHot,
    /// A recurrent layer of LSTM cells: its output at each step.
    Lstm {
        /// The number of units.
        hidden: usize,
    },
    /// A recurrent layer of GRU cells: its output at each step.
    Gru {
        /// The number of units.
        hidden: usize,
    },
    /// The last step of a sequence.
    Last {
        /// Whether the padding after a text counts as steps. Otherwise the last word is the last
        /// step.
        padding: bool,
    },
    /// The mean over the steps of a sequence, without the padding of a text.
    Mean,
    /// The entries of an image or a sequence as features: channel by channel, or step by step.
    Flatten,
    /// x + f(x), for layers f whose output has the shape of their input.
    Residual {
        /// f.
        layers: Vec<Self>,
    },
}

/// An entry of the table of layers.
#[derive(Debug)]
pub struct LayerDefinition {
    /// Its name in files: `kind = "…"`.
    pub kind: &'static str,
    /// A description, in one sentence without a full stop.
    pub about: &'static str,
    /// Its options.
    pub options: &'static [OptionSpec],
    build: fn(&OptionValues, Vec<Layer>) -> Result<Layer, InvalidOption>,
}

const fn size(name: &'static str, about: &'static str, example: u64) -> OptionSpec {
    let (kind, example) = (OptionKind::Whole(1), OptionValue::Whole(example));
    OptionSpec::new(name, kind, OptionDefault::Required, about, example)
}

const WINDOW: OptionSpec = size("size", "the side of the filters or windows", 3);
const CHANNELS: OptionSpec = size("channels", "channels of the output", 32);
const HIDDEN: OptionSpec = size("hidden", "units of the recurrent layer", 64);

const STRIDE: OptionSpec = OptionSpec::new(
    "stride",
    OptionKind::Whole(1),
    OptionDefault::Value(OptionValue::Whole(1)),
    "cells between two windows",
    OptionValue::Whole(2),
);

const POOL_STRIDE: OptionSpec = OptionSpec::new(
    "stride",
    OptionKind::Whole(1),
    OptionDefault::Unset("the size"),
    "cells between two windows",
    OptionValue::Whole(2),
);

const PADDING: OptionSpec = OptionSpec::new(
    "padding",
    OptionKind::Whole(0),
    OptionDefault::Value(OptionValue::Whole(0)),
    "zeros on each side of the image",
    OptionValue::Whole(1),
);

const BIAS: OptionSpec = OptionSpec::new(
    "bias",
    OptionKind::Truth,
    OptionDefault::Value(OptionValue::Truth(true)),
    "adds a trained constant to each output",
    OptionValue::Truth(false),
);

const READS_PADDING: OptionSpec = OptionSpec::new(
    "reads_padding",
    OptionKind::Truth,
    OptionDefault::Value(OptionValue::Truth(false)),
    "takes the step after the padding of a text instead of its last word",
    OptionValue::Truth(true),
);

/// The probabilities of dropout.
const RATES: Interval = Interval { least: 0.0, open: true, most: 0.999 };

/// Reads a size.
fn whole(options: &OptionValues, name: &str) -> Result<usize, InvalidOption> {
    Ok(options.whole(name)? as usize)
}

/// Reads the stride of a pool, which is the size of its windows by default.
fn pool(options: &OptionValues) -> Result<[usize; 2], InvalidOption> {
    let size = whole(options, "size")?;
    let stride = if options.get("stride")?.is_some() { whole(options, "stride")? } else { size };
    Ok([size, stride])
}

/// Every layer that a file can name.
pub static LAYERS: &[LayerDefinition] = &[
    LayerDefinition {
        kind: "dense",
        about: "a full layer, for features or for each step of a sequence",
        options: &[size("units", "entries of the output", 200), BIAS],
        build: |options, _| {
            Ok(Layer::Dense { units: whole(options, "units")?, bias: options.truth("bias")? })
        },
    },
    LayerDefinition {
        kind: "conv2d",
        about: "a convolution of images with square filters",
        options: &[CHANNELS, WINDOW, STRIDE, PADDING],
        build: |options, _| {
            let [channels, size] = [whole(options, "channels")?, whole(options, "size")?];
            let [stride, padding] = [whole(options, "stride")?, whole(options, "padding")?];
            Ok(Layer::Conv2d { channels, size, stride, padding })
        },
    },
    LayerDefinition {
        kind: "max-pool",
        about: "the largest entry of each window of an image",
        options: &[WINDOW, POOL_STRIDE],
        build: |options, _| pool(options).map(|[size, stride]| Layer::MaxPool { size, stride }),
    },
    LayerDefinition {
        kind: "avg-pool",
        about: "the mean of each window of an image",
        options: &[WINDOW, POOL_STRIDE],
        build: |options, _| pool(options).map(|[size, stride]| Layer::AvgPool { size, stride }),
    },
    LayerDefinition {
        kind: "group-norm",
        about: "normalises groups of the channels of an image or of features",
        options: &[size("groups", "the number of groups, which divides the channels", 8)],
        build: |options, _| Ok(Layer::GroupNorm { groups: whole(options, "groups")? }),
    },
    LayerDefinition {
        kind: "layer-norm",
        about: "normalises the features of an example or of a step",
        options: &[],
        build: |_, _| Ok(Layer::LayerNorm),
    },
    LayerDefinition { kind: "relu", about: "max(0, x)", options: &[], build: |_, _| Ok(Layer::Relu) },
    LayerDefinition {
        kind: "gelu",
        about: "x Φ(x), with the normal distribution function Φ",
        options: &[],
        build: |_, _| Ok(Layer::Gelu),
    },
    LayerDefinition {
        kind: "tanh",
        about: "the hyperbolic tangent",
        options: &[],
        build: |_, _| Ok(Layer::Tanh),
    },
    LayerDefinition {
        kind: "dropout",
        about: "sets entries to zero at random in training",
        options: &[OptionSpec::new(
            "rate",
            OptionKind::Real(RATES),
            OptionDefault::Required,
            "the probability of zero",
            OptionValue::Real(0.5),
        )],
        build: |options, _| Ok(Layer::Dropout { rate: options.real("rate")? as f32 }),
    },
    LayerDefinition {
        kind: "embedding",
        about: "a trained vector per word or symbol",
        options: &[size("entries", "entries of a vector", 64)],
        build: |options, _| Ok(Layer::Embedding { entries: whole(options, "entries")? }),
    },
    LayerDefinition {
        kind: "word-vectors",
        about: "the frozen word vectors of the data",
        options: &[],
        build: |_, _| Ok(Layer::WordVectors),
    },
    LayerDefinition {
        kind: "one-hot",
        about: "a unit vector per word or symbol",
        options: &[],
        build: |_, _| Ok(Layer::OneHot),
    },
    LayerDefinition {
        kind: "lstm",
        about: "a recurrent layer of LSTM cells",
        options: &[HIDDEN],
        build: |options, _| Ok(Layer::Lstm { hidden: whole(options, "hidden")? }),
    },
    LayerDefinition {
        kind: "gru",
        about: "a recurrent layer of GRU cells",
        options: &[HIDDEN],
        build: |options, _| Ok(Layer::Gru { hidden: whole(options, "hidden")? }),
    },
    LayerDefinition {
        kind: "last",
        about: "the last step of a sequence",
        options: &[READS_PADDING],
        build: |options, _| Ok(Layer::Last { padding: options.truth("reads_padding")? }),
    },
    LayerDefinition {
        kind: "mean",
        about: "the mean over the steps of a sequence, without the padding of a text",
        options: &[],
        build: |_, _| Ok(Layer::Mean),
    },
    LayerDefinition {
        kind: "flatten",
        about: "an image or a sequence as features",
        options: &[],
        build: |_, _| Ok(Layer::Flatten),
    },
    LayerDefinition {
        kind: RESIDUAL,
        about: "adds its input to the output of its `layers`",
        options: &[],
        build: |_, layers| Ok(Layer::Residual { layers }),
    },
];

/// The kind of the layer that contains layers.
pub const RESIDUAL: &str = "residual";

impl LayerDefinition {
    /// Returns the layer of this kind.
    pub fn find(kind: &str) -> Option<&'static Self> {
        LAYERS.iter().find(|layer| layer.kind == kind)
    }

    /// Returns the layer with these values and, for a residual, these layers.
    ///
    /// # Errors
    /// A required option is missing, an option is unknown or out of range, or only one of a
    /// residual and `layers` is given.
    pub fn layer<'a>(
        &'static self,
        given: impl IntoIterator<Item = (&'a str, OptionValue)>,
        layers: Vec<Layer>,
    ) -> Result<Layer, InvalidOption> {
        if layers.is_empty() == (self.kind == RESIDUAL) {
            let reason = match layers.is_empty() {
                true => "a residual needs at least one layer",
                false => "only a residual contains layers",
            };
            return Err(InvalidOption::new("layers", reason));
        }
        let values = OptionValues::new(self.kind, self.options, given)?;
        (self.build)(&values, layers)
    }
}

impl Layer {
    /// Returns its name in files.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Dense { .. } => "dense",
            Self::Conv2d { .. } => "conv2d",
            Self::MaxPool { .. } => "max-pool",
            Self::AvgPool { .. } => "avg-pool",
            Self::GroupNorm { .. } => "group-norm",
            Self::LayerNorm => "layer-norm",
            Self::Relu => "relu",
            Self::Gelu => "gelu",
            Self::Tanh => "tanh",
            Self::Dropout { .. } => "dropout",
            Self::Embedding { .. } => "embedding",
            Self::WordVectors => "word-vectors",
            Self::OneHot => "one-hot",
            Self::Lstm { .. } => "lstm",
            Self::Gru { .. } => "gru",
            Self::Last { .. } => "last",
            Self::Mean => "mean",
            Self::Flatten => "flatten",
            Self::Residual { .. } => RESIDUAL,
        }
    }

    /// Returns the options that differ from their defaults, or have none.
    pub fn options(&self) -> Vec<(&'static str, OptionValue)> {
        let whole = |name: &'static str, value: &usize| (name, OptionValue::Whole(*value as u64));
        match self {
            Self::Dense { units, bias } => {
                let bias = (!bias).then_some(("bias", OptionValue::Truth(false)));
                std::iter::once(whole("units", units)).chain(bias).collect()
            }
            Self::Conv2d { channels, size, stride, padding } => {
                let mut options = vec![whole("channels", channels), whole("size", size)];
                options.extend((*stride != 1).then(|| whole("stride", stride)));
                options.extend((*padding != 0).then(|| whole("padding", padding)));
                options
            }
            Self::MaxPool { size, stride } | Self::AvgPool { size, stride } => {
                let stride_option = (stride != size).then(|| whole("stride", stride));
                std::iter::once(whole("size", size)).chain(stride_option).collect()
            }
            Self::GroupNorm { groups } => vec![whole("groups", groups)],
            // The shortest decimal number of a single-precision rate.
            Self::Dropout { rate } => {
                let decimal = rate.to_string().parse().unwrap_or(f64::from(*rate));
                vec![("rate", OptionValue::Real(decimal))]
            }
            Self::Embedding { entries } => vec![whole("entries", entries)],
            Self::Lstm { hidden } | Self::Gru { hidden } => vec![whole("hidden", hidden)],
            Self::Last { padding: true } => vec![("reads_padding", OptionValue::Truth(true))],
            Self::Last { padding: false }
            | Self::LayerNorm
            | Self::Relu
            | Self::Gelu
            | Self::Tanh
            | Self::WordVectors
            | Self::OneHot
            | Self::Mean
            | Self::Flatten
            | Self::Residual { .. } => Vec::new(),
        }
    }

    /// Returns the layers inside it.
    pub fn layers(&self) -> &[Self] {
        match self {
            Self::Residual { layers } => layers,
            _ => &[],
        }
    }
}

impl Serialize for Layer {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("kind", self.kind())?;
        for (name, value) in self.options() {
            map.serialize_entry(name, &value)?;
        }
        if let Self::Residual { layers } = self {
            map.serialize_entry("layers", layers)?;
        }
        map.end()
    }
}

impl<'de> Deserialize<'de> for Layer {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let table = RawTable::deserialize(deserializer)?;
        let kind = table.kind.ok_or_else(|| D::Error::missing_field("kind"))?;
        let definition = LayerDefinition::find(&kind)
            .ok_or_else(|| D::Error::custom(format_args!("unknown layer {kind:?}")))?;
        let checked = |(name, raw): &(String, RawValue)| {
            let spec = definition.options.iter().find(|spec| spec.name == name.as_str());
            let spec = spec.ok_or_else(|| format!("layer {kind} has no option {name}"))?;
            let value = spec.check(raw);
            let value = value.ok_or_else(|| format!("{name}: expected {}, got {raw}", spec.kind))?;
            Ok((spec.name, value))
        };
        let given = table.options.iter().map(checked).collect::<Result<Vec<_>, String>>();
        let given = given.map_err(D::Error::custom)?;
        definition.layer(given, table.layers).map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_layer_of_the_table_is_written_and_read_back() {
        for definition in LAYERS {
            let inner = if definition.kind == RESIDUAL { vec![Layer::Relu] } else { Vec::new() };
            let required =
                definition.options.iter().filter(|option| option.default == OptionDefault::Required);
            let required: Vec<_> = required.map(|option| (option.name, option.example)).collect();
            let examples = definition.options.iter().map(|option| (option.name, option.example)).collect();
            for given in [required, examples] {
                let layer = definition.layer(given, inner.clone()).unwrap();
                assert_eq!(layer.kind(), definition.kind);
                let json = serde_json::to_string(&layer).unwrap();
                assert_eq!(serde_json::from_str::<Layer>(&json).unwrap(), layer, "{json}");
            }
        }
    }

    #[test]
    fn unknown_layers_and_wrong_options_are_refused() {
        for (json, reason) in [
            (r#"{"kind":"densee"}"#, "unknown layer \"densee\""),
            (r#"{"units":3}"#, "missing field `kind`"),
            (r#"{"kind":"dense"}"#, "units: dense needs it: a whole number, 1 or above"),
            (r#"{"kind":"dense","units":0}"#, "units: expected a whole number, 1 or above, got 0"),
            (r#"{"kind":"dropout","rate":1}"#, "rate: expected a number in (0, 0.999], got 1"),
            (r#"{"kind":"relu","units":3}"#, "layer relu has no option units"),
            (r#"{"kind":"residual"}"#, "layers: a residual needs at least one layer"),
            (r#"{"kind":"relu","layers":[{"kind":"relu"}]}"#, "layers: only a residual contains layers"),
        ] {
            let error = serde_json::from_str::<Layer>(json).unwrap_err().to_string();
            assert!(error.starts_with(reason), "{json}: {error}");
        }
    }
}
