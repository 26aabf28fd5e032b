//! The tables of algorithms and models, for the typed classes of the Python package.

use deltafl::algorithm::{ALGORITHMS, Algorithm};
use deltafl::model::{MODELS, ModelDefinition};
use deltafl::options::{OptionDefault, OptionKind, OptionSpec};
use pyo3::prelude::*;
use serde_json::json;

/// Returns every algorithm with its options, as JSON.
#[pyfunction]
pub(crate) fn algorithms() -> String {
    let of_algorithm = |algorithm: &&Algorithm| {
        json!({
            "kind": algorithm.kind,
            "title": algorithm.title,
            "about": algorithm.about,
            "options": algorithm.options.iter().map(option).collect::<Vec<_>>(),
        })
    };
    serde_json::Value::from(ALGORITHMS.iter().map(of_algorithm).collect::<Vec<_>>()).to_string()
}

/// Returns every model with its options, as JSON.
#[pyfunction]
pub(crate) fn models() -> String {
    let entry = |model: &&ModelDefinition| {
        json!({
            "kind": model.kind,
            "about": model.about,
            "options": model.options.iter().map(option).collect::<Vec<_>>(),
        })
    };
    serde_json::Value::from(MODELS.iter().map(entry).collect::<Vec<_>>()).to_string()
}

fn option(option: &OptionSpec) -> serde_json::Value {
    let (kind, words) = match option.kind {
        OptionKind::Real(_) => ("real", None),
        OptionKind::Whole(_) => ("whole", None),
        OptionKind::Word(words) => ("word", Some(words)),
        OptionKind::Truth => ("truth", None),
        OptionKind::WholePair(_) => ("whole-pair", None),
    };
    let (default, unset) = match option.file_default() {
        OptionDefault::Required => (None, None),
        OptionDefault::Value(value) => (Some(value), None),
        OptionDefault::Unset(meaning) => (None, Some(meaning)),
    };
    json!({
        "name": option.name,
        "symbol": option.symbol,
        "kind": kind,
        "range": option.kind.to_string(),
        "words": words,
        "default": default,
        "unset": unset,
        "levels": option.levels,
        "about": option.about,
    })
}
