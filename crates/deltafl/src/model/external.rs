//! The model of a program that trains with its own [`LocalTrainer`](crate::trainer::LocalTrainer).

use super::{ModelDefinition, ModelMismatch};

/// A model that only the program which provides it can build.
pub static EXTERNAL: ModelDefinition = ModelDefinition {
    kind: "external",
    about: "a model that a program provides (in Python, a trainer)",
    tasks: &[],
    options: &[],
    build: |_| Err(ModelMismatch::External),
};
