//! The paper's experiments: presets, their data, an estimate of their time, and their results beside the paper's.

mod beside;
mod data;
pub mod estimate;
mod presets;

pub use beside::PaperComparison;
pub use data::{MissingData, find_federation};
pub use presets::{Pair, Preset, Reported};
