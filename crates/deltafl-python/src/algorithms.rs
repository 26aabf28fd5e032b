//! The table of algorithms, for the typed classes of the Python package.

use deltafl::algorithm::{ALGORITHMS, OptionKind, OptionSpec, Value};
use pyo3::prelude::*;
use serde_json::json;

/// Returns every algorithm with its options, as JSON.
#[pyfunction]
pub(crate) fn algorithms() -> String {
    let of_algorithm = |algorithm: &&deltafl::algorithm::Algorithm| {
        json!({
            "kind": algorithm.kind,
            "title": algorithm.title,
            "about": algorithm.about,
            "options": algorithm.options.iter().map(option).collect::<Vec<_>>(),
        })
    };
    serde_json::Value::from(ALGORITHMS.iter().map(of_algorithm).collect::<Vec<_>>()).to_string()
}

fn option(option: &OptionSpec) -> serde_json::Value {
    let (kind, words) = match option.kind {
        OptionKind::Real(_) => ("real", None),
        OptionKind::Whole(_) => ("whole", None),
        OptionKind::Word(words) => ("word", Some(words)),
    };
    let value = |value: Value| match value {
        Value::Real(real) => json!(real),
        Value::Whole(whole) => json!(whole),
        Value::Word(word) => json!(word),
    };
    json!({
        "name": option.name,
        "symbol": option.symbol,
        "kind": kind,
        "range": option.kind.to_string(),
        "words": words,
        "default": option.default.map(value),
        "levels": option.levels,
        "about": option.about,
    })
}
