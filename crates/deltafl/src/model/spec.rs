//! Models as an experiment file names them, and their match with the data.

use serde::{Deserialize, Serialize};

use super::{ConvNet, Embedding, Gru, Linear, Logistic, Lstm, Model, Perceptron};
use crate::data::{Federation, InputKind, WordVectors};
use crate::kernel::{Isa, UnavailableIsa};

/// A model by name, with the sizes that the data does not settle.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
#[non_exhaustive]
pub enum ModelSpec {
    /// Softmax regression.
    Linear,
    /// Binary logistic regression.
    Logistic,
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
    /// The kernels asked for cannot run here.
    #[error(transparent)]
    Isa(#[from] UnavailableIsa),
}

impl ModelSpec {
    /// Its name, as in an experiment file.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Linear => "linear",
            Self::Logistic => "logistic",
            Self::ConvNet { .. } => "conv-net",
            Self::Lstm { .. } => "lstm",
            Self::Gru { .. } => "gru",
            Self::Perceptron { .. } => "perceptron",
        }
    }

    /// The model for this data, with kernels for this instruction set.
    pub fn build(&self, federation: &Federation, isa: Isa) -> Result<Box<dyn Model>, ModelMismatch> {
        let isa = isa.require()?;
        Ok(match self {
            Self::Linear => Box::new(Linear::new(self.features(federation)?, federation.classes(), isa)),
            Self::Logistic => {
                self.two_classes(federation)?;
                Box::new(Logistic::new(self.features(federation)?, isa))
            }
            Self::ConvNet { channels } => {
                self.positive("channels", channels[0].min(channels[1]))?;
                Box::new(ConvNet::new(self.side(federation)?, *channels, federation.classes(), isa))
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
                Box::new(Gru::new(len, alphabet, embedding, *hidden, federation.classes(), isa))
            }
            Self::Perceptron { hidden } => {
                self.positive("hidden", *hidden)?;
                Box::new(Perceptron::new(self.features(federation)?, *hidden, federation.classes()))
            }
        })
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
        match federation.classes() {
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
