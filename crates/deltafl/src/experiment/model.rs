//! The `[model]` section.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::NonNegative;
use crate::model::ModelSpec;

/// What devices train.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelSection {
    /// Which.
    pub kind: ModelKind,
    /// λ of (λ/2)‖w‖².
    #[serde(default)]
    pub l2: NonNegative,
}

/// The models.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ModelKind {
    /// Softmax regression.
    Linear,
    /// Binary logistic regression.
    Logistic,
}

impl fmt::Display for ModelKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Linear => "linear",
            Self::Logistic => "logistic",
        })
    }
}

impl ModelSection {
    /// The model with its sizes.
    pub fn spec(&self) -> ModelSpec {
        match self.kind {
            ModelKind::Linear => ModelSpec::Linear,
            ModelKind::Logistic => ModelSpec::Logistic,
        }
    }
}
