//! Errors as the exceptions of `deltafl.errors`.

use deltafl_cli::embed::{Failure, FailureKind};
use pyo3::prelude::*;

/// The exception of a failure.
pub(crate) fn exception(py: Python<'_>, failure: &Failure) -> PyErr {
    let class = match failure.kind {
        FailureKind::BadInput => "InvalidInput",
        FailureKind::Busy => "Busy",
        _ => "Error",
    };
    raised(py, class, &failure.message)
}

/// Something that was given is wrong.
pub(crate) fn invalid(py: Python<'_>, problem: impl std::fmt::Display) -> PyErr {
    raised(py, "InvalidInput", &problem.to_string())
}

/// An error with what lies below it, in one line.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut below = error.source();
    while let Some(source) = below {
        text.push_str(": ");
        text.push_str(&source.to_string());
        below = source.source();
    }
    text
}

/// An exception of `deltafl.errors` by name.
pub(crate) fn raised(py: Python<'_>, class: &str, message: &str) -> PyErr {
    let made = py
        .import("deltafl.errors")
        .and_then(|errors| errors.getattr(class))
        .and_then(|class| class.call1((message,)));
    made.map_or_else(|e| e, PyErr::from_value)
}
