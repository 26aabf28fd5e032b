//! The module `deltafl._deltafl`: the functions called by the Python code of the package.
//!
//! ```text
//! federation     devices in borrowed Python arrays, or in a folder
//! run            an experiment, trained into its run folder
//! deployed       a device and a server of a deployed federation
//! trainer        a trainer written in Python, as a LocalTrainer of the round loop
//! cohort         a trainer that computes many devices in one call
//! external       an algorithm written in Python, as parts of a track
//! events         the events of a run, for callbacks
//! predict        the predictions of a built-in model
//! listener       progress and Ctrl-C
//! logs           log events as records of `logging`
//! results        the results of a run as Arrow tables
//! sweep          the points of a sweep, and their results
//! superquantile  the superquantile as a function
//! ```
//!
//! The interpreter lock is released while devices compute, and acquired only for callbacks.

use pyo3::prelude::*;

mod algorithms;
mod cohort;
mod deployed;
mod events;
mod external;
mod failure;
mod federation;
mod lent;
mod listener;
mod logs;
mod messages;
mod predict;
mod results;
mod run;
mod state;
mod superquantile;
mod sweep;
mod table;
mod trainer;
mod writer;

/// Adds the classes and functions of the package `deltafl` to its extension module.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add_class::<federation::Federation>()?;
    module.add_class::<listener::Stop>()?;
    module.add_class::<table::Table>()?;
    module.add_class::<writer::FederationWriter>()?;
    module.add_function(wrap_pyfunction!(algorithms::algorithms, module)?)?;
    module.add_function(wrap_pyfunction!(algorithms::models, module)?)?;
    module.add_function(wrap_pyfunction!(deployed::serve, module)?)?;
    module.add_function(wrap_pyfunction!(deployed::take_part, module)?)?;
    module.add_function(wrap_pyfunction!(run::experiment_of_file, module)?)?;
    module.add_function(wrap_pyfunction!(run::experiment_of_json, module)?)?;
    module.add_function(wrap_pyfunction!(run::experiment_of_run, module)?)?;
    module.add_function(wrap_pyfunction!(run::tracks, module)?)?;
    module.add_function(wrap_pyfunction!(run::train, module)?)?;
    module.add_function(wrap_pyfunction!(predict::data_of_run, module)?)?;
    module.add_function(wrap_pyfunction!(predict::predict, module)?)?;
    module.add_function(wrap_pyfunction!(predict::prepared, module)?)?;
    module.add_function(wrap_pyfunction!(results::devices, module)?)?;
    module.add_function(wrap_pyfunction!(results::report, module)?)?;
    module.add_function(wrap_pyfunction!(results::rounds, module)?)?;
    module.add_function(wrap_pyfunction!(results::summary, module)?)?;
    module.add_function(wrap_pyfunction!(results::text, module)?)?;
    module.add_function(wrap_pyfunction!(state::initial, module)?)?;
    module.add_function(wrap_pyfunction!(state::params, module)?)?;
    module.add_function(wrap_pyfunction!(state::state_dict, module)?)?;
    module.add_function(wrap_pyfunction!(superquantile::quantile, module)?)?;
    module.add_function(wrap_pyfunction!(superquantile::smoothed, module)?)?;
    module.add_function(wrap_pyfunction!(superquantile::smoothed_mixture, module)?)?;
    module.add_function(wrap_pyfunction!(superquantile::superquantile, module)?)?;
    module.add_function(wrap_pyfunction!(superquantile::worst_case, module)?)?;
    module.add_function(wrap_pyfunction!(sweep::sweep_open, module)?)?;
    module.add_function(wrap_pyfunction!(sweep::sweep_plan, module)?)?;
    module.add_function(wrap_pyfunction!(sweep::sweep_results, module)?)?;
    Ok(())
}
