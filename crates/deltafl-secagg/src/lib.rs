//! Secure aggregation without I/O: the server learns the sum of the devices' vectors and nothing else.

pub mod field;
pub mod mask;
pub mod ring;
pub mod shamir;
