//! The wheel `deltafl`: the Python package and the command `deltafl`, in one shared library.
//!
//! The two do not depend on each other. This crate only packs them.

use std::ffi::OsString;

use pyo3::prelude::*;

/// Rust code of the package `deltafl`.
#[pymodule]
fn _deltafl(module: &Bound<'_, PyModule>) -> PyResult<()> {
    deltafl_python::register(module)?;
    module.add_function(wrap_pyfunction!(command, module)?)
}

/// Runs the command `deltafl` with these words, its name first. Returns its exit code.
#[pyfunction]
fn command(py: Python<'_>, words: Vec<OsString>) -> u8 {
    py.detach(|| deltafl_cli::command(words))
}
