//! Models as an experiment file names them, and their match with the data.

use serde::{Deserialize, Serialize};

use super::{Linear, Logistic, Model};
use crate::data::{Federation, InputKind};
use crate::kernel::{Isa, UnavailableIsa};

/// A model by name, with the sizes that the data does not settle (spec §4).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
#[non_exhaustive]
pub enum ModelSpec {
    /// Softmax regression.
    Linear,
    /// Binary logistic regression.
    Logistic,
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
        })
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
