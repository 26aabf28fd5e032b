//! The algorithms of the paper.

pub mod alternating;
