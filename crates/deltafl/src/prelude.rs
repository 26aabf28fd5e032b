//! The types of a first program: `use deltafl::prelude::*;`.
//!
//! Everything else stays in the modules of the crate.

pub use crate::algorithm::{Tail, Track};
pub use crate::compute::Threads;
pub use crate::data::synthetic::Glyphs;
pub use crate::data::{DeviceExamples, Federation, FederationBuilder, InputKind, Split};
pub use crate::exchange::Simulation;
pub use crate::kernel::Isa;
pub use crate::model::{Batch, Model, ModelSpec, Score};
pub use crate::superquantile::Conformity;
pub use crate::trainer::{Sgd, Work};
pub use crate::training::{Event, Observer, ObserverError, ObserverResult, Plan, Records, State, train};
