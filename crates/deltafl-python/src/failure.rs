//! Conversion of errors to the exceptions of `deltafl.errors`.

use deltafl_data::run_folder::RunFolderError;
use deltafl_run::{ErrorKind, Explain, FolderError};
use pyo3::prelude::*;

/// Returns the exception for an error of the application.
pub(crate) fn exception(py: Python<'_>, error: &dyn Explain) -> PyErr {
    let class = match error.kind() {
        ErrorKind::InvalidInput => "InvalidInput",
        ErrorKind::Busy => "Busy",
        _ => "Error",
    };
    raised(py, class, &message(error))
}

/// Returns the exception for an error of a run folder.
pub(crate) fn folder_exception(py: Python<'_>, error: RunFolderError) -> PyErr {
    exception(py, &FolderError::from(error))
}

/// Returns the message of an error in several lines: its causes, the location in a file, and the
/// fix.
pub(crate) fn message(error: &dyn Explain) -> String {
    let mut lines = vec![error.to_string()];
    let mut below = error.source();
    while let Some(source) = below {
        lines.push(source.to_string());
        below = source.source();
    }
    if let Some(excerpt) = error.excerpt() {
        let (line, column) = excerpt.line_and_column();
        lines.push(format!("{}:{line}:{column}", excerpt.path.display()));
        lines.push(format!("{line} │ {}", excerpt.line()));
        lines.push(excerpt.problem.to_owned());
    }
    lines.extend(error.help());
    lines.join("\n")
}

/// Returns the exception for an invalid argument.
pub(crate) fn invalid(py: Python<'_>, problem: impl std::fmt::Display) -> PyErr {
    raised(py, "InvalidInput", &problem.to_string())
}

/// Formats an error with its causes in one line.
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

/// Creates an exception of `deltafl.errors` by name.
pub(crate) fn raised(py: Python<'_>, class: &str, message: &str) -> PyErr {
    let made = py
        .import("deltafl.errors")
        .and_then(|errors| errors.getattr(class))
        .and_then(|class| class.call1((message,)));
    made.map_or_else(|e| e, PyErr::from_value)
}
