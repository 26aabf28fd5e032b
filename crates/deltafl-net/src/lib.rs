//! The deployed federation: a server that learns sums, and devices that keep their data.
//!
//! The round loop stays [`deltafl::training::train`]; this crate is one more [`Engine`](deltafl::engine::Engine), whose
//! devices are at the other end of a connection that they opened.

pub mod identity;
pub mod store;
