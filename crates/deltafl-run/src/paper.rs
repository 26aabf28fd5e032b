//! The paper's experiments: presets, their data, time estimates, and a comparison with the paper's
//! results.

mod beside;
mod data;
pub mod estimate;
mod presets;
mod splits;

pub use beside::PaperComparison;
pub use data::{MissingData, find_federation};
pub use presets::{Pair, Preset, Reported};
pub use splits::PaperSplits;
