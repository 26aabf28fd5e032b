//! The files of Δ-FL: federation folders, importers, experiment files and run folders.
//!
//! The library `deltafl` computes and reads no file; this crate reads and writes its files.
//!
//! ```
//! use deltafl::prelude::*;
//! use deltafl_data::experiment::Experiment;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let experiment = Experiment::parse(r#"
//!     name = "first"
//!     rounds = 2
//!     cohort = 5
//!     data = { source = { kind = "glyphs", devices = 12 } }
//!     model = { kind = "linear" }
//!     local = { epochs = 1, batch = 10, learning_rate = 0.1 }
//!     algorithm = [{ kind = "fedavg" }, { kind = "delta-fl", theta = 0.5 }]
//! "#)?;
//! let federation = experiment.data().load()?;
//! let model = experiment.model().spec().build(&federation, Isa::detect())?;
//! let trainer = Sgd::new(&*model);
//! let mut exchange = Simulation::new(&trainer, &federation)?;
//! let (plan, mut records) = (experiment.plan(), Records::default());
//! let mut state = plan.start(1, &trainer);
//! train(&mut exchange, &plan, &mut state, &mut records)?;
//! assert_ne!(state.tracks[0].params, state.tracks[1].params);
//! # Ok(())
//! # }
//! ```
//!
//! | item | contains |
//! |---|---|
//! | [`open`], [`save`], [`FederationWriter`] | federation folders: mapped Arrow files |
//! | [`import`] | CSV, Parquet, Arrow, npz, IDX, LEAF and the data sets of the paper, into a federation folder |
//! | [`partition`](fn@partition) | devices for data that has none |
//! | [`write_state_dict`], [`read_state_dict`] | params as named tensors that PyTorch loads |
//! | [`write_tensors`], [`read_tensors`] | any named tensors, with a text |
//! | [`parquet_table`] | flat tables in Parquet files |
//! | [`experiment`], [`run_folder`] | experiment files, and the folders of their runs |

// Tests compare floats bit by bit: results are promised to be the same bits.
#![cfg_attr(test, allow(clippy::float_cmp))]

mod arrow_file;
pub mod experiment;
mod groups;
pub mod import;
mod manifest;
mod mapped;
mod open;
mod parquet_file;
mod partition;
pub mod run_folder;
pub mod seeds;
mod state_dict;
mod tensor_file;
mod writer;

pub use arrow_file::InvalidArrowFile;
pub use groups::{has_groups, write_groups};
pub use manifest::{Manifest, TargetFormat};
pub use open::{OpenError, open};
pub use parquet_file::table as parquet_table;
pub use partition::{Partition, PartitionError, PartitionScheme, partition};
pub use state_dict::{StateDictError, read_state_dict, write_state_dict};
pub use tensor_file::{TensorFileError, read_tensors, write_tensors};
pub use writer::{FederationWriter, Heading, SaveError, save};
