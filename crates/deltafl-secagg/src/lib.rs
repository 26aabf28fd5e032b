//! Secure aggregation without I/O: the server learns the sum of the devices' vectors and nothing else.

pub mod device;
pub mod encoding;
pub mod field;
pub mod graph;
pub mod identity;
mod keys;
pub mod mask;
pub mod message;
pub mod params;
pub mod ring;
pub mod server;
pub mod shamir;
pub mod simulate;
pub mod transcript;
