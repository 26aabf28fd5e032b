//! The application of Δ-FL: one run from an experiment to its folder, sweeps, tuning, evaluation,
//! comparison and reports.
//!
//! Front ends such as the command `deltafl` and the Python package call this crate. It prints
//! nothing, reads no terminal and handles no signal. Progress is sent as
//! [`RunEvent`]s to an observer, which can also stop a run. Every operation has a typed error;
//! [`Explain`] adds the fix and the place in a file.
//!
//! ```no_run
//! use deltafl_run::{Ended, RunEvent, RunOptions, experiment_file, session};
//! # fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let experiment = experiment_file::read("experiments/quickstart.toml".as_ref(), &["rounds=5".to_owned()])?;
//! let options = RunOptions::new("runs/quickstart".as_ref());
//! let mut print = |event: RunEvent<'_>| {
//!     if let RunEvent::Note(text) | RunEvent::Warning(text) = event {
//!         eprintln!("{text}");
//!     }
//!     Ok(std::ops::ControlFlow::Continue(()))
//! };
//! if let Ended::Finished(summary) = session::run(experiment, &options, &mut print)? {
//!     print!("{}", deltafl_run::text_table::render(&summary));
//! }
//! # Ok(())
//! # }
//! ```
//!
//! | module | contents |
//! |---|---|
//! | [`experiment_file`] | experiment files with overrides |
//! | [`session`], [`event`] | a run: its seeds, its folder, its events, its end |
//! | [`backend`] | the CPU or a GPU |
//! | `cluster` | a run on MPI ranks (feature `mpi`) |
//! | [`sweep`], [`tune`], [`field`], [`paper`] | many runs |
//! | [`evaluate`], [`by_class`] | models of a run on other devices, and class by class |
//! | [`predict`], [`contract`] | predictions for new data, and the preparation of the training data |
//! | [`starter`] | an experiment that fits a federation |
//! | [`compare`], [`runs`], [`run_list`], [`run_names`] | several runs |
//! | [`report`], [`export`], [`illustration`] | files for readers and for other programs |
//! | [`text_table`], [`idle_rounds`], [`baseline`] | figures as plain text, and the best constant prediction |

pub mod backend;
pub mod baseline;
pub mod by_class;
pub mod by_group;
#[cfg(feature = "mpi")]
pub mod cluster;
pub mod compare;
pub mod contract;
mod drawing;
pub mod error;
pub mod evaluate;
pub mod event;
pub mod experiment_file;
pub mod export;
pub mod field;
pub mod idle_rounds;
pub mod illustration;
pub mod layer_table;
pub mod paper;
pub mod predict;
pub mod report;
pub mod run_list;
pub mod run_names;
pub mod runs;
pub mod session;
pub mod starter;
pub mod sweep;
pub mod text_table;
pub mod tune;

pub use backend::{Backend, BackendRequest, Machine};
pub use drawing::DrawingError;
pub use error::{ErrorKind, Excerpt, Explain, FileError, FolderError};
pub use event::{RunEvent, RunObserver, SweepEvent, SweepObserver};
pub use session::{Ended, RunError, RunOptions, Start, Stopped};
