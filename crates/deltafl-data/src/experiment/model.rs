//! The `[model]` section.

use std::num::NonZeroUsize;

use serde::{Deserialize, Deserializer, Serialize};

use super::{NonNegative, Positive};
use deltafl::model::ModelSpec;

/// What devices train.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelSection {
    /// Which.
    pub kind: ModelKind,
    /// λ of (λ/2)‖w‖².
    #[serde(default)]
    pub l2: NonNegative,
    /// Channels of the two convolutions of a conv-net.
    #[serde(default, deserialize_with = "two", skip_serializing_if = "Option::is_none")]
    pub channels: Option<[NonZeroUsize; 2]>,
    /// Units of an lstm, a gru or a perceptron.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hidden: Option<NonZeroUsize>,
    /// Whether a linear or logistic model has an intercept; the paper's have none.
    #[serde(default, skip_serializing_if = "is_false")]
    pub intercept: bool,
    /// δ of the Huber loss of a linear model whose targets are real numbers; without it, the squared loss.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub huber: Option<Positive>,
    /// Entries of a gru's trained embedding; 0 is one-hot input.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub embedding: Option<usize>,
}

fn is_false(value: &bool) -> bool {
    !value
}

/// Two numbers; serde's arrays would pass over a third.
fn two<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<[NonZeroUsize; 2]>, D::Error> {
    let given = Vec::<NonZeroUsize>::deserialize(deserializer)?;
    let two = given.as_slice().try_into();
    two.map(Some)
        .map_err(|_| serde::de::Error::custom(format_args!("expected two numbers, got {}", given.len())))
}

/// The models.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ModelKind {
    /// Softmax regression; linear regression where targets are real numbers.
    Linear,
    /// Binary logistic regression.
    Logistic,
    /// The convolutional network of EMNIST.
    ConvNet,
    /// The LSTM over frozen word vectors.
    Lstm,
    /// The GRU over symbols.
    Gru,
    /// A perceptron with one hidden layer.
    Perceptron,
    /// A model that a program brings.
    External,
}

/// An option that the model does not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("[model] {option} is not an option of {kind}")]
pub struct ForeignOption {
    /// The option.
    pub option: &'static str,
    /// The model.
    pub kind: &'static str,
}

impl ModelSection {
    /// The model with its sizes.
    pub fn spec(&self) -> ModelSpec {
        match self.kind {
            ModelKind::Linear => ModelSpec::Linear {
                intercept: self.intercept,
                huber: self.huber.map(|delta| delta.get() as f32),
            },
            ModelKind::Logistic => ModelSpec::Logistic { intercept: self.intercept },
            ModelKind::ConvNet => {
                ModelSpec::ConvNet { channels: self.channels.map_or([32, 64], |c| c.map(NonZeroUsize::get)) }
            }
            ModelKind::Lstm => ModelSpec::Lstm { hidden: self.hidden.map_or(50, NonZeroUsize::get) },
            ModelKind::Gru => ModelSpec::Gru {
                hidden: self.hidden.map_or(128, NonZeroUsize::get),
                embedding: self.embedding.unwrap_or(0),
            },
            ModelKind::Perceptron => {
                ModelSpec::Perceptron { hidden: self.hidden.map_or(100, NonZeroUsize::get) }
            }
            ModelKind::External => ModelSpec::External,
        }
    }

    /// Refuses options of another model, which would be silently without effect.
    pub(super) fn validate(&self) -> Result<(), ForeignOption> {
        use ModelKind::{ConvNet, Gru, Linear, Logistic, Lstm, Perceptron};
        let options = [
            ("channels", self.channels.is_some(), self.kind == ConvNet),
            ("hidden", self.hidden.is_some(), matches!(self.kind, Lstm | Gru | Perceptron)),
            ("embedding", self.embedding.is_some(), self.kind == Gru),
            ("intercept", self.intercept, matches!(self.kind, Linear | Logistic)),
            ("huber", self.huber.is_some(), self.kind == Linear),
        ];
        match options.into_iter().find(|&(_, given, known)| given && !known) {
            Some((option, ..)) => Err(ForeignOption { option, kind: self.spec().name() }),
            None => Ok(()),
        }
    }
}
