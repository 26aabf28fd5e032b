//! Models as an experiment file names them, and their match with the data.

use serde::{Deserialize, Serialize};

use super::{ConvNet, Embedding, Gru, Linear, Logistic, Lstm, Model, Perceptron, Regression};
use crate::data::{Federation, InputKind, TargetKind, WordVectors};
use crate::kernel::{Isa, UnavailableIsa};
use crate::task::RegressionLoss;

/// A model by name, with the sizes that the data does not settle.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
#[non_exhaustive]
pub enum ModelSpec {
    /// Softmax regression where targets are classes, linear regression where they are real numbers.
    Linear {
        /// Whether there is an intercept; the paper has none.
        #[serde(default, skip_serializing_if = "is_false")]
        intercept: bool,
        /// δ of the Huber loss; without it, the squared loss. For real numbers only.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        huber: Option<f32>,
    },
    /// Binary logistic regression.
    Logistic {
        /// Whether there is an intercept; the paper has none.
        #[serde(default, skip_serializing_if = "is_false")]
        intercept: bool,
    },
    /// The convolutional network of EMNIST.
    ConvNet {
        /// Channels of the two convolutions.
        #[serde(default = "paper_channels")]
        channels: [usize; 2],
    },
    /// The LSTM over frozen word vectors.
    Lstm {
        /// Units.
        #[serde(default = "lstm_units")]
        hidden: usize,
    },
    /// The GRU over symbols.
    Gru {
        /// Units.
        #[serde(default = "gru_units")]
        hidden: usize,
        /// Entries of a trained embedding; 0 is one-hot input, the paper's.
        #[serde(default)]
        embedding: usize,
    },
    /// A perceptron with one hidden layer.
    Perceptron {
        /// Units.
        #[serde(default = "perceptron_units")]
        hidden: usize,
    },
    /// A model that a program brings with a [`LocalTrainer`](crate::trainer::LocalTrainer) of its own.
    External,
}

fn is_false(value: &bool) -> bool {
    !value
}

fn paper_channels() -> [usize; 2] {
    [32, 64]
}

fn lstm_units() -> usize {
    50
}

fn gru_units() -> usize {
    128
}

fn perceptron_units() -> usize {
    100
}

/// Why a model cannot be trained on some data.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ModelMismatch {
    /// The model takes features.
    #[error("model {model} needs examples of features (bytes or dense); the data holds {got}")]
    NeedsFeatures {
        /// The model.
        model: &'static str,
        /// The kind of the data.
        got: &'static str,
    },
    /// The model takes square images.
    #[error("model {model} needs square images of side {smallest} or more; the data has {dim} features")]
    NeedsImages {
        /// The model.
        model: &'static str,
        /// The smallest side it takes.
        smallest: usize,
        /// Features of the data.
        dim: usize,
    },
    /// The model takes words with vectors.
    #[error("model {model} needs sequences of words with word vectors; the data holds {got}")]
    NeedsWords {
        /// The model.
        model: &'static str,
        /// The kind of the data.
        got: &'static str,
    },
    /// The model takes sequences of symbols.
    #[error("model {model} needs windows of text; the data holds {got}")]
    NeedsText {
        /// The model.
        model: &'static str,
        /// The kind of the data.
        got: &'static str,
    },
    /// A size is zero.
    #[error("model {model} needs a positive number of {option}")]
    ZeroSize {
        /// The model.
        model: &'static str,
        /// The option.
        option: &'static str,
    },
    /// The model tells two classes apart.
    #[error("model {model} needs exactly 2 classes; the data has {classes}")]
    NeedsTwoClasses {
        /// The model.
        model: &'static str,
        /// Classes of the data.
        classes: usize,
    },
    /// The model predicts classes.
    #[error(
        "model {model} predicts classes; the targets of the data are real numbers, for which there is the model linear"
    )]
    NeedsClasses {
        /// The model.
        model: &'static str,
    },
    /// A loss of real numbers on classes.
    #[error(
        "model linear: the Huber loss is for targets that are real numbers; those of the data are classes"
    )]
    HuberOfClasses,
    /// A Huber loss without a width.
    #[error("model linear: huber must be positive and finite")]
    HuberWidth,
    /// The model is in no file.
    #[error("model external is known to the program that brought it, and to no other")]
    External,
    /// The kernels asked for cannot run here.
    #[error(transparent)]
    Isa(#[from] UnavailableIsa),
}

impl ModelSpec {
    /// The linear model of the paper: no intercept.
    pub const LINEAR: Self = Self::Linear { intercept: false, huber: None };

    /// The logistic model of the paper: no intercept.
    pub const LOGISTIC: Self = Self::Logistic { intercept: false };

    /// Its name, as in an experiment file.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Linear { .. } => "linear",
            Self::Logistic { .. } => "logistic",
            Self::ConvNet { .. } => "conv-net",
            Self::Lstm { .. } => "lstm",
            Self::Gru { .. } => "gru",
            Self::Perceptron { .. } => "perceptron",
            Self::External => "external",
        }
    }

    /// The model for this data, with kernels for this instruction set.
    pub fn build(&self, federation: &Federation, isa: Isa) -> Result<Box<dyn Model>, ModelMismatch> {
        let isa = isa.require()?;
        Ok(match self {
            Self::Linear { intercept, huber } => return self.linear(federation, *intercept, *huber, isa),
            Self::Logistic { intercept } => {
                self.two_classes(federation)?;
                let model = Logistic::new(self.features(federation)?, isa);
                Box::new(if *intercept { model.with_intercept() } else { model })
            }
            Self::ConvNet { channels } => {
                self.positive("channels", channels[0].min(channels[1]))?;
                let classes = self.classes(federation)?;
                Box::new(ConvNet::new(self.side(federation)?, *channels, classes, isa))
            }
            Self::Lstm { hidden } => {
                self.positive("hidden", *hidden)?;
                self.two_classes(federation)?;
                let (len, vectors) = self.words(federation)?;
                Box::new(Lstm::new(vectors, len, *hidden, isa))
            }
            Self::Gru { hidden, embedding } => {
                self.positive("hidden", *hidden)?;
                let (len, alphabet) = self.windows(federation)?;
                let embedding =
                    if *embedding == 0 { Embedding::OneHot } else { Embedding::Trained(*embedding) };
                let classes = self.classes(federation)?;
                let gru = Gru::new(len, alphabet, embedding, *hidden, classes, isa);
                let follows = matches!(federation.kind(), InputKind::Windows { .. });
                Box::new(if follows { gru } else { gru.of_classes() })
            }
            Self::Perceptron { hidden } => {
                self.positive("hidden", *hidden)?;
                Box::new(Perceptron::new(self.features(federation)?, *hidden, self.classes(federation)?))
            }
            Self::External => return Err(ModelMismatch::External),
        })
    }

    fn linear(
        &self,
        federation: &Federation,
        intercept: bool,
        huber: Option<f32>,
        isa: Isa,
    ) -> Result<Box<dyn Model>, ModelMismatch> {
        let features = self.features(federation)?;
        match (federation.targets(), huber) {
            (TargetKind::Values, Some(delta)) if delta > 0.0 && delta.is_finite() => {
                Ok(Box::new(Regression::new(features, RegressionLoss::Huber(delta), intercept, isa)))
            }
            (TargetKind::Values, Some(_)) => Err(ModelMismatch::HuberWidth),
            (TargetKind::Values, None) => {
                Ok(Box::new(Regression::new(features, RegressionLoss::Squared, intercept, isa)))
            }
            (TargetKind::Classes(_), Some(_)) => Err(ModelMismatch::HuberOfClasses),
            (TargetKind::Classes(classes), None) => {
                let model = Linear::new(features, classes, isa);
                Ok(Box::new(if intercept { model.with_intercept() } else { model }))
            }
        }
    }

    fn classes(&self, federation: &Federation) -> Result<usize, ModelMismatch> {
        match federation.targets() {
            TargetKind::Classes(classes) => Ok(classes),
            TargetKind::Values => Err(ModelMismatch::NeedsClasses { model: self.name() }),
        }
    }

    fn words(&self, federation: &Federation) -> Result<(usize, WordVectors), ModelMismatch> {
        match (federation.kind(), federation.vectors()) {
            (InputKind::Tokens { len, .. }, Some(vectors)) => Ok((len, vectors.clone())),
            (InputKind::Tokens { .. }, None) => {
                Err(ModelMismatch::NeedsWords { model: self.name(), got: "words without vectors" })
            }
            (kind, _) => Err(ModelMismatch::NeedsWords { model: self.name(), got: name_of(kind) }),
        }
    }

    fn windows(&self, federation: &Federation) -> Result<(usize, usize), ModelMismatch> {
        match federation.kind() {
            InputKind::Windows { len, alphabet } => Ok((len, alphabet)),
            InputKind::Tokens { len, vocabulary } => Ok((len, vocabulary)),
            kind => Err(ModelMismatch::NeedsText { model: self.name(), got: name_of(kind) }),
        }
    }

    fn positive(&self, option: &'static str, value: usize) -> Result<(), ModelMismatch> {
        if value > 0 { Ok(()) } else { Err(ModelMismatch::ZeroSize { model: self.name(), option }) }
    }

    /// The side of the square images.
    fn side(&self, federation: &Federation) -> Result<usize, ModelMismatch> {
        let dim = self.features(federation)?;
        let side = dim.isqrt();
        if side * side == dim && side >= ConvNet::SMALLEST_SIDE {
            Ok(side)
        } else {
            Err(ModelMismatch::NeedsImages { model: self.name(), smallest: ConvNet::SMALLEST_SIDE, dim })
        }
    }

    fn features(&self, federation: &Federation) -> Result<usize, ModelMismatch> {
        match federation.kind() {
            InputKind::Bytes { dim } | InputKind::Dense { dim } => Ok(dim),
            kind => Err(ModelMismatch::NeedsFeatures { model: self.name(), got: name_of(kind) }),
        }
    }

    fn two_classes(&self, federation: &Federation) -> Result<(), ModelMismatch> {
        match self.classes(federation)? {
            2 => Ok(()),
            classes => Err(ModelMismatch::NeedsTwoClasses { model: self.name(), classes }),
        }
    }
}

fn name_of(kind: InputKind) -> &'static str {
    match kind {
        InputKind::Bytes { .. } => "bytes",
        InputKind::Dense { .. } => "dense features",
        InputKind::Tokens { .. } => "words",
        InputKind::Windows { .. } => "windows of text",
    }
}
