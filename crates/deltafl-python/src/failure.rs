//! Conversion of errors to the exceptions of `deltafl.errors`.

use deltafl_data::run_folder::RunFolderError;
use deltafl_run::{ErrorKind, Explain, FolderError};
use pyo3::prelude::*;

use crate::messages::with_keywords;

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
    let mut lines = causes(error);
    if let Some(excerpt) = error.excerpt() {
        let (line, column) = excerpt.line_and_column();
        lines.push(format!("{}:{line}:{column}", excerpt.path.display()));
        lines.push(format!("{line} │ {}", excerpt.line()));
        lines.push(excerpt.problem.to_owned());
    }
    lines.extend(error.help());
    lines.join("\n")
}

/// Returns the messages of an error and of its causes.
pub(crate) fn causes(error: &(dyn std::error::Error + 'static)) -> Vec<String> {
    std::iter::successors(Some(error), |error| error.source()).map(ToString::to_string).collect()
}

/// Returns the exception for an invalid argument.
pub(crate) fn invalid(py: Python<'_>, problem: impl std::fmt::Display) -> PyErr {
    raised(py, "InvalidInput", &problem.to_string())
}

/// Formats an error with its causes in one line.
pub(crate) fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    causes(error).join(": ")
}

/// Creates an exception of `deltafl.errors` by name.
pub(crate) fn raised(py: Python<'_>, class: &str, message: &str) -> PyErr {
    let made = py
        .import("deltafl.errors")
        .and_then(|errors| errors.getattr(class))
        .and_then(|class| class.call1((with_keywords(message),)));
    made.map_or_else(|e| e, PyErr::from_value)
}
