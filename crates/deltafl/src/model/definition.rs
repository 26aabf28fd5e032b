//! The entries of the table of models, and the match between a model and the data.

use super::Model;
use super::stack::{InvalidLayer, Layer};
use crate::data::{Federation, InputKind, TargetKind, WordVectors};
use crate::kernel::{Isa, UnavailableIsa};
use crate::options::{InvalidOption, OptionSpec, OptionValues};

/// An entry of [`MODELS`](super::MODELS): the name of a model, its options, and its constructor.
#[derive(Debug)]
pub struct ModelDefinition {
    /// Its name in files: `kind = "…"`.
    pub kind: &'static str,
    /// A description, in one sentence without a full stop.
    pub about: &'static str,
    /// The names of the tasks that it serves ([`Task::name`](crate::task::Task::name)).
    pub tasks: &'static [&'static str],
    /// Its options. None of them is required.
    pub options: &'static [OptionSpec],
    /// Builds the model for the data of a request.
    pub build: fn(&ModelRequest<'_>) -> Result<Box<dyn Model>, ModelMismatch>,
}

/// The values from which a [`ModelDefinition`] builds a model.
///
/// Its methods return the sizes that the data determines, or an error that names the model if the
/// data is of another kind.
#[derive(Clone, Copy, Debug)]
pub struct ModelRequest<'a> {
    /// The name of the model.
    pub model: &'static str,
    /// The options of the model.
    pub options: &'a OptionValues,
    /// The layers of a stack; empty for another model.
    pub layers: &'a [Layer],
    /// The data.
    pub federation: &'a Federation,
    /// The instruction set of the kernels, which this CPU has.
    pub isa: Isa,
}

/// The reason why a model cannot be trained on some data.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ModelMismatch {
    /// The model needs features.
    #[error("model {model} needs examples of features (bytes or dense); the data contains {got}")]
    NeedsFeatures {
        /// The model.
        model: &'static str,
        /// The kind of the data.
        got: &'static str,
    },
    /// The model needs square images.
    #[error("model {model} needs square images of side {smallest} or more; the data has {dim} features")]
    NeedsImages {
        /// The model.
        model: &'static str,
        /// The smallest side that it supports.
        smallest: usize,
        /// Features of the data.
        dim: usize,
    },
    /// The model needs words with vectors.
    #[error("model {model} needs sequences of words with word vectors; the data contains {got}")]
    NeedsWords {
        /// The model.
        model: &'static str,
        /// The kind of the data.
        got: &'static str,
    },
    /// The model needs sequences of symbols.
    #[error("model {model} needs windows of text; the data contains {got}")]
    NeedsText {
        /// The model.
        model: &'static str,
        /// The kind of the data.
        got: &'static str,
    },
    /// The model predicts one of two classes.
    #[error("model {model} needs exactly 2 classes; the data has {classes}")]
    NeedsTwoClasses {
        /// The model.
        model: &'static str,
        /// Classes of the data.
        classes: usize,
    },
    /// The model predicts classes.
    #[error(
        "model {model} predicts classes; the targets of the data are real numbers, which the models linear (of \
         features) and rnn (of texts) predict"
    )]
    NeedsClasses {
        /// The model.
        model: &'static str,
    },
    /// An option that requires real targets is set, but the targets are classes.
    #[error(
        "model {model}: {option} is for targets that are real numbers; the targets of the data are classes"
    )]
    OptionNeedsValues {
        /// The model.
        model: &'static str,
        /// The option.
        option: &'static str,
    },
    /// A layer of a stack does not fit.
    #[error(transparent)]
    Layer(#[from] InvalidLayer),
    /// Only the program that provides the model can build it.
    #[error("model external can only be built by the program that provides it")]
    External,
    /// An option of the model is wrong.
    #[error("model option {0}")]
    Option(#[from] InvalidOption),
    /// The instruction set is not available on this CPU.
    #[error(transparent)]
    Isa(#[from] UnavailableIsa),
}

impl ModelRequest<'_> {
    /// Returns a size that an option specifies.
    pub fn size(&self, option: &str) -> Result<usize, ModelMismatch> {
        Ok(self.options.whole(option)? as usize)
    }

    /// Returns the number of features.
    pub fn features(&self) -> Result<usize, ModelMismatch> {
        match self.federation.kind() {
            InputKind::Bytes { dim } | InputKind::Dense { dim } => Ok(dim),
            kind => Err(ModelMismatch::NeedsFeatures { model: self.model, got: input_name(kind) }),
        }
    }

    /// Returns the side of square images with at least `smallest` pixels a side.
    pub fn image_side(&self, smallest: usize) -> Result<usize, ModelMismatch> {
        let dim = self.features()?;
        let side = dim.isqrt();
        if side * side == dim && side >= smallest {
            Ok(side)
        } else {
            Err(ModelMismatch::NeedsImages { model: self.model, smallest, dim })
        }
    }

    /// Returns the length of the sequences of words, and the word vectors.
    pub fn words(&self) -> Result<(usize, WordVectors), ModelMismatch> {
        let got = match (self.federation.kind(), self.federation.vectors()) {
            (InputKind::Tokens { len, .. }, Some(vectors)) => return Ok((len, vectors.clone())),
            (InputKind::Tokens { .. }, None) => "words without vectors",
            (kind, _) => input_name(kind),
        };
        Err(ModelMismatch::NeedsWords { model: self.model, got })
    }

    /// Returns the length of the sequences of symbols or words, and the size of their alphabet.
    pub fn sequences(&self) -> Result<(usize, usize), ModelMismatch> {
        match self.federation.kind() {
            InputKind::Windows { len, alphabet } => Ok((len, alphabet)),
            InputKind::Tokens { len, vocabulary } => Ok((len, vocabulary)),
            kind => Err(ModelMismatch::NeedsText { model: self.model, got: input_name(kind) }),
        }
    }

    /// Returns the number of classes.
    pub fn classes(&self) -> Result<usize, ModelMismatch> {
        match self.federation.targets() {
            TargetKind::Classes(classes) => Ok(classes),
            TargetKind::Values => Err(ModelMismatch::NeedsClasses { model: self.model }),
        }
    }

    /// Checks that there are exactly two classes.
    pub fn two_classes(&self) -> Result<(), ModelMismatch> {
        match self.classes()? {
            2 => Ok(()),
            classes => Err(ModelMismatch::NeedsTwoClasses { model: self.model, classes }),
        }
    }
}

fn input_name(kind: InputKind) -> &'static str {
    match kind {
        InputKind::Bytes { .. } => "bytes",
        InputKind::Dense { .. } => "dense features",
        InputKind::Tokens { .. } => "words",
        InputKind::Windows { .. } => "windows of text",
    }
}
